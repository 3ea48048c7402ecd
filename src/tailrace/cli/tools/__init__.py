"""Implementation of the commands about groups, offsets, records and Spark.

``connection``, ``times``, ``filters`` and ``tables`` are shared; other modules implement one command each. Arguments
and help of a command are in the module of the same name in ``tailrace.cli``, which imports the implementation when the
command runs.
"""
