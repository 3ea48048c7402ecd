"""Throughput of a handler with ``order_by="key"``, compared with tasks that do not use a broker."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from rich.table import Table

from benchmarks.report import columns, write
from benchmarks.topics import PARTITIONS
from tailrace import App, Record
from tailrace.cli.kafka import local_broker
from tailrace.cli.output import count
from tailrace.cli.screen import Screen

KEYS, SLEEP_S = 64, 0.005
PROMISED = 0.95
"""Minimum ratio of the handler's throughput to that of the tasks."""


def lanes(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen = Screen()
    records_per_key = records // KEYS
    with local_broker(screen) as server:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        server.create_topic(topic, PARTITIONS)
        _fill(server.bootstrap_servers, topic, records_per_key)
        runs = []
        with screen.progress() as progress:
            bar = progress.add_task("run", total=2 * rounds, note="")
            for number in range(rounds):
                figures = {}
                for name in ("tasks", "handlers") if number % 2 else ("handlers", "tasks"):
                    progress.update(bar, note=name)
                    run = (
                        _tasks(records_per_key)
                        if name == "tasks"
                        else _handlers(server.bootstrap_servers, topic, records_per_key)
                    )
                    figures[name] = asyncio.run(run)
                    progress.advance(bar)
                runs.append(figures)
    rates = {name: median(one[name] for one in runs) for name in ("tasks", "handlers")}
    ratio = median(one["handlers"] / one["tasks"] for one in runs)
    result = {
        "runs": runs,
        "records_per_s": rates,
        "promise": {"ratio": "handlers / tasks", "at_least": PROMISED, "measured": ratio, "holds": ratio >= PROMISED},
        "settings": {
            "keys": KEYS,
            "sleep_ms": SLEEP_S * 1000,
            "records": records_per_key * KEYS,
            "partitions": PARTITIONS,
        },
    }
    screen.show(_table(runs))
    write(screen, path, "lanes", result)
    verdict = "holds" if ratio >= PROMISED else "does NOT hold"
    screen.line("ratio", f"{ratio:.3f} of {KEYS} tasks without a broker: the promise of {PROMISED:g} {verdict}")
    return 0 if ratio >= PROMISED else 1


async def _tasks(records_per_key: int) -> float:
    """Return the throughput of ``KEYS`` tasks that sleep, in calls per second."""

    async def sleep_repeatedly() -> None:
        for _ in range(records_per_key):
            await asyncio.sleep(SLEEP_S)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(KEYS):
            tasks.create_task(sleep_repeatedly())
    return KEYS * records_per_key / (time.perf_counter() - began)


async def _handlers(bootstrap_servers: str, topic: str, records_per_key: int) -> float:
    """Return the throughput of a handler that sleeps, in records per second.

    Raises:
        AssertionError: records of a key were handled out of order.
    """
    app = App(bootstrap_servers=bootstrap_servers, group_id=f"bench-{uuid.uuid4().hex[:8]}")
    offsets_by_key: defaultdict[bytes, list[int]] = defaultdict(list)
    is_done, done, began = asyncio.Event(), 0, 0.0

    @app.handler(topic, order_by="key", concurrency=KEYS)
    async def sleep(record: Record) -> None:
        nonlocal done, began
        began = began or time.perf_counter()
        await asyncio.sleep(SLEEP_S)
        offsets_by_key[record.key].append(record.offset)
        done += 1
        if done == KEYS * records_per_key:
            is_done.set()

    async with app, asyncio.timeout(600):
        await is_done.wait()
        took_s = time.perf_counter() - began
    if any(offsets != sorted(offsets) or len(offsets) != records_per_key for offsets in offsets_by_key.values()):
        raise AssertionError("records of a key were out of order")
    return KEYS * records_per_key / took_s


def _fill(bootstrap_servers: str, topic: str, records_per_key: int) -> None:
    """Publish ``records_per_key`` records of each key, with alternating keys."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20})
    for number in range(records_per_key):
        for key in range(KEYS):
            producer.produce(topic, b"%d" % number, b"k%d" % key)
        producer.poll(0)
    if left := producer.flush(60):
        raise AssertionError(f"the broker did not acknowledge {left} records")


def _table(runs: list[dict[str, float]]) -> Table:
    table = columns("round", "tasks/s", "handlers/s", "ratio")
    for number, one in enumerate(runs, 1):
        ratio = one["handlers"] / one["tasks"]
        table.add_row(str(number), count(round(one["tasks"])), count(round(one["handlers"])), f"{ratio:.3f}")
    return table
