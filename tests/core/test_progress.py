"""Progress of a partition whose records start and finish in any order."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.offset_map import OffsetMap
from tailrace.core.progress import Lease, Progress
from tailrace.records import TopicPartition
from tests.support.simulation.cpu_time import cpu_time
from tests.support.simulation.records import records_at

ONE = TopicPartition("t", 0)


@pytest.fixture
def progress() -> Progress:
    """Progress of a partition read from offset 10 on."""
    return Progress(ONE, 10)


def delivered(progress: Progress, *offsets: int, end: int | None = None) -> Lease:
    """Deliver records at these offsets."""
    return progress.deliver(records_at(offsets, ONE), offsets[-1] + 1 if end is None else end)


def take(lease: Lease, count: int) -> None:
    """Take ``count`` records one by one, as a polling loop does; the last one is in flight."""
    assert len(list(islice(lease.left, count))) == count


def handle(lease: Lease, count: int) -> None:
    """Take and finish ``count`` records, as a worker does whose handler does not suspend."""
    take(lease, count)
    lease.finish()


def start(lease: Lease, count: int) -> None:
    """Start ``count`` records whose handlers suspend."""
    for record in islice(lease.left, count):
        lease.start(record)
    lease.finish()


def test_offsets_before_the_first_record_are_finished(progress):
    """Offsets before the first record are finished, and may be committed."""
    assert (progress.finished, progress.delivered, progress.next_offset, progress.started) == (10, 10, 10, 0)
    assert progress.offset_map() is None
    assert not progress.has_in_flight


def test_records_that_were_not_taken_are_unfinished(progress):
    """Delivered records are unfinished until they are finished, even if none is in flight."""
    lease = delivered(progress, 10, 11, 14, end=20)

    assert (progress.finished, progress.delivered, progress.next_offset) == (10, 20, 10)
    handle(lease, 2)
    assert (progress.finished, progress.next_offset, lease.lowest) == (14, 14, 14)
    handle(lease, 1)
    assert (progress.finished, progress.next_offset, lease.lowest) == (20, 20, None)
    assert progress.offset_map() is None


def test_commit_waits_for_the_lowest_record_in_flight(progress):
    """The finished offset waits for the lowest record in flight, while later records finish in any order."""
    start(delivered(progress, 10, 11, 12), 3)

    assert progress.has_in_flight
    assert progress.finish(12)
    assert progress.finish(11)
    assert (progress.finished, progress.started) == (10, 1)
    assert progress.finish(10)
    assert (progress.finished, progress.started, progress.has_in_flight) == (13, 0, False)


def test_only_a_record_in_flight_can_be_finished(progress):
    """finish() returns False for a record that is finished already, was not delivered, or is before the position."""
    start(delivered(progress, 10, 11), 2)

    assert progress.finish(11)
    assert not progress.finish(11)
    assert not progress.finish(12)
    assert not progress.finish(9)
    assert progress.finished == 10


def test_commit_waits_for_the_slowest_of_several_handlers(progress):
    """If several handlers share the records of a partition, the finished offset waits for the slowest one."""
    whole = delivered(progress, 10, 11, 12, 13, end=15)
    records = whole.records
    behind, ahead = whole.split([[records[0], records[3]], records[1:3]])
    start(ahead, 2)
    handle(behind, 1)

    progress.finish(12)
    assert (progress.finished, progress.offset_map()) == (11, OffsetMap(11, 15, (11, 13)))
    progress.finish(11)
    assert (progress.finished, progress.offset_map()) == (13, OffsetMap(13, 15, (13,)))
    handle(behind, 1)
    assert (progress.finished, progress.offset_map()) == (15, None)


def test_records_without_a_handler_are_finished(progress):
    """Records that are shared among no handlers are finished."""
    lease = delivered(progress, 10, 11, end=14)
    assert lease.split([]) == []

    assert (progress.finished, progress.has_in_flight) == (14, False)


def test_split_records_are_started_separately(progress):
    """When delivered records are split, the first part may finish while the rest waits."""
    whole = delivered(progress, 10, 11, 12, end=20)
    (part,) = whole.split([whole.records[:2]], whole.records[2:])

    assert (part.lowest, part.end, whole.lowest) == (10, 12, 12)
    handle(part, 2)
    assert progress.finished == 12
    (rest,) = whole.split([whole.records])
    handle(rest, 1)
    assert (rest.end, progress.finished) == (20, 20)


def test_record_taken_last_is_in_flight(progress):
    """The record that a polling loop has taken last is in flight until the loop takes the next one."""
    lease = delivered(progress, 10, 12, end=15)
    assert not progress.has_in_flight

    take(lease, 1)
    assert (progress.finished, lease.count_in_flight, progress.has_in_flight) == (10, 1, True)
    take(lease, 1)
    assert (progress.finished, progress.offset_map()) == (12, None)
    lease.finish()
    assert (progress.finished, progress.has_in_flight) == (15, False)


def test_batch_is_in_flight_as_a_whole(progress):
    """A batch is in flight until it is finished as a whole, or up to an acknowledged record."""
    lease = delivered(progress, 10, 11, 12, 13)
    batch = lease.take(3)

    assert (progress.finished, lease.count_in_flight) == (10, 3)
    assert lease.finish(batch[0])
    assert (progress.finished, lease.count_in_flight) == (11, 2)
    assert lease.finish(batch[2])
    assert (progress.finished, lease.count_in_flight) == (13, 0)
    assert not lease.finish(batch[2])
    lease.take(1)
    lease.finish()
    assert progress.finished == 14


def test_records_of_a_batch_may_stay_in_flight(progress):
    """Records of a batch that stay in flight, or are left to the next owner, are unfinished in the offset map."""
    lease = delivered(progress, 10, 11, 12, 13, 14)
    lease.take()
    assert (progress.finished, progress.offset_map()) == (10, None)

    lease.start()
    lease.finish()
    for offset in (10, 13, 14):
        progress.finish(offset)
    assert (progress.finished, progress.offset_map()) == (11, OffsetMap(11, 15, (11, 12)))
    progress.finish(11)
    assert (progress.finished, progress.offset_map()) == (12, OffsetMap(12, 15, (12,)))
    progress.abandon(12)
    assert (progress.finished, progress.offset_map(), progress.has_in_flight) == (12, OffsetMap(12, 15, (12,)), False)


def test_batches_may_finish_in_any_order(progress):
    """A batch that finishes before an earlier one is in the offset map."""
    whole = delivered(progress, 10, 11, 12, 13, 14)
    records = whole.records
    (first,) = whole.split([records[1:3]], [records[0], *records[3:]])
    first.take()
    (second,) = whole.split([[records[0]]], records[3:])
    second.take()

    first.finish()
    assert (progress.finished, progress.offset_map()) == (10, OffsetMap(10, 13, (10,)))
    second.finish()
    assert (progress.finished, progress.offset_map(), whole.lowest) == (13, None, 13)


def test_records_in_another_process_are_finished_by_its_reports(progress):
    """Records in another process are finished up to the offset that the process reports."""
    for lease in (delivered(progress, 10, 11), delivered(progress, 12, 13, end=20), delivered(progress, 20, 21)):
        progress.move_to_process(lease)

    assert (progress.finished, progress.has_in_flight) == (10, True)
    progress.finish_through(13)
    assert progress.finished == 13
    progress.cut(13)
    assert (progress.finished, progress.delivered, progress.has_in_flight) == (13, 13, False)
    progress.finish_through(22)
    assert progress.finished == 13


def test_records_given_back_are_delivered_again(progress):
    """The finished offset stops before records that were given back, which are delivered again."""
    lease = delivered(progress, 10, 11, 14, end=20)
    handle(lease, 1)

    assert [record.offset for record in lease.give_back()] == [11, 14]
    assert (progress.finished, progress.delivered, progress.next_offset) == (11, 11, 11)
    again = delivered(progress, 11, 14, end=20)
    handle(again, 2)
    assert progress.finished == 20


def test_commit_does_not_pass_abandoned_records(progress):
    """The finished offset stops before an abandoned record; the offset map has the records finished after it."""
    start(delivered(progress, 10, 11, 12), 3)
    progress.abandon(11)

    assert progress.started == 2
    assert not progress.finish(11)
    progress.finish(10)
    progress.finish(12)
    assert (progress.finished, progress.next_offset, progress.started) == (11, 11, 0)
    assert progress.offset_map() == OffsetMap(11, 13, (11,))
    assert not progress.has_in_flight


def test_unstarted_records_can_be_abandoned(progress):
    """Unstarted records that are abandoned are unfinished in the finished offset and the offset map."""
    lease = delivered(progress, 10, 11, 12, 14, end=16)
    start(lease, 1)
    lease.abandon()
    progress.finish(10)

    assert (progress.finished, progress.next_offset, progress.has_in_flight) == (11, 11, False)
    assert progress.offset_map() == OffsetMap(11, 16, (11, 12, 14))


def test_commit_passes_offsets_without_records(progress):
    """The finished offset passes gaps, which compaction, control records and aborted transactions leave."""
    lease = delivered(progress, 14, 20, end=30)
    start(lease, 2)
    progress.skip(35)
    progress.skip(31)

    assert progress.finished == 14
    progress.finish(14)
    assert progress.finished == 20
    progress.finish(20)
    assert (progress.finished, progress.delivered) == (35, 35)


def test_held_records_are_in_flight_until_released(progress):
    """Records that a transaction holds are in flight until it releases them, and it may finish some of them."""
    progress.hold()
    assert not progress.has_in_flight
    handle(delivered(progress, 10, 11), 2)

    assert (progress.finished, progress.lowest, progress.has_in_flight) == (10, 12, True)
    progress.hold()
    assert progress.finished == 10
    progress.hold(11)
    assert progress.finished == 11
    progress.release()
    assert (progress.finished, progress.has_in_flight) == (12, False)


def test_map_has_the_offsets_finished_after_the_commit(progress):
    """The offset map reaches up to the highest finished record, and is None if no later record is finished."""
    start(delivered(progress, 10, 11, 12, 13, 14), 5)
    assert progress.offset_map() is None

    progress.finish(11)
    progress.finish(13)

    assert progress.offset_map() == OffsetMap(10, 14, (10, 12))
    progress.finish(10)
    assert progress.offset_map() == OffsetMap(12, 14, (12,))
    progress.finish(12)
    assert (progress.finished, progress.offset_map()) == (14, None)


def test_map_of_an_earlier_owner_is_kept():
    """The offset map of an earlier owner is kept until its offsets are passed, in case the partition moves again."""
    progress = Progress(ONE, 10, OffsetMap(10, 20, (10, 12, 15)))
    assert progress.offset_map() == OffsetMap(10, 20, (10, 12, 15))

    start(delivered(progress, 10, 12), 2)
    progress.finish(10)
    assert progress.offset_map() == OffsetMap(12, 20, (12, 15))

    progress.finish(12)
    assert (progress.finished, progress.offset_map()) == (13, OffsetMap(13, 20, (15,)))
    assert progress.known is not None
    start(delivered(progress, 20), 1)
    assert progress.known is None
    assert (progress.finished, progress.offset_map()) == (20, None)


def test_a_map_begins_at_the_offset_that_is_committed_with_it():
    """The map begins at the committed offset, even if an earlier owner has finished the records before it."""
    progress = Progress(ONE, 0, OffsetMap(0, 10, (0, 7), leader_epoch=3))
    handle(delivered(progress, 0, end=5), 1)
    delivered(progress, 7, end=8)

    assert (progress.finished, progress.offset_map(leader_epoch=2)) == (7, OffsetMap(7, 10, (7,), leader_epoch=3))


@pytest.mark.parametrize("way", ["polled", "other process"])
def test_the_map_of_an_earlier_owner_is_kept_while_records_below_its_limit_are_in_flight(way):
    """Records that an earlier owner has finished stay in the map after the position has passed them."""
    progress = Progress(ONE, 0, OffsetMap(0, 10, (0,)))
    lease = delivered(progress, 0)
    if way == "polled":
        lease.take(1)
    else:
        progress.move_to_process(lease)
    progress.skip(10)

    assert (progress.finished, progress.offset_map()) == (0, OffsetMap(0, 10, (0,)))
    if way == "polled":
        lease.finish()
    else:
        progress.finish_through(1)
    assert (progress.finished, progress.offset_map(), progress.known) == (10, None, None)


def test_the_map_is_bound_to_the_latest_epoch_of_its_records():
    """The leader epoch of a map is that of its last record, whichever owner has finished it."""
    progress = Progress(ONE, 0, OffsetMap(0, 10, (0,), leader_epoch=5))
    lease = delivered(progress, 0)
    lease.take(1)
    assert progress.offset_map(leader_epoch=4).leader_epoch == 5

    progress.skip(10)
    start(delivered(progress, 10, 11), 2)
    progress.finish(11)

    assert progress.offset_map(leader_epoch=6) == OffsetMap(0, 12, (0, 10), leader_epoch=6)


def test_repr_shows_the_offsets(progress):
    lease = delivered(progress, 12)
    assert repr(lease) == "<Lease t[0] lowest=12 end=13>"
    start(lease, 1)

    assert repr(progress) == "<Progress finished=12 delivered=13 started=1>"


@pytest.mark.parametrize("order", ["first to last", "last to first", "any"])
def test_finished_is_cheap_with_many_records_in_flight(order):
    """The finished offset is computed quickly after each of ten thousand records, in any order."""
    offsets = list(range(10_000))
    progress = Progress(ONE, 0)
    start(delivered(progress, *offsets), 10_000)
    if order == "any":
        random.Random(5).shuffle(offsets)

    with cpu_time() as so_far:
        for offset in offsets if order != "last to first" else reversed(offsets):
            progress.finish(offset)
            assert progress.finished <= 10_000
        took_s = so_far()

    assert progress.finished == 10_000
    assert took_s < 1


def test_memory_is_bounded_while_records_are_stuck():
    """Memory is bounded by the number of records in flight, and not by that of records finished after them."""
    stuck = [1_009 * number for number in range(20)]
    progress = Progress(ONE, 0)
    for first in range(0, stuck[-1] + 1, 500):
        offsets = range(first, min(first + 500, stuck[-1] + 1))
        start(delivered(progress, *offsets), 500)
        for offset in offsets:
            if offset not in stuck:
                progress.finish(offset)

    assert progress.started == 20
    assert len(progress._offsets._heap) < 3_000
    assert not progress._leases
    for offset in stuck:
        assert progress.finished == offset
        progress.finish(offset)
    assert progress.finished == stuck[-1] + 1


@given(st.lists(st.integers(0, 40), min_size=1, unique=True))
def test_records_may_start_in_any_order(offsets):
    """Records may start in any order, since several handlers may share the records of a partition."""
    progress = Progress(ONE, 0)
    handle(delivered(progress, *sorted(offsets)), len(offsets))
    for offset in offsets:
        progress.start(offset)
    for finished in sorted(offsets):
        assert progress.finished == finished
        progress.finish(finished)

    assert progress.finished == progress.delivered == max(offsets) + 1
