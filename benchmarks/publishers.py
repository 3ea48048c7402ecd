"""Producers whose throughput is compared, each in a separate process (``python -m benchmarks.publishers``)."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from benchmarks.run import peak_memory

GROUP_SIZE = 1_000
"""Number of records that are awaited together or are in one transaction."""

WAYS = {"one by one": 2_000, "by 1,000": 100_000, "not awaited": 200_000, "transactions of 1,000": 100_000}
"""Ways of publishing, with the number of records to publish.

``one by one`` awaits the acknowledgment of each record, ``by 1,000`` those of 1,000 records at a time. ``not awaited``
only flushes the producer at the end.
"""


class PublishJob(NamedTuple):
    """Records to publish, and the way of publishing."""

    bootstrap_servers: str
    topic: str
    records: int
    value: bytes
    way: str


class Publisher(NamedTuple):
    """Producer of a package."""

    package: str
    publish: Callable[[PublishJob], Awaitable[tuple[float, float]]]
    """Function that starts the producer, publishes, and returns the seconds and CPU seconds of publishing."""

    @property
    def name(self) -> str:
        return self.package


class _Clock:
    """Seconds and CPU seconds since its creation."""

    def __init__(self) -> None:
        self.began_at, self.cpu_began_at = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.began_at, time.process_time() - self.cpu_began_at


async def tailrace(job: PublishJob) -> tuple[float, float]:
    from tailrace import Producer

    is_transactional = job.way.startswith("transactions")
    options = {"transactional_id": uuid.uuid4().hex} if is_transactional else {}
    async with Producer(bootstrap_servers=job.bootstrap_servers, **options) as producer:
        if is_transactional:
            clock = _Clock()
            for _ in range(job.records // GROUP_SIZE):
                async with producer.transaction():
                    for _ in range(GROUP_SIZE):
                        await producer.enqueue(job.topic, job.value)
            return clock.read()
        await producer.send(job.topic, job.value)
        clock = _Clock()
        await _publish_all(job, lambda: producer.enqueue(job.topic, job.value), producer.flush)
        return clock.read()


async def aiokafka(job: PublishJob) -> tuple[float, float]:
    from aiokafka import AIOKafkaProducer

    is_transactional = job.way.startswith("transactions")
    producer = AIOKafkaProducer(
        bootstrap_servers=job.bootstrap_servers,
        enable_idempotence=True,
        max_batch_size=262_144,
        transactional_id=uuid.uuid4().hex if is_transactional else None,
    )
    async with producer:
        if is_transactional:
            clock = _Clock()
            for _ in range(job.records // GROUP_SIZE):
                async with producer.transaction():
                    await asyncio.gather(*[await producer.send(job.topic, job.value) for _ in range(GROUP_SIZE)])
            return clock.read()
        await producer.send_and_wait(job.topic, job.value)
        clock = _Clock()
        await _publish_all(job, lambda: producer.send(job.topic, job.value), producer.flush)
        return clock.read()


async def _publish_all(
    job: PublishJob, send: Callable[[], Awaitable[asyncio.Future]], flush: Callable[[], Awaitable[object]]
) -> None:
    if job.way == "one by one":
        for _ in range(job.records):
            await (await send())
    elif job.way == "by 1,000":
        for _ in range(job.records // GROUP_SIZE):
            await asyncio.gather(*[await send() for _ in range(GROUP_SIZE)])
    else:
        for _ in range(job.records):
            await send()
        await flush()


async def confluent(job: PublishJob) -> tuple[float, float]:
    from confluent_kafka import Producer

    is_transactional = job.way.startswith("transactions")
    options = {"bootstrap.servers": job.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    options |= {"batch.size": 262_144, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(options | ({"transactional.id": uuid.uuid4().hex} if is_transactional else {}))
    if is_transactional:
        producer.init_transactions(30)
    else:
        producer.produce(job.topic, job.value)
        producer.flush()
    clock = _Clock()
    if is_transactional:
        for _ in range(job.records // GROUP_SIZE):
            producer.begin_transaction()
            for _ in range(GROUP_SIZE):
                producer.produce(job.topic, job.value)
            producer.commit_transaction()
    else:
        for number in range(1, job.records + 1):
            producer.produce(job.topic, job.value)
            if job.way == "one by one" or (job.way == "by 1,000" and number % GROUP_SIZE == 0):
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
    """Publish with the producer that the arguments name, and print the figures as JSON."""
    name, bootstrap_servers, topic, size, way = sys.argv[1:]
    publisher = next(one for one in PUBLISHERS if one.name == name)
    job = PublishJob(bootstrap_servers, topic, WAYS[way], b"v" * int(size), way)
    seconds, cpu_s = asyncio.run(publisher.publish(job))
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "records_per_s": job.records / seconds,
                "records": job.records,
                "max_rss_bytes": peak_memory("self"),
            }
        )
    )


if __name__ == "__main__":
    main()
