"""An app at work in a worker's process, with a broker and without Spark: its last row says what became of a task."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest

from tailrace import App, Depends, Record, Retry, TailraceError, TopicPartition
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.worker import task_runner as worker
from tailrace.spark.worker.app_runner import AppRunner
from tailrace.spark.worker.rows import result_type
from tailrace.spark.worker.shipment import Shipment, pack
from tailrace.spark.worker.shipped_maps import ShippedMaps

TOPIC = "t"

OPENED: list[object] = []
"""One for each time that ``opened`` was called."""


async def opened() -> int:
    """Provide how often this was called."""
    OPENED.append(object())
    return len(OPENED)


async def breaking() -> AsyncIterator[str]:
    """Provide something that does not close."""
    yield "it"
    raise OSError("the disk is full")


@pytest.fixture
def bench(monkeypatch) -> Iterator[worker._WorkerProcessState]:
    """A worker's process is this one, for once; what it has open is closed at the end."""
    log, made = logging.getLogger("tailrace"), worker._WorkerProcessState()
    before = list(log.handlers)
    monkeypatch.setattr(worker, "_PROCESS", made)
    yield made
    with made.task():
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
    return pack(app, None, select_handlers(app, name, app.options["group_id"]), resolve(app.options), has_sink=has_sink)


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
    shipment, kind = shipment_of(app, name), result_type(select_handlers(app, name, app.options["group_id"]).handlers)
    async with asyncio.timeout(60):
        # A thread that is not the main one leaves the signals of this process alone.
        parts = await asyncio.to_thread(
            lambda: list(worker.run_task(shipment, ShippedMaps({}), kind, TOPIC, [batch(values)], is_of_one=True))
        )
    rows = [row for part in parts for row in part.to_pylist()]
    return [row["value"] for row in rows[:-1]], json.loads(rows[-1]["_tailrace"])


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

    work = AppRunner(app, shipment_of(app, "handle", has_sink=False))
    await work.start()
    await work.handle([], ShippedMaps({}))
    await app.stop()

    record = Record(TOPIC, 0, 0, None, b"", 0)
    with pytest.raises(TailraceError, match="does not run in this worker"):
        await work.handle([(TopicPartition(TOPIC, 0), [record])], ShippedMaps({}))
    with pytest.raises(TailraceError, match="does not run in this worker"):
        await work.finish()


async def test_what_was_finished_is_passed_over_in_any_order(app):
    """Spread over tasks without an order, records come as Spark has mixed them; none that is finished comes again."""
    handled = []

    @app.handler(TOPIC, order_by="none")
    async def handle(record: Record) -> None:
        handled.append(record.offset)

    work, place = AppRunner(app, shipment_of(app, "handle", has_sink=False)), TopicPartition(TOPIC, 0)
    await work.start()
    mixed = [Record(TOPIC, 0, offset, None, b"", 0) for offset in (17, 3, 12, 4, 19, 5, 0, 18)]
    await work.handle([(place, mixed)], ShippedMaps({place: OffsetMap(0, 15, (3, 12))}))
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


async def test_an_app_stays_open_from_task_to_task_and_is_closed_when_idle(app, bench, monkeypatch):
    """An app without anything to close at its end is started once for tasks that come soon, and closed without one."""
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])

    @app.handler(TOPIC)
    async def handle(number: int, it: Annotated[int, Depends(opened, scope="app")]) -> int:
        return 10 * number + it

    rows = [await task(app, "handle", b"1")]
    monkeypatch.setattr(worker, "_IDLE_S", 0.05)
    rows.append(await task(app, "handle", b"2"))
    async with asyncio.timeout(30):
        while bench._runner is not None:  # noqa: ASYNC110 - another thread closes it
            await asyncio.sleep(0.01)
    rows.append(await task(app, "handle", b"3"))

    assert [values for values, _ in rows] == [[11], [21], [32]]


async def test_an_app_with_an_end_of_its_own_is_closed_before_its_task_reports(app, bench, tmp_path):
    """on_stop and generators of the app's scope end before the last row, which lets the batch be committed."""
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
    assert notes.read_text().split("\n") == ["begun", "handled 1", "ended", ""]
    await task(app, "handle", b"2")

    assert notes.read_text().split("\n")[3:] == ["begun", "handled 2", "ended", ""]


async def test_a_task_whose_app_does_not_close_fails(app, bench):
    """An error at the close of a dependency is the task's: what it should have written may be missing."""

    @app.handler(TOPIC)
    async def handle(number: int, _it: Annotated[str, Depends(breaking, scope="app")]) -> int:
        return number

    _, tally = await task(app, "handle", b"1")

    assert tally["error"] == "HandlerFailedError"
    assert "failed to stop, so the batch is not committed" in tally["reason"]
    assert "the disk is full" in tally["reason"]


def note(file: Path, text: str) -> None:
    with file.open("a") as out:
        out.write(f"{text}\n")
