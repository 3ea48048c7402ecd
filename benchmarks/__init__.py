"""Benchmarks of tailrace and other clients, run by ``scripts/bench``.

Clients take turns on one broker and one machine, so only ratios within one run of a benchmark are meaningful. A
*promise* is a bound of such a ratio, such as at least 3 times aiokafka; a benchmark fails if a promise does not hold.
"""
