"""What to fetch from which broker, and how long a broker may hold it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.delivery.positions import Positions
from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.core.fetch.plan import (
    FETCH_REACTIONS,
    AddedWait,
    FetchErrorAction,
    FetcherSlot,
    FetchLimits,
    FetchWait,
    make_plan,
    slot_of,
    source_of,
    sources_change_at,
)
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.protocol.fetch import FetchPartition
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.records import TopicPartition

TOPIC_ID = UUID(int=1)
A, B, C = (TopicPartition("t", n) for n in range(3))
NOW = 1_000.0
LIMITS = FetchLimits(max_bytes=10_000, partition_max_bytes=100, max_wait_s=0.5)


def topology(*leaders: int) -> ClusterMetadata:
    """Four brokers, and one topic whose partitions three of them have; broker 3 has lost its copies."""
    partitions = tuple(PartitionMetadata(0, n, leader, 5, (1, 2, 3), (1, 2), (3,)) for n, leader in enumerate(leaders))
    brokers = tuple(BrokerMetadata(n, f"host{n}", 9092) for n in (1, 2, 3, 4))
    return ClusterMetadata().updated(
        MetadataResponse(brokers, (TopicMetadata(0, "t", TOPIC_ID, partitions=partitions),))
    )


def ready(*partitions: TopicPartition) -> Positions:
    """Positions of which nothing stands in the way."""
    positions = Positions()
    for position in positions.add(partitions):
        position.begin(7)
        position.is_fetchable = True
    return positions


def plan(positions, *, node_id=1, leaders=(1, 1, 1), buffer=None, limits=LIMITS):
    return make_plan(node_id, positions, topology(*leaders), buffer or FetchBuffer(10_000), limits, NOW)


# ---- which -----------------------------------------------------------------------------------------------------


def test_what_a_broker_leads_is_fetched_from_it():
    """By topic, id and offset, with the leader's epoch, and no more than one partition may bring."""
    found = plan(ready(A, B), leaders=(1, 2))

    assert found.partitions == {A: FetchPartition(0, 7, 100, "t", TOPIC_ID, current_leader_epoch=5)}
    assert found.max_bytes == 100
    assert not found.lacks_room
    assert not found.is_idle
    assert found.retry_at is None


def test_epochs_go_with_a_plan():
    """So that an answer that comes after a seek is told from one that still counts."""
    positions = ready(A, B)
    positions.get(B).is_paused = True

    assert plan(positions).epochs == {A: positions.get(A).epoch}


def test_what_is_added_to_a_fetch_under_way_is_told_apart():
    """A partition that was sought or resumed since is asked for by itself; one that only goes on is not."""
    positions = ready(A, B, C)
    sought, resumed, other = positions.of([A, B, C])
    resumed.is_paused = True
    under_way = plan(positions)

    sought.begin(3)
    resumed.is_paused = False
    other.fetched_to(9, -1)
    added = plan(positions).added_to(under_way)

    assert {key: asked.fetch_offset for key, asked in added.partitions.items()} == {A: 3, B: 7}
    assert (set(added.epochs), added.max_bytes) == ({A, B}, 200)
    assert all(added.counts(one) for one in (sought, resumed))
    assert not added.counts(other)
    assert not plan(positions).added_to(plan(positions)).partitions


def test_an_answer_counts_for_the_offset_that_was_asked_for():
    """Not after a seek, not after another broker has answered, and not for what was not asked for at all."""
    positions = ready(A, B, C)
    a, b, c = positions
    c.is_paused = True
    made = plan(positions)

    assert [made.counts(one) for one in (a, b, c)] == [True, True, False]
    a.begin(a.fetched)
    b.fetched_to(b.fetched + 1, -1)
    assert not made.counts(a)
    assert not made.counts(b)
    assert made.topic_names() == {TOPIC_ID: "t"}


@pytest.mark.parametrize(
    "hinder",
    [
        lambda one: one.reset("latest", None),
        lambda one: setattr(one, "is_fetchable", False),
        lambda one: setattr(one, "is_paused", True),
        lambda one: setattr(one, "is_halted", True),
    ],
    ids=["no beginning", "callbacks not through", "paused", "about to be released"],
)
def test_what_is_not_ready_is_left_out(hinder):
    """Its broker is not idle for that: the partition may be ready at any moment. It is no lack of room either."""
    positions = ready(A, B)
    hinder(positions.get(A))

    found = plan(positions)

    assert found.partitions.keys() == {B}
    assert not found.lacks_room
    hinder(positions.get(B))
    assert not plan(positions).is_idle
    assert plan(positions).partitions == {}


@pytest.mark.parametrize(
    ("fetched_topic_id", "is_remade"), [(None, False), (TOPIC_ID, False), (UUID(int=0), False), (UUID(int=9), True)]
)
def test_what_was_made_anew_is_left_out_and_told(fetched_topic_id, is_remade):
    """Its offsets mean other records now; who has not fetched yet, or from a broker without ids, cannot know."""
    positions = ready(A, B)
    positions.get(A).fetched_topic_id = fetched_topic_id

    made = plan(positions)

    assert (set(made.partitions), made.recreated) == (({B}, (A,)) if is_remade else ({A, B}, ()))
    assert not made.lacks_room


def test_a_new_beginning_knows_no_log():
    """Where the user or the policy has it begin is of the topic as it is."""
    positions = ready(A, B)
    for position in positions:
        position.fetched_topic_id = UUID(int=9)
    positions.get(A).begin(3)
    positions.get(B).reset(StartPoint(StartFrom.EARLIEST), 7)

    assert not plan(positions).recreated
    assert {position.fetched_topic_id for position in positions} == {None}


def test_a_pause_after_a_failure_is_kept():
    """The plan says when the first of those that wait may be asked for again."""
    positions = ready(A, B, C)
    positions.get(A).back_off(NOW + 5)
    positions.get(B).back_off(NOW + 3)

    found = plan(positions)

    assert found.partitions.keys() == {C}
    assert found.retry_at == NOW + 3
    positions.get(B).retry_at = NOW
    assert plan(positions).partitions.keys() == {B, C}


def test_a_broker_that_has_none_of_ours_is_idle():
    """Its loop may end."""
    assert plan(ready(A), node_id=2).is_idle
    assert plan(Positions()).is_idle


# ---- from where ------------------------------------------------------------------------------------------------


def test_a_nearer_replica_is_read_while_its_leader_says_so():
    """For as long as the leader's word is good, and only if the replica is there (KIP-392)."""
    positions = ready(A)
    position = positions.get(A)
    position.preferred_read_replica, position.preferred_read_replica_until = 2, NOW + 1

    assert source_of(position, topology(1), NOW) == 2
    assert source_of(position, topology(1), NOW + 1) == 1
    assert plan(positions, node_id=2).partitions.keys() == {A}
    assert plan(positions, node_id=1).is_idle
    position.preferred_read_replica = 3
    assert source_of(position, topology(1), NOW) == 1, "it is offline"
    position.preferred_read_replica = 9
    assert source_of(position, topology(1), NOW) == 1, "it is unknown"
    position.preferred_read_replica = 4
    assert source_of(position, topology(1), NOW) == 1, "it has no copy any more"


def test_a_leaders_word_is_good_for_some_time():
    """It is known when the first of them has to be asked again; what has no nearer replica has no such time."""
    positions = ready(A, B, C)
    a, b, c = positions
    assert sources_change_at(positions, NOW) is None

    for position, until in ((a, NOW + 7), (b, NOW + 5), (c, NOW)):
        position.preferred_read_replica, position.preferred_read_replica_until = 2, until

    assert sources_change_at(positions, NOW) == NOW + 5
    assert sources_change_at(positions, NOW + 5) == NOW + 7
    a.preferred_read_replica = None
    assert sources_change_at(positions, NOW + 5) is None


@given(st.integers(1, 9), st.text(), st.integers(0, 999))
def test_each_partition_goes_by_one_connection(of, topic, number):
    """Of so many to a broker, exactly the one that it is said to go by."""
    partition = TopicPartition(topic, number)

    assert [n for n in range(of) if FetcherSlot(n, of).has(partition)] == [slot_of(partition, of)]


def test_without_a_leader_there_is_no_source():
    """A partition that nobody leads, or that is not known, is fetched from nobody."""
    (position,) = ready(A)

    assert source_of(position, topology(-1), NOW) is None
    assert source_of(position, ClusterMetadata(), NOW) is None


# ---- how much --------------------------------------------------------------------------------------------------


def test_a_partition_fetches_what_its_share_has_room_for():
    """Three partitions share 300 bytes: who holds 40 asks for 60, and the slow one leaves the others their share."""
    buffer = FetchBuffer(300)
    buffer.put(A, "chunk", 40)
    buffer.put(B, "chunk", 100)

    found = plan(ready(A, B, C), buffer=buffer)

    assert {one: asked.partition_max_bytes for one, asked in found.partitions.items()} == {A: 60, C: 100}
    assert found.lacks_room


def test_crumbs_are_not_asked_for():
    """Less than half a share is not worth a request: the broker would send a batch at a time."""
    buffer = FetchBuffer(100)
    buffer.put(A, "chunk", 51)
    assert plan(ready(A), buffer=buffer).partitions == {}
    assert plan(ready(A), buffer=buffer).lacks_room

    buffer.drop(A)
    buffer.put(A, "chunk", 50)
    assert plan(ready(A), buffer=buffer).partitions[A].partition_max_bytes == 50


def test_a_small_fetch_is_no_crumb():
    """Where all of one fetch may be less than a partition may bring, that much is worth a request."""
    assert plan(ready(A), limits=replace(LIMITS, max_bytes=60)).max_bytes == 60


def test_who_holds_more_than_its_share_is_told():
    """A paused one had the whole budget, and another comes: there is no room for it before something is forgotten."""
    buffer, positions = FetchBuffer(300), ready(A)
    buffer.put(A, "chunk", 300)
    assert plan(positions, buffer=buffer).overdrawn == ()

    positions.get(A).is_paused = True
    b, c = positions.add([B, C])
    for position in (b, c):
        position.begin(0)
        position.is_fetchable = True
    c.stop_fetching()
    crowded = plan(positions, buffer=buffer)

    assert (crowded.partitions, crowded.overdrawn, crowded.lacks_room) == ({}, (A,), True)
    buffer.put(C, "error", 101)
    assert plan(positions, buffer=buffer).overdrawn == (A,), "behind an error nothing would be fetched anew"
    buffer.drop(A)
    buffer.reserve("another fetch", 300)
    assert plan(positions, buffer=buffer).overdrawn == ()


def test_the_whole_fetch_has_bounds():
    """What the option says, what the partitions may bring, and what nobody else has reserved."""
    buffer = FetchBuffer(10_000)
    assert plan(ready(A, B, C)).max_bytes == 300
    assert plan(ready(A, B, C), limits=replace(LIMITS, max_bytes=150)).max_bytes == 150

    buffer.reserve("another fetch", 9_870)
    assert plan(ready(A, B, C), buffer=buffer).max_bytes == 130
    buffer.reserve("another fetch", 9_950)
    found = plan(ready(A, B, C), buffer=buffer)
    assert found.partitions == {}
    assert found.lacks_room


@given(
    st.integers(1, 2_000),
    st.lists(st.integers(0, 600), min_size=3, max_size=3),
    st.integers(0, 2_000),
    st.integers(1, 400),
    st.integers(1, 1_000),
)
def test_no_plan_asks_for_more_than_there_is_room(size, held, reserved, partition_max, most):
    """The budget is never overdrawn by asking, whatever is held and reserved; and what is asked is worth it."""
    buffer = FetchBuffer(size)
    for partition, holds in zip((A, B, C), held, strict=True):
        buffer.put(partition, "chunk", holds)
    buffer.reserve("another fetch", reserved)

    found = plan(ready(A, B, C), buffer=buffer, limits=FetchLimits(most, partition_max, 0.5))

    if found.partitions:
        assert 0 < found.max_bytes <= min(buffer.free_bytes, most)
        assert all(
            0 < asked.partition_max_bytes <= min(partition_max, buffer.room_of(one, 3))
            for one, asked in found.partitions.items()
        )
    assert found.lacks_room == (found.partitions.keys() != {A, B, C})


def test_an_empty_buffer_always_has_room_for_somebody():
    """However many partitions and however small the budget, fetching begins."""
    partitions = [TopicPartition("t", n) for n in range(300)]

    found = plan(ready(*partitions), leaders=(1,) * 300, buffer=FetchBuffer(1_000))

    assert found.partitions
    assert found.max_bytes > 0


# ---- what an error code means ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.NONE, FetchErrorAction.ACCEPT),
        (ErrorCode.OFFSET_OUT_OF_RANGE, FetchErrorAction.RESET),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.LEADER_NOT_AVAILABLE, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.FENCED_LEADER_EPOCH, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_ID, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.INCONSISTENT_TOPIC_ID, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.KAFKA_STORAGE_ERROR, FetchErrorAction.REFRESH_METADATA),
        (ErrorCode.CORRUPT_MESSAGE, FetchErrorAction.RETRY),
        (ErrorCode.OFFSET_NOT_AVAILABLE, FetchErrorAction.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, FetchErrorAction.RETRY),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, FetchErrorAction.RAISE),
        (999, FetchErrorAction.RAISE),
    ],
)
def test_what_a_partitions_error_means(code, verdict):
    """Leadership that moved, a position that is not there, a pause, or the user's to know."""
    assert FETCH_REACTIONS.reaction_to(code) is verdict


def test_what_kafka_calls_retriable_is_never_refused():
    """No error that another try may heal is put before the user."""
    assert FetchErrorAction.RAISE not in {FETCH_REACTIONS.reaction_to(code) for code in RETRIABLE}


# ---- how long a broker may hold a fetch ------------------------------------------------------------------------


def test_a_fetch_of_all_is_held_as_long_as_the_option_says():
    """Nothing was left out, so nothing is missed."""
    patience = FetchWait(0.5)

    assert [patience.wait_s(lacks_room=False, taken_bytes=0) for _ in range(3)] == [0.5, 0.5, 0.5]


def test_patience_grows_while_nobody_takes():
    """A fetch that leaves partitions out for lack of room is short, and doubles while the buffer stays full."""
    patience = FetchWait(0.5)

    waits = [patience.wait_s(lacks_room=True, taken_bytes=10) for _ in range(7)]

    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])


def test_patience_begins_anew_when_somebody_takes():
    """Room was made, so it may be made again soon; and after a fetch of all as well."""
    patience = FetchWait(0.5)
    patience.wait_s(lacks_room=True, taken_bytes=10)
    patience.wait_s(lacks_room=True, taken_bytes=10)

    assert patience.wait_s(lacks_room=True, taken_bytes=11) == 0.02
    assert patience.wait_s(lacks_room=True, taken_bytes=11) == 0.04
    assert patience.wait_s(lacks_room=False, taken_bytes=11) == 0.5
    assert patience.wait_s(lacks_room=True, taken_bytes=11) == 0.02


def test_patience_is_never_longer_than_the_option():
    """An option below the shortest wait holds."""
    assert FetchWait(0.005).wait_s(lacks_room=True, taken_bytes=0) == 0.005


def test_a_fetch_of_added_partitions_is_held_for_long_after_one_without_records():
    """For a short time at first and again after records; nothing is fetched when the other fetch ends as soon."""
    made, wait = plan(ready(A)), AddedWait()

    assert wait.wait_s(made, 5.0, 4.0) == 0.1
    wait.answered(made, is_empty=True)
    assert wait.wait_s(made, 5.0, 4.0) == 3.9
    assert wait.wait_s(made, 5.0, 0.2) is None
    wait.answered(made, is_empty=False)
    assert wait.wait_s(made, 5.0, 4.0) == 0.1
    assert wait.wait_s(made, 0.02, 4.0) == 0.02


def test_a_partition_that_is_added_later_ends_the_long_hold():
    """A seek after the last fetch makes the next hold short again."""
    positions, wait = ready(A), AddedWait()
    wait.answered(plan(positions), is_empty=True)

    positions.get(A).begin(3)

    assert wait.wait_s(plan(positions), 5.0, 4.0) == 0.1
