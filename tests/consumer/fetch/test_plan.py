"""Fetch plans, and the time for which a broker may hold a fetch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.consumer.fetch.plan import (
    FETCH_REACTIONS,
    AddedWait,
    FetchConnection,
    FetchErrorAction,
    FetchLimits,
    FetchSources,
    FetchWait,
    make_plan,
    slot_of,
    sources_change_at,
)
from tailrace.consumer.partition import AssignedPartitions
from tailrace.core.cluster_metadata import ClusterMetadata
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.protocol.metadata import BrokerMetadata, MetadataResponse, PartitionMetadata, TopicMetadata
from tailrace.protocol.records import FetchPartition
from tailrace.records import TopicPartition

TOPIC_ID = UUID(int=1)
A, B, C = (TopicPartition("t", n) for n in range(3))
NOW = 1_000.0
LIMITS = FetchLimits(max_bytes=10_000, partition_max_bytes=100, max_wait_s=0.5)


def topology(*leaders: int) -> ClusterMetadata:
    """Return metadata of four brokers and a topic with partitions on three of them; the replicas of broker 3 are
    offline.
    """
    partitions = tuple(PartitionMetadata(0, n, leader, 5, (1, 2, 3), (1, 2), (3,)) for n, leader in enumerate(leaders))
    brokers = tuple(BrokerMetadata(n, f"host{n}", 9092) for n in (1, 2, 3, 4))
    return ClusterMetadata().updated(
        MetadataResponse(brokers, (TopicMetadata(0, "t", TOPIC_ID, partitions=partitions),))
    )


@dataclass(eq=False)
class Batch:
    """Buffered batch of ``size`` bytes."""

    size: int
    has_error: bool = False
    next_offset: int = 7
    leader_epoch: int = -1

    def merge(self, _following: Batch) -> bool:
        return False


def ready(*partitions: TopicPartition, max_bytes: int = 10_000, reserved: int = 0) -> AssignedPartitions:
    """Return positions that can be fetched."""
    positions = AssignedPartitions()
    positions.space.max_bytes, positions.space.reserved_bytes = max_bytes, reserved
    for position in positions.add(partitions):
        position.begin(7)
        position.is_fetchable = True
    return positions


def plan(positions, *, node_id=1, leaders=(1, 1, 1), limits=LIMITS):
    sources = FetchSources(positions).at(topology(*leaders))
    return make_plan(FetchConnection(node_id), sources, positions.space, limits, NOW)


def source_of(positions, metadata, now):
    """Return the broker from which the only partition of ``positions`` is fetched."""
    (source,) = FetchSources(positions).at(metadata)
    return source.node_id(now)


# ---- partitions ------------------------------------------------------------------------------------------------


def test_partitions_are_fetched_from_their_leader():
    """A fetch has topic, id, offset and leader epoch, and is within the partition limit."""
    found = plan(ready(A, B), leaders=(1, 2))

    assert found.partitions == {A: FetchPartition(0, 7, 100, "t", TOPIC_ID, current_leader_epoch=5)}
    assert found.max_bytes == 100
    assert not found.lacks_room
    assert not found.is_idle
    assert found.retry_at is None


def test_plan_carries_epochs():
    """A plan has the epochs of positions, which show whether its response belongs to a time before a seek."""
    positions = ready(A, B)
    positions.get(B).is_paused = True

    assert plan(positions).epochs == {A: positions.get(A).epoch}


def test_partitions_added_during_a_fetch_are_distinguished():
    """Partitions that are sought or resumed during a fetch are fetched separately."""
    positions = ready(A, B, C)
    sought, resumed, other = positions.of([A, B, C])
    resumed.is_paused = True
    under_way = plan(positions)

    sought.begin(3)
    resumed.is_paused = False
    other.put(Batch(1, next_offset=9))
    added = plan(positions).added_to(under_way)

    assert {key: asked.fetch_offset for key, asked in added.partitions.items()} == {A: 3, B: 7}
    assert (set(added.epochs), added.max_bytes) == ({A, B}, 200)
    assert all(added.is_valid_for(one) for one in (sought, resumed))
    assert not added.is_valid_for(other)
    assert not plan(positions).added_to(plan(positions)).partitions


def test_a_response_counts_only_for_the_requested_offset():
    """A response is ignored after a seek, after another response, and for a partition that was not requested."""
    positions = ready(A, B, C)
    a, b, c = positions
    c.is_paused = True
    made = plan(positions)

    assert [made.is_valid_for(one) for one in (a, b, c)] == [True, True, False]
    a.begin(a.fetched)
    b.put(Batch(1, next_offset=b.fetched + 1))
    assert not made.is_valid_for(a)
    assert not made.is_valid_for(b)


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
def test_partition_that_is_not_ready_is_left_out(hinder):
    """A partition that is not ready is not fetched; its broker is not idle and does not lack room."""
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
def test_recreated_topic_is_left_out_and_reported(fetched_topic_id, is_remade):
    """A topic with another id than at the last fetch is reported as recreated, and its partitions are not fetched."""
    positions = ready(A, B)
    positions.get(A).fetched_topic_id = fetched_topic_id

    made = plan(positions)

    assert (set(made.partitions), made.recreated) == (({B}, (A,)) if is_remade else ({A, B}, ()))
    assert not made.lacks_room


@pytest.mark.parametrize(
    ("assigned_topic_id", "is_other"), [(None, False), (TOPIC_ID, False), (UUID(int=0), False), (UUID(int=9), True)]
)
def test_topic_with_another_id_than_the_assigned_one_is_left_out(assigned_topic_id, is_other):
    """A topic with another id than the group has assigned is not fetched, even after a seek, and is reported."""
    positions = ready(A, B)
    positions.get(A).assigned_topic_id = assigned_topic_id
    positions.get(A).begin(3)

    made = plan(positions)

    assert (set(made.partitions), made.unassigned) == (({B}, (A,)) if is_other else ({A, B}, ()))
    assert not made.recreated


def test_new_start_belongs_to_the_current_topic():
    """After a seek or a reset, the position belongs to the current topic, which is not reported as recreated."""
    positions = ready(A, B)
    for position in positions:
        position.fetched_topic_id = UUID(int=9)
    positions.get(A).begin(3)
    positions.get(B).reset(StartPoint(StartFrom.EARLIEST), 7)

    assert not plan(positions).recreated
    assert {position.fetched_topic_id for position in positions} == {None}


def test_backoff_of_a_partition_is_kept():
    """A partition is not fetched during its backoff, and the plan has the end of the earliest one."""
    positions = ready(A, B, C)
    positions.get(A).back_off(NOW + 5)
    positions.get(B).back_off(NOW + 3)

    found = plan(positions)

    assert found.partitions.keys() == {C}
    assert found.retry_at == NOW + 3
    positions.get(B).retry_at = NOW
    assert plan(positions).partitions.keys() == {B, C}


def test_a_broker_without_partitions_to_fetch_is_idle():
    """A broker from which no partition is fetched is idle, so that its fetch loop may end."""
    assert plan(ready(A), node_id=2).is_idle
    assert plan(AssignedPartitions()).is_idle


# ---- sources ---------------------------------------------------------------------------------------------------


def test_preferred_read_replica_is_used_until_it_expires():
    """The preferred read replica is used until it expires, if it is known, online and has a replica (KIP-392)."""
    positions = ready(A)
    position = positions.get(A)
    position.preferred_read_replica, position.preferred_read_replica_until = 2, NOW + 1

    assert source_of(positions, topology(1), NOW) == 2
    assert source_of(positions, topology(1), NOW + 1) == 1
    assert plan(positions, node_id=2).partitions.keys() == {A}
    assert plan(positions, node_id=1).is_idle
    position.preferred_read_replica = 3
    assert source_of(positions, topology(1), NOW) == 1, "the replica is offline"
    position.preferred_read_replica = 9
    assert source_of(positions, topology(1), NOW) == 1, "the replica is unknown"
    position.preferred_read_replica = 4
    assert source_of(positions, topology(1), NOW) == 1, "the broker has no replica any more"


def test_the_fetch_source_changes_at_the_first_expiry():
    """The fetch sources change when the first preferred read replica expires."""
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
def test_each_partition_uses_one_connection(of, topic, number):
    """Each partition is fetched over exactly one connection, the one that ``slot_of`` returns."""
    partition = TopicPartition(topic, number)

    assert [n for n in range(of) if FetchConnection(1, n, of).has(partition)] == [slot_of(partition, of)]


def test_partition_without_a_leader_has_no_source():
    """A partition without a leader and an unknown partition have no source."""
    positions = ready(A)

    assert source_of(positions, topology(-1), NOW) is None
    assert source_of(positions, ClusterMetadata(), NOW) is None


def test_sources_follow_the_assignment_and_the_metadata():
    """Sources are looked up again after partitions were added or removed, and after the metadata has changed."""
    positions, first, second = ready(A), topology(1, 1, 1), topology(2, 2, 2)
    sources = FetchSources(positions)

    assert sources.at(first) is sources.at(first)
    positions.add([B])
    assert [one.partition.topic_partition for one in sources.at(first)] == [A, B]
    positions.remove([A])
    assert [one.partition.topic_partition for one in sources.at(first)] == [B]
    assert [one.node_id(NOW) for one in sources.at(second)] == [2]


def test_an_unchanged_partition_is_requested_by_the_same_object():
    """The request for an unchanged partition is the same object; another offset, size or epoch makes a new one."""
    positions = ready(A)
    (source,) = FetchSources(positions).at(topology(1))
    first = source.request(7, 100)

    assert source.request(7, 100) is first
    assert source.request(7, 50).partition_max_bytes == 50
    assert source.request(8, 50).fetch_offset == 8
    positions.get(A).last_fetched_epoch = 6
    assert source.request(8, 50).last_fetched_epoch == 6


# ---- sizes -----------------------------------------------------------------------------------------------------


def test_fetch_size_is_the_rest_of_the_share():
    """A fetch requests what remains of a partition's share, whatever other partitions hold."""
    positions = ready(A, B, C, max_bytes=300)
    positions.get(A).put(Batch(40))
    positions.get(B).put(Batch(100))

    found = plan(positions)

    assert {one: asked.partition_max_bytes for one, asked in found.partitions.items()} == {A: 60, C: 100}
    assert found.lacks_room


def test_small_rest_of_a_share_is_not_fetched():
    """A partition that holds more than half of its share is not fetched."""
    positions = ready(A, max_bytes=100)
    positions.get(A).put(Batch(51))
    assert plan(positions).partitions == {}
    assert plan(positions).lacks_room

    positions.get(A).drop_batches()
    positions.get(A).put(Batch(50))
    assert plan(positions).partitions[A].partition_max_bytes == 50


def test_an_empty_partition_has_room_for_the_largest_batch():
    """An empty partition has room for the largest batch so far, even if that exceeds its share."""
    positions, limits = ready(A, B, C, max_bytes=30), replace(LIMITS, partition_max_bytes=50)
    a, b, c = positions
    assert {one.partition_max_bytes for one in plan(positions, limits=limits).partitions.values()} == {10}

    a.put(Batch(25))
    a.drop_batches()
    b.put(Batch(5))
    fetched = plan(positions, limits=limits)

    assert {one: asked.partition_max_bytes for one, asked in fetched.partitions.items()} == {A: 25, B: 5, C: 25}
    assert fetched.max_bytes == 25
    c.put(Batch(60))
    c.drop_batches()
    positions.remove([B, C])
    largest = plan(positions, limits=limits).partitions[A].partition_max_bytes
    assert largest == 50, "max_partition_fetch_bytes is the limit"


def test_small_fetch_limit_is_fetched():
    """A ``fetch_max_bytes`` below the partition limit is respected."""
    assert plan(ready(A), limits=replace(LIMITS, max_bytes=60)).max_bytes == 60


def test_partitions_above_their_share_are_reported():
    """A paused partition that fills the buffer is reported if others get no room."""
    positions = ready(A, max_bytes=300)
    a = positions.get(A)
    a.put(Batch(300))
    assert plan(positions).overdrawn == ()

    a.is_paused = True
    b, c = positions.add([B, C])
    for position in (b, c):
        position.begin(0)
        position.is_fetchable = True
    c.put(Batch(0, has_error=True))
    crowded = plan(positions)

    assert (crowded.partitions, crowded.overdrawn, crowded.lacks_room) == ({}, (A,), True)
    c.put(Batch(101, has_error=True))
    assert plan(positions).overdrawn == (A,), "after an error, discarded data would not be fetched again"
    a.drop_batches()
    positions.space.reserved_bytes = 300
    assert plan(positions).overdrawn == ()


def test_size_of_a_fetch_is_bounded():
    """The option, the partition limits and the unreserved space bound a fetch."""
    assert plan(ready(A, B, C)).max_bytes == 300
    assert plan(ready(A, B, C), limits=replace(LIMITS, max_bytes=150)).max_bytes == 150

    assert plan(ready(A, B, C, reserved=9_870)).max_bytes == 130
    found = plan(ready(A, B, C, reserved=9_950))
    assert found.partitions == {}
    assert found.lacks_room


@given(
    st.integers(1, 2_000),
    st.lists(st.integers(0, 600), min_size=3, max_size=3),
    st.integers(0, 2_000),
    st.integers(1, 400),
    st.integers(1, 1_000),
)
def test_fetch_never_exceeds_the_free_space(size, held, reserved, partition_max, most):
    """A fetch requests at least one byte and at most the free space."""
    positions = ready(A, B, C, max_bytes=size, reserved=reserved)
    for position, holds in zip(positions, held, strict=True):
        position.put(Batch(holds))
    share = positions.space.share_of(3)

    found = plan(positions, limits=FetchLimits(most, partition_max, 0.5))

    if found.partitions:
        assert 0 < found.max_bytes <= min(positions.space.free_bytes, most)
        assert all(
            0 < asked.partition_max_bytes <= min(partition_max, max(share - holds, 0 if holds else max(held)))
            for one, asked in found.partitions.items()
            for holds in [positions.get(one).buffered_bytes]
        )
    assert found.lacks_room == (found.partitions.keys() != {A, B, C})


def test_empty_buffer_has_room_for_a_fetch():
    """An empty buffer has room for a fetch, even of many partitions."""
    partitions = [TopicPartition("t", n) for n in range(300)]

    found = plan(ready(*partitions, max_bytes=1_000), leaders=(1,) * 300)

    assert found.partitions
    assert found.max_bytes > 0


# ---- error codes -----------------------------------------------------------------------------------------------


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
def test_reactions_to_partition_errors(code, verdict):
    """For each error code the fetcher accepts, refreshes metadata, resets, retries or raises."""
    assert FETCH_REACTIONS.reaction_to(code) is verdict


def test_retriable_errors_are_never_raised():
    assert FetchErrorAction.RAISE not in {FETCH_REACTIONS.reaction_to(code) for code in RETRIABLE}


# ---- holds -----------------------------------------------------------------------------------------------------


def test_fetch_of_all_partitions_is_held_for_the_full_wait():
    """A fetch that leaves out no partition is held for fetch_max_wait_ms."""
    wait = FetchWait(0.5)

    assert [wait.wait_s(lacks_room=False, taken_bytes=0) for _ in range(3)] == [0.5, 0.5, 0.5]


def test_the_broker_holds_fetches_longer_while_the_buffer_is_full():
    """A fetch that leaves partitions out is held for a short time, which doubles from fetch to fetch."""
    wait = FetchWait(0.5)

    waits = [wait.wait_s(lacks_room=True, taken_bytes=10) for _ in range(7)]

    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5])


def test_the_broker_holds_fetches_briefly_again_after_a_batch_is_taken():
    """The hold is short again after a batch was taken and after a fetch of all partitions."""
    wait = FetchWait(0.5)
    wait.wait_s(lacks_room=True, taken_bytes=10)
    wait.wait_s(lacks_room=True, taken_bytes=10)

    assert wait.wait_s(lacks_room=True, taken_bytes=11) == 0.02
    assert wait.wait_s(lacks_room=True, taken_bytes=11) == 0.04
    assert wait.wait_s(lacks_room=False, taken_bytes=11) == 0.5
    assert wait.wait_s(lacks_room=True, taken_bytes=11) == 0.02


def test_the_broker_holds_fetches_no_longer_than_fetch_max_wait_ms():
    """The hold is never longer than fetch_max_wait_ms."""
    assert FetchWait(0.005).wait_s(lacks_room=True, taken_bytes=0) == 0.005


def test_fetch_of_added_partitions_is_held_long_after_an_empty_one():
    """A separate fetch of added partitions is held until the other one ends if its last response was empty."""
    made, wait = plan(ready(A)), AddedWait()

    assert wait.wait_s(made, 5.0, 4.0) == 0.1
    wait.note_answer(made, is_empty=True)
    assert wait.wait_s(made, 5.0, 4.0) == 3.9
    assert wait.wait_s(made, 5.0, 0.2) is None
    wait.note_answer(made, is_empty=False)
    assert wait.wait_s(made, 5.0, 4.0) == 0.1
    assert wait.wait_s(made, 0.02, 4.0) == 0.02


def test_newly_added_partition_ends_the_long_hold():
    """A seek makes the hold of the next separate fetch short again."""
    positions, wait = ready(A), AddedWait()
    wait.note_answer(plan(positions), is_empty=True)

    positions.get(A).begin(3)

    assert wait.wait_s(plan(positions), 5.0, 4.0) == 0.1
