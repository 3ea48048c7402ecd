"""Throughput of handlers on Spark, compared with Spark's ``mapInArrow``.

``mapInArrow`` is measured with all columns of a record and with only the value. The promise refers to all columns.
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
from tailrace.cli.kafka import local_broker
from tailrace.cli.output import count
from tailrace.cli.screen import Screen
from tailrace.spark import SparkPipeline, spark_session
from tailrace.spark.worker.rows import columns_for

PROMISED = 0.8
"""Minimum ratio of the throughput of tailrace to that of ``mapInArrow`` with all columns."""


async def handle(_value: bytes) -> None:
    """Do nothing, as the handler of tailrace and as the function that ``mapInArrow`` calls."""


def spark(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen = Screen()
    with local_broker(screen) as server:
        topic, records = fill(screen, server, TopicSettings(), records)
        with spark_session() as session, screen.progress() as progress:

            def run_map_in_arrow(*columns: str) -> int:
                frame = (
                    session.read.format("kafka")
                    .option("kafka.bootstrap.servers", server.bootstrap_servers)
                    .option("subscribe", topic)
                    .option("includeHeaders", "true")
                    .load()
                )
                rows = frame.selectExpr(*columns).mapInArrow(_call_all_records, "n long")
                return sum(row.n for row in rows.collect())

            def run_tailrace() -> int:
                app = App(bootstrap_servers=server.bootstrap_servers, group_id=f"bench-{uuid.uuid4().hex[:8]}")
                app.handler(topic)(handle)
                report = SparkPipeline(app, session).backfill(
                    handle, max_records_per_batch=records, on_progress=lambda _: None
                )
                return report.records

            bar = progress.add_task("run", total=3 * rounds + 3, note="")
            functions: dict[str, Callable[[], int]] = {
                "mapInArrow": partial(run_map_in_arrow, *columns_for(topic)),
                "only values": partial(run_map_in_arrow, "value"),
                "tailrace": run_tailrace,
            }
            runs: list[dict[str, float]] = []
            for number in range(rounds + 1):
                figures = {}
                for name in sorted(functions, reverse=bool(number % 2)):
                    progress.update(bar, note=name)
                    began = time.monotonic()
                    if (handled := functions[name]()) != records:
                        raise AssertionError(f"{name} handled {handled} of {records} records")
                    figures[name] = records / (time.monotonic() - began)
                    progress.advance(bar)
                runs.append(figures)
    # The first round is a warm-up of the session and its workers.
    ratio, ratio_of_values = (
        median(one["tailrace"] / one[name] for one in runs[1:]) for name in ("mapInArrow", "only values")
    )
    result = {
        "runs": runs,
        "promise": {
            "ratio": "tailrace / mapInArrow",
            "at_least": PROMISED,
            "measured": ratio,
            "holds": ratio >= PROMISED,
        },
        "only_values": {"ratio": "tailrace / mapInArrow of only the value", "measured": ratio_of_values},
        "settings": {"records": records, "size": 100, "partitions": PARTITIONS, "rounds": rounds},
    }
    screen.show(_table(runs))
    write(screen, path, "spark", result)
    verdict = "holds" if ratio >= PROMISED else "does NOT hold"
    screen.line("ratio", f"{ratio:.2f} of mapInArrow with all columns: the promise of {PROMISED:g} {verdict}")
    screen.line("", f"{ratio_of_values:.2f} of mapInArrow with only the value")
    return 0 if ratio >= PROMISED else 1


def _call_all_records(batches: Iterable) -> Iterator:
    """Await ``handle`` for each record, and yield the number of records of each batch."""
    import pyarrow as pa

    async def call_all(values: list[bytes]) -> None:
        for value in values:
            await handle(value)

    with asyncio.Runner() as runner:
        for batch in batches:
            runner.run(call_all(batch.column("value").to_pylist()))
            yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows], pa.int64())], names=["n"])


def _table(runs: list[dict[str, float]]) -> Table:
    table = columns("round", "mapInArrow/s", "only values/s", "tailrace/s", "ratio")
    for number, one in enumerate(runs):
        ratio = one["tailrace"] / one["mapInArrow"]
        label = "warm up" if not number else str(number)
        figures = (count(round(one[name])) for name in ("mapInArrow", "only values", "tailrace"))
        table.add_row(label, *figures, f"{ratio:.2f}")
    return table
