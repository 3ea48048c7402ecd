"""Rebalance callbacks: awaited before the first fetch, while heartbeats continue; their overrides apply."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import anyio
import pytest
from msgspec.structs import replace

from tailrace import ConsumerStateError, OffsetAndMetadata, OffsetOutOfRangeError, RebalanceError, TopicPartition
from tailrace.observe.events import (
    ConnectionOpened,
    ConsumerFailed,
    GroupJoined,
    OffsetOverrideRejected,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from tailrace.protocol.groups import HeartbeatRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.expulsion import expel


async def test_the_override_decides_the_first_record(new_topic, new_consumer, witness, group):
    """A partition starts at the offset that post_rebalance_callback returns, and others start as usual."""
    topic = new_topic(2)
    witness.fill(topic, 2, 100)

    async def choose(_consumer, old, new):
        assert old == {}
        assert {TopicPartition(topic, 0): None, TopicPartition(topic, 1): None} == new
        return {TopicPartition(topic, 0): 42}

    async with new_consumer(topic, group_id=group, post_rebalance_callback=choose) as consumer:
        first = {}
        while len(first) < 2:
            record = await consumer.getone()
            first.setdefault(record.partition, record.offset)

    assert first == {0: 42, 1: 0}


async def test_the_callback_gets_old_and_new_positions(new_topic, new_consumer, witness, group):
    """post_rebalance_callback is called with the positions before and after the rebalance."""
    topic, events, calls = new_topic(6), EventRecorder(), []
    witness.fill(topic, 6, 10)

    async def note(_consumer, old, new):
        calls.append((dict(old), dict(new)))

    options = {"group_id": group, "heartbeat_interval_ms": 200}
    async with new_consumer(topic, post_rebalance_callback=note, hooks=[events], **options) as first:
        for _ in range(60):
            await first.getone()
        reading = asyncio.create_task(first.getone(timeout_ms=20_000))
        async with new_consumer(topic, **options):
            await events.wait_for(PartitionsAssigned, 2)
            await until(lambda: len(calls) == 2)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    old, new = calls[1]
    assert {TopicPartition(topic, p): 10 for p in range(6)} == old
    assert len(new) == 3
    assert set(new.items()) <= set(old.items())


async def test_the_callback_gets_positions_of_kept_partitions(new_topic, new_consumer, witness, group):
    """post_rebalance_callback is called with the position of a kept partition, even without a commit."""
    topic, calls = new_topic(2), []
    witness.fill(topic, 2, 10)

    def note(_consumer, old, new):
        calls.append((dict(old), dict(new)))

    options = {"group_id": group, "heartbeat_interval_ms": 200, "auto_commit_interval_ms": None}
    async with new_consumer(topic, post_rebalance_callback=note, **options) as first:
        async with new_consumer(topic, **options) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 1)
            (kept,) = first.assignment()
            while (record := await first.getone()).topic_partition != kept or record.offset < 4:
                """Skip records of the other partition, delivered before its revocation."""
            before = len(calls)
        await until(lambda: len(calls) > before)

    old, new = calls[before]
    assert old[kept] == new[kept] == 5


async def test_a_callback_longer_than_the_session_keeps_the_membership(new_topic, new_consumer, witness, group):
    """A callback may run for longer than the session, and nothing is fetched before it ends (B2)."""
    topic, events = new_topic(), EventRecorder()
    witness.produce(topic, [b"first", b"second"])
    opened_before_the_end = []

    async def slow(_consumer, _old, _new):
        await asyncio.sleep(3.4)
        opened_before_the_end.extend(one.channel for one in events.of(ConnectionOpened))
        return {TopicPartition(topic, 0): 1}

    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 300}
    async with new_consumer(topic, group_id=group, post_rebalance_callback=slow, hooks=[events], **options) as consumer:
        record = await consumer.getone()
        assert len(await witness.members(group)) == 1

    assert record.value == b"second"
    assert len(events.of(GroupJoined)) == 1
    assert any(channel.startswith("heartbeat") for channel in opened_before_the_end)
    assert "fetch" not in opened_before_the_end


async def test_a_seek_in_a_listener_decides_the_first_record(new_topic, new_consumer, witness, group):
    """A partition starts at the offset of a seek in on_partitions_assigned."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    class Listener:
        async def on_partitions_assigned(self, partitions):
            for partition in partitions:
                await consumer.seek(partition, 7)

    consumer = new_consumer(topic, group_id=group, rebalance_listener=Listener())
    async with consumer:
        assert (await consumer.getone()).offset == 7


async def test_auto_offset_reset_none_raises_only_after_the_listener(new_topic, new_consumer, witness, group):
    """With auto_offset_reset="none", only partitions that on_partitions_assigned does not seek raise."""
    topic = new_topic(3)
    witness.fill(topic, 3, 10)
    places = [TopicPartition(topic, partition) for partition in range(3)]

    class Listener:
        async def on_partitions_assigned(self, _partitions):
            await consumer.seek(places[0], 9)
            with pytest.raises(OffsetOutOfRangeError):
                await consumer.position(places[1])
            await consumer.seek(places[1], 9)

    seen = []

    async def read(count):
        while len(seen) < count:
            record = await consumer.getone()
            seen.append((record.partition, record.offset))

    consumer = new_consumer(topic, group_id=group, auto_offset_reset="none", rebalance_listener=Listener())
    async with consumer:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await read(count=3)
        await consumer.seek(places[2], 9)
        await read(count=3)

    assert caught.value.partition == 2
    assert sorted(seen) == [(0, 9), (1, 9), (2, 9)]


async def test_a_callback_may_be_a_plain_function(new_topic, new_consumer, witness, group):
    """post_rebalance_callback may be a plain function."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(
        topic, group_id=group, post_rebalance_callback=lambda _consumer, _old, new: dict.fromkeys(new, 3)
    ) as consumer:
        assert (await consumer.getone()).offset == 3


async def test_invalid_overrides_are_rejected(new_topic, new_consumer, witness, group):
    """A negative override, and one of a partition that is not assigned, are ignored with an event."""
    topic, events = new_topic(), EventRecorder()
    witness.produce(topic, [b"0", b"1"])

    async def nonsense(_consumer, _old, _new):
        return {TopicPartition(topic, 0): -5, TopicPartition("other", 0): 1}

    async with new_consumer(topic, group_id=group, post_rebalance_callback=nonsense, hooks=[events]) as consumer:
        assert (await consumer.getone()).offset == 0

    assert len(events.of(OffsetOverrideRejected)) == 2


async def broken(*_):
    raise ValueError("the store is down")


@pytest.mark.parametrize(
    "option",
    [
        {"post_rebalance_callback": broken},
        {"rebalance_listener": SimpleNamespace(on_partitions_assigned=broken)},
    ],
    ids=lambda option: next(iter(option)),
)
async def test_an_exception_in_the_callback_is_raised_by_the_next_call(new_topic, new_consumer, witness, group, option):
    """An exception in a callback is raised by the next poll, and nothing is committed."""
    topic = new_topic()
    witness.produce(topic, [b"never"])

    async with new_consumer(topic, group_id=group, **option) as consumer:
        with pytest.raises(RebalanceError, match="the store is down") as caught:
            await consumer.getone(timeout_ms=30_000)

    assert isinstance(caught.value.__cause__, ValueError)
    assert await witness.committed(group, topic, 1) == {}


async def test_a_callback_is_canceled_after_max_poll_interval_ms(new_topic, new_consumer, group):
    """A callback that does not return within max_poll_interval_ms raises an error at the next poll."""
    topic = new_topic()

    async def endless(_consumer, _old, _new):
        await asyncio.Event().wait()

    options = {"max_poll_interval_ms": 1_000, "heartbeat_interval_ms": 500}
    async with new_consumer(topic, group_id=group, post_rebalance_callback=endless, **options) as consumer:
        with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
            await consumer.getone(timeout_ms=30_000)


async def test_reading_or_stopping_in_a_callback_raises(new_topic, new_consumer, group):
    """getone(), getmany() and stop() raise in a callback, since they would wait for it."""
    seen = []

    async def impossible(consumer, _old, _new):
        for call in (consumer.getone, consumer.getmany, consumer.stop):
            with pytest.raises(ConsumerStateError, match="callback"):
                await call()
            seen.append(call)

    async with new_consumer(new_topic(), group_id=group, post_rebalance_callback=impossible) as consumer:
        await until(lambda: len(seen) == 3)
        assert await consumer.getone(timeout_ms=100) is None

    assert len(seen) == 3


async def test_a_callback_may_read_from_another_consumer(new_topic, new_consumer, witness, group):
    """A callback may start, read, commit and stop another consumer."""
    topic, state, found = new_topic(), new_topic(), []
    witness.produce(topic, [b"0"])
    witness.produce(state, [b"state"])

    class Listener:
        async def on_partitions_assigned(self, _partitions):
            async with new_consumer(state, group_id=f"{group}-state") as other:
                found.append((await other.getone()).value)
                await other.commit()

    async with new_consumer(topic, group_id=group, rebalance_listener=Listener()) as consumer, asyncio.timeout(40):
        assert (await consumer.getone()).offset == 0

    assert found == [b"state"]
    assert await witness.committed(f"{group}-state", state, 1) == {0: 1}


async def test_a_task_started_by_a_callback_may_read(new_topic, new_consumer, witness, group):
    """A task that a callback has started may read when the callback has returned."""
    topic, tasks = new_topic(), []
    witness.produce(topic, [b"0"])

    def begin(consumer, _old, new):
        if new:
            tasks.append(asyncio.create_task(consumer.getone(timeout_ms=30_000)))

    async with new_consumer(topic, group_id=group, post_rebalance_callback=begin):
        await until(lambda: bool(tasks))
        record = await tasks[0]

    assert record.value == b"0"


async def test_listener_methods_are_called_in_order(new_topic, new_consumer, witness, group):
    """on_partitions_assigned is called before the first record, and on_partitions_revoked after the last one."""
    topic, steps = new_topic(2), []
    witness.produce(topic, (b"%d" % n for n in range(10)), partition=0)

    class Listener:
        async def on_partitions_assigned(self, partitions):
            steps.append(("assigned", len(partitions)))

        def on_partitions_revoked(self, partitions):
            steps.append(("revoked", len(partitions)))

    async with new_consumer(topic, group_id=group, rebalance_listener=Listener()) as consumer:
        async for record in consumer:
            steps.append(("record", record.offset))
            if record.offset == 9:
                break

    assert [("assigned", 2), *(("record", n) for n in range(10)), ("revoked", 2)] == steps


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_listener_may_commit_at_stop(new_topic, new_consumer, witness, group, protocol):
    """on_partitions_revoked may commit during stop(), and commit() does not include the batch in flight."""
    topic, events, stood = new_topic(2), EventRecorder(), []
    witness.fill(topic, 2, 10)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)

    class Listener:
        def on_partitions_assigned(self, _partitions):
            consumer.pause(other)

        async def on_partitions_revoked(self, _partitions):
            stood.append((await consumer.position(one), consumer.offsets("done")[one], consumer.assignment()))
            await consumer.commit()
            await consumer.commit({other: OffsetAndMetadata(5, "kept elsewhere")})
            with pytest.raises(ConsumerStateError, match="callback"):
                await consumer.getone()

    options = {"enable_auto_commit": False, "group_protocol": protocol, "hooks": [events]}
    async with new_consumer(topic, group_id=group, rebalance_listener=Listener(), **options) as consumer:
        for _ in range(2):
            assert len(await consumer.getmany(max_records=4, min_records=4)) == 4

    assert stood == [(8, 4, {one, other})]
    assert await witness.committed(group, topic, 2) == {0: 4, 1: 5}
    assert not events.of(ConsumerFailed)
    with pytest.raises(ConsumerStateError, match="was stopped"):
        await consumer.commit()


async def test_a_listeners_commit_does_not_finish_records_in_flight(new_topic, new_consumer, witness, group):
    """commit() in a listener does not include records in flight of kept partitions."""
    stays, goes, heard = new_topic(), new_topic(), asyncio.Event()
    witness.fill(stays, 1, 5)

    class Listener:
        async def on_partitions_revoked(self, _partitions):
            await consumer.commit()
            await consumer.commit(*consumer.assignment())
            heard.set()

    options = {"enable_auto_commit": False, "heartbeat_interval_ms": 200}
    async with new_consumer(stays, goes, group_id=group, rebalance_listener=Listener(), **options) as consumer:
        for _ in range(3):
            in_flight = await consumer.getone()
        await consumer.subscribe(stays)
        await asyncio.wait_for(heard.wait(), 30)
        committed = await witness.committed(group, stays, 1)

    assert (in_flight.offset, committed) == (2, {0: 2})


@pytest.mark.parametrize(
    "kind",
    [
        {
            "group_protocol": "classic",
            "partition_assignment_strategy": ["cooperative-sticky"],
            "heartbeat_interval_ms": 200,
        },
        {},
    ],
    ids=["classic", "consumer"],
)
async def test_a_listener_canceled_by_a_rebalance_is_called_again(quick, group, kind):
    """on_partitions_assigned that a rebalance cancels is called again with the kept partitions after it has ended."""
    topic, calls = quick.topic(2), []
    options = {"group_id": group, **kind}
    quick.fill(topic, 2, 10)

    class Listener:
        async def on_partitions_assigned(self, partitions):
            calls.append(("begins", len(partitions)))
            if calls == [("begins", 2)]:
                try:
                    await asyncio.Event().wait()
                finally:
                    with anyio.CancelScope(shield=True):
                        await asyncio.sleep(0.2)
                    calls.append(("ends", len(partitions)))
            for one in partitions:
                await consumer.seek(one, 7)

        async def on_partitions_revoked(self, partitions):
            calls.append(("revoked", len(partitions)))

    consumer = quick.consumer(topic, rebalance_listener=Listener(), **options)
    async with consumer:
        await until(lambda: bool(calls))
        async with quick.consumer(topic, **options):
            first = await consumer.getone(timeout_ms=20_000)
        heard = list(calls)

    assert first is not None
    assert first.offset == 7
    assert heard[:3] == [("begins", 2), ("ends", 2), ("begins", 1)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_listener_canceled_by_stop_is_called_again(quick, group, protocol):
    """on_partitions_revoked that stop() cancels is called again with all partitions, and may commit."""
    stays, goes = quick.topic_with(5), quick.topic_with(5)
    revoked, called = [], asyncio.Event()

    class Listener:
        async def on_partitions_revoked(self, partitions):
            revoked.append({one.topic for one in partitions})
            if len(revoked) == 1:
                called.set()
                await asyncio.Event().wait()
            await consumer.commit()

    options = {"enable_auto_commit": False, "group_protocol": protocol}
    async with quick.consumer(stays, goes, group_id=group, rebalance_listener=Listener(), **options) as consumer:
        for _ in range(10):
            record = await consumer.getone()
        consumer.ack(record)
        await consumer.subscribe(stays)
        await asyncio.wait_for(called.wait(), 30)

    assert revoked == [{goes}, {stays, goes}]
    assert [await quick.committed(group, topic, 1) for topic in (stays, goes)] == [{0: 5}, {0: 5}]


async def test_partitions_lost_during_their_revocation_call_on_partitions_lost(quick, group):
    """If the membership is lost during on_partitions_revoked, on_partitions_lost is called."""
    stays, goes = quick.topic(), quick.topic()
    calls, called = [], asyncio.Event()

    class Listener:
        async def on_partitions_revoked(self, partitions):
            calls.append(("revoked", {one.topic for one in partitions}))
            if not called.is_set():
                called.set()
                await asyncio.Event().wait()

        def on_partitions_lost(self, partitions):
            calls.append(("lost", {one.topic for one in partitions}))

    options = {"group_protocol": "classic", "heartbeat_interval_ms": 200}
    consumer = quick.consumer(stays, goes, group_id=group, rebalance_listener=Listener(), **options)
    async with consumer:
        await until(lambda: len(consumer.assignment()) == 2)
        await consumer.subscribe(stays)
        await asyncio.wait_for(called.wait(), 30)
        with quick.proxy.edit_answer(HeartbeatRequest, lambda answer: replace(answer, error_code=25)):
            await until(lambda: len(calls) > 1)
        heard = list(calls)

    assert heard == [("revoked", {goes}), ("lost", {stays, goes})]


async def test_lost_partitions_call_on_partitions_lost(new_topic, new_consumer, witness, group, kafka_server):
    """When an administrator removes a member, on_partitions_lost is called, and the member joins again."""
    topic, events, lost_counts = new_topic(), EventRecorder(), []
    witness.produce(topic, [b"x"])

    class Listener:
        async def on_partitions_lost(self, partitions):
            lost_counts.append(len(partitions))

    options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200}
    async with new_consumer(
        topic, group_id=group, rebalance_listener=Listener(), hooks=[events], **options
    ) as consumer:
        await consumer.getone()
        # An admin removes the member: its next heartbeat is answered with UNKNOWN_MEMBER_ID.
        await expel(kafka_server.bootstrap_servers, group, next(iter(await witness.members(group))))
        await events.wait_for(PartitionsLost)
        await events.wait_for(PartitionsAssigned, 2)
        assert not events.of(PartitionsRevoked)

    assert lost_counts == [1]
