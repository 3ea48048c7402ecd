"""Throughput of handlers on Spark, compared with plain ``mapInArrow``.

``mapInArrow`` runs with the columns of a record, to which the promise refers, and with the value alone as a baseline.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from rich.table import Table

from benchmarks.report import columns, write
from benchmarks.topics import PARTITIONS, TopicSettings, fill
from tailrace import App
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen, count
from tailrace.spark import SparkPipeline, spark_session
from tailrace.spark.worker.records import columns_for

PROMISED = 0.8


async def handle(_value: bytes) -> None:
    """Handle a record; called by both."""


def spark(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen = Screen()
    with local_broker(screen) as server:
        topic, records = fill(screen, server, TopicSettings(), records)
        with spark_session() as session, screen.progress() as progress:

            def plain(*columns: str) -> int:
                frame = (
                    session.read.format("kafka")
                    .option("kafka.bootstrap.servers", server.bootstrap_servers)
                    .option("subscribe", topic)
                    .option("includeHeaders", "true")
                    .load()
                )
                rows = frame.selectExpr(*columns).mapInArrow(_call_all_records, "n long")
                return sum(row.n for row in rows.collect())

            def ours() -> int:
                app = App(bootstrap_servers=server.bootstrap_servers, group_id=f"bench-{uuid.uuid4().hex[:8]}")
                app.handler(topic)(handle)
                report = SparkPipeline(app, session).backfill(
                    handle, max_records_per_batch=records, on_progress=lambda _: None
                )
                return report.records

            bar = progress.add_task("run", total=3 * rounds + 3, note="")
            ways: dict[str, Callable[[], int]] = {
                "mapInArrow": partial(plain, *columns_for(topic)),
                "of values": partial(plain, "value"),
                "tailrace": ours,
            }
            runs: list[dict[str, float]] = []
            for number in range(rounds + 1):
                figures = {}
                for name in sorted(ways, reverse=bool(number % 2)):
                    progress.update(bar, note=name)
                    began = time.monotonic()
                    if (seen := ways[name]()) != records:
                        raise AssertionError(f"{name} handled {seen} of {records} records")
                    figures[name] = records / (time.monotonic() - began)
                    progress.advance(bar)
                runs.append(figures)
    # The first round warms the session and its workers.
    ratio, of_values = (median(one["tailrace"] / one[name] for one in runs[1:]) for name in ("mapInArrow", "of values"))
    result = {
        "runs": runs,
        "promise": {
            "ratio": "tailrace / mapInArrow",
            "at_least": PROMISED,
            "measured": ratio,
            "holds": ratio >= PROMISED,
        },
        "beside": {"ratio": "tailrace / mapInArrow of the value alone", "measured": of_values},
        "settings": {"records": records, "size": 100, "partitions": PARTITIONS, "rounds": rounds},
    }
    screen.show(_table(runs))
    write(screen, path, "spark", result)
    verdict = "holds" if ratio >= PROMISED else "does NOT hold"
    screen.line(
        "ratio", f"{ratio:.2f} of plain mapInArrow with the same columns: the promise of {PROMISED:g} {verdict}"
    )
    screen.line("beside", f"{of_values:.2f} of one that reads the value alone")
    return 0 if ratio >= PROMISED else 1


def _call_all_records(batches: Iterable) -> Iterator:
    """Await one call per record."""
    import pyarrow as pa

    async def call_all(values: list[bytes]) -> None:
        for value in values:
            await handle(value)

    with asyncio.Runner() as runner:
        for batch in batches:
            runner.run(call_all(batch.column("value").to_pylist()))
            yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows], pa.int64())], names=["n"])


def _table(runs: list[dict[str, float]]) -> Table:
    shown = columns("round", "mapInArrow/s", "of values/s", "tailrace/s", "ratio")
    for number, one in enumerate(runs):
        ratio = one["tailrace"] / one["mapInArrow"]
        label = "warm up" if not number else str(number)
        figures = (count(round(one[name])) for name in ("mapInArrow", "of values", "tailrace"))
        shown.add_row(label, *figures, f"{ratio:.2f}")
    return shown
