"""Throughput of a handler with order by key, compared with tasks without a broker."""

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
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen, count

KEYS, SLEEP_S, PROMISED = 64, 0.005, 0.95


def lanes(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen = Screen()
    each = records // KEYS
    with local_broker(screen) as server:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        server.create_topic(topic, PARTITIONS)
        _fill(server.bootstrap_servers, topic, each)
        runs = []
        with screen.progress() as progress:
            bar = progress.add_task("run", total=2 * rounds, note="")
            for number in range(rounds):
                figures = {}
                for name in ("tasks", "handlers") if number % 2 else ("handlers", "tasks"):
                    progress.update(bar, note=name)
                    run = _tasks(each) if name == "tasks" else _handlers(server.bootstrap_servers, topic, each)
                    figures[name] = asyncio.run(run)
                    progress.advance(bar)
                runs.append(figures)
    rates = {name: median(one[name] for one in runs) for name in ("tasks", "handlers")}
    ratio = median(one["handlers"] / one["tasks"] for one in runs)
    result = {
        "runs": runs,
        "records_per_s": rates,
        "promise": {"ratio": "handlers / tasks", "at_least": PROMISED, "measured": ratio, "holds": ratio >= PROMISED},
        "settings": {"keys": KEYS, "sleep_ms": SLEEP_S * 1000, "records": each * KEYS, "partitions": PARTITIONS},
    }
    screen.show(_table(runs))
    write(screen, path, "lanes", result)
    verdict = "holds" if ratio >= PROMISED else "does NOT hold"
    screen.line(
        "ratio", f"{ratio:.3f} of {KEYS} bare tasks, order by key intact: the promise of {PROMISED:g} {verdict}"
    )
    return 0 if ratio >= PROMISED else 1


async def _tasks(each: int) -> float:
    """Return the throughput of one sleeping task per key."""

    async def sleep_on() -> None:
        for _ in range(each):
            await asyncio.sleep(SLEEP_S)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(KEYS):
            tasks.create_task(sleep_on())
    return KEYS * each / (time.perf_counter() - began)


async def _handlers(bootstrap_servers: str, topic: str, each: int) -> float:
    """Return the throughput of a handler of records with that many keys."""
    app = App(bootstrap_servers=bootstrap_servers, group_id=f"bench-{uuid.uuid4().hex[:8]}")
    seen: defaultdict[bytes, list[int]] = defaultdict(list)
    all_done, done, began = asyncio.Event(), 0, 0.0

    @app.handler(topic, order_by="key", concurrency=KEYS)
    async def sleep(record: Record) -> None:
        nonlocal done, began
        began = began or time.perf_counter()
        await asyncio.sleep(SLEEP_S)
        seen[record.key].append(record.offset)
        done += 1
        if done == KEYS * each:
            all_done.set()

    async with app, asyncio.timeout(600):
        await all_done.wait()
        took_s = time.perf_counter() - began
    if any(offsets != sorted(offsets) or len(offsets) != each for offsets in seen.values()):
        raise AssertionError("records of a key were out of order")
    return KEYS * each / took_s


def _fill(bootstrap_servers: str, topic: str, each: int) -> None:
    """Publish records with alternating keys."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20})
    for number in range(each):
        for key in range(KEYS):
            producer.produce(topic, b"%d" % number, b"k%d" % key)
        producer.poll(0)
    if left := producer.flush(60):
        raise AssertionError(f"the broker did not acknowledge {left} records")


def _table(runs: list[dict[str, float]]) -> Table:
    shown = columns("round", "bare tasks/s", "handlers/s", "ratio")
    for number, one in enumerate(runs, 1):
        ratio = one["handlers"] / one["tasks"]
        shown.add_row(str(number), count(round(one["tasks"])), count(round(one["handlers"])), f"{ratio:.3f}")
    return shown
