"""Records of retry topics that wait for a later transaction."""

from __future__ import annotations

from tailrace import Record, TopicPartition
from tailrace.app.topics.names import RetryTopic
from tailrace.app.transactions.deferred_records import DeferredRecords

RETRIES = TopicPartition("t.retry", 0)


def test_the_wait_for_a_delayed_retry_counts_from_its_first_reading():
    """A record that is read again after an aborted transaction is due as before, whatever the wall clock says."""
    clock_s = 60.0
    deferred = DeferredRecords({RETRIES.topic: RetryTopic("t", 1_000)}, lambda: clock_s)
    records = [Record(*RETRIES, offset, None, b"", 60_000) for offset in range(3)]
    deferred.note_read(records[:2], 10.0)
    clock_s = 0.0
    deferred.note_read(records, 10.5)

    assert deferred.first_of(records, 3, 10.9) == []
    assert deferred.next_due_at(10.9, {}, records[:1]) == 11.0
    assert deferred.first_of(records, 3, 11.0) == records[:2]
    assert deferred.next_due_at(11.0, {}, records[2:]) == 11.5

    deferred.forget_committed({RETRIES: 2})
    deferred.note_read(records, 20.0)
    assert deferred.first_of(records[2:], 3, 20.0) == records[2:]
    assert deferred.first_of(records, 3, 20.0) == []
    deferred.forget(RETRIES)
    assert deferred.first_of(records, 3, 20.0) == records
