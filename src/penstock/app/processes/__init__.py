"""Several processes: an app in each of them (``pool``), or readers whose records come to one (``consumer``).

A process that is kept running is ``kept``'s; the two ends of what joins it to its parent are ``child`` and ``parent``.
"""
