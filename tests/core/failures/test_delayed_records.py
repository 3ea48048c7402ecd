"""Records of retry topics wait until they are due, each partition in its order, and no clock can hold one for ever."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.delivery.progress import Lease, Progress
from tailrace.core.failures.delayed_records import DelayedRecords, delay_name, hop_of, wait_ms
from tailrace.records import TopicPartition
from tests.support.simulation.records import records_at

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def put(shelf: DelayedRecords, partition: TopicPartition, *due: tuple[int, float]) -> Lease:
    """Offsets and when each is due."""
    records = records_at([offset for offset, _ in due], partition)
    lease = Progress(partition, 0).deliver(records, records[-1].offset + 1)
    shelf.put(lease, [at for _, at in due])
    return lease


def offsets(lease: Lease | None) -> list[int]:
    return [] if lease is None else [one.offset for one in lease.rest]


# ---- how long ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay_ms", "name"),
    [
        (5_000, "5s"),
        (60_000, "1m"),
        (600_000, "10m"),
        (7_200_000, "2h"),
        (90_000, "90s"),
        (1_500, "1500ms"),
        (1, "1ms"),
    ],
)
def test_a_delay_has_a_name(delay_ms, name):
    """In the largest unit that leaves no rest."""
    assert delay_name(delay_ms) == name


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_no_two_delays_share_a_name(one, other):
    """So no two retry topics are one, and each name is one a topic may have."""
    assert (delay_name(one) == delay_name(other)) is (one == other)
    assert re.fullmatch(r"[0-9]+(ms|s|m|h)", delay_name(one))


@pytest.mark.parametrize(
    ("due_at_ms", "written_at_ms", "now_ms", "left_ms"),
    [
        (10_000, 5_000, 6_000, 4_000),
        (10_000, 5_000, 10_000, 0),
        (10_000, 5_000, 99_000, 0),
        # nobody says when: by the record's own time
        (None, 5_000, 6_000, 4_000),
        # the writer's clock is ahead of ours
        (10_000_000, 9_995_000, 6_000, 5_000),
        # ours is ahead of the writer's
        (10_000, 5_000, 60_000, 0),
    ],
)
def test_a_record_waits_until_it_is_due(due_at_ms, written_at_ms, now_ms, left_ms):
    """As whoever wrote it said; and no longer than the topic's delay, whatever clocks say."""
    assert wait_ms(due_at_ms, written_at_ms=written_at_ms, delay_ms=5_000, now_ms=now_ms) == left_ms


@pytest.mark.parametrize(
    ("delay_ms", "retry_topics", "hop"),
    [
        (None, (5, 60), None),
        (5, (5, 60), 0),
        (60, (5, 60), 1),
        (60, (60, 5), 0),
        # delays that the handler had once
        (10, (5, 60), 0),
        (1, (5, 60), None),
        (99, (5, 60), 1),
        (5, (), None),
        (None, (), None),
    ],
)
def test_a_record_goes_on_from_where_it_came(delay_ms, retry_topics, hop):
    """By its place in the handler's list; when its delay is no more there, with the next that is longer."""
    assert hop_of(delay_ms, retry_topics) == hop


# ---- waiting -------------------------------------------------------------------------------------------------------


def test_nothing_leaves_before_it_is_due():
    """What is due leaves in order; the rest stays, and it is known when to look again."""
    shelf = DelayedRecords()
    lease = put(shelf, T0, (3, 1.0), (4, 2.0), (7, 2.0), (8, 5.0))

    assert (shelf.due(0.5), shelf.next_at(0.5)) == ([], 1.0)
    assert shelf.due(2.0) == [T0]
    assert offsets(shelf.take(T0, 2.0, 10)) == [3, 4, 7]
    assert (shelf.due(2.0), shelf.next_at(2.0), lease.unstarted) == ([], 5.0, 8)


def test_the_first_holds_up_the_others_of_its_partition_alone():
    """Order within a partition stands above due times, as a clock that jumps may have confused them."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 9.0), (1, 1.0))
    put(shelf, T1, (0, 1.0))

    assert shelf.due(1.0) == [T1]
    assert (shelf.take(T0, 1.0, 10), offsets(shelf.take(T1, 1.0, 10))) == (None, [0])
    assert offsets(shelf.take(T0, 9.0, 10)) == [0, 1]


def test_what_has_no_room_is_no_reason_to_look_again():
    """A record that is due and has no room waits for room, and not for a time that is over: nothing spins."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 1.0), (1, 1.0))

    assert offsets(shelf.take(T0, 2.0, 1)) == [0]
    assert shelf.take(T0, 2.0, 0) is None
    assert shelf.next_at(2.0) is None
    assert T0 in shelf


def test_what_is_empty_is_gone():
    """A partition may be read on when the last of its slice has left."""
    shelf = DelayedRecords()
    put(shelf, T0, (0, 1.0))

    shelf.take(T0, 1.0, 1)
    assert T0 not in shelf
    assert len(shelf) == 0


def test_what_is_held_counts_as_not_done():
    """No commit passes it, until it leaves and is handled."""
    shelf = DelayedRecords()
    lease = put(shelf, T0, (5, 1.0), (6, 1.0))

    assert lease.progress.finished == 5
    assert (shelf.drop(T0), shelf.drop(T0)) == (lease, None)
