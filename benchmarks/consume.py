"""Throughput of consumers."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from benchmarks.clients import CLIENTS
from benchmarks.report import table
from benchmarks.rounds import PARTITIONS, Reading, fill, in_turns, machine, row
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen

OURS, THEIRS, PROMISED = "tailrace async for", "aiokafka async for", 3.0


def consume(*, records: int, size: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen = Screen()
    with local_broker(screen) as server:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        server.create_topic(topic, PARTITIONS)
        reading = Reading(server.bootstrap_servers, topic, records, size)
        # Not valid JSON: FastStream decodes by content and would not pass bytes to a handler of bytes.
        fill(screen, reading, b"v" * size)
        runs = in_turns(screen, rounds, CLIENTS, lambda _client: reading)
        kafka = server.version
    rows = [row(client, runs[client.name]) for client in CLIENTS]
    speeds = {one["client"]: one["records_per_s"] for one in rows}
    ratios = {f"{OURS} / {name}": speeds[OURS] / speed for name, speed in speeds.items() if name != OURS}
    ratio = ratios[f"{OURS} / {THEIRS}"]
    holds = ratio >= PROMISED
    result = {
        "benchmark": "consume",
        "rows": rows,
        "ratios": ratios,
        "promise": {"ratio": f"{OURS} / {THEIRS}", "at_least": PROMISED, "measured": ratio, "holds": holds},
        "settings": {"records": records, "size": size, "partitions": PARTITIONS, "rounds": rounds},
        "machine": machine() | {"kafka": kafka},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    screen.show(table(rows, THEIRS))
    screen.console.print()
    screen.line("written", str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
    verdict = "holds" if holds else "does NOT hold"
    screen.line("ratio", f"{ratio:.1f} times aiokafka by async for: the promise of {PROMISED:g} {verdict}")
    return 0 if holds else 1
