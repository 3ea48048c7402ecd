"""Consumers whose throughput is compared: code as in the client's documentation, with the client's default options.

Each client runs in a separate process (``python -m benchmarks.clients``), so that its imports, threads and memory do
not affect other clients. All clients read only the value of each record, and seek to the beginning at the end of the
topic.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.java import consumer_performance
from benchmarks.run import Run

MAX_RECORDS = 5_000
"""Number of records per call of getmany() and consume()."""

BATCH_SIZE = 500
"""Number of records per call of a batch handler."""

_RECORDS_PER_CHECK = 5_000
"""Number of records after which a client that reads records one by one checks if the measured time is over."""


async def tailrace_async_for(run: Run) -> None:
    async with _tailrace(run) as consumer:
        await _repeat(run, lambda max_records: _read_one_by_one(consumer, run, max_records), consumer.seek_to_beginning)


async def tailrace_getmany(run: Run, max_records: int = MAX_RECORDS) -> None:
    async with _tailrace(run) as consumer:

        async def read(_max_records: int) -> int:
            records = await consumer.getmany(max_records=max_records)
            for record in records:
                run.read_bytes += len(record.value)
            return len(records)

        await _repeat(run, read, consumer.seek_to_beginning)


async def tailrace_getmany_batch_size(run: Run) -> None:
    await tailrace_getmany(run, BATCH_SIZE)


async def tailrace_arrow(run: Run) -> None:
    import pyarrow.compute as pc

    async with _tailrace(run) as consumer:
        tables = aiter(consumer.arrow_batches(max_records=MAX_RECORDS))

        async def read(_max_records: int) -> int:
            table = await anext(tables)
            run.read_bytes += pc.sum(pc.binary_length(table.column("value"))).as_py()
            return table.num_rows

        await _repeat(run, read, consumer.seek_to_beginning)


async def tailrace_handler(run: Run) -> None:
    def declare(app, handled: _HandledRecords) -> None:
        @app.handler(run.topic)
        async def handle(value: bytes) -> None:
            handled.count += 1
            run.read_bytes += len(value)
            if handled.count == _RECORDS_PER_CHECK:
                handled.check_time()

    await _run_app(run, declare)


async def tailrace_typed(run: Run) -> None:
    import msgspec

    class Order(msgspec.Struct):
        customer: str
        item: int
        total: float

    def declare(app, handled: _HandledRecords) -> None:
        async def handle(_order) -> None:
            handled.count += 1
            if handled.count == _RECORDS_PER_CHECK:
                handled.check_time()

        # The annotation is set here because the local name Order cannot be resolved from a string annotation.
        handle.__annotations__["_order"] = Order
        app.handler(run.topic)(handle)

    await _run_app(run, declare)


async def tailrace_batch(run: Run) -> None:
    def declare(app, handled: _HandledRecords) -> None:
        @app.batch_handler(run.topic, max_records=BATCH_SIZE)
        async def handle(values: list[bytes]) -> None:
            for value in values:
                run.read_bytes += len(value)
            handled.count += len(values)
            if handled.count >= _RECORDS_PER_CHECK:
                handled.check_time()

    await _run_app(run, declare)


async def _run_app(run: Run, declare: Callable[[Any, _HandledRecords], None]) -> None:
    """Run an app until the measured time is over; at the end of the topic, start another one in a new group."""
    from tailrace import App

    for number in itertools.count():
        app, handled = (
            App(bootstrap_servers=run.bootstrap_servers, group_id=f"{run.group}-{number}"),
            _HandledRecords(run),
        )
        declare(app, handled)
        async with app:
            await handled.done_event.wait()
        if run.figures:
            return


async def aiokafka_async_for(run: Run) -> None:
    async with _aiokafka(run) as consumer:
        await _repeat(run, lambda max_records: _read_one_by_one(consumer, run, max_records), consumer.seek_to_beginning)


async def aiokafka_getmany(run: Run, max_records: int = MAX_RECORDS) -> None:
    async with _aiokafka(run) as consumer:

        async def read(_max_records: int) -> int:
            batches = await consumer.getmany(timeout_ms=1_000, max_records=max_records)
            for records in batches.values():
                for record in records:
                    run.read_bytes += len(record.value)
            return sum(map(len, batches.values()))

        await _repeat(run, read, consumer.seek_to_beginning)


async def aiokafka_getmany_batch_size(run: Run) -> None:
    await aiokafka_getmany(run, BATCH_SIZE)


async def confluent_consume(run: Run, *, check_crcs: bool = False) -> None:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    options = {"bootstrap.servers": run.bootstrap_servers, "group.id": run.group, "auto.offset.reset": "earliest"}
    consumer = Consumer(options | ({"check.crcs": True} if check_crcs else {}))
    consumer.subscribe([run.topic])

    async def read(_max_records: int) -> int:
        records = consumer.consume(MAX_RECORDS, timeout=1)
        for record in records:
            run.read_bytes += len(record.value())
        return len(records)

    async def seek_to_beginning() -> None:
        assigned = consumer.assignment()
        consumer.assign([TopicPartition(one.topic, one.partition, OFFSET_BEGINNING) for one in assigned])

    await _repeat(run, read, seek_to_beginning)
    consumer.close()


async def confluent_checked(run: Run) -> None:
    await confluent_consume(run, check_crcs=True)


async def java(run: Run) -> None:
    consumer_performance(run)


async def faststream_handler(run: Run) -> None:
    await _faststream(run, bytes)


async def faststream_at_least_once(run: Run) -> None:
    await _faststream(run, bytes, is_acknowledged=True)


async def faststream_typed(run: Run) -> None:
    await _faststream(run, _pydantic_order())


async def faststream_typed_at_least_once(run: Run) -> None:
    await _faststream(run, _pydantic_order(), is_acknowledged=True)


async def faststream_batch(run: Run) -> None:
    await _faststream(run, list[bytes], batch=True, max_records=BATCH_SIZE)


async def _faststream(run: Run, kind: object, *, is_acknowledged: bool = False, **options) -> None:
    from faststream import AckPolicy
    from faststream.kafka import KafkaBroker

    # FastStream logs each record, which would take most of the time.
    broker = KafkaBroker(run.bootstrap_servers, logger=None)
    handled = _HandledRecords(run)
    # The default is ACK_FIRST, which commits fetched records every few seconds, whether they were handled or not.
    options["ack_policy"] = AckPolicy.REJECT_ON_ERROR if is_acknowledged else AckPolicy.ACK_FIRST

    async def handle(value) -> None:
        if isinstance(value, list):
            run.read_bytes += sum(map(len, value))
            handled.count += len(value)
        else:
            handled.count += 1
            if kind is bytes:
                run.read_bytes += len(value)
        # Check the time after each record, because the client is slow.
        handled.check_time()

    handle.__annotations__["value"] = kind
    broker.subscriber(run.topic, group_id=run.group, auto_offset_reset="earliest", **options)(handle)
    async with broker:
        await broker.start()
        await handled.done_event.wait()
    if not run.figures:
        run.finish()


class _HandledRecords:
    """Number of records that a handler has handled since its last check of the time."""

    def __init__(self, run: Run) -> None:
        self._run, self._left, self.count, self.done_event = run, run.records, 0, asyncio.Event()

    def check_time(self) -> None:
        """Count the records in ``run``, and set ``done_event`` if the measured time is over or the topic is read."""
        count, self.count = self.count, 0
        self._left -= count
        if self.done_event.is_set():
            return
        if self._run.count(count):
            self._run.finish()
            self.done_event.set()
        elif self._left < _RECORDS_PER_CHECK:
            self._run.stop_clock()
            self.done_event.set()


def _pydantic_order() -> type:
    from pydantic import BaseModel

    class Order(BaseModel):
        customer: str
        item: int
        total: float

    return Order


def _tailrace(run: Run):
    from tailrace import Consumer

    return Consumer(run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group)


def _aiokafka(run: Run):
    from aiokafka import AIOKafkaConsumer

    return AIOKafkaConsumer(
        run.topic, bootstrap_servers=run.bootstrap_servers, group_id=run.group, auto_offset_reset="earliest"
    )


async def _read_one_by_one(consumer, run: Run, max_records: int) -> int:
    seen = 0
    async for record in consumer:
        seen += 1
        run.read_bytes += len(record.value)
        if seen == max_records:
            break
    return seen


async def _repeat(
    run: Run, read: Callable[[int], Awaitable[int]], seek_to_beginning: Callable[[], Awaitable[object]]
) -> None:
    """Read until the measured time is over.

    Args:
        run: topic and measured time.
        read: function that reads records and returns their number. Its argument is the maximum number of records, which
            functions that read batches ignore.
        seek_to_beginning: function that is called at the end of the topic.
    """
    while True:
        left = run.records
        while left > 0:
            seen = await read(min(left, _RECORDS_PER_CHECK))
            left -= seen
            if run.count(seen):
                run.finish()
                return
        await seek_to_beginning()


class Client(NamedTuple):
    """Client, with one of its ways to read records."""

    package: str
    way: str
    read: Callable[[Run], Awaitable[None]]
    values: str = "text"
    """Content of the values to read, as in ``TopicSettings``."""
    environment: Mapping[str, str] = {}
    """Environment variables of the client's process."""

    @property
    def name(self) -> str:
        return f"{self.package} {self.way}"


CONSUME = [
    Client("tailrace", "async for", tailrace_async_for),
    Client("tailrace", f"getmany({MAX_RECORDS})", tailrace_getmany),
    Client("tailrace", f"arrow_batches({MAX_RECORDS})", tailrace_arrow),
    Client("tailrace", "handler", tailrace_handler),
    Client("aiokafka", "async for", aiokafka_async_for),
    Client("aiokafka", f"getmany({MAX_RECORDS})", aiokafka_getmany),
    Client("confluent-kafka", f"consume({MAX_RECORDS})", confluent_consume),
    Client("confluent-kafka", f"consume({MAX_RECORDS}), check.crcs", confluent_checked),
    Client("faststream", "handler", faststream_handler),
    Client("java", "ConsumerPerformance", java),
]

HANDLERS = [
    Client("tailrace", "bytes handler", tailrace_handler),
    Client("tailrace", "typed handler", tailrace_typed, values="json"),
    Client("tailrace", f"batch handler({BATCH_SIZE})", tailrace_batch),
    Client("tailrace", f"getmany({BATCH_SIZE})", tailrace_getmany_batch_size),
    Client("aiokafka", f"getmany({BATCH_SIZE})", aiokafka_getmany_batch_size),
    Client("faststream", "bytes handler", faststream_handler),
    Client("faststream", "typed handler", faststream_typed, values="json"),
    Client("faststream", "bytes, acknowledged", faststream_at_least_once),
    Client("faststream", "typed, acknowledged", faststream_typed_at_least_once, values="json"),
    Client("faststream", f"batch handler({BATCH_SIZE})", faststream_batch),
]
"""Clients that call handlers, and their counterparts without handlers.

The handlers of tailrace have the defaults ``order_by="partition"`` and ``concurrency=64``.
"""

_PURE = {"TAILRACE_PURE_PYTHON": "1"}

PURE = [
    Client("tailrace", "async for", tailrace_async_for),
    Client("tailrace", "async for, pure Python", tailrace_async_for, environment=_PURE),
    Client("tailrace", "handler", tailrace_handler),
    Client("tailrace", "handler, pure Python", tailrace_handler, environment=_PURE),
    Client("tailrace", f"getmany({MAX_RECORDS})", tailrace_getmany),
    Client("tailrace", f"getmany({MAX_RECORDS}), pure Python", tailrace_getmany, environment=_PURE),
    Client("aiokafka", "async for", aiokafka_async_for),
    Client("aiokafka", f"getmany({MAX_RECORDS})", aiokafka_getmany),
]


def main() -> None:
    """Read with the client that the arguments name, and print the figures as JSON."""
    name, settings = sys.argv[1:]
    client = next(one for one in [*CONSUME, *HANDLERS, *PURE] if one.name == name)
    run = Run(**json.loads(settings))
    asyncio.run(client.read(run))
    print(json.dumps(run.figures))


if __name__ == "__main__":
    main()
