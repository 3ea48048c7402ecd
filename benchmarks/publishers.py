"""Producers whose throughput is compared, each in a separate process (``python -m benchmarks.publishers``).

Each producer is tuned as its documentation says, and publishes with the calls that its documentation shows.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from benchmarks.run import peak_memory

GROUP_SIZE = 1_000
"""Number of records that are awaited together or are in one transaction."""

ONE_BY_ONE, BY_1000, NOT_AWAITED, IN_TRANSACTIONS = "one by one", "by 1,000", "not awaited", "transactions of 1,000"
WAYS = (ONE_BY_ONE, BY_1000, NOT_AWAITED, IN_TRANSACTIONS)
"""Ways of publishing.

``one by one`` awaits the acknowledgment of each record, ``by 1,000`` those of 1,000 records at a time. ``not awaited``
only flushes the producer at the end.
"""

_BATCH_BYTES = 262_144
_WARM_UP_S = 0.3
_DISTINCT = 1_000
_WORDS = ("order", "paid", "shipped", "invoice", "customer", "street", "city", "price", "total", "tax", "note", "size")


class PublishJob(NamedTuple):
    """Records to publish, and the way of publishing."""

    bootstrap_servers: str
    topic: str
    size: int
    """Size of each value in bytes."""
    codec: str
    """Compression of the batches."""
    way: str
    seconds: float
    """Time to measure, after a warm-up."""

    @property
    def transactional_id(self) -> str | None:
        return uuid.uuid4().hex if self.way == IN_TRANSACTIONS else None


Publish = Callable[[Sequence[bytes]], Awaitable[object]]


class Calls(NamedTuple):
    """Functions that publish values in the ways of ``WAYS``."""

    one_by_one: Publish
    by_1000: Publish
    not_awaited: Publish
    in_transaction: Publish
    flush: Callable[[], Awaitable[object]]


class Publisher(NamedTuple):
    """Producer of a package."""

    name: str
    package: str
    open: Callable[[PublishJob], AbstractAsyncContextManager[Calls]]
    """Function that starts the producer for the duration of a context."""


@asynccontextmanager
async def tailrace(job: PublishJob) -> AsyncIterator[Calls]:
    from tailrace import Message, Producer

    options: dict[str, Any] = {"compression_type": job.codec, "transactional_id": job.transactional_id}
    async with Producer(bootstrap_servers=job.bootstrap_servers, **options) as producer:
        topic = job.topic

        async def one_by_one(values: Sequence[bytes]) -> None:
            for value in values:
                await producer.send(topic, value)

        async def by_1000(values: Sequence[bytes]) -> None:
            await producer.send_many([Message(value) for value in values], topic)

        async def not_awaited(values: Sequence[bytes]) -> None:
            for value in values:
                await producer.enqueue(topic, value)

        async def in_transaction(values: Sequence[bytes]) -> None:
            async with producer.transaction():
                await not_awaited(values)

        yield Calls(one_by_one, by_1000, not_awaited, in_transaction, producer.flush)


@asynccontextmanager
async def aiokafka(job: PublishJob) -> AsyncIterator[Calls]:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap_servers,
        enable_idempotence=True,
        max_batch_size=_BATCH_BYTES,
        compression_type=None if job.codec == "none" else job.codec,
        transactional_id=job.transactional_id,
    )
    async with producer:
        topic = job.topic

        async def one_by_one(values: Sequence[bytes]) -> None:
            for value in values:
                await producer.send_and_wait(topic, value)

        async def by_1000(values: Sequence[bytes]) -> None:
            await asyncio.gather(*[await producer.send(topic, value) for value in values])

        async def not_awaited(values: Sequence[bytes]) -> None:
            for value in values:
                await producer.send(topic, value)

        async def in_transaction(values: Sequence[bytes]) -> None:
            async with producer.transaction():
                await not_awaited(values)

        yield Calls(one_by_one, by_1000, not_awaited, in_transaction, producer.flush)


def _confluent_options(job: PublishJob) -> dict[str, Any]:
    options = {
        "bootstrap.servers": job.bootstrap_servers,
        "enable.idempotence": True,
        "compression.type": job.codec,
        # Waiting for more records only delays a record that is awaited alone.
        "linger.ms": 0 if job.way == ONE_BY_ONE else 5,
        "queue.buffering.max.messages": 1_000_000,
    }
    return options | ({"transactional.id": job.transactional_id} if job.way == IN_TRANSACTIONS else {})


@asynccontextmanager
async def confluent(job: PublishJob) -> AsyncIterator[Calls]:
    from confluent_kafka import Producer

    producer, topic = Producer(_confluent_options(job)), job.topic
    if job.way == IN_TRANSACTIONS:
        producer.init_transactions(30)

    async def one_by_one(values: Sequence[bytes]) -> None:
        for value in values:
            producer.produce(topic, value)
            producer.flush()

    async def by_1000(values: Sequence[bytes]) -> None:
        _produce(producer, topic, values)
        producer.flush()

    async def not_awaited(values: Sequence[bytes]) -> None:
        _produce(producer, topic, values)
        producer.poll(0)

    async def in_transaction(values: Sequence[bytes]) -> None:
        producer.begin_transaction()
        _produce(producer, topic, values)
        producer.commit_transaction()

    async def flush() -> None:
        producer.flush()

    yield Calls(one_by_one, by_1000, not_awaited, in_transaction, flush)


def _produce(producer: Any, topic: str, values: Sequence[bytes]) -> None:
    for value in values:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(1)
            producer.produce(topic, value)


@asynccontextmanager
async def confluent_aio(job: PublishJob) -> AsyncIterator[Calls]:
    from confluent_kafka.aio import AIOProducer

    # A record is passed on when this number of records waits, or at a flush.
    async with AIOProducer(_confluent_options(job), batch_size=1 if job.way == ONE_BY_ONE else GROUP_SIZE) as producer:
        topic = job.topic
        if job.way == IN_TRANSACTIONS:
            await producer.init_transactions(30)

        async def one_by_one(values: Sequence[bytes]) -> None:
            for value in values:
                future = await producer.produce(topic, value)
                await producer.flush()
                await future

        async def by_1000(values: Sequence[bytes]) -> None:
            futures = [await producer.produce(topic, value) for value in values]
            await producer.flush()
            await asyncio.gather(*futures)

        async def not_awaited(values: Sequence[bytes]) -> None:
            for value in values:
                await producer.produce(topic, value)

        async def in_transaction(values: Sequence[bytes]) -> None:
            await producer.begin_transaction()
            await not_awaited(values)
            await producer.commit_transaction()

        yield Calls(one_by_one, by_1000, not_awaited, in_transaction, producer.flush)


PUBLISHERS = [
    Publisher("tailrace", "tailrace", tailrace),
    Publisher("aiokafka", "aiokafka", aiokafka),
    Publisher("confluent-kafka Producer", "confluent-kafka", confluent),
    Publisher("confluent-kafka AIOProducer", "confluent-kafka", confluent_aio),
]


def values_of(size: int) -> list[bytes]:
    """Return JSON-like values of ``size`` bytes, which codecs compress as they compress orders."""
    chance = random.Random(size)
    values = []
    for number in range(_DISTINCT):
        text = f'{{"id":{number},"token":"{chance.randbytes(8).hex()}"'
        while len(text) < size:
            text += f',"{chance.choice(_WORDS)}":"{chance.choice(_WORDS)} {chance.randrange(10_000)}"'
        values.append(text[:size].encode())
    return values


async def measure(publisher: Publisher, job: PublishJob) -> dict[str, float]:
    """Publish for ``job.seconds``, and return the figures."""
    async with publisher.open(job) as calls:
        publish = calls[WAYS.index(job.way)]
        size = 20 if job.way == ONE_BY_ONE else GROUP_SIZE
        values = values_of(job.size)
        groups = itertools.cycle([values[first : first + size] for first in range(0, len(values), size)])
        warm_at = time.perf_counter() + _WARM_UP_S
        while time.perf_counter() < warm_at:
            await publish(next(groups))
        await calls.flush()
        records, began_at, cpu_began_at = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began_at < job.seconds:
            await publish(next(groups))
            records += size
        await calls.flush()
        seconds, cpu_s = time.perf_counter() - began_at, time.process_time() - cpu_began_at
    return {
        "seconds": seconds,
        "records": records,
        "records_per_s": records / seconds,
        "cpu_s": cpu_s,
        "cpu_us_per_record": cpu_s / records * 1e6,
        "max_rss_bytes": peak_memory("self"),
    }


def main() -> None:
    """Publish with the producer that the arguments name, and print the figures as JSON."""
    name, bootstrap_servers, topic, size, codec, way, seconds = sys.argv[1:]
    publisher = next(one for one in PUBLISHERS if one.name == name)
    job = PublishJob(bootstrap_servers, topic, int(size), codec, way, float(seconds))
    print(json.dumps(asyncio.run(measure(publisher, job))))


if __name__ == "__main__":
    main()
