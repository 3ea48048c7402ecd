"""Implementation of the commands about groups, offsets, records and Spark, and modules that commands share.

``exporter``, ``groups``, ``lag``, ``offsets``, ``spark`` and ``tail`` implement the command of the same name with a
function ``work(options)``. The arguments and the help of the command are in the module of the same name in
``tailrace.cli``, which imports the implementation only when the command runs.
"""
