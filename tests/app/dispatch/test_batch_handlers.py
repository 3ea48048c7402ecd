"""Batch handlers on the real broker: sizes, waits, order, whole and partial failures, and commits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from tailrace import (
    App,
    Batch,
    ConfigurationError,
    Consumer,
    DecodeError,
    Depends,
    HandlerFailedError,
    Handlers,
    Key,
    Message,
    PartialFailureError,
    Record,
    Reject,
    Retry,
)
from tailrace.observe.events import BatchFailed, RecordDeadLettered, RecordSkipped
from tailrace.testing import TestApp
from tests.support.consumer_group import until

QUICK = Retry(attempts=3, backoff_ms=1, max_backoff_ms=50)
FULL = {"max_wait_ms": 60_000}
"""Options with which only full batches start, however slow the machine is."""


class Click(msgspec.Struct):
    page: str
    n: int


@pytest.fixture
def new_app(kafka_server, group):
    def make(**options):
        options = {"group_id": group, "auto_commit_interval_ms": 100, **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **options)

    return make


@pytest.fixture
def letters(kafka_server, group):
    """Return an object that creates a topic's dead-letter topic and reads an expected number of dead letters."""

    class Letters:
        def of(self, topic):
            self.topic = f"{topic}.{group}.dead"
            kafka_server.create_topic(self.topic)
            return "{topic}.{group}.dead"

        async def read(self, count):
            async with Consumer(
                self.topic, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer:
                async with asyncio.timeout(30):
                    found = [await consumer.getone() for _ in range(count)]
                assert await consumer.getone(timeout_ms=300) is None
                return found

    return Letters()


def numbers(count, start=0):
    return (b"%d" % n for n in range(start, start + count))


async def test_batches_are_full_while_there_are_enough_records(new_app, new_topic, witness, group):
    """While there are enough records, each batch has max_records decoded values, in order, and all are committed."""
    topic, app, batches = new_topic(), new_app(), []
    witness.produce(topic, (b'{"page":"/","n":%d}' % n for n in range(2_000)))

    @app.batch_handler(topic, max_records=500, **FULL)
    async def store(clicks: list[Click]) -> None:
        await asyncio.sleep(0)
        batches.append(clicks)

    async with app:
        await until(lambda: sum(map(len, batches)) == 2_000)

    assert [len(batch) for batch in batches] == [500] * 4
    assert [click.n for batch in batches for click in batch] == list(range(2_000))
    assert await witness.committed(group, topic, 1) == {0: 2_000}


async def test_an_incomplete_batch_starts_after_max_wait_ms(new_app, new_topic, witness):
    """A slow topic does not wait for max_records, and no incomplete batch starts before max_wait_ms have passed."""
    topic, app, begun = new_topic(), new_app(fetch_max_wait_ms=50), []

    @app.batch_handler(topic, max_records=500, max_wait_ms=700)
    async def store(values: list[bytes]) -> None:
        begun.append((values, time.monotonic()))

    async with app:
        await app.wait_ready()
        produced_at = time.monotonic()
        witness.produce(topic, numbers(3))
        await until(lambda: begun)

    ((values, begun_at),) = begun
    assert values == [b"0", b"1", b"2"]
    assert begun_at - produced_at >= 0.7


async def test_an_incomplete_batch_waits_for_later_records(new_app, new_topic, witness):
    """An incomplete batch does not block other topics, and starts when later records have filled the batch."""
    topic, other, app, seen = new_topic(), new_topic(), new_app(fetch_max_wait_ms=50), []

    @app.batch_handler(topic, max_records=6, **FULL)
    async def store(values: list[bytes]) -> None:
        seen.append(values)

    @app.handler(other)
    async def mark(value: bytes) -> None:
        seen.append(value)

    async with app:
        await app.wait_ready()
        witness.produce(topic, numbers(3))
        witness.produce(other, [b"before"])
        await until(lambda: b"before" in seen)
        witness.produce(topic, numbers(3, 3))
        await until(lambda: len(seen) == 2)

    assert seen == [b"before", [b"0", b"1", b"2", b"3", b"4", b"5"]]


async def test_a_batch_is_not_larger_than_max_bytes(new_app, new_topic, witness):
    """Keys and values count toward max_bytes, and a larger record has a batch of its own."""
    topic, app, sizes = new_topic(), new_app(), []
    witness.produce(topic, [b"x" * size for size in (40, 40, 40, 500, 40, 50, 10)], keys=[b""] * 7)

    @app.batch_handler(topic, max_bytes=100, **FULL)
    async def store(records: list[Record]) -> None:
        sizes.append([len(record.value) for record in records])

    async with app:
        await until(lambda: sum(map(len, sizes)) == 7)

    assert sizes == [[40, 40], [40], [500], [40, 50, 10]]


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
async def test_order_by_limits_concurrent_batches(new_app, new_topic, witness, group, order_by):
    """Batches of a partition run one at a time; batches ordered by key run concurrently if they share no key."""
    topic, app, running, most, seen = new_topic(3), new_app(), [], 0, []
    at_once, are_enough = {"partition": 3}.get(order_by, 4), asyncio.Event()
    witness.produce(topic, numbers(1_200), keys=[b"k%d" % (n // 20 % 60) for n in range(1_200)])

    def lanes(records):
        by = {"partition": lambda one: one.partition, "key": lambda one: (one.partition, one.key)}
        return set(map(by.get(order_by, lambda one: (one.partition, one.offset)), records))

    @app.batch_handler(topic, order_by=order_by, max_records=50, max_wait_ms=50, concurrency=4)
    async def store(records: list[Record]) -> None:
        nonlocal most
        assert not any(lanes(records) & lanes(other) for other in running)
        assert order_by == "none" or len({one.partition for one in records}) == 1
        running.append(records)
        most = max(most, len(running))
        if most == at_once:
            are_enough.set()
        await are_enough.wait()
        await asyncio.sleep(0.005)
        running.remove(records)
        seen.extend(records)

    async with app:
        await until(lambda: len(seen) == 1_200)

    of_key = {key: [one.offset for one in seen if (one.partition, one.key) == key] for key in keys_of(seen)}
    assert Counter((one.partition, one.offset) for one in seen).most_common(1)[0][1] == 1
    assert order_by == "none" or all(before < after for one in of_key.values() for before, after in pairwise(one))
    assert most == at_once
    assert sum((await witness.committed(group, topic, 3)).values()) == 1_200


def keys_of(records):
    return {(one.partition, one.key) for one in records}


async def test_a_failed_batch_is_retried_unchanged(new_app, new_topic, witness, group, recorder):
    """A failed batch is retried with the same records in the same order, before later batches of its partition."""
    topic, app, calls = new_topic(), new_app(hooks=[recorder]), []
    witness.produce(topic, numbers(20))

    @app.batch_handler(topic, max_records=10, retry=QUICK, **FULL)
    async def store(values: list[int]) -> None:
        calls.append(list(values))
        values.clear()
        if len(calls) < 3:
            raise ConnectionError("the database is away")

    async with app:
        await until(lambda: len(calls) == 4)

    assert calls == [[*range(10)]] * 3 + [[*range(10, 20)]]
    assert [(one.failed, one.records, one.failures) for one in recorder.of(BatchFailed)] == [(10, 10, 1), (10, 10, 2)]
    assert await witness.committed(group, topic, 1) == {0: 20}


async def test_a_batch_that_fails_for_good_has_a_dead_letter_for_each_record(
    new_app, new_topic, witness, group, letters
):
    """A batch that fails for good has a dead letter for each record before its commit; the next batch is handled."""
    topic, handled = new_topic(), []
    app = new_app(dead_letter=letters.of(topic))
    witness.produce(topic, numbers(100), keys=[b"k"] * 100)

    @app.batch_handler(topic, max_records=50, retry=QUICK, **FULL)
    async def store(values: list[int]) -> None:
        if 0 in values:
            raise ValueError("poison")
        handled.extend(values)

    async with app:
        await until(lambda: len(handled) == 50)
        await until_committed(witness, group, topic, 100)

    found = await letters.read(50)
    assert [int(one.value) for one in found] == list(range(50))
    assert {dict(one.headers)["tailrace-attempts"] for one in found} == {b"3"}
    assert handled == list(range(50, 100))


async def until_committed(witness, group, topic, offset):
    async with asyncio.timeout(20):
        while (await witness.committed(group, topic, 1)).get(0) != offset:  # noqa: ASYNC110 - the broker's view
            await asyncio.sleep(0.1)


async def test_only_records_named_in_a_partial_failure_are_retried(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, letters, recorder
):
    """Records named in a PartialFailureError are retried alone, then dead-lettered; after a Reject at once."""
    topic, calls = new_topic(), []
    app = new_app(dead_letter=letters.of(topic), hooks=[recorder])
    witness.produce(topic, numbers(10))

    @app.batch_handler(topic, max_records=10, retry=QUICK, **FULL)
    async def store(values: list[int]) -> None:
        calls.append(values)
        errors = {3: ConnectionError("away"), 5: Reject("never"), 7: ConnectionError("away")}
        if len(calls) == 3:
            errors.pop(7)
        if failed := {index: errors[n] for index, n in enumerate(values) if n in errors}:
            raise PartialFailureError(failed)

    async with app:
        await until(lambda: len(recorder.of(RecordDeadLettered)) == 2)

    found = await letters.read(2)
    died = {one.value: dict(one.headers) for one in found}
    assert calls == [[*range(10)], [3, 7], [3, 7]]
    assert {value: headers["tailrace-attempts"] for value, headers in died.items()} == {b"5": b"1", b"3": b"3"}
    assert {value: headers["tailrace-error-type"] for value, headers in died.items()} == {
        b"5": b"tailrace.app.failures.reject.Reject",
        b"3": b"ConnectionError",
    }
    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_the_cause_of_a_partial_failure_decides_about_a_retry(new_app, new_topic, witness, recorder):
    """The cause of a PartialFailureError decides whether named records without an error of their own are retried."""
    topic, app, calls = new_topic(), new_app(on_failure="skip", hooks=[recorder]), []
    witness.produce(topic, numbers(4))

    @app.batch_handler(topic, max_records=4, retry=Retry(attempts=3, backoff_ms=1, on=ConnectionError), **FULL)
    async def store(values: list[int]) -> None:
        calls.append(values)
        if len(calls) == 1:
            raise PartialFailureError([1, 2]) from ConnectionError("away")
        raise PartialFailureError([0])

    async with app:
        await until(lambda: recorder.of(RecordSkipped))

    assert calls == [[0, 1, 2, 3], [1, 2]]
    assert [(one.offset, one.error.partition(":")[0]) for one in recorder.of(RecordSkipped)] == [
        (1, "PartialFailureError")
    ]


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ({4: ValueError("no")}, "index 4, for a batch of 4 records"),
        ([-1], "index -1"),
        ([True], "index True"),
        (["2"], "index '2'"),
        ([], "no index"),
        ({1: "no"}, "'no', which is not an exception, at index 1"),
    ],
)
async def test_invalid_indices_fail_the_whole_batch(new_app, new_topic, witness, recorder, failed, message):  # noqa: PLR0917
    """A PartialFailureError with invalid or no indices fails the whole batch, with an error that states the reason."""
    topic, app, calls = new_topic(), new_app(on_failure="skip", hooks=[recorder]), []
    witness.produce(topic, numbers(4))

    @app.batch_handler(topic, max_records=4, retry=Retry(attempts=2, backoff_ms=1), **FULL)
    async def store(values: list[int]) -> None:
        calls.append(values)
        raise PartialFailureError(failed)

    async with app:
        await until(lambda: len(recorder.of(RecordSkipped)) == 4)

    assert calls == [[0, 1, 2, 3]] * 2
    assert all(message in one.error and "HandlerFailedError" in one.error for one in recorder.of(RecordSkipped))


@pytest.mark.parametrize("order_by", ["partition", "none"])
async def test_an_undecodable_record_is_dead_lettered_alone(new_app, new_topic, witness, group, letters, order_by):  # noqa: PLR0917
    """An undecodable record is dead-lettered alone, without a retry; the other records are handled once, as a batch."""
    topic, calls = new_topic(), []
    app = new_app(dead_letter=letters.of(topic))
    values = [b'{"page":"/","n":%d}' % n for n in range(6)]
    values[0], values[4] = b"no json", None
    witness.produce(topic, values)

    @app.batch_handler(topic, max_records=6, order_by=order_by, **FULL)
    async def store(clicks: list[Click]) -> None:
        calls.append([click.n for click in clicks])

    async with app:
        await until(lambda: calls)
        await until_committed(witness, group, topic, 6)

    found = await letters.read(2)
    assert calls == [[1, 2, 3, 5]]
    assert {one.value for one in found} == {b"no json", None}
    assert {dict(one.headers)["tailrace-attempts"] for one in found} == {b"1"}


async def test_an_undecodable_record_is_not_retried_with_its_batch(new_app, new_topic, witness, recorder):
    """A batch that fails as a whole is retried without the records that do not decode."""
    topic, app, calls = new_topic(), new_app(on_failure="skip", hooks=[recorder]), []
    witness.produce(topic, [b"1", b"x", b"2"])

    @app.batch_handler(topic, max_records=3, retry=QUICK, **FULL)
    def store(values: list[int], source: Annotated[str, Depends(lambda: "here")]) -> None:
        calls.append(values)
        if len(calls) == 1:
            raise ConnectionError(source)

    async with app:
        await until(lambda: len(calls) == 2)

    assert calls == [[1, 2], [1, 2]]
    assert [one.offset for one in recorder.of(RecordSkipped)] == [1]


async def test_on_failure_pause_retries_the_batch_until_it_succeeds(new_app, new_topic, witness, group, recorder):
    """With on_failure="pause" a failed batch is retried at intervals; other partitions continue, none is skipped."""
    topic, app = new_topic(2), new_app(hooks=[recorder])
    witness.produce(topic, numbers(50), partition=0)
    witness.produce(topic, numbers(50, 50), partition=1)
    handled, is_broken = [], True

    @app.batch_handler(topic, max_records=10, concurrency=1, retry=QUICK)
    async def store(values: list[int]) -> None:
        if 0 in values and is_broken:
            raise PartialFailureError({0: ConnectionError("away")})
        handled.extend(values)

    async with app:
        await until(lambda: len(handled) == 50)
        await until(lambda: app.health().status == "degraded")
        assert min(handled) == 50
        is_broken = False
        await until(lambda: len(handled) == 91)

    assert [n for n in handled if n < 50] == [0, *range(10, 50)]
    assert await witness.committed(group, topic, 2) == {0: 50, 1: 50}


async def test_on_failure_stop_commits_the_finished_records_of_the_batch(new_app, new_topic, witness, group):
    """With on_failure="stop" the app ends with the error, and the lowest failed record is the next to be read."""
    topic, app = new_topic(), new_app(on_failure="stop")
    witness.produce(topic, numbers(20))

    @app.batch_handler(topic, max_records=10, retry=QUICK, **FULL)
    async def store(values: list[int]) -> None:
        if 17 in values:
            raise PartialFailureError({values.index(17): ValueError("no")})

    with pytest.raises(HandlerFailedError, match=r"offset 17: .*on_failure='stop'"):
        await asyncio.wait_for(app.run(), 30)

    assert await witness.committed(group, topic, 1) == {0: 17}


async def test_results_are_published_before_the_batch_is_committed(new_app, new_topic, witness, kafka_server, group):
    """Results of a batch, one value or a list of values and Messages, are published in order before the commit."""
    topic, out, app = new_topic(), new_topic(), new_app()
    witness.produce(topic, numbers(400))

    @app.batch_handler(topic, max_records=100, publish=out, **FULL)
    async def double(values: list[int]) -> object:
        if values[0] == 100:
            return None
        if values[0] == 200:
            return {"sum": sum(values)}
        return [Message({"n": n}, key="k") if n % 2 else None if n % 4 else n for n in values]

    async with app:
        await until_committed(witness, group, topic, 400)

    async with Consumer(out, bootstrap_servers=kafka_server.bootstrap_servers, auto_offset_reset="earliest") as reader:
        async with asyncio.timeout(30):
            values = [json.loads((await reader.getone()).value) for _ in range(151)]
    of_batches = {0: [], 300: []}
    for value in values:
        if value != {"sum": sum(range(200, 300))}:
            n = value["n"] if isinstance(value, dict) else value
            of_batches[n // 300 * 300].append(n)
    assert of_batches == {start: [n for n in range(start, start + 100) if n % 2 or not n % 4] for start in (0, 300)}


async def test_a_result_that_cannot_be_published_fails_the_batch(new_app, new_topic, witness, recorder, kafka_server):
    """If one result of a batch cannot be published, none of its results is, and the batch is retried."""
    topic, out, app, calls = new_topic(), new_topic(), new_app(on_failure="skip", hooks=[recorder]), []
    witness.produce(topic, numbers(2))

    @app.batch_handler(topic, max_records=2, publish=out, retry=Retry(attempts=2, backoff_ms=1), **FULL)
    async def store(values: list[int]) -> object:
        calls.append(values)
        return [1, object()]

    async with app:
        await until(lambda: len(recorder.of(RecordSkipped)) == 2)

    assert calls == [[0, 1], [0, 1]]
    assert "PublishError" in recorder.of(RecordSkipped)[0].error
    assert await witness.ends(out, 1) == {0: 0}


async def test_a_plain_function_runs_in_a_thread(new_app, new_topic, witness):
    """A blocking plain batch handler does not block the event loop; with concurrency=2, two partitions run at once."""
    topic, app, threads, both = new_topic(2), new_app(), [], threading.Barrier(2)
    for partition in range(2):
        witness.produce(topic, numbers(5), partition=partition)

    @app.batch_handler(topic, max_records=5, concurrency=2, **FULL)
    def store(values: list[bytes]) -> None:
        both.wait(30)
        threads.append(threading.current_thread())

    async with app:
        await until(lambda: len(threads) == 2)

    assert threading.main_thread() not in threads


async def test_a_batch_that_exceeds_timeout_ms_has_failed(new_app, new_topic, witness, recorder):
    """A batch that exceeds timeout_ms fails as a whole; a handler that cancels its task fails its own batch only."""
    topic, app, calls = new_topic(), new_app(on_failure="skip", hooks=[recorder]), []
    witness.produce(topic, numbers(30))

    @app.batch_handler(topic, max_records=10, timeout_ms=100, retry=Retry(attempts=1), **FULL)
    async def store(values: list[int]) -> None:
        calls.append(values[0])
        if values[0] == 0:
            await asyncio.sleep(60)
        if values[0] == 10:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

    async with app:
        await until(lambda: len(calls) == 3)

    skipped = recorder.of(RecordSkipped)
    assert Counter(one.error.partition(":")[0] for one in skipped) == {"TimeoutError": 10, "HandlerFailedError": 10}


async def test_a_thread_that_exceeds_timeout_ms_fails_when_it_returns(new_app, new_topic, witness, recorder):
    """A batch of a plain function that exceeds timeout_ms fails when the function returns; attempts never overlap."""
    topic, app, running, most = new_topic(), new_app(on_failure="skip", hooks=[recorder]), 0, 0
    witness.produce(topic, numbers(1))

    @app.batch_handler(topic, timeout_ms=50, retry=Retry(attempts=2, backoff_ms=1))
    def store(values: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.2)
        running -= 1

    async with app:
        await recorder.wait_for(RecordSkipped)

    assert most == 1
    assert "a thread cannot be canceled" in recorder.of(RecordSkipped)[0].error


async def test_batch_middleware_receives_the_records(new_app, new_topic, witness):
    """Middleware of a batch handler receives the list of records; the app's middleware is for single records only."""
    topic, seen = new_topic(), []

    def never(call):
        raise AssertionError("a batch is not a record")

    def noting(call):
        async def noted(records):
            seen.append([record.offset for record in records])
            return await call(records)

        return noted

    app = new_app()
    handlers = Handlers()
    witness.produce(topic, numbers(3))

    @handlers.batch_handler(topic, max_records=3, middleware=[noting], **FULL)
    async def store(values: list[bytes]) -> None:
        seen.append(values)

    app.include(handlers)
    async with app:
        await until(lambda: len(seen) == 2)

    assert seen == [[0, 1, 2], [b"0", b"1", b"2"]]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("error", [ValueError("away"), PartialFailureError([0]), DecodeError("no JSON")])
async def test_middleware_may_modify_its_list(delivery, error):
    """Middleware may empty its list: the error of a part fails the whole batch, and no record is lost."""
    app, calls = App(group_id="g", delivery=delivery, dead_letter="{topic}.dead"), []

    def in_parts(call):
        async def parted(records):
            while records:
                part, records[:] = records[:2], records[2:]
                await call(part)

        return parted

    @app.batch_handler("t", max_records=4, middleware=[in_parts], retry=Retry(attempts=2, backoff_ms=10))
    async def store(records: list[Record]) -> None:
        calls.append([record.offset for record in records])
        if records[0].offset == 2 and len(calls) == 2:
            raise error

    async with TestApp(app) as kafka:
        await asyncio.gather(*(kafka.send("t", b"x") for _ in range(4)))
        dead, committed = len(kafka.dead_letters("t")), kafka.committed("t")

    whole = [[0, 1], [2, 3]]
    again = {PartialFailureError: [[0]], DecodeError: []}.get(type(error), whole)
    assert calls == whole + again
    assert (dead, committed) == (4 if type(error) is DecodeError else 0, 4)


async def test_batches_and_single_records_share_a_topic_by_when(new_app, new_topic, witness, group):
    """Batch handlers and single-record handlers of a topic each receive the records that match their `when`."""
    topic, app, even, odd = new_topic(), new_app(on_failure="skip"), [], []
    witness.produce(topic, [*numbers(100), b"x"])

    @app.batch_handler(topic, max_records=25, max_wait_ms=100, when=lambda one: int(one.value) % 2 == 0)
    async def take_even(values: list[int]) -> None:
        await asyncio.sleep(0.001)
        even.extend(values)

    @app.handler(topic, when=lambda one: int(one.value) % 2 == 1)
    async def take_odd(value: int) -> None:
        await asyncio.sleep(0)
        odd.append(value)

    async with app:
        await until(lambda: len(even) + len(odd) == 100)
        await until_committed(witness, group, topic, 101)

    assert (even, odd) == (list(range(0, 100, 2)), list(range(1, 100, 2)))


async def test_incomplete_batches_are_not_handled_when_the_app_stops(new_app, new_topic, witness, group):
    """stop() starts no more batches and waits for the running one, whose end is committed."""
    topic, app, begun, ended, may_end = new_topic(), new_app(), [], [], asyncio.Event()
    witness.produce(topic, numbers(25))

    @app.batch_handler(topic, max_records=10, **FULL)
    async def store(values: list[int]) -> None:
        begun.append(values)
        await may_end.wait()
        ended.append(values)

    async with app:
        await until(lambda: begun)
        stopping = asyncio.create_task(app.stop())
        await until(lambda: app.health().status == "stopping")
        may_end.set()
        await stopping

    assert begun == ended == [[*range(10)]]
    assert await witness.committed(group, topic, 1) == {0: 10}


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
async def test_each_record_is_handled_once_when_an_app_joins_and_leaves(new_app, new_topic, witness, group, order_by):
    """Each record is handled once while a second app joins and stops."""
    topic, handled = new_topic(6), Counter()

    def one():
        app = new_app(heartbeat_interval_ms=300)

        @app.batch_handler(topic, order_by=order_by, max_records=20, max_wait_ms=50)
        async def store(records: list[Record]) -> None:
            await asyncio.sleep(0.05)
            handled.update((record.partition, record.offset) for record in records)

        return app

    async with one():
        witness.produce(topic, numbers(4_000), keys=[b"k%d" % (n % 50) for n in range(4_000)])
        await until(lambda: len(handled) > 200)
        async with one() as second:
            await second.wait_ready()
            await until(lambda: len(handled) == 4_000, 60)

    assert set(handled.values()) == {1}
    assert sum((await witness.committed(group, topic, 6)).values()) == 4_000


async def test_a_failed_batch_does_not_delay_a_stop(new_app, new_topic, witness, group, recorder):
    """A failed batch that waits for its retry does not delay a stop; the next app handles only unfinished records."""
    topic, handled, failing = new_topic(), Counter(), True

    def one():
        retry = Retry(attempts=1, backoff_ms=1, max_backoff_ms=60_000)
        app = new_app(retry=retry, hooks=[recorder], rebalance_drain_ms=60_000, stop_timeout_ms=100_000)

        @app.batch_handler(topic, max_records=10)
        async def store(values: list[int]) -> None:
            failed = [index for index, n in enumerate(values) if n == 4 and failing]
            handled.update(n for index, n in enumerate(values) if index not in failed)
            if failed:
                raise PartialFailureError(failed)

        return app

    witness.produce(topic, numbers(10))
    async with one():
        await until(lambda: recorder.of(BatchFailed))
        began = time.monotonic()
    took, failing = time.monotonic() - began, False
    after_first = await witness.committed(group, topic, 1)
    async with one():
        await until(lambda: 4 in handled)

    assert took < 15
    assert after_first == {0: 4}
    assert handled == dict.fromkeys(range(10), 1)
    assert await witness.committed(group, topic, 1) == {0: 10}


LEDGER = """
import asyncio, sys
from tailrace import App

app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2], auto_commit_interval_ms=50, group_instance_id="one")

@app.batch_handler(sys.argv[3], max_records=50, max_wait_ms=100)
async def store(values: list[int]) -> None:
    if sys.argv[4:] == [str(values[0])]:
        await asyncio.Event().wait()
    await asyncio.sleep(0.02)
    print(*values, flush=True)

asyncio.run(app.run())
"""


@pytest.mark.slow
async def test_after_a_kill_only_uncommitted_records_are_repeated(kafka_server, new_topic, witness, group, tmp_path):
    """After SIGKILL during a batch, every record is handled, and none below the committed offset is handled again."""
    topic, ledgers = new_topic(), [tmp_path / "first", tmp_path / "second"]
    witness.produce(topic, numbers(2_000))

    async def start(ledger: Path, *stuck_at: str):
        with ledger.open("wb") as out:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", LEDGER, kafka_server.bootstrap_servers, group, topic, *stuck_at),
                stdout=out,
                env={**os.environ},
            )

    def handled(ledger: Path):
        return [
            int(n) for line in ledger.read_text().splitlines(keepends=True) if line[-1] == "\n" for n in line.split()
        ]

    first = await start(ledgers[0], "1500")
    try:
        async with asyncio.timeout(60):
            while not (await witness.committed(group, topic, 1)).get(0):  # noqa: ASYNC110 - the broker's view
                await asyncio.sleep(0.01)
    finally:
        first.send_signal(signal.SIGKILL)
        await first.wait()
    committed = (await witness.committed(group, topic, 1))[0]
    second = await start(ledgers[1])
    try:
        await until(lambda: 1_999 in handled(ledgers[1]), 60)
        await until_committed(witness, group, topic, 2_000)
    finally:
        second.terminate()
        await second.wait()

    before, again = handled(ledgers[0]), handled(ledgers[1])
    assert before == list(range(len(before)))
    assert again == list(range(again[0], 2_000))
    # The broker may have received a later commit after the read.
    assert 0 < committed <= again[0] <= len(before)
    assert second.returncode == 0


async def test_a_paused_batch_handler_starts_no_batch(new_app, new_topic, witness):
    """app.pause() also stops incomplete batches, and app.resume() starts them."""
    topic, other, app, seen = new_topic(), new_topic(), new_app(), []

    @app.batch_handler(topic, max_wait_ms=0)
    async def store(values: list[bytes]) -> None:
        seen.append(values)

    @app.batch_handler(other, max_wait_ms=0)
    async def mark(values: list[bytes]) -> None:
        seen.append("other")

    async with app:
        app.pause(store)
        witness.produce(topic, [b"0"])
        witness.produce(other, [b"1"])
        await until(lambda: seen)
        app.resume(store)
        await until(lambda: len(seen) == 2)

    assert seen == ["other", [b"0"]]


async def test_test_app_waits_for_batches_in_virtual_time():
    """In TestApp, records are handled when their batch would be due, without a wait in real time."""
    app, batches = App(group_id="g", on_failure="skip"), []

    @app.batch_handler("clicks", max_records=3, max_wait_ms=60_000)
    async def store(values: list[int]) -> None:
        batches.append(values)
        if values == [3]:
            raise PartialFailureError([0])

    async with TestApp(app) as kafka:
        for n in range(4):
            await kafka.send("clicks", n)
        committed = kafka.committed("clicks")

    assert sorted(n for values in batches for n in values if n != 3) == [0, 1, 2]
    assert committed == 4


def not_a_list(value: bytes) -> None: ...


def nothing() -> None: ...


def one_of_many(values: list[bytes], key: Annotated[str, Key]) -> None: ...


def null_records(values: list[Record | None]) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (not_a_list, "a batch is a list or a table"),
        (nothing, "has no parameter for the batch"),
        (one_of_many, "a batch handler receives many"),
        (null_records, "a record is never null"),
    ],
)
async def test_invalid_batch_signatures_are_refused_before_the_start(function, message):
    """A batch handler that cannot work raises ConfigurationError at the start, before a broker is contacted."""
    app = App(bootstrap_servers="localhost:1", group_id="g")
    app.batch_handler("t")(function)

    with pytest.raises(ConfigurationError, match=message):
        await app.start()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_records", 0),
        ("max_records", None),
        ("max_wait_ms", -1),
        ("max_wait_ms", "soon"),
        ("max_bytes", 0),
        ("concurrency", 0),
        ("order_by", "offset"),
        ("middleware", [1]),
        ("retry", 3),
    ],
)
def test_invalid_batch_options_are_refused_at_the_declaration(option, value):
    """The decorator raises ConfigurationError with the option's name."""
    with pytest.raises(ConfigurationError, match=option):
        App(group_id="g").batch_handler("t", **{option: value})


def test_batch_handler_is_handler_with_a_batch():
    """``batch_handler`` declares what ``handler(batch=...)`` declares, with the same defaults."""
    app = App(group_id="g")
    app.batch_handler("t", max_records=5, max_bytes=100, order_by="key")(print)
    app.handler("t", batch=Batch(max_records=5, max_bytes=100), order_by="key")(print)
    app.batch_handler("t")(print)
    app.handler("t", batch=Batch())(print)

    assert app.declared[0] == app.declared[1]
    assert app.declared[2] == app.declared[3]
    assert (app.declared[2].batch, app.declared[2].concurrency) == (Batch(500, 200, None), 1)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"batch": 5}, r"batch must be a Batch instance such as Batch\(max_records=500\), not 5"),
        ({"max_records": 5}, r"no option 'max_records' - use batch=Batch\(max_records="),
        ({"concurency": 5}, "no option 'concurency' - did you mean 'concurrency'"),
        ({"size": 5}, "no option 'size' - the options are pattern, group_id"),
    ],
)
def test_an_unknown_option_of_a_handler_is_refused(options, hint):
    """The decorator raises an error that names the option that was probably meant."""
    with pytest.raises(ConfigurationError, match=hint):
        App(group_id="g").handler("t", **options)
