"""Batch handlers that take tables, on the real broker: rows, whole and partial failures, dead letters, commits."""

from __future__ import annotations

import asyncio

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from tailrace import App, Consumer, PartialFailureError, Retry
from tailrace.batches.columns import arrow_of
from tailrace.observe.events import OffsetsCommitted, RecordDeadLettered

QUICK = Retry(attempts=3, backoff_ms=1, max_backoff_ms=50)
FULL = {"max_wait_ms": 60_000}
"""Options with which only full batches start, however slow the machine is."""


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        options = {"group_id": group, "auto_commit_interval_ms": 100, **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **options)

    return make


def numbers(count):
    return (b"%d" % n for n in range(count))


@pytest.mark.parametrize("kind", [pa.RecordBatch, pl.DataFrame, pd.DataFrame])
async def test_a_batch_handler_receives_tables(new_app, new_topic, witness, group, recorder, kind):  # noqa: PLR0917
    """Each table has max_records rows, in order, and all are committed."""
    topic, app, tables = new_topic(), new_app(hooks=[recorder]), []
    witness.produce(topic, numbers(200))

    async def store(table) -> None:
        tables.append(table)

    store.__annotations__["table"] = kind
    app.batch_handler(topic, max_records=50, **FULL)(store)
    async with app:
        await recorder.wait_for(OffsetsCommitted, where=lambda one: 200 in one.offsets.values())

    assert [len(table["offset"]) for table in tables] == [50] * 4
    assert [int(str(value)) for table in tables for value in table["offset"]] == list(range(200))
    assert all(isinstance(table, kind) for table in tables)
    assert await witness.committed(group, topic, 1) == {0: 200}


async def test_rows_named_in_a_partial_failure_are_retried_alone(  # noqa: PLR0917
    new_app, new_topic, witness, group, kafka_server, recorder
):
    """Failed rows are retried as a smaller table and then dead-lettered; the other rows are finished."""
    topic, calls = new_topic(), []
    kafka_server.create_topic(f"{topic}.{group}.dead")
    app = new_app(dead_letter="{topic}.{group}.dead", hooks=[recorder])
    witness.produce(topic, numbers(20))

    @app.batch_handler(topic, max_records=10, retry=QUICK, **FULL)
    async def store(table: pl.DataFrame) -> None:
        offsets = table["offset"].to_list()
        calls.append(offsets)
        if failed := [row for row, offset in enumerate(offsets) if offset in {3, 7}]:
            raise PartialFailureError(failed) from ConnectionError("away")

    async with app:
        await recorder.wait_for(RecordDeadLettered, 2)
        await recorder.wait_for(OffsetsCommitted, where=lambda one: 20 in one.offsets.values())

    assert calls == [[*range(10)], [3, 7], [3, 7], [*range(10, 20)]]
    async with (
        Consumer(
            f"{topic}.{group}.dead", bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
        ) as dead,
        asyncio.timeout(30),
    ):
        assert [(await dead.getone()).value for _ in range(2)] == [b"3", b"7"]
    assert await witness.committed(group, topic, 1) == {0: 20}


async def test_a_failed_table_is_retried_unchanged(new_app, new_topic, witness, group, recorder):
    """After any other exception the handler receives an equal table, also if the handler has modified the first one."""
    topic, app, calls = new_topic(), new_app(hooks=[recorder]), []
    witness.produce(topic, numbers(10), keys=[b"k"] * 10, headers=[("trace", b"1")])

    @app.batch_handler(topic, max_records=10, retry=QUICK, **FULL)
    def store(table: pd.DataFrame) -> None:
        calls.append(table.copy())
        table["value"] = b"changed"
        if len(calls) < 3:
            raise ConnectionError("the database is away")

    async with app:
        await recorder.wait_for(OffsetsCommitted, where=lambda one: 10 in one.offsets.values())

    assert [list(call["value"]) for call in calls] == [list(numbers(10))] * 3
    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_results_of_a_table_are_published(new_app, new_topic, witness, kafka_server):
    """A list with a result for each row is published as for a list of records."""
    topic, results, app = new_topic(), new_topic(), new_app()
    witness.produce(topic, numbers(5))

    @app.batch_handler(topic, max_records=5, publish=results, **FULL)
    async def double(table: pa.RecordBatch) -> list[bytes]:
        return [value * 2 for value in table.column("value").to_pylist()]

    async with (
        app,
        Consumer(results, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest") as consumer,
        asyncio.timeout(30),
    ):
        found = [await consumer.getone() for _ in range(5)]

    assert arrow_of(found).column("value").to_pylist() == [b"00", b"11", b"22", b"33", b"44"]
