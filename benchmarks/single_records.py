"""Consumers that await a function for each record, each as its documentation shows.

Each runs in a separate process (``python -m benchmarks.single_records``) in one of three modes: ``latency`` measures
the time from the producer, ``slow`` sleeps for each record, and ``first`` reports the first record and reads on.
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
"""Time that the busy loop computes and sleeps, in turns: it takes half of a core."""


class Finished(Exception):  # noqa: N818 - no error
    """Ends a client that has enough records."""


@dataclass
class Source:
    """Topic to read, and options of the modes.

    Attributes:
        seconds: time to measure latencies for.
        is_busy: True if other code of the process computes meanwhile.
        sleep_s: duration of a call in the mode ``slow``.
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
    _since: float = 0.0

    async def latency(self, value: bytes) -> None:
        """Note the time since the value was produced."""
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since >= WARM_UP_S:
            self.latencies.append(now - float(value[:24]))
            if now - self._since >= WARM_UP_S + self.seconds:
                raise Finished

    async def slow(self, _value: bytes) -> None:
        """Sleep, as a handler that waits for another service."""
        await asyncio.sleep(self.sleep_s)

    async def first(self, _value: bytes) -> None:
        """Print the time of the first record."""
        if not self._since:
            self._since = time.monotonic()
            print(json.dumps({"first_at_s": self._since}), flush=True)


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
    """Client and its way to read."""

    package: str
    how: str
    read: Callable[[Source, OnValue], Awaitable[None]]
    blocks: bool = False
    """True if it waits for records without the event loop."""

    @property
    def name(self) -> str:
        return f"{self.package} {self.how}"


CLIENTS = [
    RecordClient("tailrace", "async for", tailrace_async_for),
    RecordClient("tailrace", "handler", tailrace_handler),
    RecordClient("aiokafka", "async for", aiokafka_async_for),
    RecordClient("confluent-kafka", "poll()", confluent_poll, blocks=True),
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
    if source.is_busy and client.blocks:
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
    """Read with the client of the arguments, and write the figures to stdout."""
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
