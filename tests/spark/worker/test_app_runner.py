"""App in a worker process, with a broker and without Spark."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tailrace import App, Depends, Message, Record, Retry, TailraceError, TopicPartition
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.integrations.opentelemetry import OpenTelemetry
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.worker import task_runner as worker
from tailrace.spark.worker.rows import result_type, slices_of
from tailrace.spark.worker.shipment import Shipment, ShippedMaps, pack
from tailrace.spark.worker.task_runner import AppRunner

TOPIC = "t"

OPENED: list[object] = []
"""One for each time that ``opened`` was called."""


async def opened() -> int:
    """Provide the number of times that this dependency was opened."""
    OPENED.append(object())
    return len(OPENED)


FORWARDED: list[int] = []
"""Values that ``forward`` has handled."""


def forward(number: int) -> Message | None:
    """Return a message that cannot be published for the value 90."""
    FORWARDED.append(number)
    return Message(b"without a topic") if number == 90 else None


async def breaking() -> AsyncIterator[str]:
    """Provide a value, and fail when it is closed."""
    yield "it"
    raise OSError("the disk is full")


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
    """Return the records of one partition as Spark's Arrow batch."""
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
    """Run one task; return the values of its rows and its metrics."""
    shipment, kind = shipment_of(app, name), result_type(select_handlers(app, name, app.options["group_id"]).handlers)
    async with asyncio.timeout(60):
        # Signal handlers are installed only in the main thread.
        parts = await asyncio.to_thread(
            lambda: list(
                worker.run_task(
                    shipment, ShippedMaps({}), kind, [slices_of(batch(values), TOPIC, has_one_partition=True)]
                )
            )
        )
    rows = [row for part in parts for row in part.to_pylist()]
    return [row["value"] for row in rows[:-1]], json.loads(rows[-1]["_tailrace"])


async def test_no_record_is_handled_after_a_message_that_cannot_be_published(app, process, monkeypatch):
    """A plain handler's message that cannot be published stops the task before the next record is handled."""
    # With OpenTelemetry, each record has a thread of its own.
    monkeypatch.setattr("tailrace.spark.worker.thread_runs.is_opentelemetry_imported", lambda: False)
    app.handler(TOPIC, on_failure="stop")(forward)
    shipment = shipment_of(app, "forward", has_sink=False)
    records = [slices_of(batch(b"%d" % number for number in range(100)), TOPIC, has_one_partition=True)]
    rows = await asyncio.to_thread(lambda: list(worker.run_task(shipment, ShippedMaps({}), None, records)))

    assert "offset 90" in str(rows[-1].to_pylist())
    assert list(range(91)) == FORWARDED


async def test_a_task_without_require_broker_waits_for_its_records(app, process):
    """With require_broker=False, a task handles its records, even if the start takes long."""

    @app.on_start
    async def slowly() -> None:
        await asyncio.sleep(0.1)

    @app.handler(TOPIC)
    async def double(number: int) -> int:
        return 2 * number

    rows, tally = await task(app, "double", *(b"%d" % n for n in range(5)))

    assert rows == [0, 2, 4, 6, 8]
    assert (tally["records"], tally["error"]) == (5, "")


async def test_a_task_without_a_running_group_fails(app):
    """A task of an app that does not run raises an error and returns no records."""

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


async def test_finished_records_are_skipped_in_any_order(app):
    """A task skips records that the offset map lists, even if its records are not sorted."""
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
    assert (tally.records, tally.already_finished) == (5, 3)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_sys_exit_in_a_handler_fails_the_task(app, process, kind):
    """SystemExit or KeyboardInterrupt in a handler fails the task, and the next task runs."""

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


async def test_sys_exit_in_a_plain_handler_fails_the_task(app, process):
    """SystemExit in a plain handler, which runs in a thread, fails the task."""

    @app.handler(TOPIC)
    def handle(_value: bytes) -> int:
        sys.exit("no more")

    _, tally = await task(app, "handle", b"1")

    assert (tally["error"], "SystemExit: no more" in tally["reason"]) == ("HandlerFailedError", True)


async def test_an_app_is_kept_between_tasks_and_stopped_when_idle(app, process, monkeypatch):
    """An app without user code at its stop is kept for later tasks, and stopped when idle."""
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])

    @app.handler(TOPIC)
    async def handle(number: int, it: Annotated[int, Depends(opened, scope="app")]) -> int:
        return 10 * number + it

    rows = [await task(app, "handle", b"1")]
    monkeypatch.setattr(worker, "_IDLE_S", 0.05)
    rows.append(await task(app, "handle", b"2"))
    async with asyncio.timeout(30):
        while process._runner is not None:  # noqa: ASYNC110 - another thread closes it
            await asyncio.sleep(0.01)
    rows.append(await task(app, "handle", b"3"))

    assert [values for values, _ in rows] == [[11], [21], [32]]


async def test_user_code_at_the_stop_runs_before_the_last_row(app, process, tmp_path):
    """on_stop and app-scoped generators end before the last row, which precedes the commit."""
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


async def test_an_error_at_the_stop_fails_the_task(app, process):
    """An error while a dependency is closed fails the task."""

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


async def test_a_worker_makes_spans_with_its_own_provider(app, process, monkeypatch):
    """An instrumented app that is sent to a worker uses the global provider of the worker's process."""
    there, elsewhere = InMemorySpanExporter(), InMemorySpanExporter()
    providers = []
    for exporter in (there, elsewhere):
        providers.append(TracerProvider(shutdown_on_exit=False))
        providers[-1].add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", providers[0])
    app.configure(hooks=[OpenTelemetry(tracer_provider=providers[1])])

    @app.handler(TOPIC)
    async def double(number: int) -> int:
        return 2 * number

    values, _ = await task(app, "double", b"1", b"2")

    assert values == [2, 4]
    assert [one.name for one in there.get_finished_spans()] == [f"process {TOPIC}"] * 2
    assert elsewhere.get_finished_spans() == ()
