"""Due times of records of retry topics, and records that wait until they are due."""

from __future__ import annotations

import pytest

from tailrace.app.failures.delayed_records import DelayedRecords, wait_ms
from tailrace.core.progress import Lease, Progress
from tailrace.records import TopicPartition
from tests.support.simulation.records import records_at

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def put(shelf: DelayedRecords, partition: TopicPartition, *due: tuple[int, float]) -> Lease:
    """Add records with given offsets and due times."""
    records = records_at([offset for offset, _ in due], partition)
    lease = Progress(partition, 0).deliver(records, records[-1].offset + 1)
    shelf.put(lease, [at for _, at in due])
    return lease


def offsets(lease: Lease | None) -> list[int]:
    return [] if lease is None else [one.offset for one in lease.rest]


# ---- due times ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due_at_ms", "written_at_ms", "now_ms", "left_ms"),
    [
        (10_000, 5_000, 6_000, 4_000),
        (10_000, 5_000, 10_000, 0),
        (10_000, 5_000, 99_000, 0),
        # no due time: by the record's timestamp
        (None, 5_000, 6_000, 4_000),
        # the writer's clock is ahead of this one; the times are rounded
        (10_000_000, 9_995_000, 6_000, 5_001),
        # this clock is ahead of the writer's
        (10_000, 5_000, 60_000, 0),
    ],
)
def test_wait_is_until_the_due_time(due_at_ms, written_at_ms, now_ms, left_ms):
    """A record waits until its due time, for the topic's delay at most, whatever the clocks show."""
    assert wait_ms(due_at_ms, written_at_ms=written_at_ms, delay_ms=5_000, now_ms=now_ms) == left_ms


# ---- waiting records -----------------------------------------------------------------------------------------------


def test_records_leave_when_due():
    """Due records are returned in order of their offsets, and next_at() returns the next due time."""
    shelf = DelayedRecords()
    lease = put(shelf, T0, (3, 1.0), (4, 2.0), (7, 2.0), (8, 5.0))

    assert (shelf.due_partitions(0.5), shelf.next_at(0.5)) == ([], 1.0)
    assert shelf.due_partitions(2.0) == [T0]
    assert offsets(shelf.take(T0, 2.0, 10)) == [3, 4, 7]
    assert (shelf.due_partitions(2.0), shelf.next_at(2.0), lease.lowest) == ([], 5.0, 8)


def test_a_record_that_is_not_due_delays_only_its_partition():
    """A record that is not due delays later records of its partition, even due ones, and no others."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 9.0), (1, 1.0))
    put(shelf, T1, (0, 1.0))

    assert shelf.due_partitions(1.0) == [T1]
    assert (shelf.take(T0, 1.0, 10), offsets(shelf.take(T1, 1.0, 10))) == (None, [0])
    assert offsets(shelf.take(T0, 9.0, 10)) == [0, 1]


def test_due_record_without_room_sets_no_timer():
    """A due record for which there is no room sets no timer, so that the event loop does not spin."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 1.0), (1, 1.0))

    assert offsets(shelf.take(T0, 2.0, 1)) == [0]
    assert shelf.take(T0, 2.0, 0) is None
    assert shelf.next_at(2.0) is None
    assert T0 in shelf


def test_partition_is_removed_with_its_last_record():
    """A partition is removed when its last delayed record is returned."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 1.0))

    shelf.take(T0, 1.0, 1)
    assert T0 not in shelf
    assert len(shelf) == 0


def test_delayed_records_are_unfinished():
    """Delayed records are unfinished, so that no commit passes them."""
    shelf = DelayedRecords()
    lease = put(shelf, T0, (5, 1.0), (6, 1.0))

    assert lease.progress.finished == 5
    assert (shelf.drop(T0), shelf.drop(T0)) == (lease, None)
