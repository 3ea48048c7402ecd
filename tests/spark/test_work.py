"""An app at work in a worker's process, with a broker and without Spark: its last row says what became of a task."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import App, PenstockError, Record, Retry, TopicPartition
from penstock.config import resolve
from penstock.core.offset_map import OffsetMap
from penstock.spark import worker
from penstock.spark.choosing import choose
from penstock.spark.rows import result_type
from penstock.spark.shipping import Shipment, pack
from penstock.spark.work import Work

TOPIC = "t"


@pytest.fixture
def bench(monkeypatch) -> Iterator[worker._Bench]:
    """A worker's process is this one, for once; what it has open is closed at the end."""
    log, made = logging.getLogger("penstock"), worker._Bench()
    before = list(log.handlers)
    monkeypatch.setattr(worker, "_BENCH", made)
    yield made
    with made.turn():
        made.clear()
    made._timer.cancel()
    if made._thread is not None:
        made._thread.close()
    log.handlers[:] = before


@pytest.fixture
def app(kafka_server) -> App:
    return App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=f"g-{uuid.uuid4().hex[:12]}",
        require_broker=False,
        retry=Retry(attempts=1),
    )


def shipment_of(app: App, name: str, *, has_sink: bool = True) -> Shipment:
    return pack(app, None, choose(app, name, app.options["group_id"]), resolve(app.options), has_sink=has_sink)


def batch(values: Iterable[bytes], begin: int = 0) -> Any:
    """As Spark hands the records of one partition in."""
    values = list(values)
    count = len(values)
    columns = {
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(begin, begin + count), pa.int64()),
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "timestamp": pa.array([0] * count, pa.int64()),
        "headers": pa.array([None] * count, pa.string()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


async def task(app: App, name: str, *values: bytes) -> tuple[list[int], dict[str, Any]]:
    """What one task of Spark's gives: the values of its rows, and its tally."""
    shipment, kind = shipment_of(app, name), result_type(choose(app, name, app.options["group_id"]).handlers)
    async with asyncio.timeout(60):
        # A thread that is not the main one leaves the signals of this process alone.
        parts = await asyncio.to_thread(
            lambda: list(worker.run_task(shipment, {}, kind, TOPIC, [batch(values)], is_of_one=True))
        )
    rows = [row for part in parts for row in part.to_pylist()]
    return [row["value"] for row in rows[:-1]], json.loads(rows[-1]["_penstock"])


async def test_an_app_that_may_start_without_a_broker_handles_all(app, bench):
    """With require_broker=False, whatever its start waits for, a task is done when its records are."""

    @app.on_start
    async def slowly() -> None:
        await asyncio.sleep(0.1)

    @app.handler(TOPIC)
    async def double(number: int) -> int:
        return 2 * number

    rows, tally = await task(app, "double", *(b"%d" % n for n in range(5)))

    assert rows == [0, 2, 4, 6, 8]
    assert (tally["records"], tally["error"]) == (5, "")


async def test_what_nobody_has_handled_is_not_said_to_be_done(app):
    """Where the app does not work any more, or not yet, a task ends with an error, and not with its records counted."""

    @app.handler(TOPIC)
    async def handle(value: bytes) -> None: ...

    work = Work(app, shipment_of(app, "handle", has_sink=False))
    await work.start()
    await work.take([], {})
    await app.stop()

    record = Record(TOPIC, 0, 0, None, b"", 0)
    with pytest.raises(PenstockError, match="is not at work here"):
        await work.take([(TopicPartition(TOPIC, 0), [record])], {})
    with pytest.raises(PenstockError, match="is not at work here"):
        await work.finish()


async def test_what_was_finished_is_passed_over_in_any_order(app):
    """Spread over tasks without an order, records come as Spark has mixed them; none that is finished comes again."""
    handled = []

    @app.handler(TOPIC, order_by="none")
    async def handle(record: Record) -> None:
        handled.append(record.offset)

    work, place = Work(app, shipment_of(app, "handle", has_sink=False)), TopicPartition(TOPIC, 0)
    await work.start()
    mixed = [Record(TOPIC, 0, offset, None, b"", 0) for offset in (17, 3, 12, 4, 19, 5, 0, 18)]
    await work.take([(place, mixed)], {place: OffsetMap(0, 15, (3, 12))})
    _, tally = await work.finish()
    await work.stop()

    assert sorted(handled) == [3, 12, 17, 18, 19]
    assert (tally.records, tally.passed) == (5, 3)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_a_handler_that_ends_the_process_ends_the_task(app, bench, kind):
    """Whoever calls sys.exit() is told as a handler that failed, in bounded time, and the next task is handled."""

    @app.handler(TOPIC)
    async def handle(number: int) -> int:
        if number == 7:
            raise kind("the config is missing")
        return number

    _, tally = await task(app, "handle", b"6", b"7")
    rows, after = await task(app, "handle", b"8")

    assert tally["error"] == "HandlerFailedError"
    assert f"{kind.__name__}: the config is missing" in tally["reason"]
    assert (rows, after["error"]) == ([8], "")


async def test_a_plain_handler_that_ends_the_process_ends_the_task(app, bench):
    """So it is with one that runs in a thread."""

    @app.handler(TOPIC)
    def handle(_value: bytes) -> int:
        sys.exit("no more")

    _, tally = await task(app, "handle", b"1")

    assert (tally["error"], "SystemExit: no more" in tally["reason"]) == ("HandlerFailedError", True)


async def test_what_is_open_is_closed_when_there_is_nothing_to_do(app, bench, monkeypatch, tmp_path):
    """Hooks are called in the worker, once for tasks that come soon; the end of what was begun waits for no task."""
    notes = tmp_path / "notes"

    @app.on_start
    def begin() -> None:
        note(notes, "begun")

    @app.on_stop
    def end() -> None:
        note(notes, "ended")

    @app.handler(TOPIC)
    async def handle(number: int) -> int:
        note(notes, f"handled {number}")
        return number

    await task(app, "handle", b"1")
    monkeypatch.setattr(worker, "_IDLE_S", 0.05)
    await task(app, "handle", b"2")
    async with asyncio.timeout(30):
        while "ended" not in notes.read_text():  # noqa: ASYNC110 - another loop writes it
            await asyncio.sleep(0.01)

    assert notes.read_text().split("\n") == ["begun", "handled 1", "handled 2", "ended", ""]


def note(file: Path, text: str) -> None:
    with file.open("a") as out:
        out.write(f"{text}\n")
