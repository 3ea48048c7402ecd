"""Records that are written after start(), assign(), assigned() or wait_ready() has returned are read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tailrace import App, Consumer, TopicPartition
from tailrace.observe.events import StartOffsetDelayed, StartOffsetFound
from tailrace.protocol.records import ListOffsetsRequest
from tests.support.consumer_group import kill
from tests.support.event_recorder import EventRecorder

LATEST = {"auto_offset_reset": "latest"}
both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


async def first_value(consumer) -> bytes | None:
    record = await consumer.getone(timeout_ms=20_000)
    return None if record is None else record.value


@pytest.mark.parametrize("way", ["topic", "pattern", "subscribe", "assign", "tail", "resubscribe", "time"])
async def test_without_a_group(kafka, way):
    """Without a group, a record written after the call is read, however slowly the leader returns the end offset."""
    topic, other = kafka.topic_with(3), kafka.topic_with(1)
    options = {} if way != "time" else {"auto_offset_reset": 4_000_000_000_000}
    names = {"topic": [topic], "time": [topic], "resubscribe": [other]}.get(way, [])
    slow = kafka.proxy.delay_answer(ListOffsetsRequest, 0.5)
    with slow:
        async with kafka.consumer(*names, pattern=topic if way == "pattern" else None, **options) as consumer:
            match way:
                case "subscribe" | "resubscribe":
                    await consumer.subscribe(topic)
                case "assign":
                    await consumer.assign(topic)
                case "tail":
                    await consumer.assign(topic, tail=0)
            kafka.produce(topic, [b"after"])
            assert await first_value(consumer) == b"after"


@both_protocols
async def test_a_member_reads_what_is_written_after_assigned(kafka, group, protocol):
    """In a group, a record written after assigned() has returned is read."""
    topic = kafka.topic_with(3)
    with kafka.proxy.delay_answer(ListOffsetsRequest, 0.5):
        async with kafka.consumer(topic, group_id=group, group_protocol=protocol, **LATEST) as consumer:
            await consumer.assigned()
            kafka.produce(topic, [b"after"])
            assert await first_value(consumer) == b"after"


async def test_the_next_owner_reads_what_is_written_after_assigned(kafka, group):
    """A record written after assigned() is read by the next owner if the member dies before it is committed."""
    topic = kafka.topic_with(3)
    first = kafka.consumer(topic, group_id=group, session_timeout_ms=6_000, **LATEST)
    await first.start()
    await first.assigned()
    kafka.produce(topic, [b"after"])
    await kill(topic)
    async with kafka.consumer(topic, group_id=group, **LATEST) as second:
        assert (await second.getone(timeout_ms=40_000)).value == b"after"
    await asyncio.gather(first.stop(), return_exceptions=True)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_an_app_handles_what_is_written_after_wait_ready(kafka, group, delivery):
    """In an app, a record written after wait_ready() has returned is handled, which waits for the start offset."""
    topic, handled = kafka.topic_with(3), asyncio.Event()
    app = App(bootstrap_servers=kafka.bootstrap_servers, group_id=group, delivery=delivery, **LATEST)

    @app.handler(topic)
    async def handle(_value: bytes) -> None:
        handled.set()

    with contextlib.ExitStack() as faults:
        held = faults.enter_context(kafka.proxy.hold_request(ListOffsetsRequest))
        async with app:
            ready = asyncio.create_task(app.wait_ready())
            await asyncio.wait_for(held.wait_applied(), 30)
            await asyncio.wait([ready], timeout=0.5)
            assert not ready.done()
            faults.close()
            await ready
            kafka.produce(topic, [b"after"])
            await asyncio.wait_for(handled.wait(), 30)


async def test_start_is_bounded_if_the_leader_does_not_answer(kafka):
    """start() returns after start_timeout_ms; an event and health() tell the partition, until its start is known."""
    topic, events = kafka.topic_with(3), EventRecorder()
    place, loop = TopicPartition(topic, 0), asyncio.get_running_loop()
    consumer = kafka.consumer(topic, start_timeout_ms=4_000, hooks=[events])
    with kafka.proxy.hold_answer(ListOffsetsRequest):
        began_at = loop.time()
        await consumer.start()
        took_s = loop.time() - began_at
        delayed = events.of(StartOffsetDelayed)
        health = consumer.health()
    found = await events.wait_for(StartOffsetFound)
    health_after = consumer.health()
    await consumer.stop()

    assert 3.5 < took_s < 15
    assert [(one.partition, one.start) for one in delayed] == [(place, "latest")]
    assert (health.status, health_after.status) == ("degraded", "ok")
    assert str(place) in health.detail
    assert (found.partition, found.offset) == (place, 3)


async def test_an_earliest_start_is_not_waited_for(kafka):
    """start() does not wait for the start offset of a partition that is read from its first record."""
    topic = kafka.topic_with(3)
    with kafka.proxy.hold_answer(ListOffsetsRequest) as held:
        async with kafka.consumer(topic, auto_offset_reset="earliest", start_timeout_ms=30_000) as consumer:
            await asyncio.wait_for(held.wait_applied(), 20)
            assert isinstance(consumer, Consumer)
