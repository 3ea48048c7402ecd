"""Throughput of consumers and handlers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.clients import CONSUME, HANDLERS, PURE, Client
from benchmarks.report import throughputs, write
from benchmarks.rounds import Reading, chosen, cluster_of, in_process, in_turns, middle, new_group, version_of
from benchmarks.run import WARM_UP_S
from benchmarks.topics import TopicSettings, fill
from tailrace import TailraceError
from tailrace.cli.screen import Screen

MOST_BYTES = 2_000_000_000
"""Maximum size of a topic before compression; at its end, clients seek to the beginning, except Java's."""
RECORDS_PER_S = 1_200_000
"""Number of records in the topic for each second of a run."""

PROMISES = {
    "consume": [("tailrace async for", "aiokafka async for", 3.0)],
    "handlers": [
        ("tailrace typed handler", "faststream typed, acknowledged", 40.0),
        ("tailrace bytes handler", "faststream bytes, acknowledged", 60.0),
    ],
    "pure": [("tailrace async for, pure Python", "aiokafka async for", 1.0)],
}
"""Minimum ratios of throughputs by benchmark, with the default settings."""

_CLIENTS = {"consume": CONSUME, "handlers": HANDLERS, "pure": PURE}


def compare(  # noqa: PLR0913 - the options of the command line
    benchmark: str,
    *,
    rounds: int,
    seconds: float,
    clients: Sequence[str],
    path: Path,
    brokers: int = 1,
    **topic: int | str,
) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1."""
    screen, compared, rows = Screen(), chosen(_CLIENTS[benchmark], clients), []
    settings = TopicSettings(**topic)
    records = int(min(RECORDS_PER_S * (WARM_UP_S + seconds), MOST_BYTES / settings.record_bytes))
    with cluster_of(screen, brokers) as server:
        readings = {}
        for values in dict.fromkeys(client.values for client in compared):
            name, written = fill(screen, server, settings._replace(values=values), records)
            readings[values] = Reading(server.bootstrap_servers, name, written, settings.payload)
        runs = in_turns(screen, rounds, compared, lambda client: read_once(client, readings[client.values], seconds))
    rows = [_row(client, runs[client.name]) for client in compared]
    promises = _promises(benchmark, rows) if settings == TopicSettings() and brokers == 1 else []
    screen.show(throughputs(rows, "aiokafka async for" if benchmark != "handlers" else "faststream bytes handler"))
    write(
        screen,
        path,
        benchmark,
        {
            "settings": {
                **settings._asdict(),
                "brokers": brokers,
                "records": records,
                "rounds": rounds,
                "seconds": seconds,
                "warm_up_s": WARM_UP_S,
            },
            "rows": rows,
            "promises": promises,
        },
    )
    for one in promises:
        verdict = "holds" if one["holds"] else "does NOT hold"
        screen.line("ratio", f"{one['ratio']}: {one['measured']:.1f}, the promise of {one['at_least']:g} {verdict}")
    return 0 if all(one["holds"] for one in promises) else 1


def read_once(client: Client, reading: Reading, seconds: float) -> dict:
    """Run a client in a separate process and return its figures."""
    run = {
        "bootstrap_servers": reading.bootstrap_servers,
        "topic": reading.topic,
        "group": new_group(),
        "records": reading.records,
        "seconds": seconds,
    }
    figures = in_process(
        client.name,
        "benchmarks.clients",
        client.name,
        json.dumps(run),
        timeout_s=4 * (WARM_UP_S + seconds),
        environment=client.environment,
    )
    if figures.get("read_bytes") and figures["read_bytes"] < figures["all_records"] * reading.payload:
        raise TailraceError(f"{client.name} read {figures['read_bytes']} bytes in {figures['all_records']} records")
    return figures


def _row(client: Client, runs: list[dict]) -> dict:
    speed = middle("records_per_s", runs)
    return {
        "client": client.name,
        "version": version_of(client.package),
        "records_per_s": speed["median"],
        "lowest": speed["lowest"],
        "highest": speed["highest"],
        "cpu_us_per_record": median(one["cpu_us_per_record"] for one in runs),
        "max_rss_bytes": max(one["max_rss_bytes"] for one in runs),
        "runs": runs,
    }


def _promises(benchmark: str, rows: list[dict]) -> list[dict]:
    """Return the promises whose clients were run."""
    speeds = {row["client"]: row["records_per_s"] for row in rows}
    return [
        {"ratio": f"{ours} / {theirs}", "at_least": least, "measured": measured, "holds": measured >= least}
        for ours, theirs, least in PROMISES[benchmark]
        if {ours, theirs} <= speeds.keys() and (measured := speeds[ours] / speeds[theirs])
    ]
