"""How often records have failed: counted on while their transactions are taken back, forgotten when they are done."""

from __future__ import annotations

from tailrace import TopicPartition
from tailrace.core.failures.failure_counts import FailureCount, FailureCounts

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_failures_and_outages_are_counted_apart():
    """What says nothing of the record uses up none of its attempts, and makes the pauses longer by itself."""
    setbacks = FailureCounts()
    setbacks.failed(HERE, 7, is_outage=True)
    setbacks.failed(HERE, 7, is_outage=False)
    found = setbacks.failed(HERE, 7, is_outage=True)

    assert found == FailureCount(failures=1, outages=2)
    assert found.all == 3
    assert setbacks.failed(HERE, 8, is_outage=False) == setbacks.failed(THERE, 7, is_outage=False) == FailureCount(1, 0)


def test_what_is_committed_is_forgotten_and_what_is_behind_it_is_not():
    """So no more is remembered than has failed and is not done with."""
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


def test_a_partition_that_comes_back_begins_anew():
    """Its records were another's meanwhile, who counts for itself."""
    setbacks = FailureCounts()
    setbacks.failed(HERE, 7, is_outage=False)
    setbacks.forget(HERE)
    setbacks.forget(HERE)

    assert setbacks.failed(HERE, 7, is_outage=False) == FailureCount(1, 0)
