"""Compared clients, each as its documentation shows, with its defaults and the same work per record.

Each function runs in a separate process (``python -m benchmarks.clients``), so that imports, threads and memory are its
own. It reads only the value of each record.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MANY = 5_000
"""Number of records per call of getmany() and consume()."""


@dataclass
class Run:
    """Topic to read, and the times of the first and the last record."""

    bootstrap_servers: str
    topic: str
    group: str
    records: int
    read_bytes: int = 0
    began: tuple[float, float] = field(default=(0.0, 0.0))
    seconds: float = 0.0
    cpu_s: float = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self.began[0]
        self.cpu_s = time.process_time() - self.began[1]


async def tailrace_async_for(run: Run) -> None:
    from tailrace import Consumer

    async with Consumer(run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group) as consumer:
        await _async_for(consumer, run)


async def tailrace_getmany(run: Run) -> None:
    from tailrace import Consumer

    async with Consumer(run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group) as consumer:
        seen = 0
        while seen < run.records:
            records = await consumer.getmany(max_records=MANY)
            if not seen:
                run.begin()
            for record in records:
                run.read_bytes += len(record.value)
            seen += len(records)
        run.end()


async def tailrace_arrow(run: Run) -> None:
    import pyarrow.compute as pc

    from tailrace import Consumer

    async with Consumer(run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group) as consumer:
        seen = 0
        async for table in consumer.arrow_batches(max_records=MANY):
            if not seen:
                run.begin()
            run.read_bytes += pc.sum(pc.binary_length(table.column("value"))).as_py()
            seen += table.num_rows
            if seen >= run.records:
                break
        run.end()


async def tailrace_handler(run: Run) -> None:
    from tailrace import App

    app = App(bootstrap_servers=run.bootstrap_servers, group_id=run.group)
    all_read = asyncio.Event()
    seen = 0

    @app.handler(run.topic)
    async def handle(value: bytes) -> None:
        nonlocal seen
        if not seen:
            run.begin()
        seen += 1
        run.read_bytes += len(value)
        if seen == run.records:
            run.end()
            all_read.set()

    async with app:
        await all_read.wait()


async def tailrace_typed(run: Run) -> None:
    import msgspec

    from tailrace import App

    class Order(msgspec.Struct):
        customer: str
        item: int
        total: float

    app = App(bootstrap_servers=run.bootstrap_servers, group_id=run.group)
    all_read = asyncio.Event()
    seen = 0

    async def handle(_order) -> None:
        nonlocal seen
        if not seen:
            run.begin()
        seen += 1
        if seen == run.records:
            run.end()
            all_read.set()

    # Set here because the name Order cannot be resolved in the module.
    handle.__annotations__["_order"] = Order
    app.handler(run.topic, order_by="partition", concurrency=64)(handle)
    async with app:
        await all_read.wait()


async def aiokafka_async_for(run: Run) -> None:
    async with _aiokafka(run) as consumer:
        await _async_for(consumer, run)


async def aiokafka_getmany(run: Run) -> None:
    async with _aiokafka(run) as consumer:
        seen = 0
        while seen < run.records:
            batches = await consumer.getmany(timeout_ms=1_000, max_records=MANY)
            if batches and not seen:
                run.begin()
            for records in batches.values():
                for record in records:
                    run.read_bytes += len(record.value)
                seen += len(records)
        run.end()


async def confluent_consume(run: Run) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": run.bootstrap_servers, "group.id": run.group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([run.topic])
    seen = 0
    while seen < run.records:
        records = consumer.consume(MANY, timeout=1)
        if records and not seen:
            run.begin()
        for record in records:
            run.read_bytes += len(record.value())
        seen += len(records)
    run.end()
    consumer.close()


async def faststream_handler(run: Run) -> None:
    await _faststream(run, bytes)


async def faststream_at_least_once(run: Run) -> None:
    await _faststream(run, bytes, acknowledged=True)


async def faststream_typed(run: Run) -> None:
    await _faststream(run, _pydantic_order())


async def faststream_typed_at_least_once(run: Run) -> None:
    await _faststream(run, _pydantic_order(), acknowledged=True)


async def _faststream(run: Run, kind: type, *, acknowledged: bool = False) -> None:
    from faststream import AckPolicy
    from faststream.kafka import KafkaBroker

    # Its log line for each record would take most of its time.
    broker = KafkaBroker(run.bootstrap_servers, logger=None)
    all_read = asyncio.Event()
    seen = 0
    # By default, it commits fetched records every few seconds, whether they were handled or not.
    policy = AckPolicy.REJECT_ON_ERROR if acknowledged else AckPolicy.ACK_FIRST

    async def handle(value) -> None:
        nonlocal seen
        if not seen:
            run.begin()
        seen += 1
        if kind is bytes:
            run.read_bytes += len(value)
        if seen == run.records:
            run.end()
            all_read.set()

    handle.__annotations__["value"] = kind
    broker.subscriber(run.topic, group_id=run.group, auto_offset_reset="earliest", ack_policy=policy)(handle)
    async with broker:
        await broker.start()
        await all_read.wait()


def _pydantic_order() -> type:
    from pydantic import BaseModel

    class Order(BaseModel):
        customer: str
        item: int
        total: float

    return Order


def _aiokafka(run: Run):
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group, auto_offset_reset="earliest"
    )


async def _async_for(consumer, run: Run) -> None:
    seen = 0
    async for record in consumer:
        if not seen:
            run.begin()
        seen += 1
        run.read_bytes += len(record.value)
        if seen == run.records:
            break
    run.end()


class Client(NamedTuple):
    """Client and its way to read."""

    package: str
    how: str
    read: Callable
    most: int | None = None
    """Limit of records for slow clients."""
    reads: str = "bytes"
    """Values that it reads: ``bytes`` or ``json``."""

    @property
    def name(self) -> str:
        return f"{self.package} {self.how}"


CLIENTS = [
    Client("tailrace", "async for", tailrace_async_for),
    Client("tailrace", f"getmany({MANY})", tailrace_getmany),
    Client("tailrace", f"arrow_batches({MANY})", tailrace_arrow),
    Client("tailrace", "handler", tailrace_handler),
    Client("aiokafka", "async for", aiokafka_async_for),
    Client("aiokafka", f"getmany({MANY})", aiokafka_getmany),
    Client("confluent-kafka", f"consume({MANY})", confluent_consume),
    Client("faststream", "handler", faststream_handler, most=50_000),
]


HANDLERS = [
    Client("tailrace", "typed handler", tailrace_typed, reads="json"),
    Client("tailrace", "bytes handler", tailrace_handler),
    Client("faststream", "typed handler", faststream_typed, most=50_000, reads="json"),
    Client("faststream", "bytes handler", faststream_handler, most=50_000),
    Client("faststream", "typed, acknowledged", faststream_typed_at_least_once, most=5_000, reads="json"),
    Client("faststream", "bytes, acknowledged", faststream_at_least_once, most=5_000),
]
"""Clients with no-op handlers; those of tailrace have the defaults ``order_by="partition"`` and ``concurrency=64``."""


def peak_memory() -> int:
    """Return the peak memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux, ru_maxrss is inherited from the parent process.
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Read with the client of the arguments, and write the figures to stdout."""
    name, bootstrap_servers, topic, group, records = sys.argv[1:]
    client = next(one for one in [*CLIENTS, *HANDLERS] if one.name == name)
    run = Run(bootstrap_servers, topic, group, int(records))
    asyncio.run(client.read(run))
    figures = {
        "seconds": run.seconds,
        "cpu_s": run.cpu_s,
        "records_per_s": run.records / run.seconds,
        "max_rss_bytes": peak_memory(),
        "read_bytes": run.read_bytes,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
