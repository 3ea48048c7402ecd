"""The consumer protocol under faults: a member is refused, removed or disconnected, or its broker dies."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest
from msgspec.structs import replace

from tailrace import Consumer, SharedCluster, admin
from tailrace.config import resolve
from tailrace.error_codes import ErrorCode
from tailrace.net.cluster import Cluster
from tailrace.observe.events import (
    CommitFailed,
    ConsumerFailed,
    GroupJoined,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TopicIdPartitions,
)
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.testing import KafkaServer
from tests.support.consumer_group import ConsumerGroup, kill, until
from tests.support.event_recorder import EventRecorder
from tests.support.kip848_broker import QUICK, is_full
from tests.support.witness import Witness


def refused(code):
    return lambda answer: replace(answer, error_code=code, assignment=None)


def each_refused(code):
    return lambda answer: replace(answer, partitions=tuple(replace(one, error_code=code) for one in answer.partitions))


def nobody_coordinates(code):
    def edit(answer):
        return replace(answer, node_id=-1, error_code=code)

    return edit


def joins(quick, group):
    """Return the group's heartbeats that join."""
    return [beat for beat in quick.heartbeats(group) if beat.member_epoch == 0]


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_a_fenced_or_unknown_member_joins_again_with_its_id(quick, group, code):
    """A fenced or unknown member loses its partitions, joins again with its id, and misses no record."""
    topic, events = quick.topic(2), EventRecorder()
    quick.produce(topic, (b"%d" % n for n in range(1_000)))

    async with ConsumerGroup(quick.consumer, topic, group_id=group, client_id=group, hooks=[events]) as crew:
        member = await crew.join()
        await crew.handle(1_000)
        # A coordinator elected a moment ago may have refused the first join.
        first = len(joins(quick, group))
        with quick.proxy.edit_answer(ConsumerGroupHeartbeatRequest, refused(code)):
            lost = await events.wait_for(PartitionsLost)
        quick.produce(topic, (b"%d" % n for n in range(1_000)))
        await crew.handle(2_000)
        assert set((await quick.members(group)).values()) == {member.consumer.assignment()}
        assert not events.of(PartitionsRevoked)

    assert len(lost.partitions) == 2
    assert len(joins(quick, group)) == first + 1
    assert all(map(is_full, joins(quick, group)))
    assert len({beat.member_id for beat in quick.heartbeats(group)}) == 1


async def test_partitions_of_topics_without_a_subscription_are_not_read(quick, group):
    """A topic that the broker assigns without a subscription is not read, even if the cluster's metadata have it."""
    topic, other, events = quick.topic_with(1), quick.topic_with(1), EventRecorder()
    async with (
        SharedCluster(bootstrap_servers=quick.bootstrap_servers) as cluster,
        Consumer(other, cluster=cluster, auto_offset_reset="earliest") as reader,
    ):
        await anext(reader)
        other_id = await id_of(other, quick)
        with quick.proxy.edit_answer(ConsumerGroupHeartbeatRequest, assigning(other_id), times=None):
            async with quick.consumer(topic, cluster=cluster, group_id=group, hooks=[events]) as consumer:
                assert (await anext(consumer)).topic == topic
                assert {one.topic for one in consumer.assignment()} == {topic}

    assert {one.topic for event in events.of(PartitionsAssigned) for one in event.added} == {topic}


async def id_of(topic, quick):
    """Return the id of a topic."""
    async with admin.reached(bootstrap_servers=quick.direct) as cluster:
        cluster.watch("test", [topic])
        await cluster.refresh()
        return cluster.topology.topic_id(topic)


def assigning(other_id):
    """Return a function that adds a partition of another topic to each assignment."""

    def edit(answer):
        if answer.assignment is None:
            return answer
        return replace(answer, assignment=(*answer.assignment, TopicIdPartitions(other_id, (0,))))

    return edit


async def test_a_removed_member_joins_again(quick, group):
    """A member that an administrator removed loses its partitions and joins again with its id."""
    topic, events = quick.topic_with(100), EventRecorder()

    async with ConsumerGroup(quick.consumer, topic, group_id=group, client_id=group, hooks=[events]) as crew:
        await crew.join()
        await crew.handle(100)
        (member_id,) = await quick.members(group)
        await expel(quick, group, member_id)
        await events.wait_for(PartitionsLost)
        quick.produce(topic, (b"%d" % n for n in range(100)))
        await crew.handle(200)
        assert list(await quick.members(group)) == [member_id]


async def expel(quick, group, member_id):
    cluster = Cluster(resolve({"bootstrap_servers": quick.direct}))
    await cluster.bootstrap()
    coordinator = await cluster.coordinator(group)
    answer = await coordinator.send(ConsumerGroupHeartbeatRequest(group, member_id, -1))
    assert not answer.error_code
    cluster.close()
    await asyncio.sleep(0)


async def test_a_commit_with_a_stale_epoch_is_repeated_after_a_heartbeat(quick, group):
    """A commit refused as STALE_MEMBER_EPOCH is sent again after a heartbeat, and commit() raises nothing."""
    topic, events = quick.topic_with(10), EventRecorder()
    await quick.configure(group, consumer_heartbeat_interval_ms=15_000)

    options = {"client_id": group, "auto_commit_interval_ms": 600_000, "hooks": [events]}
    async with quick.consumer(topic, group_id=group, **options) as consumer:
        for _ in range(10):
            await consumer.getone()
        beats = len(quick.heartbeats(group))
        with quick.proxy.edit_answer(OffsetCommitRequest, each_refused(ErrorCode.STALE_MEMBER_EPOCH), times=2):
            began = time.monotonic()
            await consumer.commit()
            took = time.monotonic() - began
        assert len(quick.commits(group)) == 3
        assert len(quick.heartbeats(group)) > beats

    assert took < 10
    assert await quick.committed(group, topic, 1) == {0: 10}
    assert not [*events.of(CommitFailed), *events.of(PartitionsLost)]


@pytest.mark.parametrize("code", [14, 15, 16])
async def test_a_coordinator_that_cannot_answer_now_is_retried(quick, group, code):
    """Requests that a coordinator refuses with codes 14, 15 and 16 are sent again, and no error is raised."""
    topic, events, proxy = quick.topic_with(20), EventRecorder(), quick.proxy
    async with quick.consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        await consumer.commit()

    with (
        proxy.edit_answer(FindCoordinatorRequest, nobody_coordinates(code)),
        proxy.edit_answer(OffsetFetchRequest, lambda one: replace(one, error_code=code, partitions=())),
        proxy.edit_answer(OffsetCommitRequest, each_refused(code), times=2),
        proxy.edit_answer(ConsumerGroupHeartbeatRequest, refused(code), times=2),
    ):
        async with quick.consumer(topic, group_id=group, client_id=group, hooks=[events]) as consumer:
            got = [await consumer.getone() for _ in range(19)]
            await consumer.commit()
            beats = len(quick.heartbeats(group))
            await until(lambda: len(quick.heartbeats(group)) > beats)

    assert [record.offset for record in got] == list(range(1, 20))
    assert len(events.of(GroupJoined)) == 1
    assert not events.of(PartitionsLost)


async def test_a_dead_member_is_replaced_after_its_session(quick, group):
    """When the session of a killed member has expired, another member handles its unfinished records."""
    topic = quick.topic(2)
    quick.produce(topic, (b"%d" % n for n in range(100)))
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=1_000)
    doomed = quick.consumer(topic, group_id=group)
    await doomed.start()
    handed_out = [await doomed.getone() for _ in range(10)]

    await kill(topic)
    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join()
        await crew.handle(100)
    await doomed.stop()

    assert {(record.partition, record.offset) for record in handed_out} <= crew.handled.keys()


async def test_a_member_without_network_loses_its_partitions_before_others_get_them(quick, group):
    """A member without network loses its partitions before others get them, and delivers no buffered record."""
    topic, events, others = quick.topic(2), EventRecorder(), EventRecorder()
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=3_000)
    options = {"group_id": group, "max_queued_records": 10}

    async with ConsumerGroup(quick.consumer, topic, **options, bootstrap_servers=quick.direct, hooks=[others]) as crew:
        other = await crew.join()
        async with quick.consumer(topic, **options, hooks=[events], stop_timeout_ms=2_000) as cut_off:
            await until(lambda: len(cut_off.assignment()) == 1)
            # Both partitions get records: without a key all would go to one of them.
            await asyncio.to_thread(quick.fill, topic, 2, 2_500)
            handed_out = [await cut_off.getone() for _ in range(100)]
            await until(lambda: bool(cut_off.statistics().buffered_bytes))
            quick.proxy.black_hole()
            lost = await events.wait_for(PartitionsLost)
            assert len(other.consumer.assignment()) == 1
            assert not cut_off.assignment()
            assert await cut_off.getone(timeout_ms=100) is None
            await crew.handle(5_000)
            quick.proxy.restore()
            await until(lambda: len(cut_off.assignment()) == 1)

    assert {(record.partition, record.offset) for record in handed_out} <= crew.handled.keys()
    assert lost.partitions in [one.added for one in others.of(PartitionsAssigned)]


@pytest.mark.parametrize("kind", [ConsumerGroupHeartbeatRequest, OffsetCommitRequest])
async def test_a_failure_in_the_broker_is_retried(quick, group, kind):
    """After UNKNOWN_SERVER_ERROR, a request is repeated, and neither the partitions nor the membership are lost."""
    topic, events = quick.topic_with(10), EventRecorder()
    edit = (refused if kind is ConsumerGroupHeartbeatRequest else each_refused)(ErrorCode.UNKNOWN_SERVER_ERROR)

    async with quick.consumer(topic, group_id=group, client_id=group, hooks=[events]) as consumer:
        got = [(await consumer.getone()).offset for _ in range(5)]
        with quick.proxy.edit_answer(kind, edit) as fault:
            if kind is OffsetCommitRequest:
                await consumer.commit()
            async with asyncio.timeout(30):
                await fault.wait_applied()
        got += [(await consumer.getone()).offset for _ in range(5)]

    assert got == list(range(10))
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]


@pytest.fixture(scope="module")
def wiped_server():
    """Start a broker of which the test wipes the storage; ``backup`` has the storage as it was before any topic."""
    with KafkaServer(config=QUICK) as server:
        server.node.stop()
        shutil.copytree(server.node.data, server.node.folder / "backup")
        server.restart(server.node)
        yield server


def wipe(server):
    """Kill the broker, and start it with the storage that it had before it knew any topic or group."""
    server.node.kill()
    shutil.rmtree(server.node.data)
    shutil.copytree(server.node.folder / "backup", server.node.data)
    server.restart(server.node)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("commits", [True, False], ids=["commit first", "heartbeat first"])
async def test_a_consumer_outlives_the_wiped_storage_of_its_broker(wiped_server, name, group, protocol, commits):
    """If a broker loses its storage, members lose their partitions, join again, and read the new topic."""
    witness, events = Witness(wiped_server.bootstrap_servers), EventRecorder()
    wiped_server.create_topic(name, 1)
    witness.produce(name, [b"old"])
    options = {"group_protocol": protocol, "hooks": [events], "metadata_max_age_ms": 500}
    options |= {"auto_commit_interval_ms": 100 if commits else 600_000}

    async with Consumer(name, bootstrap_servers=wiped_server.bootstrap_servers, group_id=group, **options) as consumer:
        assert (await consumer.getone()).value == b"old"
        coming = asyncio.create_task(consumer.getone())
        await asyncio.to_thread(wipe, wiped_server)
        await asyncio.to_thread(wiped_server.create_topic, name, 1)
        await asyncio.to_thread(witness.produce, name, [b"new"])
        async with asyncio.timeout(60):
            assert (await coming).value == b"new"

    assert not events.of(ConsumerFailed)
