"""Throughput of idempotent producers."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.publishers import PUBLISHERS, WAYS
from benchmarks.report import columns, short_rate, write
from benchmarks.topics import PARTITIONS
from tailrace import TailraceError
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen

SIZES = (100, 1_024)
PROMISED = {"one by one": 0.95, "by 1,000": 1.5, "not awaited": 1.5, "transactions of 1,000": 1.0}
"""Minimum ratio of tailrace's throughput to that of aiokafka, by way of publishing.

If records are published one by one, both wait for the broker most of the time.
"""
_TIMEOUT_S = 300


def publish(*, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1."""
    screen = Screen()
    runs: dict[tuple[str, int, str], list[dict]] = {}
    kinds = [(way, size) for way in WAYS for size in SIZES]
    with local_broker(screen) as server, screen.progress() as progress:
        bar = progress.add_task("publish", total=rounds * len(kinds) * len(PUBLISHERS), note="")
        for number in range(rounds):
            for way, size in kinds:
                topic = f"bench-{uuid.uuid4().hex[:8]}"
                server.create_topic(topic, PARTITIONS)
                turn = number % len(PUBLISHERS)
                for publisher in (*PUBLISHERS[turn:], *PUBLISHERS[:turn]):
                    progress.update(bar, note=f"{publisher.name}, {way}, {size} B")
                    figures = _one_run(publisher.name, server.bootstrap_servers, topic, size, way)
                    runs.setdefault((way, size, publisher.name), []).append(figures)
                    progress.advance(bar)
    rows = [_row(way, size, name, figures) for (way, size, name), figures in runs.items()]
    speeds = {(row["way"], row["size"], row["client"]): row["records_per_s"] for row in rows}
    promises = []
    for way, size in kinds:
        ratio = speeds[way, size, "tailrace"] / speeds[way, size, "aiokafka"]
        promised = PROMISED[way]
        promises.append({"way": way, "size": size, "at_least": promised, "measured": ratio, "holds": ratio >= promised})
    result = {
        "rows": rows,
        "promises": promises,
        "settings": {"partitions": PARTITIONS, "rounds": rounds, "records": WAYS},
    }
    screen.show(_table(kinds, speeds))
    write(screen, path, "publish", result)
    for one in promises:
        verdict = "holds" if one["holds"] else "does NOT hold"
        ratio = f"{one['measured']:.2f} times aiokafka: the promise of {one['at_least']:g} {verdict}"
        screen.line("ratio", f"{one['way']}, {one['size']} B: {ratio}")
    return 0 if all(one["holds"] for one in promises) else 1


def _one_run(name: str, bootstrap_servers: str, topic: str, size: int, way: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.publishers", name, bootstrap_servers, topic, str(size), way]
    here = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise TailraceError(f"{name} did not publish within {_TIMEOUT_S} s, {way}") from None
    if done.returncode:
        raise TailraceError(f"{name} failed, {way}:\n{done.stderr[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _row(way: str, size: int, name: str, runs: list[dict]) -> dict:
    speeds = [one["records_per_s"] for one in runs]
    return {
        "way": way,
        "size": size,
        "client": name,
        "records_per_s": median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "cpu_s": median(one["cpu_s"] for one in runs),
        "max_rss_bytes": max(one["max_rss_bytes"] for one in runs),
        "runs": runs,
    }


def _table(kinds: list[tuple[str, int]], speeds: dict[tuple[str, int, str], float]) -> Table:
    table = columns("records/s", *(publisher.name for publisher in PUBLISHERS))
    for way, size in kinds:
        table.add_row(f"{way}, {size} B", *(short_rate(speeds[way, size, one.name]) for one in PUBLISHERS))
    return table
