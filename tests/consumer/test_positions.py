"""Positions of assigned partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.offset_map import OffsetMap
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.records import TopicPartition
from tests.support.simulation.records import records_at

ONE, TWO, THREE = (TopicPartition("t", n) for n in range(3))


@pytest.fixture
def position():
    """Newly assigned position."""
    return Partition(ONE, epoch=5)


def test_new_position_is_unknown(position):
    """A new position has no offsets, and nothing to commit."""
    assert (position.fetched, position.delivered, position.finished, position.committed) == (None, None, None, None)
    assert not position.has_in_flight
    assert not position.is_commit_due


def test_start_offset_sets_all_offsets(position):
    """A start offset begins a new epoch, and sets the fetched, delivered and finished offsets."""
    position.reset("latest", 3)
    position.back_off(100.0)

    position.begin(7, leader_epoch=2)

    assert (position.fetched, position.delivered, position.finished) == (7, 7, 7)
    assert (position.last_fetched_epoch, position.delivered_epoch) == (2, 2)
    assert (position.reset_to, position.reset_from) == (None, None)
    assert (position.failures, position.retry_at) == (0, 0.0)
    assert position.epoch == 7
    assert not position.has_in_flight


def test_start_offset_is_committed(position):
    """A start offset is committed, so that records written to an empty partition later are not skipped by `latest`."""
    position.begin(7)
    assert position.is_commit_due

    position.note_committed(7)
    assert not position.is_commit_due


@pytest.mark.parametrize(("chosen", "start"), [(4, 10), (4, 0), (10, 10)])
def test_a_commit_of_the_user_replaces_the_start_offset(position, chosen, start):
    """If the user commits before the start offset is known, the start offset is not committed."""
    position.reset(StartPoint(StartFrom.LATEST), None)
    position.note_chosen(chosen, "", None, None)
    position.resolve(start)

    assert not position.is_commit_due
    position.skip(max(start, chosen) + 1, -1)
    assert position.is_commit_due


def test_a_commit_of_the_user_before_the_first_start_stays(position):
    """If the user commits before the committed offset was read, the start of reading is not committed."""
    position.note_chosen(4, "", None, None)
    position.begin(7)

    assert not position.is_commit_due


def test_a_commit_of_the_user_below_finished_records_stays(position):
    """After a commit of the user below finished records, an automatic commit is due with the next finished record."""
    position.begin(7)
    position.skip(9, -1)
    position.note_chosen(4, "", None, 9)

    assert not position.is_commit_due
    assert position.is_uncommitted
    position.skip(10, -1)
    assert position.is_commit_due


def test_a_seek_is_committed_over_a_commit_of_the_user(position):
    """After a seek, a commit is due, whatever the user has committed before."""
    position.begin(7)
    position.note_chosen(4, "", None, 7)
    position.move()
    position.begin(4)

    assert position.is_commit_due


@pytest.mark.parametrize(("before", "start", "is_due"), [(2, 6, False), (2, 10, False), (50, 20, True), (50, 0, True)])
def test_a_commit_of_the_user_stays_if_records_were_deleted(position, before, start, is_due):
    """After a reset, the start is committed over the user's commit only if the log's end was lost."""
    position.begin(before)
    position.note_chosen(8, "", None, before)
    position.reset(StartPoint(StartFrom.LATEST), before)
    position.resolve(start)

    assert position.is_commit_due is is_due


def test_delivered_record_is_in_flight(position):
    """A delivered record is in flight, and only finished offsets are committed."""
    position.begin(7)
    position.note_committed(7)
    (lease := position.deliver(records_at([7, 8]), 9)).take(2)

    assert position.has_in_flight
    assert not position.is_commit_due
    lease.finish()
    assert not position.has_in_flight
    assert position.is_commit_due


def test_reset_ends_the_epoch(position):
    """After a reset, until the start is known, there is no position, no record in flight and nothing to commit."""
    position.begin(7)
    position.preferred_read_replica = 3
    position.deliver(records_at([7, 8]), 9)

    position.reset("earliest", 9)

    assert (position.fetched, position.delivered, position.finished) == (None, None, None)
    assert (position.reset_to, position.reset_from) == ("earliest", 9)
    assert position.preferred_read_replica is None
    assert not position.has_in_flight
    assert not position.is_commit_due


def test_refused_reset_waits_for_a_seek(position):
    """A partition without a valid reset policy waits until a seek or another reset."""
    position.reset("none", 9)

    position.refuse()

    assert (position.is_refused, position.reset_to, position.reset_from) == (True, None, 9)
    position.reset("earliest", 9)
    assert not position.is_refused
    position.refuse()
    position.begin(7)
    assert not position.is_refused


def test_each_epoch_has_its_own_progress(position):
    """Each epoch has its own progress and offset map, and a new one ends the previous progress."""
    position.begin(7, known=OffsetMap(7, 9, (7,)))
    before = position.progress
    assert position.offset_map == OffsetMap(7, 9, (7,))

    position.begin(7)
    assert position.progress is not before
    assert before.is_over
    assert position.offset_map is None
    position.reset("latest", 7)
    assert (position.progress, position.offset_map) == (None, None)


def test_offsets_without_records_are_skipped(position):
    """Skipped offsets are finished if no record before them is in flight, and positions never move backwards."""
    position.skip(9, 1)
    assert position.delivered is None
    position.begin(7)
    position.skip(9, 1)
    assert (position.finished, position.delivered, position.delivered_epoch) == (9, 9, 1)

    position.deliver(records_at([9]), 10, 1).take(1)
    position.skip(12, 2)
    position.skip(3, 2)

    assert position.has_in_flight
    assert (position.finished, position.delivered) == (9, 12)


def test_failures_in_a_row_are_counted(position):
    """Failures in a row are counted, and the last one sets the time of the next attempt."""
    position.back_off(10.0)
    position.back_off(12.0)

    assert (position.failures, position.retry_at) == (2, 12.0)


# ---- positions -------------------------------------------------------------------------------------------------


def test_adding_an_assigned_partition_changes_nothing():
    """Adding an assigned partition keeps its position, and removing an unknown partition is no error."""
    positions = AssignedPartitions()
    (one,) = positions.add([ONE])
    one.begin(7)

    (two,) = positions.add([ONE, TWO])
    positions.remove([THREE])

    assert positions.topic_partitions == {ONE, TWO}
    assert positions.get(ONE) is one
    assert (one.delivered, two.delivered) == (7, None)
    assert positions.of([THREE, TWO, ONE]) == [two, one]
    assert (len(positions), list(positions), TWO in positions, THREE in positions) == (2, [one, two], True, False)


def test_removed_partition_is_forgotten():
    """A partition that is removed and assigned again starts with an empty position."""
    positions = AssignedPartitions()
    (before,) = positions.add([ONE])
    before.begin(7)

    positions.remove([ONE])
    assert positions.get(ONE) is None
    (after,) = positions.add([ONE])

    assert after is not before
    assert after.delivered is None


@given(st.lists(st.sampled_from(["add", "remove", "begin", "reset"]), max_size=30))
def test_epochs_are_unique(steps):
    """Each assignment, seek and reset of a partition begins an epoch with a new number."""
    positions, seen = AssignedPartitions(), set()

    for step in steps:
        position = positions.get(ONE)
        match step:
            case "add":
                positions.add([ONE])
            case "remove":
                positions.remove([ONE])
            case "begin" if position is not None:
                position.begin(1)
            case "reset" if position is not None:
                position.reset("latest", None)
            case _:
                continue
        now = positions.get(ONE)
        if now is not None and (now is not position or step in {"begin", "reset"}):
            assert now.epoch not in seen
            seen.add(now.epoch)
