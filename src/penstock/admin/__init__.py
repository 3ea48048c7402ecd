"""What tools ask of brokers, and a consumer does not: topics made and unmade, groups removed.

Look in ``topics`` and ``groups``; each function takes a ``Cluster`` and is through when every step is.
"""
