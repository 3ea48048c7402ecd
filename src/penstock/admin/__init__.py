"""What tools ask of brokers, and a consumer does not: topics, groups, what groups have committed and how far behind.

Look in ``topics``, ``groups``, ``offsets``, ``lag`` and ``resets``; each function takes a ``Cluster`` and is through
when every step is. ``plans`` decides what a reset does, without asking anybody.
"""
