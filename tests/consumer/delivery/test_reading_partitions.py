"""Reading from some of the assigned partitions: ``getone(*partitions)`` and ``getmany(*partitions)``."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import ConfigurationError, ConsumerStateError, TopicPartition
from tests.support.proxied_broker import numbers
from tests.support.witness import offsets

NEVER = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}


async def test_getone_returns_records_of_the_given_partitions_only(new_topic, new_consumer, witness):
    """getone() with partitions returns only their records, and those of other partitions stay buffered in order."""
    topic = new_topic(3)
    witness.fill(topic, 3, 50)
    first, second, third = (TopicPartition(topic, number) for number in range(3))

    async with new_consumer(topic, **NEVER) as consumer:
        found = [await consumer.getone() for _ in range(5)]
        found += [await consumer.getone(second, timeout_ms=20_000) for _ in range(10)]
        assert {record.partition for record in found[5:]} == {1}
        found += [await consumer.getone(first, third) for _ in range(30)]
        assert {record.partition for record in found[15:]} <= {0, 2}
        while len(found) < 150:
            found.append(await consumer.getone(timeout_ms=20_000))

    by_partition = {p: [offset for number, offset in offsets(found) if number == p] for p in range(3)}
    assert by_partition == {p: list(range(50)) for p in range(3)}


@pytest.mark.parametrize("limits", [{}, {"timeout_ms": 20_000}, {"timeout_ms": 20_000, "min_records": 10}])
async def test_getmany_returns_records_of_the_given_partitions_only(new_topic, new_consumer, witness, limits):
    """getmany() with partitions returns only their records, and later calls continue at each partition's position."""
    topic = new_topic(2)
    witness.fill(topic, 2, 60)
    first, second = (TopicPartition(topic, number) for number in range(2))

    async with new_consumer(topic, **NEVER) as consumer:
        of_second = await consumer.getmany(second, max_records=20, **limits)
        of_first = await consumer.getmany(first, max_records=20, **limits)
        while len(of_first) + len(of_second) < 120:
            for record in await consumer.getmany(max_records=7, **limits | {"min_records": 1}):
                (of_first if record.partition == 0 else of_second).append(record)

    assert numbers(of_first) == numbers(of_second) == list(range(60))
    assert {(record.partition) for record in of_first} == {0}


async def test_nothing_is_returned_for_a_partition_without_records(new_topic, new_consumer, witness):
    """A call for a partition without records waits until its timeout, although another partition has records."""
    topic = new_topic(2)
    witness.produce(topic, [b"0"], partition=0)
    empty = TopicPartition(topic, 1)

    async with new_consumer(topic, **NEVER) as consumer:
        assert await consumer.getone(empty, timeout_ms=300) is None
        assert await consumer.getone(empty, timeout_ms=0) is None
        assert await consumer.getmany(empty, timeout_ms=300) == []
        assert await consumer.getmany(empty, timeout_ms=300, min_records=2) == []
        assert await consumer.getmany(empty, timeout_ms=0) == []
        waiting = asyncio.create_task(consumer.getone(empty))
        witness.produce(topic, [b"1"], partition=1)
        assert (await waiting).value == b"1"
        assert (await consumer.getone(timeout_ms=20_000)).value == b"0"


async def test_reading_some_partitions_finishes_the_record_before(new_topic, new_consumer, witness, group):
    """A poll of one partition finishes the record in flight of another."""
    topic = new_topic(2)
    witness.fill(topic, 2, 3)
    first, second = (TopicPartition(topic, number) for number in range(2))

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.assigned()
        await consumer.getone(first)
        await consumer.getone(first)
        await consumer.getone(second)

    assert await witness.committed(group, topic, 2) == {0: 2, 1: 0}


async def test_reading_partitions_in_turn_repeats_no_record(new_topic, new_consumer, witness, group):
    """With ack="manual", a consumer that switches between partitions delivers and commits each record once."""
    topic = new_topic(2)
    witness.fill(topic, 2, 20)
    first, second = (TopicPartition(topic, number) for number in range(2))

    async with new_consumer(topic, group_id=group, ack="manual") as consumer:
        await consumer.assigned()
        records = [await consumer.getone(first) for _ in range(5)]
        records += [await consumer.getone(second) for _ in range(20)]
        records += [await consumer.getone(first) for _ in range(15)]
        assert all(consumer.ack(record) for record in records)

    assert len(set(offsets(records))) == 40
    assert await witness.committed(group, topic, 2) == {0: 20, 1: 20}


async def test_partitions_that_are_not_assigned_raise(new_topic, new_consumer, witness):
    """getone() and getmany() raise at once if none of the given partitions is assigned, or for an invalid value."""
    topic = new_topic()
    witness.fill(topic, 1, 3)
    other = TopicPartition(topic, 7)

    async with new_consumer(topic, **NEVER) as consumer:
        for call in (consumer.getone, consumer.getmany):
            with pytest.raises(ConsumerStateError, match=r"\[7\] is not assigned"):
                await call(other)
            with pytest.raises(ConfigurationError, match="a partition must be a TopicPartition"):
                await call([other])
        assert numbers(await consumer.getmany(other, TopicPartition(topic, 0))) == [0, 1, 2]


async def test_a_revoked_partition_ends_the_wait(new_topic, new_consumer, group):
    """A call that waits for records of a partition raises when the partition is no longer assigned."""
    topic = new_topic()

    async with new_consumer(topic, group_id=group) as consumer:
        (only,) = await consumer.assigned()
        waiting = asyncio.create_task(consumer.getone(only))
        await consumer.unsubscribe()
        with pytest.raises(ConsumerStateError, match="is not assigned"):
            async with asyncio.timeout(20):
                await waiting
