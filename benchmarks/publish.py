"""Throughput and CPU time of idempotent and transactional producers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.publishers import IN_TRANSACTIONS, ONE_BY_ONE, PUBLISHERS, WAYS, Publisher
from benchmarks.report import columns, short_rate, write
from benchmarks.rounds import run_module, select_clients, version_of
from benchmarks.topics import PARTITIONS
from tailrace import TailraceError
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen

SIZES = (100, 1_024)
CODECS = ("none", "lz4", "zstd")
PROMISED = {way: 1.0 if way == ONE_BY_ONE else 1.5 for way in WAYS}
"""Minimum ratio of tailrace's throughput to that of aiokafka, by way of publishing.

A record that is awaited alone takes most of its time in the broker, with any client.
"""
_TIMEOUT_S = 120
_TOPIC_CONFIG = {"file.delete.delay.ms": 1_000}
"""The broker's log may be in memory, so a deleted topic must not take space for another minute."""


class Case(NamedTuple):
    """Kind of records, and way of publishing them."""

    way: str
    size: int
    codec: str

    def __str__(self) -> str:
        return f"{self.way}, {self.size:,} B, {'uncompressed' if self.codec == 'none' else self.codec}"


def publish(  # noqa: PLR0913 - options of the command
    *,
    rounds: int,
    seconds: float,
    ways: Sequence[str],
    sizes: Sequence[str],
    codecs: Sequence[str],
    clients: Sequence[str],
    path: Path,
) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1."""
    screen = Screen()
    cases = [
        Case(way, int(size), codec)
        for size, codec, way in product(sizes or map(str, SIZES), codecs or CODECS, _selected_ways(ways))
    ]
    publishers = select_clients(PUBLISHERS, clients)
    runs: dict[tuple[Case, Publisher], list[dict[str, Any]]] = {}
    with local_broker(screen) as server, screen.progress() as progress:
        bar = progress.add_task("publish", total=rounds * len(cases) * len(publishers), note="")
        for number, case in product(range(rounds), cases):
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            server.create_topic(topic, PARTITIONS, config=_TOPIC_CONFIG)
            for publisher in random.Random(f"{number} {case}").sample(publishers, len(publishers)):
                progress.update(bar, note=f"{publisher.name}, {case}")
                arguments = (publisher.name, server.bootstrap_servers, topic, str(case.size), case.codec, case.way)
                figures = run_module(
                    f"{publisher.name}, {case}", "benchmarks.publishers", *arguments, str(seconds), timeout_s=_TIMEOUT_S
                )
                runs.setdefault((case, publisher), []).append(figures)
                progress.advance(bar)
            server.delete_topic(topic)
    rows = [_row(case, publisher, figures) for (case, publisher), figures in runs.items()]
    promises = [promise for case in cases if (promise := _promise(case, rows)) is not None]
    result = {
        "rows": rows,
        "promises": promises,
        "settings": {"partitions": PARTITIONS, "rounds": rounds, "seconds": seconds},
    }
    screen.line("table", "records per second, and µs of CPU time per record")
    for size, codec in dict.fromkeys((case.size, case.codec) for case in cases):
        screen.console.print()
        screen.show(_table([case for case in cases if (case.size, case.codec) == (size, codec)], publishers, rows))
    write(screen, path, "publish", result)
    for one in promises:
        if not one["holds"]:
            case = Case(one["way"], one["size"], one["codec"])
            screen.line("ratio", f"{case}: {one['measured']:.2f} of aiokafka, promised is {one['at_least']:g}")
    held = sum(one["holds"] for one in promises)
    screen.line("promises", f"{held} of {len(promises)} hold")
    return 0 if held == len(promises) else 1


def _selected_ways(words: Sequence[str]) -> list[str]:
    for word in words:
        if not any(word in way for way in WAYS):
            raise TailraceError(f"no way of publishing has {word!r} in its name: {'; '.join(WAYS)}")
    return [way for way in WAYS if not words or any(word in way for word in words)]


def _row(case: Case, publisher: Publisher, runs: list[dict[str, Any]]) -> dict[str, Any]:
    speeds = [one["records_per_s"] for one in runs]
    return {
        **case._asdict(),
        "client": publisher.name,
        "version": version_of(publisher.package),
        "records_per_s": median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "cpu_us_per_record": median(one["cpu_us_per_record"] for one in runs),
        "max_rss_bytes": max(one["max_rss_bytes"] for one in runs),
        "runs": runs,
    }


def _promise(case: Case, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the promise of a case, with the median ratio of the rounds; None unless both clients were measured.

    Both clients run in each round, one soon after the other, so a round's ratio depends less on the machine's load than
    the speeds do.
    """
    found = {row["client"]: row for row in rows if Case(row["way"], row["size"], row["codec"]) == case}
    if not {"tailrace", "aiokafka"} <= found.keys():
        return None
    pairs = zip(found["tailrace"]["runs"], found["aiokafka"]["runs"], strict=True)
    measured = median(ours["records_per_s"] / theirs["records_per_s"] for ours, theirs in pairs)
    promised = PROMISED[case.way]
    return {**case._asdict(), "at_least": promised, "measured": measured, "holds": measured >= promised}


def _table(cases: list[Case], publishers: Sequence[Publisher], rows: list[dict[str, Any]]) -> Table:
    codec = "uncompressed" if cases[0].codec == "none" else cases[0].codec
    table = columns(f"{cases[0].size:,} B, {codec}", *(one.name.removeprefix("confluent-kafka ") for one in publishers))
    found = {(Case(row["way"], row["size"], row["codec"]), row["client"]): row for row in rows}
    for case in cases:
        cells = (found[case, one.name] for one in publishers)
        table.add_row(
            case.way.replace(IN_TRANSACTIONS, "transactions"),
            *(f"{short_rate(row['records_per_s'])}  {row['cpu_us_per_record']:#.3g}" for row in cells),
        )
    return table
