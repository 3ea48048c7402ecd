"""Compared producers, each run in a separate process by ``python -m benchmarks.publishers``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.run import peak_memory

TOGETHER = 1_000
"""Number of records that are awaited together or form a transaction."""

WAYS = {"one by one": 2_000, "by 1,000": 100_000, "not awaited": 200_000, "transactions of 1,000": 100_000}
"""Number of published records for each way of awaiting; ``not awaited`` ends with a flush."""


class Publishing(NamedTuple):
    """Records to publish."""

    bootstrap_servers: str
    topic: str
    records: int
    value: bytes
    way: str


class Publisher(NamedTuple):
    """Producer of a package; ``publish`` starts it and returns the seconds and CPU seconds of publishing."""

    package: str
    publish: Callable[[Publishing], Awaitable[tuple[float, float]]]

    @property
    def name(self) -> str:
        return self.package


class _Clock:
    def __init__(self) -> None:
        self.began_at, self.cpu_began_at = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.began_at, time.process_time() - self.cpu_began_at


async def tailrace(what: Publishing) -> tuple[float, float]:
    from tailrace.config import resolve
    from tailrace.producer.producer import Producer
    from tailrace.producer.transactional.producer import TransactionalProducer

    config = resolve({"bootstrap_servers": what.bootstrap_servers})
    if what.way.startswith("transactions"):
        async with TransactionalProducer(config, transactional_id=uuid.uuid4().hex) as transactions:
            clock = _Clock()
            for _ in range(what.records // TOGETHER):
                await transactions.begin()
                for _ in range(TOGETHER):
                    await transactions.send(what.topic, what.value)
                await transactions.commit()
            return clock.read()
    async with Producer(config) as producer:
        await producer.publish(what.topic, what.value)
        clock = _Clock()
        await _publish_all(what, lambda: producer.send(what.topic, what.value), producer.flush)
        return clock.read()


async def aiokafka(what: Publishing) -> tuple[float, float]:
    from aiokafka import AIOKafkaProducer

    is_transactional = what.way.startswith("transactions")
    producer = AIOKafkaProducer(
        bootstrap_servers=what.bootstrap_servers,
        enable_idempotence=True,
        max_batch_size=262_144,
        transactional_id=uuid.uuid4().hex if is_transactional else None,
    )
    async with producer:
        if is_transactional:
            clock = _Clock()
            for _ in range(what.records // TOGETHER):
                async with producer.transaction():
                    await asyncio.gather(*[await producer.send(what.topic, what.value) for _ in range(TOGETHER)])
            return clock.read()
        await producer.send_and_wait(what.topic, what.value)
        clock = _Clock()
        await _publish_all(what, lambda: producer.send(what.topic, what.value), producer.flush)
        return clock.read()


async def _publish_all(
    what: Publishing, send: Callable[[], Awaitable[asyncio.Future]], flush: Callable[[], Awaitable[object]]
) -> None:
    if what.way == "one by one":
        for _ in range(what.records):
            await (await send())
    elif what.way == "by 1,000":
        for _ in range(what.records // TOGETHER):
            await asyncio.gather(*[await send() for _ in range(TOGETHER)])
    else:
        for _ in range(what.records):
            await send()
        await flush()


async def confluent(what: Publishing) -> tuple[float, float]:
    from confluent_kafka import Producer

    is_transactional = what.way.startswith("transactions")
    options = {"bootstrap.servers": what.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    options |= {"batch.size": 262_144, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(options | ({"transactional.id": uuid.uuid4().hex} if is_transactional else {}))
    if is_transactional:
        producer.init_transactions(30)
    else:
        producer.produce(what.topic, what.value)
        producer.flush()
    clock = _Clock()
    if is_transactional:
        for _ in range(what.records // TOGETHER):
            producer.begin_transaction()
            for _ in range(TOGETHER):
                producer.produce(what.topic, what.value)
            producer.commit_transaction()
    else:
        for number in range(1, what.records + 1):
            producer.produce(what.topic, what.value)
            if what.way == "one by one" or (what.way == "by 1,000" and number % TOGETHER == 0):
                producer.flush()
            elif number % 10_000 == 0:
                producer.poll(0)
        producer.flush()
    return clock.read()


PUBLISHERS = [
    Publisher("tailrace", tailrace),
    Publisher("aiokafka", aiokafka),
    Publisher("confluent-kafka", confluent),
]


def main() -> None:
    """Publish with the producer of the arguments, and write the figures to stdout."""
    name, bootstrap_servers, topic, size, way = sys.argv[1:]
    publisher = next(one for one in PUBLISHERS if one.name == name)
    what = Publishing(bootstrap_servers, topic, WAYS[way], b"v" * int(size), way)
    seconds, cpu_s = asyncio.run(publisher.publish(what))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "records_per_s": what.records / seconds,
                "records": what.records,
                "max_rss_bytes": peak_memory("self"),
            }
        )
    )


if __name__ == "__main__":
    main()
