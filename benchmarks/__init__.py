"""Benchmarks against other clients, run by ``scripts/bench``.

Clients take turns on one broker and one machine; only ratios within a run are meaningful.
"""
