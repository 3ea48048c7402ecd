"""Throughput of handlers that do nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from benchmarks.clients import HANDLERS, Client
from benchmarks.report import table
from benchmarks.rounds import PARTITIONS, Reading, fill, in_turns, machine, row
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen

SIZE = 100
PROMISES = {"typed": 40.0, "bytes": 60.0}
"""Minimum ratio to FastStream's throughput, both at least once."""

# Bytes that are not valid JSON: FastStream decodes by content and would not pass bytes to a handler of bytes.
VALUES = {
    "bytes": b"v" * SIZE,
    "json": json.dumps({"customer": "c" * 55, "item": 1234567, "total": 99.5}).encode().ljust(SIZE),
}


def handlers(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1."""
    screen = Screen()
    with local_broker(screen) as server:
        readings = {}
        for kind, value in VALUES.items():
            topic = f"bench-{kind}-{uuid.uuid4().hex[:8]}"
            server.create_topic(topic, PARTITIONS)
            readings[kind] = Reading(server.bootstrap_servers, topic, records, len(value))
            fill(screen, readings[kind], value)

        def reading_of(client: Client) -> Reading:
            return readings[client.reads]

        runs = in_turns(screen, rounds, HANDLERS, reading_of)
        kafka = server.version
    rows = [row(client, runs[client.name]) for client in HANDLERS]
    speeds = {one["client"]: one["records_per_s"] for one in rows}
    promises = [
        {
            "handler": how,
            "at_least": promised,
            "measured": (ratio := speeds[f"tailrace {how} handler"] / speeds[f"faststream {how}, acknowledged"]),
            "holds": ratio >= promised,
            "by_default": speeds[f"tailrace {how} handler"] / speeds[f"faststream {how} handler"],
        }
        for how, promised in PROMISES.items()
    ]
    result = {
        "benchmark": "handlers",
        "rows": rows,
        "promises": promises,
        "settings": {
            "records": records,
            "size": SIZE,
            "partitions": PARTITIONS,
            "rounds": rounds,
            "order_by": "partition",
            "concurrency": 64,
        },
        "machine": machine() | {"kafka": kafka},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    screen.show(table(rows, "faststream bytes handler"))
    screen.console.print()
    screen.line("written", str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
    for one in promises:
        verdict = "holds" if one["holds"] else "does NOT hold"
        screen.line(
            one["handler"],
            f"{one['measured']:.0f} times FastStream at least once, {one['by_default']:.0f} times by default;"
            f" {one['at_least']:g} {verdict}",
        )
    return 0 if all(one["holds"] for one in promises) else 1
