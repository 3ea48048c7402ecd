"""Failure counts are kept when a transaction is aborted, and removed when the records are committed."""

from __future__ import annotations

from tailrace import TopicPartition
from tailrace.app.policies import FailureCount, FailureCounts

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_failures_and_outages_are_counted_separately():
    """An outage is counted apart from failures, and both count for the total."""
    counts = FailureCounts()
    counts.count_failure(HERE, 7, is_outage=True)
    counts.count_failure(HERE, 7, is_outage=False)
    found = counts.count_failure(HERE, 7, is_outage=True)

    assert found == FailureCount(failures=1, outages=2)
    assert found.total == 3
    assert (
        counts.count_failure(HERE, 8, is_outage=False)
        == counts.count_failure(THERE, 7, is_outage=False)
        == FailureCount(1, 0)
    )


def test_a_commit_removes_the_counts_of_earlier_records():
    """A commit removes the counts and errors of the records before its offset."""
    counts = FailureCounts()
    for partition, offset in ((HERE, 7), (HERE, 9), (THERE, 7)):
        counts.count_failure(partition, offset, is_outage=False)
        counts.set_final_error(partition, offset, ValueError("poison"))
    counts.forget_committed({HERE: 8, TopicPartition("u", 0): 3})

    assert len(counts) == 2
    assert counts.final_error(HERE, 7) is None
    assert str(counts.final_error(HERE, 9)) == str(counts.final_error(THERE, 7)) == "poison"
    counts.forget_committed({HERE: 10})
    counts.forget(THERE)
    assert len(counts) == 0
    assert counts.final_error(HERE, 9) is counts.final_error(THERE, 7) is None


def test_counts_of_a_revoked_partition_are_removed():
    """The counts of a revoked partition are removed, and start at zero when it is assigned again."""
    counts = FailureCounts()
    counts.count_failure(HERE, 7, is_outage=False)
    counts.forget(HERE)
    counts.forget(HERE)

    assert counts.count_failure(HERE, 7, is_outage=False) == FailureCount(1, 0)
