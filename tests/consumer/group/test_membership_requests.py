"""Requests of a member of a group."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

import pytest
from msgspec.structs import replace

from tailrace import RebalanceError, TopicPartition
from tailrace.consumer.group.range_assignor import SubscribedMember, roundrobin_assignor
from tailrace.observe.events import GroupJoined
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, OffsetFetchRequest, SyncGroupRequest
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100, "max_poll_interval_ms": 6_000}


def first(kafka, kind, client):
    return kafka.proxy.requests(kind, client_id=client)[0].at


async def test_requests_come_in_order(kafka, group):
    """A member requests versions, metadata, coordinator, join, sync, committed offsets and records in this order."""
    topic = kafka.topic_with(5)

    async with kafka.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
        await consumer.getone()
        described = await kafka.described(group)
    order = [
        ApiVersionsRequest,
        MetadataRequest,
        FindCoordinatorRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        OffsetFetchRequest,
        FetchRequest,
    ]
    times = [first(kafka, kind, group) for kind in order]

    assert times == sorted(times)
    assert [member.client_id for member in described.members] == [group]
    assert kafka.proxy.requests(FindCoordinatorRequest, client_id=group)[0].version >= 4


async def test_an_assignment_lists_topics_and_partitions(kafka, group):
    """With range, the second of two members gets no partition of a topic that has only one."""
    first, second = kafka.topic(2), kafka.topic(1)
    options = {"group_id": group, "partition_assignment_strategy": "range", **QUICK}

    async with kafka.consumer(first, second, **options) as one, kafka.consumer(first, second, **options) as other:
        await until(lambda: sorted((len(one.assignment()), len(other.assignment()))) == [1, 2])
        ours = [one.assignment(), other.assignment()]
        theirs = await kafka.members(group)

    assert set(theirs.values()) == set(ours)
    assert sorted(({one.topic for one in share} for share in ours), key=len) == [{first}, {first, second}]


async def test_only_the_leader_assigns(kafka, group):
    """Only the leader's sync request contains the assignments of all members."""
    topic, names = kafka.topic(4), (f"{group}-1", f"{group}-2")
    options = {"group_id": group, "partition_assignment_strategy": ("range",), **QUICK}

    async with kafka.consumer(topic, client_id=names[0], **options) as one:
        await until(lambda: len(one.assignment()) == 4)
        async with kafka.consumer(topic, client_id=names[1], **options) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 2)
            latest = [kafka.proxy.requests(SyncGroupRequest, client_id=name)[-1].message for name in names]

    assert len({sync.generation_id for sync in latest}) == 1
    assert sorted(len(sync.assignments) for sync in latest) == [0, 2]


async def test_heartbeats_keep_their_interval(kafka, group):
    """Heartbeats are heartbeat_interval_ms apart."""
    topic = kafka.topic_with(1)

    options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
    async with kafka.consumer(topic, group_id=group, client_id=group, **options) as consumer:
        await consumer.getone()
        await until(lambda: len(kafka.proxy.requests(HeartbeatRequest, client_id=group)) >= 6)
    sent = [frame.at for frame in kafka.proxy.requests(HeartbeatRequest, client_id=group)]

    # After a stall of the process two of them may be closer together.
    assert median(later - earlier for earlier, later in pairwise(sent)) >= 0.17


async def test_rebalance_max_retries_limits_attempts(kafka, group):
    """With rebalance_max_retries=3, a rebalance that fails four times raises RebalanceError."""
    topic, options = kafka.topic_with(1), {"rebalance_max_retries": 3, "retry_backoff_ms": 200, **QUICK}

    with kafka.proxy.edit_answer(SyncGroupRequest, lambda answer: replace(answer, error_code=27), times=None) as fault:
        async with kafka.consumer(topic, group_id=group, client_id=group, **options) as consumer:
            with pytest.raises(RebalanceError, match=r"4 attempts.*REBALANCE_IN_PROGRESS|4 attempts.*rebalance"):
                await consumer.getone()
    joins = [frame.at for frame in kafka.proxy.requests(JoinGroupRequest, client_id=group)]

    assert fault.count == 4
    assert joins[-1] - joins[-2] >= 0.15


async def test_committed_offsets_are_fetched_in_each_rebalance(kafka, group):
    """Partitions added in a rebalance start at their committed offsets, which are not fetched for kept ones."""
    topic, events = kafka.topic_with(10, partitions=2), EventRecorder()
    options = {"group_id": group, "auto_commit_interval_ms": 50, **QUICK}

    async with kafka.consumer(topic, client_id=group, hooks=[events], **options) as one:
        got = [await one.getone() for _ in range(20)]
        one.ack(got[-1])
        async with kafka.consumer(topic, **options) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 1)
            (moved,) = other.assignment()
            kafka.produce(topic, [b"new"], partition=moved.partition)
            record = await other.getone()
            other.ack(record)
        await until(lambda: len(one.assignment()) == 2)
        kafka.produce(topic, [b"newer"], partition=moved.partition)
        again = await one.getone()

    assert (record.offset, again.offset, again.partition) == (10, 11, moved.partition)
    assert len(kafka.proxy.requests(OffsetFetchRequest, client_id=group)) == 2
    assert len(events.of(GroupJoined)) >= 3


async def test_a_callback_sees_the_new_state(kafka, group):
    """During post_rebalance_callback, assignment() and position() return the new assignment and its positions."""
    topic, seen = kafka.topic(3), []
    for partition in range(3):
        await kafka.commit(group, topic, 4, "", partition)

    async def look(consumer, _old, new):
        seen.append((consumer.assignment(), set(new), {one: await consumer.position(one) for one in new}, dict(new)))

    async with kafka.consumer(topic, group_id=group, post_rebalance_callback=look, **QUICK) as consumer:
        await until(lambda: bool(seen))
        assert consumer.assignment()
    assigned, keys, positions, new = seen[0]

    assert assigned == keys == {TopicPartition(topic, n) for n in range(3)}
    assert positions == new == dict.fromkeys(keys, 4)


def test_partitions_are_assigned_in_turn():
    """The roundrobin assignor assigns the partitions of all topics in turn, so that counts differ by one at most."""

    def dealt(members, counts):
        subscribed = [SubscribedMember(f"m{n}", frozenset(counts)) for n in range(members)]
        return [
            [(one.topic, one.partition) for one in share] for share in roundrobin_assignor(subscribed, counts).values()
        ]

    assert sorted(map(len, dealt(4, {"a": 3, "b": 3}))) == [1, 1, 2, 2]
    assert dealt(2, {"a": 1, "b": 1}) == [[("a", 0)], [("b", 0)]]
    assert dealt(2, {"a": 2, "b": 2}) == [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)]]
