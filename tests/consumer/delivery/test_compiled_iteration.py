"""``async for`` with the compiled iterator behaves as without it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tailrace import Consumer, ConsumerStateError
from tailrace.batches.batch_writer import BatchWriter
from tailrace.consumer import consumer as consumer_module
from tailrace.installation import COMPILED, record_iterator

ITERATORS = [
    pytest.param(True, id="compiled", marks=pytest.mark.skipif(not COMPILED, reason="there is no compiled module")),
    pytest.param(False, id="pure"),
]


@pytest.fixture(params=ITERATORS)
def read(request, monkeypatch, new_topic, new_consumer, witness):
    """Return a function that creates a consumer of a topic with 20 records in one batch."""
    batch = BatchWriter(100_000, is_transactional=False)
    for number in range(20):
        batch.append(None, b"%d" % number)
    monkeypatch.setattr(consumer_module, "record_iterator", record_iterator if request.param else None)

    def make(**options: object) -> Consumer:
        topic = new_topic()
        witness.produce_batch(topic, bytes(batch.encode(-1, -1, -1)))
        return new_consumer(topic, auto_offset_reset="earliest", **options)

    return make


async def test_a_record_is_consumed_when_it_is_awaited(read):
    """An awaitable of the iterator consumes a record only when it is awaited, so a canceled wait loses no record."""
    async with read() as consumer, asyncio.timeout(30):
        records = aiter(consumer)
        first = await anext(records)
        left_alone = anext(records)
        second = await anext(records)
        canceled = asyncio.ensure_future(anext(records))
        canceled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await canceled
        third = await anext(records)
        assert [one.offset for one in (first, second, third, await left_alone)] == [0, 1, 2, 3]


async def test_a_wait_can_be_canceled_and_repeated(read, witness):
    """After a canceled wait at the end of the log, the next wait returns the next record."""
    async with read() as consumer, asyncio.timeout(30):
        records = aiter(consumer)
        seen = [(await anext(records)).offset for _ in range(20)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(records), 0.2)
        witness.produce(next(iter(consumer.assignment())).topic, [b"late"])
        assert (await anext(records)).offset == 20
    assert seen == list(range(20))


async def test_a_second_reader_of_an_iterator_raises_and_leaves_the_first_one_waiting(read, witness):
    """While one task waits on an iterator, a second wait raises, and the first one receives the next record."""
    async with read() as consumer, asyncio.timeout(30):
        records = aiter(consumer)
        for _ in range(20):
            await anext(records)
        second = anext(records)
        first = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0)
        with pytest.raises(ConsumerStateError):
            await second
        witness.produce(next(iter(consumer.assignment())).topic, [b"late"])
        assert (await first).offset == 20


async def test_stop_ends_the_loop_of_a_waiting_task(read):
    """A loop that waits for a record ends when another task stops the consumer."""
    consumer = read()
    await consumer.start()
    offsets, is_at_end = [], asyncio.Event()

    async def loop() -> None:
        async for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == 20:
                is_at_end.set()

    looping = asyncio.create_task(loop())
    await asyncio.wait_for(is_at_end.wait(), 30)
    await consumer.stop()
    await asyncio.wait_for(looping, 10)
    assert offsets == list(range(20))


async def test_an_exception_in_the_loop_leaves_the_next_record(read):
    """After ``break`` or an exception, another loop continues with the next record."""
    seen = []
    async with read() as consumer, asyncio.timeout(30):
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 3:
                break
        with contextlib.suppress(LookupError):
            async for record in consumer:
                seen.append(record.offset)
                raise LookupError
        async for record in consumer:
            seen.append(record.offset)
            break
    assert seen == [0, 1, 2, 3, 4, 5]


async def test_the_loop_runs_when_driven_by_hand(read):
    """``send`` and ``next`` on the awaitable return the same records as ``await``, and ``close`` ends a wait."""
    async with read() as consumer, asyncio.timeout(30):
        records = aiter(consumer)
        await anext(records)
        with pytest.raises(StopIteration) as stopped:
            anext(records).__await__().send(None)
        assert stopped.value.value.offset == 1
        by_next = iter(anext(records).__await__())
        with pytest.raises(StopIteration) as stopped:
            next(by_next)
        assert stopped.value.value.offset == 2
        for _ in range(17):
            await anext(records)
        waiting = anext(records).__await__()
        waiting.send(None)
        waiting.close()
