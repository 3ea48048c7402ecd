"""Partitions that become fetchable while a broker delays the response to a fetch."""

from __future__ import annotations

import time

from tailrace import TopicPartition
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until
from tests.support.proxied_broker import numbers

HELD_MS = 25_000
SOON_S = 8
"""A third of the time that a fetch is held, and ample on any machine."""


def options(group: str) -> dict[str, object]:
    return {"client_id": group, "fetch_max_wait_ms": HELD_MS, "auto_offset_reset": "earliest"}


async def until_a_fetch_is_pending(kafka, group: str) -> None:
    """Wait until a fetch of that client has had no response for half a second."""
    before = None

    def is_held() -> bool:
        nonlocal before
        asked = kafka.proxy.requests(FetchRequest, client_id=group)
        answered = kafka.proxy.answers(FetchRequest, client_id=group)
        now = (len(asked), len(answered))
        was_so, before = before == now, now
        return was_so and len(asked) > len(answered) and time.monotonic() - asked[-1].at > 0.5

    await until(is_held)


async def test_a_seek_does_not_wait_for_the_fetch_in_flight(kafka, group):
    """After a seek, records arrive at once, although a fetch at the end of the log is still in flight."""
    topic = kafka.topic_with(2_000)

    async with kafka.consumer(topic, max_partition_fetch_bytes=4_096, **options(group)) as consumer:
        assert len([await consumer.getone() for _ in range(2_000)]) == 2_000
        await until_a_fetch_is_pending(kafka, group)
        began = time.monotonic()
        await consumer.seek(TopicPartition(topic, 0), 100)
        again = [await consumer.getone() for _ in range(1_900)]
        # A record that arrives after them does not wait, either.
        kafka.produce(topic, [b"later"])
        later = await consumer.getone()
        took_s = time.monotonic() - began

    assert numbers(again) == list(range(100, 2_000))
    assert later.value == b"later"
    assert took_s < SOON_S


async def test_a_resumed_partition_does_not_wait_for_the_fetch_in_flight(kafka, group):
    """After resume(), records of the partition arrive at once, although a fetch of others is still in flight."""
    topic = kafka.topic_with(1, partitions=2)
    paused = TopicPartition(topic, 0)

    async with kafka.consumer(topic, **options(group)) as consumer:
        assert len([await consumer.getone() for _ in range(2)]) == 2
        consumer.pause(paused)
        kafka.produce(topic, [b"ends the fetch with both"], partition=1)
        assert (await consumer.getone()).partition == 1
        kafka.produce(topic, [b"1", b"2"], partition=0)
        if (early := await consumer.getone(timeout_ms=500)) is not None:
            raise AssertionError(f"{early} is of a paused partition")
        await until_a_fetch_is_pending(kafka, group)
        began = time.monotonic()
        consumer.resume(paused)
        values = [(await consumer.getone()).value for _ in range(2)]
        kafka.produce(topic, [b"3"], partition=0)
        values.append((await consumer.getone()).value)
        kafka.produce(topic, [b"4"], partition=1)
        values.append((await consumer.getone()).value)
        took_s = time.monotonic() - began

    assert values == [b"1", b"2", b"3", b"4"]
    assert took_s < SOON_S


async def test_a_seek_costs_few_fetches_while_a_fetch_is_in_flight(kafka, group):
    """After a seek, at most four further fetches are sent until the one in flight is answered."""
    topic = kafka.topic_with(10)

    async with kafka.consumer(topic, **options(group) | {"fetch_max_wait_ms": 4_000}) as consumer:
        assert len([await consumer.getone() for _ in range(10)]) == 10
        await until_a_fetch_is_pending(kafka, group)
        held = kafka.proxy.requests(FetchRequest, client_id=group)
        await consumer.seek(TopicPartition(topic, 0), 5)
        assert numbers([await consumer.getone() for _ in range(5)]) == [5, 6, 7, 8, 9]
        await until(lambda: is_answered(kafka, held[-1]))
        asked = [frame for frame in kafka.proxy.requests(FetchRequest, client_id=group) if frame not in held]

    # The records; the end, held shortly and then for the rest; the next one of the loop, and one to spare.
    assert len([frame for frame in asked if frame.connection != held[-1].connection]) <= 4


async def test_a_seek_does_not_wait_for_the_fetch_of_an_earlier_seek(kafka, group):
    """After each of several seeks, records arrive at once, although fetches of earlier positions are in flight."""
    topic = kafka.topic_with(100)

    async with kafka.consumer(topic, **options(group)) as consumer:
        assert len([await consumer.getone() for _ in range(100)]) == 100
        for offset in (90, 40, 70):
            await until_a_fetch_is_pending(kafka, group)
            began = time.monotonic()
            await consumer.seek(TopicPartition(topic, 0), offset)
            assert numbers([await consumer.getone() for _ in range(100 - offset)]) == list(range(offset, 100))
            assert time.monotonic() - began < SOON_S


def is_answered(kafka, request) -> bool:
    answers = kafka.proxy.answers(FetchRequest)
    return any((one.connection, one.correlation_id) == (request.connection, request.correlation_id) for one in answers)
