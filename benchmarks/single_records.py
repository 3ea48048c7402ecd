"""Consumers that await a function for each record: code as in the client's documentation.

Each client runs in a separate process (``python -m benchmarks.single_records``) in one of three modes: ``latency``
measures the time from the producer, ``slow`` sleeps for each record, and ``first`` prints the time of the first record
and continues to read.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.run import WARM_UP_S

OnValue = Callable[[bytes], Awaitable[None]]

BUSY_S, FREE_S = 0.002, 0.002
"""Times for which the busy loop computes and sleeps alternately, so that it takes half of a core."""


class Finished(Exception):  # noqa: N818 - no error
    """Raised to end a client that has received enough records."""


@dataclass
class Source:
    """Topic to read, with a method for each mode, which is called with the value of each record.

    Attributes:
        bootstrap_servers: addresses of the brokers.
        topic: topic to read.
        group: name of the group.
        seconds: time to measure in the mode ``latency``, after the warm-up.
        is_busy: True to run a busy loop in the process.
        sleep_s: time to sleep for each record in the mode ``slow``.
        auto_offset_reset: option of the client.
        latencies: result of the mode ``latency``, in seconds.
    """

    bootstrap_servers: str
    topic: str
    group: str
    seconds: float = 0.0
    is_busy: bool = False
    sleep_s: float = 0.0
    auto_offset_reset: str = "earliest"
    latencies: list[float] = field(default_factory=list)
    _first_at: float = 0.0

    async def latency(self, value: bytes) -> None:
        """Store the time since the value was produced; after the measured time, raise Finished."""
        now = time.monotonic()
        self._first_at = self._first_at or now
        if now - self._first_at >= WARM_UP_S:
            self.latencies.append(now - float(value[:24]))
            if now - self._first_at >= WARM_UP_S + self.seconds:
                raise Finished

    async def slow(self, _value: bytes) -> None:
        """Sleep, like a handler that waits for another service."""
        await asyncio.sleep(self.sleep_s)

    async def first(self, _value: bytes) -> None:
        """Print the time of the first record."""
        if not self._first_at:
            self._first_at = time.monotonic()
            print(json.dumps({"first_at_s": self._first_at}), flush=True)


async def tailrace_async_for(source: Source, on_value: OnValue) -> None:
    from tailrace import Consumer

    async with Consumer(source.topic, **_options(source)) as consumer:
        async for record in consumer:
            await on_value(record.value)


async def tailrace_handler(source: Source, on_value: OnValue) -> None:
    from tailrace import App

    app, finished = App(**_options(source)), asyncio.Event()

    @app.handler(source.topic)
    async def handle(value: bytes) -> None:
        try:
            await on_value(value)
        except Finished:
            finished.set()

    async with app:
        await finished.wait()


async def aiokafka_async_for(source: Source, on_value: OnValue) -> None:
    from aiokafka import AIOKafkaConsumer

    async with AIOKafkaConsumer(source.topic, **_options(source)) as consumer:
        async for record in consumer:
            await on_value(record.value)


async def confluent_poll(source: Source, on_value: OnValue) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({name.replace("_", "."): value for name, value in _options(source).items()})
    consumer.subscribe([source.topic])
    try:
        while True:
            if (record := consumer.poll(1)) is not None:
                await on_value(record.value())
    finally:
        consumer.close()


async def faststream_handler(source: Source, on_value: OnValue) -> None:
    from faststream.kafka import KafkaBroker

    broker, finished = KafkaBroker(source.bootstrap_servers, logger=None), asyncio.Event()

    @broker.subscriber(source.topic, group_id=source.group, auto_offset_reset=source.auto_offset_reset)
    async def handle(value: bytes) -> None:
        try:
            await on_value(value)
        except Finished:
            finished.set()

    async with broker:
        await broker.start()
        await finished.wait()


def _options(source: Source) -> dict[str, str]:
    return {
        "bootstrap_servers": source.bootstrap_servers,
        "group_id": source.group,
        "auto_offset_reset": source.auto_offset_reset,
    }


class RecordClient(NamedTuple):
    """Client, with one of its ways to read records."""

    package: str
    way: str
    read: Callable[[Source, OnValue], Awaitable[None]]
    is_blocking: bool = False
    """True if the client blocks while it waits for records, so that it needs no event loop."""

    @property
    def name(self) -> str:
        return f"{self.package} {self.way}"


CLIENTS = [
    RecordClient("tailrace", "async for", tailrace_async_for),
    RecordClient("tailrace", "handler", tailrace_handler),
    RecordClient("aiokafka", "async for", aiokafka_async_for),
    RecordClient("confluent-kafka", "poll()", confluent_poll, is_blocking=True),
    RecordClient("faststream", "handler", faststream_handler),
]


def _compute() -> None:
    until = time.perf_counter() + BUSY_S
    while time.perf_counter() < until:
        pass


async def _keep_loop_busy() -> None:
    while True:
        _compute()
        await asyncio.sleep(FREE_S)


def _keep_thread_busy() -> None:
    while True:
        _compute()
        time.sleep(FREE_S)


async def _run(client: RecordClient, mode: str, source: Source) -> None:
    reading = asyncio.ensure_future(client.read(source, getattr(source, mode)))
    busy = None
    if source.is_busy and client.is_blocking:
        threading.Thread(target=_keep_thread_busy, daemon=True).start()
    elif source.is_busy:
        busy = asyncio.ensure_future(_keep_loop_busy())
    try:
        await reading
    except Finished:
        pass
    finally:
        if busy is not None:
            busy.cancel()


def main() -> None:
    """Read with the client that the arguments name, and print the figures as JSON."""
    name, mode, settings = sys.argv[1:]
    client = next(one for one in CLIENTS if one.name == name)
    source = Source(**json.loads(settings))
    asyncio.run(_run(client, mode, source))
    if source.latencies:
        ordered = sorted(source.latencies)
        figures = {f"p{share}_ms": ordered[len(ordered) * share // 100] * 1000 for share in (50, 99)}
        print(json.dumps({**figures, "records": len(ordered)}))


if __name__ == "__main__":
    main()
