"""The coroutines that act.

Look in ``consumer`` for what users call, in ``supervisor`` for the life of it all, in ``coordinator`` for the group,
in ``ownership`` for partitions that come and go, in ``fetcher`` and ``reader`` for the way of a record, in
``committer`` for offsets, in ``offsets`` for what is asked about them, in ``picture`` for the cluster's topics.
"""
