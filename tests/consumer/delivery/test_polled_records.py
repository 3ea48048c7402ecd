"""Records in flight of a loop that polls a consumer."""

from __future__ import annotations

from tailrace.consumer.delivery.polled_records import PolledRecords
from tailrace.core.progress import Progress
from tailrace.records import Record, TopicPartition

PARTITION = TopicPartition("orders", 0)


def records(start, end):
    return [Record(*PARTITION, offset, None, b"", 0) for offset in range(start, end)]


def test_acknowledged_records_of_a_poll_are_released():
    """With ack="manual", the records of a poll are released after they were acknowledged."""
    progress, polled = Progress(PARTITION, 0), PolledRecords()
    polled.finish()
    for start in range(0, 50, 10):
        lease = progress.deliver(records(start, start + 10), start + 10)
        lease.start()
        polled.begin(lease)
        polled.take(10)

    for offset in range(50):
        progress.finish(offset)
    polled.finish()

    assert progress.finished == 50
    assert not progress._leases
