"""Requests to a real broker, compared with the view of another client."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from tailrace.error_codes import ErrorCode
from tailrace.net.broker import Broker
from tailrace.protocol.groups import (
    CommitOffset,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberAssignment,
    MemberSubscription,
    OffsetCommitRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OwnedPartitions,
    SyncGroupAssignment,
    SyncGroupRequest,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataTopic
from tailrace.protocol.records import FetchPartition, FetchRequest, ListOffsetsPartition, ListOffsetsRequest
from tests.support.net.open_connections import broker_at, coordinated

SESSION_MS = 60_000


# ---- metadata ------------------------------------------------------------------------------------------------------


async def test_metadata_is_requested_of_all_some_or_no_topics(direct, new_topic, witness):
    """A metadata request with None is for all topics, with a tuple for these, and with () for none."""
    topic = new_topic(3)
    async with broker_at(direct) as broker:
        await broker.connect()
        before = await asyncio.to_thread(witness.admin.list_topics, timeout=20)
        every = await broker.send(MetadataRequest(None))
        named = await broker.send(MetadataRequest((MetadataTopic(topic),)))
        none = await broker.send(MetadataRequest(()))

    seen = witness.admin.list_topics(timeout=20)
    # The broker may be creating an internal topic.
    assert {topic} <= set(before.topics) <= {one.name for one in every.topics} <= set(seen.topics)
    assert [(one.name, len(one.partitions)) for one in named.topics] == [(topic, 3)]
    assert (none.topics, none.cluster_id) == ((), seen.cluster_id)
    assert [one.node_id for one in none.brokers] == list(seen.brokers)


async def test_a_metadata_request_creates_no_topic(direct, name):
    """A metadata request for a missing topic does not create it, even with automatic creation."""
    async with broker_at(direct) as broker:
        await broker.connect()
        for _ in range(3):
            (missing,) = (await broker.send(MetadataRequest((MetadataTopic(name),)))).topics
            assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # Control: with automatic creation, the topic is created.
        wanted = MetadataRequest((MetadataTopic(name),), allow_auto_topic_creation=True)
        async with asyncio.timeout(30):
            while (await broker.send(wanted)).topics[0].error_code:  # noqa: ASYNC110 - a request each time
                await asyncio.sleep(0.02)


# ---- records -------------------------------------------------------------------------------------------------------


async def described(broker: Broker, topic: str):
    return (await broker.send(MetadataRequest((MetadataTopic(topic),)))).topics[0]


def fetch(topic, offsets, *, max_wait_ms, min_bytes=1):
    wanted = tuple(
        FetchPartition(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
        )
        for partition, offset in offsets.items()
    )
    return FetchRequest(max_wait_ms, min_bytes, 1 << 20, wanted)


async def test_a_fetch_waits_for_data_and_no_longer(direct, new_topic, witness):
    """A fetch of an empty partition is answered after ``max_wait_ms``, or when a record arrives."""
    async with broker_at(direct) as broker:
        await broker.connect()
        topic = await described(broker, new_topic())
        began = time.monotonic()
        (empty,) = (await broker.send(fetch(topic, {0: 0}, max_wait_ms=300))).partitions
        waited_s = time.monotonic() - began
        fetching = asyncio.create_task(broker.send(fetch(topic, {0: 0}, max_wait_ms=30_000)))
        await asyncio.to_thread(witness.produce, topic.name, [b"at last"])
        (full,) = (await asyncio.wait_for(fetching, 20)).partitions

    assert (empty.error_code, empty.high_watermark, bytes(empty.records or b"")) == (0, 0, b"")
    assert 0.3 <= waited_s < 20
    assert b"at last" in bytes(full.records)


async def test_offsets_of_many_partitions_are_returned(direct, new_topic, witness, kafka):
    """One request returns first, end or timestamp offsets of many partitions, and so does a fetch their records."""
    name = new_topic(3)
    for partition in range(3):
        witness.produce(name, [b"x"] * (partition + 1), partition=partition)
    kafka.delete_records(name, {2: 2})
    async with broker_at(direct) as broker:
        await broker.connect()
        topic = await described(broker, name)
        asked = ListOffsetsRequest(
            (ListOffsetsPartition(name, 0, -1), ListOffsetsPartition(name, 1, -1), ListOffsetsPartition(name, 2, -2))
        )
        found = {one.partition: one.offset for one in (await broker.send(asked)).partitions}
        later = ListOffsetsRequest((ListOffsetsPartition(name, 0, 1 << 60),))
        (nothing,) = (await broker.send(later)).partitions
        fetched = (await broker.send(fetch(topic, {0: 0, 1: 0, 2: 2}, max_wait_ms=500))).partitions

    assert found == {0: 1, 1: 2, 2: 2}
    assert (nothing.error_code, nothing.offset) == (0, -1)
    assert {one.partition: one.high_watermark for one in fetched if one.records} == {0: 1, 1: 2, 2: 3}


# ---- offsets of a group --------------------------------------------------------------------------------------------


async def test_offsets_are_committed_and_read_back(direct, new_topic, name, witness):
    """Offsets are committed with metadata, also without a member; a missing offset is -1."""
    topic = new_topic(3)
    commit = OffsetCommitRequest(name, (CommitOffset(topic, 0, 5, metadata="ö"), CommitOffset(topic, 1, 7, 0, None)))
    async with broker_at(direct) as broker:
        await broker.connect()
        await coordinated(broker, name)
        committed = await broker.send(commit)
        asked = OffsetFetchRequest(name, tuple(OffsetFetchPartition(topic, p) for p in range(3)))
        found = (await broker.send(asked)).partitions
        every = (await broker.send(OffsetFetchRequest(name, None))).partitions

    assert [(one.partition, one.error_code) for one in committed.partitions] == [(0, 0), (1, 0)]
    assert {one.partition: (one.offset, one.metadata) for one in found} == {0: (5, "ö"), 1: (7, ""), 2: (-1, "")}
    assert {one.partition for one in every} == {0, 1}
    assert await witness.committed(name, topic, 3) == {0: 5, 1: 7}


# ---- membership ----------------------------------------------------------------------------------------------------


def join(group, topic, member_id=""):
    subscription = encode_subscription(MemberSubscription((topic,)))
    return JoinGroupRequest(
        group, SESSION_MS, SESSION_MS, member_id, "consumer", (JoinGroupProtocol("range", subscription),)
    )


async def joined(broker: Broker, group: str, topic: str, member: str):
    """Join in two steps: request a member id, and join with it."""
    given = await broker.send(join(group, topic), owner=member)
    assert given.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return await broker.send(join(group, topic, given.member_id), owner=member)


async def test_two_members_of_one_group_share_a_broker(direct, new_topic, name, witness):
    """Two members of one group use their own connections, because one join waits for the other.

    Both get the leader's assignments; outdated generations and unknown members are refused, and a member that leaves is
    removed.
    """
    topic = new_topic(2)
    async with broker_at(direct) as broker:
        await broker.connect()
        await coordinated(broker, name)
        began = time.monotonic()
        first = await joined(broker, name, topic, "a")
        second = asyncio.create_task(joined(broker, name, topic, "b"))
        beat = HeartbeatRequest(name, first.generation_id, first.member_id)
        async with asyncio.timeout(20):
            # The broker holds the second join; heartbeats of the first member use another connection.
            while not (await broker.send(beat, owner="a")).error_code:  # noqa: ASYNC110 - as heartbeats do
                await asyncio.sleep(0.01)
        again, second = await asyncio.gather(broker.send(join(name, topic, first.member_id), owner="a"), second)
        leader, follower = (again, second) if again.leader == again.member_id else (second, again)
        of = {again.member_id: "a", second.member_id: "b"}
        assignments = tuple(
            SyncGroupAssignment(
                member.member_id, encode_assignment(MemberAssignment((OwnedPartitions(topic, (number,)),)))
            )
            for number, member in enumerate(leader.members)
        )

        def sync(who, given=()):
            request = SyncGroupRequest(name, who.generation_id, who.member_id, None, "consumer", "range", given)
            return broker.send(request, owner=of[who.member_id])

        answers = await asyncio.gather(sync(follower), sync(leader, assignments))
        took_s = time.monotonic() - began
        members = await witness.members(name)
        state = await witness.state(name)

        stale = CommitOffset(topic, 0, 1)
        commit = partial(OffsetCommitRequest, name, (stale,))
        codes = [
            (await broker.send(HeartbeatRequest(name, second.generation_id, second.member_id), owner="b")).error_code,
            (await broker.send(HeartbeatRequest(name, 999, second.member_id), owner="b")).error_code,
            (await broker.send(commit(generation_id=999, member_id=second.member_id))).partitions[0].error_code,
            (await broker.send(commit(generation_id=1, member_id="nobody"))).partitions[0].error_code,
            (await broker.send(commit())).partitions[0].error_code,
        ]
        left = await broker.send(LeaveGroupRequest(name, second.member_id), owner="b")
        remaining = await witness.members(name)

    assert took_s < 40
    assert decode_subscription(leader.members[0].metadata).topics == (topic,)
    assert [answer.error_code for answer in answers] == [0, 0]
    given = {
        who.member_id: decode_assignment(answer.assignment)
        for who, answer in zip((follower, leader), answers, strict=True)
    }
    seen = {member: {one.partition for one in owned} for member, owned in members.items()}
    assert {m: set(one.assigned_partitions[0].partitions) for m, one in given.items()} == seen
    assert sorted(partition for owned in seen.values() for partition in owned) == [0, 1]
    assert state == "STABLE"
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert (left.error_code, [one.error_code for one in left.members]) == (0, [0])
    assert set(remaining) == {again.member_id}


async def test_a_group_may_have_any_name(direct, new_topic, name, witness):
    """A group id may contain any characters."""
    group, topic = f"{name}-Gruppe ä/ö:*", new_topic()
    async with broker_at(direct) as broker:
        await broker.connect()
        await coordinated(broker, group)
        assert (await broker.send(FindCoordinatorRequest(group))).key == group
        await broker.send(OffsetCommitRequest(group, (CommitOffset(topic, 0, 3),)))

    assert await witness.committed(group, topic, 1) == {0: 3}
