"""Throughput of handlers on Spark as expressions, compared with functions for Spark's ``mapInArrow``.

Both read the same columns of Spark's Kafka source, decode with msgspec, and write their rows to Spark's ``noop`` sink.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from rich.table import Table

from benchmarks.report import columns, write
from benchmarks.topics import PARTITIONS, TopicSettings, fill
from tailrace import App
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen
from tailrace.spark import results, spark_session


class Order(msgspec.Struct):
    """Value of a record."""

    customer: str
    item: int
    total: float


class Bill(msgspec.Struct):
    """Row that results from a record."""

    customer: str
    item: int
    cents: int
    note: str | None = None


def bill(order: Order) -> Bill:
    """Return the row of an order."""
    return Bill(order.customer, order.item, int(100 * order.total))


# ---- handlers of tailrace --------------------------------------------------------------------------------------------


async def ignore_bytes(_value: bytes) -> int | None:
    """Do nothing."""


async def ignore_order(_order: Order) -> int | None:
    """Do nothing with a decoded value."""


async def bill_order(order: Order) -> Bill:
    """Return the row of an order."""
    return bill(order)


def ignore_in_thread(_order: Order) -> int | None:
    """Do nothing with a decoded value, as a plain function."""


# ---- functions for mapInArrow ----------------------------------------------------------------------------------------


def await_nothing(batches: Iterable[Any]) -> Iterator[Any]:
    """Await a call for each value, and yield no rows."""

    async def call_all(values: list[bytes]) -> None:
        for value in values:
            await ignore_bytes(value)

    with asyncio.Runner() as runner:
        for batch in batches:
            runner.run(call_all(batch.column("value").to_pylist()))
            yield _no_rows()


def decode(batches: Iterable[Any]) -> Iterator[Any]:
    """Decode each value, and yield no rows."""
    decoder = msgspec.json.Decoder(Order)
    for batch in batches:
        for value in batch.column("value").to_pylist():
            decoder.decode(value)
        yield _no_rows()


def bill_all(batches: Iterable[Any]) -> Iterator[Any]:
    """Decode each value, and yield its row."""
    import pyarrow as pa

    decoder = msgspec.json.Decoder(Order)
    schema = pa.schema([("customer", pa.string()), ("item", pa.int64()), ("cents", pa.int64()), ("note", pa.string())])
    for batch in batches:
        rows = [bill(decoder.decode(value)) for value in batch.column("value").to_pylist()]
        arrays = [pa.array([getattr(row, one.name) for row in rows], one.type) for one in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _no_rows() -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], pa.int64())], names=["value"])


# ---- benchmark -------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Handler, and the function that it is compared with.

    Attributes:
        promised: minimum ratio of the throughputs.
    """

    handler: Callable[..., Any]
    options: dict[str, Any]
    function: Callable[[Iterable[Any]], Iterator[Any]]
    schema: str
    promised: float


_ROW = "customer string, item long, cents long, note string"

CASES = {
    "no-op": Case(ignore_bytes, {}, await_nothing, "value long", 0.95),
    "JSON": Case(ignore_order, {}, decode, "value long", 0.95),
    "JSON, by key": Case(ignore_order, {"order_by": "key"}, decode, "value long", 0.9),
    "JSON, plain def": Case(ignore_in_thread, {}, decode, "value long", 0.5),
    "JSON to rows": Case(bill_order, {}, bill_all, _ROW, 0.8),
}


def spark(*, records: int, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promises hold, else 1."""
    # Spark's workers import this module.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
    screen = Screen()
    with local_broker(screen) as server:
        topic, records = fill(screen, server, TopicSettings(values="json"), records)
        with spark_session() as session, screen.progress() as progress:
            bar = progress.add_task("run", total=2 * len(CASES) * (rounds + 1), note="")
            options = {"kafka.bootstrap.servers": server.bootstrap_servers, "subscribe": topic}
            frame = session.read.format("kafka").options(**options).load()
            found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
            for number in range(rounds + 1):
                for name, case in CASES.items():
                    app = App(bootstrap_servers=server.bootstrap_servers, group_id="bench")
                    app.handler(topic, **case.options)(case.handler)
                    frames = {
                        "mapInArrow": frame.mapInArrow(case.function, case.schema),
                        "tailrace": frame.select(results(app, case.handler)),
                    }
                    figures = {}
                    for way in sorted(frames, reverse=bool(number % 2)):
                        progress.update(bar, note=f"{name}: {way}")
                        began, cpu_s = time.monotonic(), _cpu_s()
                        frames[way].write.format("noop").mode("overwrite").save()
                        figures[way] = records / (time.monotonic() - began)
                        figures[f"{way}, CPU"] = (_cpu_s() - cpu_s) / records * 1e6
                        progress.advance(bar)
                    found[name].append(figures)
    # The first round is a warm-up of the session and its workers.
    rows = [_row(name, case, found[name][1:]) for name, case in CASES.items()]
    result = {
        "rows": rows,
        "runs": found,
        "settings": {"records": records, "size": 100, "partitions": PARTITIONS, "rounds": rounds},
    }
    screen.show(_table(rows))
    write(screen, path, "spark", result)
    for row in rows:
        verdict = "holds" if row["ratio"] >= row["promised"] else "does NOT hold"
        screen.line(row["case"], f"{row['ratio']:.2f} of mapInArrow: the promise of {row['promised']:g} {verdict}")
    return 0 if all(row["ratio"] >= row["promised"] for row in rows) else 1


def _row(name: str, case: Case, runs: list[dict[str, float]]) -> dict[str, Any]:
    return {
        "case": name,
        **{key: median(one[key] for one in runs) for key in runs[0]},
        "ratio": median(one["tailrace"] / one["mapInArrow"] for one in runs),
        "CPU ratio": median(one["mapInArrow, CPU"] / one["tailrace, CPU"] for one in runs),
        "promised": case.promised,
    }


def _cpu_s() -> float:
    """Return the CPU time of Spark and its workers, which are descendants of this process; NaN if unknown."""
    if sys.platform != "linux":
        return float("nan")
    parents, ticks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # The process has ended.
            number = int(folder.name)
            # Children that have ended are counted by their parent.
            parents[number], ticks[number] = int(fields[1]), sum(map(int, fields[11:15]))
    total, found = 0, [os.getpid()]
    while found:
        children = [number for number, parent in parents.items() if parent in found]
        total += sum(ticks[number] for number in children)
        found = children
    return total / os.sysconf("SC_CLK_TCK")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = columns("case", "mapInArrow/s", "tailrace/s", "ratio", "mapInArrow CPU", "tailrace CPU", "CPU ratio")
    for row in rows:
        rates = (f"{row[way]:,.0f}" for way in ("mapInArrow", "tailrace"))
        cpu = (f"{row[f'{way}, CPU']:.2f} µs" for way in ("mapInArrow", "tailrace"))
        table.add_row(row["case"], *rates, f"{row['ratio']:.2f}", *cpu, f"{row['CPU ratio']:.2f}")
    return table
