"""Brokers that die, freeze or refuse: no record is lost, members stay within the session, and waits are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from functools import partial

import pytest
from msgspec.structs import replace

from tailrace import BrokerConnectionError, Consumer, TopicPartition, UnsupportedVersionError
from tailrace.observe.events import (
    ClusterRebootstrapped,
    FetchFailed,
    FetchInterrupted,
    GroupJoined,
    GroupLeft,
    PartitionsAssigned,
)
from tailrace.protocol.groups import JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder
from tests.support.proxied_broker import numbers
from tests.support.witness import Witness


@pytest.fixture
def own_topic(own_server, group):
    own_server.create_topic(group, 2)
    return group


def consumer_of(server, topic, **options):
    return Consumer(topic, **{"bootstrap_servers": server.bootstrap_servers, **options})


@pytest.mark.xdist_group("killed-broker")
async def test_a_restart_of_the_only_broker_keeps_the_membership(own_server, own_topic, group):
    """If the only broker is killed and restarted within the session, each record is delivered once.

    No group rebalances, in either protocol.
    """
    Witness(own_server.bootstrap_servers).produce(own_topic, (b"%d" % n for n in range(5_000)))
    groups = {protocol: f"{group}-{protocol}" for protocol in ("classic", "consumer")}

    async def members(witness):
        return [await witness.members(name) for name in groups.values()]

    async with contextlib.AsyncExitStack() as stack:
        crews, events = [], []
        for protocol, name in groups.items():
            events.append(EventRecorder())
            options = {"group_id": name, "group_protocol": protocol, "hooks": events[-1:]}
            new = partial(consumer_of, own_server)
            crews.append(await stack.enter_async_context(ConsumerGroup(new, own_topic, **options)))
            await crews[-1].join()
            await crews[-1].handle(1_000)
        before = await members(Witness(own_server.bootstrap_servers))
        await asyncio.to_thread(own_server.kill)
        for one in events:
            await one.wait_for(FetchFailed)
        await asyncio.to_thread(own_server.restart)
        # A librdkafka client that saw the broker die may take long to reconnect.
        witness = Witness(own_server.bootstrap_servers)
        witness.produce(own_topic, (b"%d" % n for n in range(5_000, 6_000)))
        for crew in crews:
            await crew.handle(6_000)
        assert await members(witness) == before

    assert [set(crew.handled.values()) for crew in crews] == [{1}, {1}]
    assert [len([two for two in one.of(PartitionsAssigned) if two.added]) for one in events] == [1, 1]
    assert len(events[0].of(GroupJoined)) == 1
    assert [sum((await witness.committed(name, own_topic, 2)).values()) for name in groups.values()] == [6_000] * 2


@pytest.mark.xdist_group("killed-broker")
async def test_a_broker_frozen_within_the_session_keeps_the_membership(own_server, own_topic, group):
    """If the broker freezes for less than the session, reading continues without repeats or a rebalance."""
    witness, events = Witness(own_server.bootstrap_servers), EventRecorder()
    witness.produce(own_topic, (b"%d" % n for n in range(500)))
    options = {"session_timeout_ms": 20_000, "heartbeat_interval_ms": 500, "hooks": [events]}

    async with ConsumerGroup(
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


@pytest.mark.xdist_group("killed-broker")
async def test_stop_is_bounded_with_the_cluster_down(own_server, own_topic, group):
    """With all brokers down, stop() ends in bounded time and leaves no task, in either protocol."""
    witness = Witness(own_server.bootstrap_servers)
    witness.produce(own_topic, (b"%d" % n for n in range(10)))
    consumers = [
        consumer_of(own_server, own_topic, group_id=f"{group}-{one}", group_protocol=one, stop_timeout_ms=2_000)
        for one in ("classic", "consumer")
    ]
    for consumer in consumers:
        await consumer.start()
        for _ in range(5):
            await consumer.getone()

    await asyncio.to_thread(own_server.kill)
    began = time.monotonic()
    await asyncio.gather(*(consumer.stop() for consumer in consumers))
    took = time.monotonic() - began

    assert took < 10
    assert {asyncio.current_task()} == asyncio.all_tasks()


@pytest.mark.xdist_group("killed-broker")
async def test_start_waits_for_a_broker_that_starts_later(killed_server, group):
    """start() waits for a broker that starts within start_timeout_ms."""
    if killed_server.node.is_running:
        await asyncio.to_thread(killed_server.kill)
    consumer = consumer_of(killed_server, "always-there", group_id=group, start_timeout_ms=60_000)
    starting = asyncio.create_task(consumer.start())
    done, _ = await asyncio.wait({starting}, timeout=0.5)
    await asyncio.to_thread(killed_server.restart)
    await starting
    await until(lambda: len(consumer.assignment()) == 2)
    await consumer.stop()

    assert not done


async def test_start_raises_if_no_broker_listens(group):
    """If connections are refused, start() raises after start_timeout_ms with the address and leaves no task."""
    consumer = Consumer("any", bootstrap_servers="127.0.0.1:1", group_id=group, start_timeout_ms=1_000)
    began = time.monotonic()

    with pytest.raises(BrokerConnectionError, match=r"127\.0\.0\.1:1.*is the broker running"):
        await consumer.start()

    assert time.monotonic() - began < 10
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_start_raises_if_a_port_is_silent(group):
    """If a listener does not answer within start_timeout_ms, start() raises with the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = "{}:{}".format(*listening.getsockname())
        consumer = Consumer("any", bootstrap_servers=address, group_id=group, start_timeout_ms=500)
        with pytest.raises(BrokerConnectionError, match=f"{address}.*not finished within"):
            await consumer.start()


async def test_a_canceled_start_leaves_nothing_of_the_consumer_running(group):
    """A canceled start() leaves no task."""
    consumer = Consumer("any", bootstrap_servers="127.0.0.1:1", group_id=group)
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0.1)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)

    assert starting.cancelled()
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_repeated_connection_resets_lose_no_record(witness_of, group):
    """If all connections are reset about every second, each of 30,000 records is handled."""
    topic, events = witness_of.topic(4), EventRecorder()
    witness_of.produce(topic, (b"%d" % n + b"x" * 200 for n in range(30_000)), batch_bytes=16_384)
    options = {"group_id": group, "max_partition_fetch_bytes": 50_000, "hooks": [events]}

    witness_of.proxy.reset_every(0.5, 1.5)
    try:
        async with ConsumerGroup(witness_of.consumer, topic, **options) as crew:
            await crew.join()
            await crew.handle(30_000)
            await until(lambda: len(events.of(FetchInterrupted)) >= 3)
    finally:
        witness_of.proxy.stop_resets()

    # A commit that was applied but not acknowledged may come after a rebalance, never before it.
    assert len(crew.handled) == 30_000


async def test_a_slow_network_causes_no_rebalance(witness_of, group):
    """With a delay of 100 ms and a low bandwidth, all records arrive and the group does not rebalance."""
    topic, events = witness_of.topic_with(300), EventRecorder()
    options = {"group_id": group, "session_timeout_ms": 20_000, "heartbeat_interval_ms": 500, "hooks": [events]}
    witness_of.proxy.delay(0.1)
    witness_of.proxy.throttle(50_000, slice_bytes=700)

    async with witness_of.consumer(topic, **options) as consumer:
        got = [await consumer.getone() for _ in range(300)]
        witness_of.proxy.restore()

    assert list(range(300)) == numbers(got)
    assert len(events.of(GroupJoined)) == 1


async def test_a_cluster_that_moved_is_found_by_bootstrap_servers(witness_of, group):
    """If no known broker answers, bootstrap_servers are used again (KIP-899), and reading continues."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    direct = f"127.0.0.1:{witness_of.server.node.ports.client}"

    async with witness_of.consumer(
        topic, bootstrap_servers=f"{proxy.address},{direct}", group_id=group, hooks=[events]
    ) as consumer:
        await events.wait_for(PartitionsAssigned)
        got = [await consumer.getone() for _ in range(10)]
        proxy.refuse()
        await events.wait_for(ClusterRebootstrapped)
        proxy.restore()
        witness_of.produce(topic, (b"%d" % n for n in range(10, 20)))
        got += [await consumer.getone() for _ in range(10)]

    assert list(range(20)) == numbers(got)


async def test_a_background_failure_commits_and_leaves_the_group(quick, group):
    """After a fatal error of a fetch, polls raise it, finished records are committed and the member leaves."""
    topic, proxy, events = quick.topic_with(10), quick.proxy, EventRecorder()

    def without_fetch(answer):  # on new connections; the others continue
        return replace(answer, api_keys=tuple(one for one in answer.api_keys if one.api_key != 1))

    async with quick.consumer(topic, group_id=group, auto_commit_interval_ms=600_000, hooks=[events]) as consumer:
        for _ in range(10):
            await consumer.getone()
        with proxy.edit_answer(ApiVersionsRequest, without_fetch, times=None), proxy.reset_on_answer(FetchRequest):
            with pytest.raises(UnsupportedVersionError):
                await consumer.getone(timeout_ms=30_000)
            await events.wait_for(GroupLeft, timeout_s=20)
            with pytest.raises(UnsupportedVersionError):
                await asyncio.wait_for(consumer.unsubscribe(), 20)

        assert await quick.members(group) == {}
        assert await quick.committed(group, topic, 1) == {0: 10}


# ---- stopping -----------------------------------------------------------------------------------------------------


HELD = {"joining": (JoinGroupRequest, 1), "syncing": (SyncGroupRequest, 0), "committing": (OffsetCommitRequest, 0)}


class Witnessing:
    """Callback or listener that records its calls and may hang."""

    def __init__(self, *, ends: bool) -> None:
        self.called, self._ends = asyncio.Event(), ends

    async def on_partitions_revoked(self, _partitions):
        self.called.set()
        if not self._ends:
            await asyncio.Event().wait()

    async def choose(self, *_):
        self.called.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("fault", ["refuse", "black_hole"])
@pytest.mark.parametrize("phase", [*HELD, "calling back", "reading", "giving back"])
async def test_b4_stop_is_bounded_in_every_state(witness_of, group, phase, fault):
    """Without brokers, stop() ends in bounded time in each state, and revokes owned partitions (B4)."""
    topic, proxy = witness_of.topic_with(10), witness_of.proxy
    listener = Witnessing(ends=phase != "giving back")
    options = {"stop_timeout_ms": 1_000, "auto_commit_interval_ms": 50, "rebalance_listener": listener}
    if phase == "calling back":
        options["post_rebalance_callback"] = (callback := Witnessing(ends=False)).choose
    consumer = witness_of.consumer(topic, group_id=group, **options)

    with contextlib.ExitStack() as stack:
        if phase in HELD:
            kind, skip = HELD[phase]
            held = stack.enter_context(proxy.hold_answer(kind, skip=skip))
        await consumer.start()
        if phase not in {"joining", "syncing", "calling back"}:
            await consumer.getmany()
        await (
            held.wait_applied() if phase in HELD else callback.called.wait() if phase == "calling back" else nothing()
        )
        getattr(proxy, fault)()
        began = time.monotonic()
        await consumer.stop()
        took = time.monotonic() - began

    assert took < 10
    assert {asyncio.current_task()} == asyncio.all_tasks()
    assert listener.called.is_set() is (phase not in {"joining", "syncing"})


async def nothing():
    """Wait for nothing."""


async def test_b4_a_clean_stop_revokes_partitions(witness_of, group):
    """stop() calls on_partitions_revoked after the last commit and before the member leaves (B4)."""
    topic, revoked = witness_of.topic_with(10), []

    class Listener:
        async def on_partitions_revoked(self, partitions):
            revoked.append(
                (partitions, await witness_of.committed(group, topic, 1), len(await witness_of.members(group)))
            )

    async with witness_of.consumer(topic, group_id=group, rebalance_listener=Listener()) as consumer:
        for _ in range(6):
            await consumer.getone()

    assert revoked == [({TopicPartition(topic, 0)}, {0: 5}, 1)]
    assert await witness_of.members(group) == {}
