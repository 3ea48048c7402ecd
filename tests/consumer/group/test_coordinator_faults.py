"""Faults of the group coordinator: it stops, freezes, moves or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

import pytest
from confluent_kafka import Producer

from tailrace import Consumer, TopicPartition
from tailrace.observe.events import (
    ConsumerFailed,
    CoordinatorFound,
    CoordinatorLost,
    GroupJoined,
    GroupRequestFailed,
    OffsetsCommitted,
    PartitionsLost,
    SessionExpired,
)
from tailrace.protocol.groups import HeartbeatRequest
from tailrace.testing import KafkaCluster
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder
from tests.support.manual_member import ManualMember
from tests.support.witness import Witness

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def brokers():
    """Start three brokers that tests of this module may kill, each the coordinator of some groups."""
    with KafkaCluster(3, config={"offsets.topic.num.partitions": 12}) as cluster:
        yield cluster


@pytest.fixture
def cluster(brokers):
    """Provide the three brokers; all of them run again after the test."""
    yield brokers
    for node in brokers.nodes:
        node.resume()
        if not node.is_running:
            brokers.restart(node)
    brokers.wait_until_ready()


@pytest.fixture
def topic(cluster, group):
    cluster.create_topic(group, 4, replication_factor=3)
    return group


@pytest.fixture
def witness(cluster):
    return Witness(cluster.bootstrap_servers)


@pytest.fixture
def new_consumer(cluster):
    return lambda *topics, **options: Consumer(*topics, **{"bootstrap_servers": cluster.bootstrap_servers, **options})


def coordinator_of(cluster, consumer, group):
    """Return the node that coordinates the group, as the consumer knows it."""
    node_id = consumer._started.parts.cluster.coordinator_id(group)
    return next(node for node in cluster.nodes if node.node_id == node_id)


@contextlib.asynccontextmanager
async def load(cluster, topic):
    """Produce records until the returned function is called, which returns their number."""
    done = threading.Event()
    producing = asyncio.create_task(asyncio.to_thread(produce_until, done, cluster.bootstrap_servers, topic))

    async def end():
        done.set()
        return await producing

    try:
        yield end
    finally:
        await end()


def produce_until(done, bootstrap_servers, topic):
    """Produce with one producer, since a new one would have to find a broker that answers."""
    options = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5}
    producer, count = Producer(options, logger=logging.getLogger("librdkafka")), 0
    while not done.wait(0.01):
        for n in range(100):
            producer.produce(topic, b"%d" % n, partition=n % 2)
            count += 1
        assert producer.flush(30) == 0
    return count


@pytest.fixture
async def apart(cluster, group):
    """Create a topic and a group whose coordinator leads none of the topic's partitions."""
    for name in (f"{group}-{n}" for n in range(100)):
        cluster.create_topic(name, 2, replication_factor=3)
        leaders = {cluster.leader_of(name, p).node_id for p in range(2)}
        async with ManualMember(cluster.bootstrap_servers, name) as anybody:
            if await anybody.coordinator_id() not in leaders:
                return name, name
    raise AssertionError("where two of three brokers lead, the third coordinates some groups")


of_the_cluster = pytest.mark.xdist_group("coordinators")
"""One xdist group, since the cluster is large."""

FAULTS = {
    "stopped in order": lambda node: node.stop(),
    "frozen": lambda node: node.pause(),
}


@of_the_cluster
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_new_coordinator_causes_no_rebalance(cluster, apart, new_consumer, fault):
    """If the coordinator moves within the session, no record is lost or repeated, and commits continue."""
    (topic, group), events = apart, (EventRecorder(), EventRecorder())
    options = {"session_timeout_ms": 30_000, "heartbeat_interval_ms": 300, "auto_commit_interval_ms": 200}

    async with (
        ConsumerGroup(new_consumer, topic, group_id=group, **options) as crew,
        load(cluster, topic) as end_of_load,
    ):
        first = await crew.join(hooks=[events[0]])
        await crew.join(hooks=[events[1]])
        await crew.shares(1, 1)
        await crew.handle(1_000)
        victim = coordinator_of(cluster, first.consumer, group)
        joined = [len(one.of(GroupJoined)) for one in events]
        began = time.monotonic()
        await asyncio.to_thread(FAULTS[fault], victim)
        for one in events:
            await one.wait_for(CoordinatorLost)
            await one.wait_for(CoordinatorFound, where=lambda event: event.address != victim.address)
            seen = len(one.of(OffsetsCommitted))
            await one.wait_for(OffsetsCommitted, seen + 2)
        took = time.monotonic() - began
        await crew.handle(await end_of_load())
    victim.resume()

    assert {1} == set(crew.handled.values())
    assert [len(one.of(GroupJoined)) for one in events] == joined
    assert not [event for one in events for event in (*one.of(PartitionsLost), *one.of(ConsumerFailed))]
    await is_committed(cluster, group, topic, len(crew.handled))
    assert took < 30


@of_the_cluster
async def test_a_killed_broker_that_leads_and_coordinates_causes_no_rejoin(cluster, new_consumer, witness, group):
    """If a broker that is leader and coordinator is killed, every record is delivered once, without another join."""
    cluster.create_topic(group, 6, replication_factor=3, config={"min.insync.replicas": 1})
    witness.produce(group, (b"%d" % n for n in range(2_000)))
    events = EventRecorder()

    async with ConsumerGroup(new_consumer, group, group_id=group, hooks=[events]) as crew:
        member = await crew.join()
        await crew.handle(2_000)
        victim = coordinator_of(cluster, member.consumer, group)
        await asyncio.to_thread(victim.kill)
        await events.wait_for(CoordinatorLost)
        witness.produce(group, (b"%d" % n for n in range(2_000, 3_000)))
        await crew.handle(3_000)
        await events.wait_for(CoordinatorFound, where=lambda event: event.address != victim.address)

    assert {1} == set(crew.handled.values())
    assert len(events.of(GroupJoined)) == 1
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]
    await is_committed(cluster, group, group, 3_000, partitions=6)


@of_the_cluster
async def test_a_changed_leader_is_followed(cluster, apart, new_consumer):
    """If the leader of a partition stops, no record is lost or repeated, and no error is raised."""
    (topic, group), events = apart, EventRecorder()

    async with ConsumerGroup(new_consumer, topic, group_id=group) as crew, load(cluster, topic) as end_of_load:
        await crew.join(hooks=[events])
        await crew.shares(2)
        await crew.handle(1_000)
        victim = cluster.leader_of(topic, 0)
        await asyncio.to_thread(victim.stop)
        seen = max(offset for partition, offset in crew.handled if partition == 0)
        await until(lambda: (0, seen + 1_000) in crew.handled)
        leader = cluster.leader_of(topic, 0)
        await crew.handle(await end_of_load())

    assert leader is not victim
    assert {1} == set(crew.handled.values())
    assert len(events.of(GroupJoined)) == 1
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]


async def is_committed(cluster, group, topic, count, *, partitions=2):
    """Wait until the broker has the commit, since a broker that was frozen may answer with outdated offsets."""
    async with asyncio.timeout(40), ManualMember(cluster.bootstrap_servers, group) as anybody:
        while sum((await anybody.committed(topic, partitions)).values()) != count:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.1)


@of_the_cluster
async def test_after_an_expired_session_only_uncommitted_records_repeat(cluster, apart, new_consumer):
    """If all brokers freeze for longer than the session, only records after the last commit are repeated.

    The coordinator remains frozen, and the member joins again at the next one.
    """
    (topic, group), events = apart, EventRecorder()
    options = {"session_timeout_ms": 4_000, "heartbeat_interval_ms": 300, "auto_commit_interval_ms": 100}

    options |= {"group_id": group, "hooks": [events]}
    async with ConsumerGroup(new_consumer, topic, **options) as crew, load(cluster, topic) as end_of_load:
        member = await crew.join()
        await crew.shares(2)
        await crew.handle(1_000)
        frozen = coordinator_of(cluster, member.consumer, group)
        # The other brokers might elect another coordinator before the session expires.
        for node in cluster.nodes:
            node.pause()
        lost = await events.wait_for(PartitionsLost)
        for node in cluster.nodes:
            if node is not frozen:
                node.resume()
        commits = [event.offsets for event in events.events[: events.events.index(lost)] if is_commit(event)]
        await crew.shares(2, timeout_s=40)
        await crew.handle(await end_of_load())
    frozen.resume()

    committed = {}
    for one in commits:
        committed |= {tp.partition: offset for tp, offset in one.items()}
    repeated = {where for where, times in crew.handled.items() if times > 1}
    assert set(crew.handled.values()) == {1, 2}
    assert all(offset >= committed[partition] for partition, offset in repeated)
    await is_committed(cluster, group, topic, len(crew.handled))


def is_commit(event):
    return isinstance(event, OffsetsCommitted)


@of_the_cluster
async def test_a_join_at_a_frozen_coordinator_is_sent_to_the_next_one(cluster, apart, witness, new_consumer):
    """A join without a response from a frozen coordinator is sent to the next coordinator."""
    (topic, group), events = apart, EventRecorder()
    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 300, "partition_assignment_strategy": "range"}
    witness.produce(topic, [b"first"])

    async with ManualMember(cluster.bootstrap_servers, group) as stranger:
        await stranger.join(topic)
        async with new_consumer(topic, group_id=group, hooks=[events], **options) as consumer:
            await waits_for_members(witness, group)
            began = time.monotonic()
            coordinator_of(cluster, consumer, group).pause()
            await events.wait_for(CoordinatorLost)
            given_up = time.monotonic() - began
            await stranger.leave()
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"first"

    assert given_up < 15
    assert len(events.of(GroupJoined)) == 1


async def waits_for_members(witness, group):
    """Wait until the coordinator waits for another member to join."""
    async with asyncio.timeout(20):
        while await witness.state(group) != "PREPARING_REBALANCING":  # noqa: ASYNC110 - the broker sends no notification
            await asyncio.sleep(0.05)


@of_the_cluster
async def test_a_rejoin_at_a_frozen_coordinator_keeps_the_partitions(cluster, apart, witness, new_consumer):
    """If the coordinator freezes during a rejoin, the member joins at the next one and loses no partition."""
    (topic, group), events = apart, EventRecorder()
    options = {"session_timeout_ms": 15_000, "heartbeat_interval_ms": 300, "group_id": group, "hooks": [events]}

    async with new_consumer(topic, **options) as consumer, ManualMember(cluster.bootstrap_servers, group) as stranger:
        await until(lambda: len(consumer.assignment()) == 2)
        # It is assigned a partition, and the group waits for its second join.
        await stranger.join(topic, protocol="cooperative-sticky")
        await until(lambda: len(consumer.assignment()) == 1)
        await waits_for_members(witness, group)
        (kept,) = consumer.assignment()
        frozen = coordinator_of(cluster, consumer, group)
        began = time.monotonic()
        frozen.pause()
        await events.wait_for(CoordinatorFound, where=lambda event: event.address != frozen.address)
        await events.wait_for(GroupRequestFailed, where=lambda event: event.request == "Join")
        await stranger.leave()
        await until(lambda: len(consumer.assignment()) == 2)
        took = time.monotonic() - began
        witness.produce(topic, [b"first"], partition=kept.partition)
        assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"first"

    assert took < 30
    assert not events.of(PartitionsLost)


# ---- the session --------------------------------------------------------------------------------------------------


class Clocked(EventRecorder):
    """Hook that records the time of each event."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def on_event(self, event):
        self.times.append(time.monotonic())
        super().on_event(event)

    def at(self, event):
        return self.times[self.events.index(event)]


async def test_a_member_detects_its_expired_session(witness_of, group):
    """A member without responses loses its partitions one session after it sent the last acknowledged heartbeat.

    No buffered record is delivered after that.
    """
    topic, events, proxy, handed_out = witness_of.topic(), Clocked(), witness_of.proxy, []
    witness_of.produce(topic, (b"%d" % n for n in range(50_000)))
    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 200, "client_id": group, "hooks": [events]}

    async with witness_of.consumer(topic, group_id=group, stop_timeout_ms=500, **options) as consumer:
        reading = asyncio.create_task(note_times(consumer, handed_out))
        await until(lambda: len(proxy.answers(HeartbeatRequest, client_id=group)) > 2)
        proxy.black_hole()
        hole_at = time.monotonic()
        lost = await events.wait_for(PartitionsLost)
        expired = await events.wait_for(SessionExpired)
        reading.cancel()
        await asyncio.wait({reading})
        assert await consumer.getone(timeout_ms=500) is None
        assert consumer.assignment() == frozenset()
        assert consumer.statistics().buffered_bytes == 0

    answered = [f.correlation_id for f in proxy.answers(HeartbeatRequest, client_id=group) if f.at < hole_at]
    sent = [f.at for f in proxy.requests(HeartbeatRequest, client_id=group) if f.correlation_id in answered]
    assert lost.partitions == {TopicPartition(topic, 0)}
    # A session, and the delay of a busy machine.
    assert 2.5 < events.at(lost) - max(sent) < 5.5
    assert 3 <= expired.silent_s < 5.5
    assert hole_at < max(handed_out) <= events.at(lost)
    assert len(handed_out) < 50_000


async def note_times(consumer, times):
    async for _ in consumer:
        times.append(time.monotonic())
        await asyncio.sleep(0.001)
