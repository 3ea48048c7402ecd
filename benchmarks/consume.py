"""Throughput of consumers and handlers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.clients import CONSUME, HANDLERS, PURE, Client
from benchmarks.report import throughputs, write
from benchmarks.rounds import (
    FilledTopic,
    median_and_range,
    new_group,
    run_brokers,
    run_in_turns,
    run_module,
    select_clients,
    version_of,
)
from benchmarks.run import WARM_UP_S
from benchmarks.topics import TopicSettings, fill
from tailrace import TailraceError
from tailrace.cli.screen import Screen

MAX_TOPIC_BYTES = 2_000_000_000
"""Maximum size of a topic before compression."""
MAX_BATCHES = 200_000
"""Maximum number of batches in a topic with a given number of records per batch."""
RECORDS_PER_S = 1_200_000
"""Number of records in the topic for each second of a run, including the warm-up."""

PROMISES = {
    "consume": [("tailrace async for", "aiokafka async for", 3.0)],
    "handlers": [
        ("tailrace typed handler", "faststream typed, acknowledged", 40.0),
        ("tailrace bytes handler", "faststream bytes, acknowledged", 60.0),
    ],
    "pure": [("tailrace async for, pure Python", "aiokafka async for", 1.0)],
}
"""Minimum ratios of throughputs, by benchmark, with the default topic: client, other client, ratio."""

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
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1.

    Args:
        benchmark: key of ``PROMISES``.
        rounds: number of rounds.
        seconds: time to measure in each run.
        clients: words, one of which the name of a client must contain; all clients without words.
        path: file for results.
        brokers: number of brokers.
        topic: fields of ``TopicSettings``.
    """
    screen, compared, rows = Screen(), select_clients(_CLIENTS[benchmark], clients), []
    settings = TopicSettings(**topic)
    records = int(min(RECORDS_PER_S * (WARM_UP_S + seconds), MAX_TOPIC_BYTES / settings.record_bytes))
    if settings.batch:
        records = min(records, settings.batch * MAX_BATCHES)
    with run_brokers(screen, brokers) as server:
        topics = {}
        for values in dict.fromkeys(client.values for client in compared):
            name, written = fill(screen, server, settings._replace(values=values), records)
            topics[values] = FilledTopic(server.bootstrap_servers, name, written, settings.payload)
        runs = run_in_turns(screen, rounds, compared, lambda client: read_once(client, topics[client.values], seconds))
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


def read_once(client: Client, topic_to_read: FilledTopic, seconds: float) -> dict:
    """Run a client in a separate process, and return its figures.

    Raises:
        TailraceError: the client failed, or did not read all values.
    """
    run = {
        "bootstrap_servers": topic_to_read.bootstrap_servers,
        "topic": topic_to_read.topic,
        "group": new_group(),
        "records": topic_to_read.records,
        "seconds": seconds,
    }
    figures = run_module(
        client.name,
        "benchmarks.clients",
        client.name,
        json.dumps(run),
        timeout_s=4 * (WARM_UP_S + seconds),
        environment=client.environment,
    )
    if figures.get("read_bytes") and figures["read_bytes"] < figures["all_records"] * topic_to_read.payload:
        raise TailraceError(f"{client.name} read {figures['read_bytes']} bytes in {figures['all_records']} records")
    return figures


def _row(client: Client, runs: list[dict]) -> dict:
    speed = median_and_range("records_per_s", runs)
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
    """Return the promises of ``benchmark`` whose two clients were run, with the measured ratios."""
    speeds = {row["client"]: row["records_per_s"] for row in rows}
    return [
        {"ratio": f"{client} / {other}", "at_least": minimum, "measured": measured, "holds": measured >= minimum}
        for client, other, minimum in PROMISES[benchmark]
        if {client, other} <= speeds.keys() and (measured := speeds[client] / speeds[other])
    ]
