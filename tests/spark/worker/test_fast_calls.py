"""The fast ways in which a worker calls handlers have the results and the calls of the general way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import anyio
import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import App, HandlerFailedError, Header, Key, Retry
from tailrace.spark import expression
from tailrace.spark.worker import task_runner as worker

pytestmark = pytest.mark.skipif(not hasattr(F, "arrow_udf"), reason="Spark 4.0 has no Arrow UDFs")

COUNT = 400


@pytest.fixture
def app() -> App:
    """Return an app whose broker does not exist."""
    return App(bootstrap_servers="localhost:1", group_id="g", retry=Retry(attempts=2, backoff_ms=1), on_failure="skip")


Rows = Callable[..., list[Any]]


@pytest.fixture
def rows(process, app, monkeypatch) -> Rows:
    """Return a function that runs a task with Arrow batches of records, and returns the results of each record."""

    def run(handler: Callable[..., Any], *batches: pa.StructArray) -> list[Any]:
        packed: list[Any] = []

        def expression_function(*arguments: Any, **_options: bool) -> Callable[..., Any]:
            packed.extend(arguments)
            raise InterruptedError

        monkeypatch.setattr(expression, "expression_function", expression_function)
        # The app itself, not a copy, so that a test sees the calls.
        monkeypatch.setattr(worker, "unpack", lambda _shipment: app)
        with pytest.raises(InterruptedError):
            expression.results(app, handler)
        found = [one for array in worker.run_expression(*packed, batches) for one in array.to_pylist()]
        return [[row["value"] for row in values] for values in found]

    return run


def batch(values: list[int], **columns: pa.Array) -> pa.StructArray:
    """Return the rows of one Arrow batch; the key of a record is its value modulo 7."""
    keys = pa.array([b"%d" % (n % 7) for n in values])
    columns = {"value": pa.array([b"%d" % n for n in values]), "key": keys, **columns}
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def result_of(number: int) -> Any:
    """Return the result of a handler: a row, several rows or none."""
    return None if number % 5 == 0 else [number, -number] if number % 5 == 1 else number


def expected(number: int) -> list[int]:
    """Return the rows of a record; every tenth one fails for good."""
    result = None if number % 10 == 7 else result_of(number)
    return [] if result is None else result if isinstance(result, list) else [result]


def no_effect(call: Any) -> Any:
    """Return a middleware without effect, with which a handler is called in the general way."""

    async def inner(record: Any) -> Any:
        return await call(record)

    return inner


@pytest.mark.parametrize("middleware", [(), (no_effect,)], ids=["fast", "general"])
@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_both_ways_have_the_same_calls_and_results(rows, app, middleware, order_by, is_async):
    """With failures, retries and handlers that suspend, each record has its result, its attempts and its order."""
    calls: list[int] = []

    def step(number: int) -> Any:
        is_first = number not in calls
        calls.append(number)
        if number % 10 == 7 or (number % 10 == 3 and is_first):
            raise ValueError(number)
        return result_of(number)

    async def handle(number: int) -> list[int] | None:
        if number % 10 == 4:
            await asyncio.sleep(0)
        return step(number)

    def handle_in_thread(number: int) -> list[int] | None:
        return step(number)

    function = handle if is_async else handle_in_thread
    app.handler("t", order_by=order_by, middleware=middleware, concurrency=8)(function)
    numbers = list(range(COUNT))
    found = rows(function, batch(numbers[: COUNT // 2]), batch(numbers[COUNT // 2 :]))

    assert found == [expected(number) for number in numbers]
    attempts = [number for number in numbers for _ in range(2 if number % 10 in {3, 7} else 1)]
    assert sorted(calls) == attempts
    if order_by == "partition":
        assert calls == attempts
    if order_by == "key":
        for key in range(7):
            assert [one for one in calls if one % 7 == key] == [one for one in attempts if one % 7 == key]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_no_record_is_handled_after_one_that_stops_the_task(rows, app, is_async):
    """A record that fails with on_failure="stop" ends the task, and no later record was handled."""
    calls: list[int] = []

    def step(number: int) -> int:
        calls.append(number)
        return 100 // (COUNT - 9 - number)

    async def handle(number: int) -> int:
        return step(number)

    def handle_in_thread(number: int) -> int:
        return step(number)

    function = handle if is_async else handle_in_thread
    app.handler("t", on_failure="stop", retry=Retry(attempts=1))(function)
    with pytest.raises(HandlerFailedError, match=f"offset {COUNT - 9}: ZeroDivisionError"):
        rows(function, batch(list(range(COUNT))))

    assert calls == list(range(COUNT - 8))


def test_plain_handlers_may_use_event_loops(rows, app):
    """A plain handler may call the app's event loop, run its own, and return a coroutine, also after many records."""
    threads: set[int] = set()

    async def double(number: int) -> int:
        threads.add(threading.get_ident())
        await asyncio.sleep(0)
        return 2 * number

    @app.handler("t")
    def handle(number: int) -> int:
        match number % 100:
            case 97:
                return anyio.from_thread.run(double, number)
            case 98:
                return asyncio.run(double(number))
            case 99:
                return double(number)
        return 2 * number

    assert rows(handle, batch(list(range(COUNT)))) == [[2 * number] for number in range(COUNT)]
    assert threading.get_ident() not in threads


def test_plain_handlers_receive_all_their_arguments(rows, app):
    """A plain handler in a run receives key, header and value of its own record, and headers end a run."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": "h", "value": b"%d" % n}] if n % 3 == 0 else None for n in range(COUNT)], kind)

    @app.handler("t")
    def handle(number: int, key: Annotated[int, Key], header: Annotated[int | None, Header("h")] = None) -> list[int]:
        return [number, key, -1 if header is None else header]

    found = rows(handle, batch(list(range(COUNT)), headers=headers))

    assert found == [[n, n % 7, n if n % 3 == 0 else -1] for n in range(COUNT)]


def test_runs_of_records_share_a_hop(rows, app, monkeypatch):
    """Short calls of a plain handler take far fewer hops to a thread than records."""
    from tailrace.app.dispatch.threads import Threads  # noqa: PLC0415 - only here

    hops, call = [], Threads.call

    async def counted(self: Threads, function: partial[Any]) -> Any:
        hops.append(function)
        return await call(self, function)

    monkeypatch.setattr(Threads, "call", counted)
    # Another test of this process may have imported OpenTelemetry, with which each record has a hop of its own.
    monkeypatch.setattr("tailrace.spark.worker.thread_runs.is_opentelemetry_imported", lambda: False)

    @app.handler("t")
    def handle(number: int) -> int:
        return number

    rows(handle, *(batch(list(range(10_000))) for _ in range(2)))

    assert len(hops) < 2_000


def test_results_survive_columns_in_any_order(rows, app):
    """Records of several partitions, out of order and with repeated offsets, keep their results in their rows."""
    partitions = pa.array([n % 3 for n in range(COUNT)], pa.int32())
    offsets = pa.array([COUNT - n // 2 for n in range(COUNT)], pa.int64())

    @app.handler("t", order_by="key")
    async def handle(number: int) -> list[int] | None:
        return result_of(number)

    found = rows(handle, batch(list(range(COUNT)), partition=partitions, offset=offsets))

    assert found == [[] if n % 5 == 0 else [n, -n] if n % 5 == 1 else [n] for n in range(COUNT)]
