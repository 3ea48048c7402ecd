"""The loop that calls a handler for one record after the other has the same results in C and in Python."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterator
from inspect import isgenerator
from typing import Any

import pytest

from tailrace import Record
from tailrace.app.declare.prepared_handler import ValueCall
from tailrace.app.dispatch import record_executor
from tailrace.app.dispatch.record_executor import RecordWorker
from tailrace.app.dispatch.workers import Workers
from tailrace.installation import COMPILED, handler_run

Run = Callable[..., Awaitable[object]]

_variable = contextvars.ContextVar("variable", default=0)


@pytest.fixture(
    params=[
        pytest.param(
            "compiled", marks=pytest.mark.skipif(not COMPILED, reason="installed without the compiled module")
        ),
        "python",
    ]
)
def run(request) -> Run:
    """Return the function that runs up to ``most`` records; only the compiled one uses ``value_call``."""

    def start(
        worker: RecordWorker,
        records: Iterator[Record],
        most: int,
        handle: Any,
        value_call: ValueCall | None = None,
        *,
        collected: list[object] | None = None,
    ) -> Awaitable[object]:
        if request.param == "python":
            return record_executor._run(worker, records, most, handle, collected)
        return handler_run(worker, records, most, handle, *(value_call or (None, None)), collected)

    return start


def new_worker() -> RecordWorker:
    workers = Workers(1, lambda _worker: None, lambda _worker: None)
    return RecordWorker(workers, contextvars.copy_context())


def records(count: int = 10) -> Iterator[Record]:
    return iter([Record("orders", 0, offset, None, b"%d" % offset, 0) for offset in range(count)])


async def test_a_run_ends_after_its_number_of_records(run):
    """A run handles at most its number of records, and leaves the others for the next run."""
    seen, left = [], records()

    async def handle(record: Record) -> None:
        seen.append(record.offset)

    assert await run(new_worker(), left, 4, handle) is None
    assert seen == [0, 1, 2, 3]
    assert await run(new_worker(), left, 100, handle) is None
    assert seen == list(range(10))
    assert await run(new_worker(), left, 100, handle) is None


async def test_the_worker_has_the_record_while_it_is_handled(run):
    """The worker refers to the record that its handler handles, also while the handler is suspended."""
    worker, handled = new_worker(), 0

    async def handle(record: Record) -> None:
        nonlocal handled
        assert worker.record is record
        await asyncio.sleep(0)
        assert worker.record is record
        handled += 1

    await run(worker, records(), 10, handle)

    assert handled == 10


async def test_a_result_ends_the_run(run):
    """A run returns a handler's first result; the worker refers to its record, and the next record is not handled."""
    worker, left = new_worker(), records()

    async def handle(record: Record) -> object:
        return "result" if record.offset == 3 else None

    assert await run(worker, left, 10, handle) == "result"
    assert worker.record.offset == 3
    assert next(left).offset == 4


async def test_collected_results_do_not_end_the_run(run):
    """Results are appended to a list, each after its record; one that must be awaited or refused ends the run."""
    worker, left, given, collected = new_worker(), records(), list(records()), []

    async def handle(record: Record) -> object:
        match record.offset:
            case 2:
                return None
            case 5:
                return asyncio.get_running_loop().create_future()
            case 7:
                return (one for one in ())
        return f"result {record.offset}"

    assert asyncio.isfuture(await run(worker, left, 10, handle, collected=collected))
    assert worker.record.offset == 5
    assert collected == [one for n in (0, 1, 3, 4) for one in (given[n], f"result {n}")]
    assert isgenerator(await run(worker, left, 10, handle, collected=collected))
    assert collected[8:] == [given[6], "result 6"]


async def test_a_suspended_handler_ends_the_run_with_its_result(run):
    """A result of a handler that was marked as suspended is returned, not collected."""
    worker, collected = new_worker(), []

    async def handle(record: Record) -> int:
        if record.offset == 1:
            worker.queued = object()
        return record.offset

    assert await run(worker, records(), 10, handle, collected=collected) == 1
    assert collected[1:] == [0]


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_an_error_ends_the_run(run, is_suspended):
    """The error of a handler ends the run; the worker refers to its record, and the next record is not handled."""
    worker, left = new_worker(), records()

    async def handle(record: Record) -> None:
        if is_suspended:
            await asyncio.sleep(0)
        if record.offset == 3:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await run(worker, left, 10, handle)

    assert worker.record.offset == 3
    assert next(left).offset == 4


async def test_an_error_of_the_call_itself_ends_the_run(run):
    """An error before the handler starts, such as a value that cannot be decoded, ends the run."""
    worker = new_worker()

    def handle(record: Record) -> Awaitable[None]:
        raise ValueError(f"offset {record.offset}")

    with pytest.raises(ValueError, match="offset 0"):
        await run(worker, records(), 10, handle)


async def test_a_record_marked_as_suspended_ends_the_run(run):
    """A run whose record was marked as suspended waits for the handler, and leaves the next record to other workers."""
    worker, left, finished = new_worker(), records(), []

    async def handle(record: Record) -> None:
        if record.offset == 2:
            worker.queued = "suspended"
            await asyncio.sleep(0)
        finished.append(record.offset)

    assert await run(worker, left, 10, handle) is None
    assert finished == [0, 1, 2]
    assert next(left).offset == 3


async def test_a_changed_context_ends_the_run(run):
    """A handler that sets a context variable ends the run, as the next record starts in a context of its own."""
    left = records()

    async def handle(record: Record) -> None:
        if record.offset == 2:
            _variable.set(1)

    async def run_in(worker: RecordWorker) -> None:
        await run(worker, left, 10, handle)

    worker = new_worker()
    await asyncio.create_task(run_in(worker), context=worker.context)

    assert next(left).offset == 3


async def test_a_cancellation_reaches_the_running_handler(run):
    """A cancellation is raised in the running handler, which may clean up; the run ends with the cancellation."""
    worker, cleaned_up, is_running = new_worker(), [], asyncio.Event()

    async def handle(record: Record) -> None:
        if record.offset == 2:
            is_running.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                cleaned_up.append(record.offset)
                raise

    async def go() -> None:
        await run(worker, records(), 10, handle)

    task = asyncio.create_task(go())
    await asyncio.wait_for(is_running.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert cleaned_up == [2]


async def test_a_run_that_never_started_can_be_canceled(run):
    """A task that is canceled before its first step handles nothing."""

    async def handle(_record: Record) -> None:
        raise AssertionError("handled")

    async def go() -> None:
        await run(new_worker(), records(), 10, handle)

    task = asyncio.create_task(go())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_handlers_may_return_any_awaitable(run):
    """A decorator may return a task or future in place of a coroutine."""
    finished = []

    async def work(record: Record) -> None:
        await asyncio.sleep(0)
        finished.append(record.offset)

    def handle(record: Record) -> Awaitable[None]:
        return asyncio.ensure_future(work(record))

    assert await run(new_worker(), records(4), 10, handle) is None
    assert finished == [0, 1, 2, 3]


@pytest.mark.skipif(not COMPILED, reason="installed without the compiled module")
async def test_plain_values_are_passed_to_the_handler_directly():
    """A value is passed to the function directly, except with headers, as null, or if it cannot be decoded."""
    direct, others = [], []

    async def function(value: object) -> None:
        direct.append(value)

    async def handle(record: Record) -> None:
        others.append(record.offset)

    given = [
        Record("orders", 0, 0, None, b"1", 0),
        Record("orders", 0, 1, None, b"2", 0, [("h", b"")]),
        Record("orders", 0, 2, None, None, 0),
        Record("orders", 0, 3, None, b"x", 0),
    ]
    await handler_run(new_worker(), iter(given), 10, handle, function, None)
    assert (direct, others) == ([b"1", b"x"], [1, 2])

    direct.clear()
    others.clear()
    await handler_run(new_worker(), iter(given), 10, handle, function, int)
    assert (direct, others) == ([1], [1, 2, 3])
