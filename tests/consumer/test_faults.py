"""Brokers that die, freeze or refuse: nothing is lost, membership survives where the session allows it, waits end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from crew import Crew, until
from proxied import ProxiedWitness, numbers
from recorder import Recorder
from witness import Witness

from penstock import BrokerConnectionError, Consumer, UnsupportedVersionError
from penstock.messages import ApiVersionsRequest, FetchRequest
from penstock.observe.events import (
    ClusterRebootstrapped,
    CoordinatorLost,
    FetchFailed,
    GroupJoined,
    GroupLeft,
    PartitionsAssigned,
)
from penstock.testing import KafkaServer


@pytest.fixture(scope="module")
def own_server():
    """A broker that this module may kill."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def own_topic(own_server, group):
    own_server.create_topic(group, 2)
    return group


def consumer_of(server, topic, **options):
    return Consumer(topic, **{"bootstrap_servers": server.bootstrap_servers, **options})


async def test_a_broker_killed_and_restarted_is_survived(own_server, own_topic, group):
    """SIGKILL of the only broker and its return within the session: every record is handled, nobody rebalances."""
    witness, events = Witness(own_server.bootstrap_servers), Recorder()
    witness.produce(own_topic, (b"%d" % n for n in range(5_000)))

    async with Crew(
        lambda topic, **options: consumer_of(own_server, topic, **options), own_topic, group_id=group, hooks=[events]
    ) as crew:
        await crew.join()
        await crew.handle(1_000)
        await asyncio.to_thread(own_server.kill)
        await events.wait_for(FetchFailed)
        await asyncio.to_thread(own_server.restart)
        witness.produce(own_topic, (b"%d" % n for n in range(5_000, 6_000)))
        await crew.handle(6_000)

    assert {1} == set(crew.handled.values())
    assert len(events.of(GroupJoined)) == 1
    assert sum((await witness.committed(group, own_topic, 2)).values()) == 6_000


async def test_a_broker_frozen_within_the_session_is_waited_for(own_server, own_topic, group):
    """SIGSTOP for less than the session, then SIGCONT: reading goes on, nothing repeats, nobody rebalances."""
    witness, events = Witness(own_server.bootstrap_servers), Recorder()
    witness.produce(own_topic, (b"%d" % n for n in range(500)))
    options = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500, "hooks": [events]}

    async with Crew(
        lambda topic, **more: consumer_of(own_server, topic, **more), own_topic, group_id=group, **options
    ) as crew:
        await crew.join()
        await crew.handle(500)
        own_server.pause()
        await asyncio.sleep(3)
        own_server.resume()
        witness.produce(own_topic, (b"%d" % n for n in range(500, 1_000)))
        await crew.handle(1_000)

    assert {1} == set(crew.handled.values())
    assert len(events.of(GroupJoined)) == 1


async def test_stop_is_bounded_with_the_cluster_down(own_server, own_topic, group):
    """With every broker dead, stop() is through within stop_timeout_ms and leaves no task."""
    witness = Witness(own_server.bootstrap_servers)
    witness.produce(own_topic, (b"%d" % n for n in range(10)))
    consumer = consumer_of(own_server, own_topic, group_id=group, stop_timeout_ms=2_000)
    await consumer.start()
    for _ in range(5):
        await consumer.getone()

    await asyncio.to_thread(own_server.kill)
    began = time.monotonic()
    await consumer.stop()
    took = time.monotonic() - began
    await asyncio.to_thread(own_server.restart)

    assert took < 2.5
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_start_waits_for_a_broker_that_comes_late(own_server, own_topic, group):
    """start() tries until start_timeout_ms is over, so a service may come up before its brokers do."""
    await asyncio.to_thread(own_server.kill)
    consumer = consumer_of(own_server, own_topic, group_id=group)
    starting = asyncio.create_task(consumer.start())
    await asyncio.to_thread(own_server.restart)
    await starting

    await consumer.stop()


async def test_no_broker_there_is_told_in_bounded_time(group):
    """Connection refused: the error names the address, what to look at, and comes when start_timeout_ms is over."""
    consumer = Consumer("any", bootstrap_servers="127.0.0.1:1", group_id=group, start_timeout_ms=1_000)
    began = time.monotonic()

    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1.*is the broker running"):
        await consumer.start()

    assert time.monotonic() - began < 1.5
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_a_cancelled_start_leaves_nothing_behind(group):
    """Cancelling start() ends what it began."""
    consumer = Consumer("any", bootstrap_servers="127.0.0.1:1", group_id=group)
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0.1)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    assert starting.cancelled()
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_connections_reset_again_and_again_lose_nothing(witness_of, group):
    """Every connection is reset every second or so while 30,000 records are read: each is handled, none is skipped."""
    topic, events = witness_of.topic(4), Recorder()
    witness_of.produce(topic, (b"%d" % n + b"x" * 200 for n in range(30_000)), batch_bytes=16_384)
    options = {"group_id": group, "max_partition_fetch_bytes": 50_000, "hooks": [events]}

    witness_of.proxy.reset_every(0.5, 1.5)
    try:
        async with Crew(witness_of.consumer, topic, **options) as crew:
            await crew.join()
            await crew.handle(30_000)
            await until(lambda: len(events.of(FetchFailed)) >= 3)
    finally:
        witness_of.proxy.reset_never()

    # A commit that was applied and not heard of may be behind a rebalance, never in front of it.
    assert len(crew.handled) == 30_000


async def test_a_slow_network_is_no_reason_to_rebalance(witness_of, group):
    """200 ms on every frame and slices of a few bytes: records come, membership holds."""
    topic, events = witness_of.topic_with(300), Recorder()
    options = {"group_id": group, "session_timeout_ms": 6_000, "heartbeat_interval_ms": 500, "hooks": [events]}
    witness_of.proxy.delay(0.2)
    witness_of.proxy.throttle(50_000, slice_bytes=700)

    async with witness_of.consumer(topic, **options) as consumer:
        got = [await consumer.getone() for _ in range(300)]
        witness_of.proxy.restore()

    assert list(range(300)) == numbers(got)
    assert len(events.of(GroupJoined)) == 1


@pytest.mark.slow
async def test_a_coordinator_killed_is_survived_without_a_rebalance(kafka_cluster, group):
    """Three brokers, the group's coordinator dies by SIGKILL: another takes over and nobody rejoins."""
    cluster, events = kafka_cluster(3, config={"offsets.topic.replication.factor": 3}), Recorder()
    cluster.create_topic("spread", 6, replication_factor=3, config={"min.insync.replicas": 1})
    witness = Witness(cluster.bootstrap_servers)
    witness.produce("spread", (b"%d" % n for n in range(2_000)))

    async with Crew(
        lambda topic, **options: consumer_of(cluster, topic, **options), "spread", group_id=group, hooks=[events]
    ) as crew:
        member = await crew.join()
        await crew.handle(2_000)
        coordinator_id = member.consumer._started.cluster.coordinator_id(group)
        victim = next(node for node in cluster.nodes if node.node_id == coordinator_id)
        await asyncio.to_thread(victim.kill)
        await events.wait_for(CoordinatorLost)
        witness.produce("spread", (b"%d" % n for n in range(2_000, 3_000)))
        await crew.handle(3_000)
        await until(lambda: member.consumer._started.cluster.coordinator_id(group) not in {None, coordinator_id})
        async with asyncio.timeout(30):
            # For a moment the new coordinator does not know of all that the old one had written.
            while len(await witness.members(group)) != 1:
                pass

    assert {1} == set(crew.handled.values())
    assert len(events.of(GroupJoined)) == 1


@pytest.mark.slow
async def test_the_cluster_is_found_again_when_all_known_brokers_are_gone(kafka_cluster, group):
    """Brokers that move to other addresses are found by bootstrap_servers again (KIP-899), and reading goes on."""
    cluster, events = kafka_cluster(1, proxied=True), Recorder()
    cluster.create_topic("moved")
    (proxy,) = cluster.proxies.values()
    witness = ProxiedWitness(cluster)
    witness.produce("moved", (b"%d" % n for n in range(10)))
    direct = f"127.0.0.1:{cluster.nodes[0].ports.client}"

    async with witness.consumer(
        "moved", bootstrap_servers=f"{proxy.address},{direct}", group_id=group, hooks=[events]
    ) as consumer:
        await events.wait_for(PartitionsAssigned)
        got = [await consumer.getone() for _ in range(10)]
        proxy.refuse()
        await events.wait_for(ClusterRebootstrapped)
        proxy.restore()
        witness.produce("moved", (b"%d" % n for n in range(10, 20)))
        got += [await consumer.getone() for _ in range(10)]

    assert list(range(20)) == numbers(got)


async def test_what_ends_the_consumer_in_the_background_leaves_the_group_in_order(quick, group):
    """The reader is told at once; what is done is committed, the group need not miss the member, nothing more hangs."""
    topic, proxy, events = quick.topic_with(10), quick.proxy, Recorder()

    def without_fetch(answer):  # of connections that are new; the others go on
        return replace(answer, api_keys=tuple(one for one in answer.api_keys if one.api_key != 1))

    async with quick.consumer(topic, group_id=group, auto_commit_interval_ms=600_000, hooks=[events]) as consumer:
        for _ in range(10):
            await consumer.getone()
        with proxy.edit_answer(ApiVersionsRequest, without_fetch, times=None), proxy.reset_on_answer(FetchRequest):
            with pytest.raises(UnsupportedVersionError):
                await consumer.getone(timeout_ms=10_000)
            await events.wait_for(GroupLeft, timeout_s=5)
            with pytest.raises(UnsupportedVersionError):
                await asyncio.wait_for(consumer.unsubscribe(), 5)

        assert await quick.members(group) == {}
        assert await quick.committed(group, topic, 1) == {0: 10}
