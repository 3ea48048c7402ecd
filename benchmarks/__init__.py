"""Speed beside other clients: one run, one broker, one machine, in turns; only ratios within a run mean anything.

Look in ``clients`` for how each client reads, in ``consume`` for how they are compared, in ``report`` for what is
shown. ``scripts/bench consume`` runs it.
"""
