"""Failure counts: kept over aborted transactions, forgotten when records are committed."""

from __future__ import annotations

from tailrace import TopicPartition
from tailrace.core.failures.failure_counts import FailureCount, FailureCounts

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_failures_and_outages_are_counted_separately():
    """An outage uses up no attempt; both lengthen the pauses."""
    setbacks = FailureCounts()
    setbacks.failed(HERE, 7, is_outage=True)
    setbacks.failed(HERE, 7, is_outage=False)
    found = setbacks.failed(HERE, 7, is_outage=True)

    assert found == FailureCount(failures=1, outages=2)
    assert found.all == 3
    assert setbacks.failed(HERE, 8, is_outage=False) == setbacks.failed(THERE, 7, is_outage=False) == FailureCount(1, 0)


def test_commit_forgets_the_records_before_it():
    """Only failed, unfinished records are remembered."""
    setbacks = FailureCounts()
    for partition, offset in ((HERE, 7), (HERE, 9), (THERE, 7)):
        setbacks.failed(partition, offset, is_outage=False)
        setbacks.close(partition, offset, ValueError("poison"))
    setbacks.committed({HERE: 8, TopicPartition("u", 0): 3})

    assert len(setbacks) == 2
    assert setbacks.final_error(HERE, 7) is None
    assert str(setbacks.final_error(HERE, 9)) == str(setbacks.final_error(THERE, 7)) == "poison"
    setbacks.committed({HERE: 10})
    setbacks.forget(THERE)
    assert len(setbacks) == 0
    assert setbacks.final_error(HERE, 9) is setbacks.final_error(THERE, 7) is None


def test_revoked_partition_is_forgotten():
    """Another member counts its failures."""
    setbacks = FailureCounts()
    setbacks.failed(HERE, 7, is_outage=False)
    setbacks.forget(HERE)
    setbacks.forget(HERE)

    assert setbacks.failed(HERE, 7, is_outage=False) == FailureCount(1, 0)
