"""Decisions of ``tailrace doctor``: from facts about a cluster, its topics and groups to findings."""
