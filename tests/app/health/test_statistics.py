"""Statistics of a running app, compared with other clients, Kafka's own tools and the clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace import App, Batch, Consumer, ConsumerStateError, PartialFailureError, Record, Retry
from tailrace.observe.events import OffsetsCommitted
from tests.support.admin_tools import KafkaTool
from tests.support.consumer_group import until

QUICK = Retry(attempts=3, backoff_ms=1, max_backoff_ms=5)


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        defaults = {
            "bootstrap_servers": kafka_server.bootstrap_servers,
            "group_id": group,
            "hooks": [recorder],
            "auto_commit_interval_ms": 50,
        }
        return App(**{**defaults, **options})

    return make


@pytest.fixture(scope="module")
def kafka_tool(kafka_server):
    return KafkaTool(kafka_server.bootstrap_servers)


def handler_of(app):
    (found,) = app.statistics().handlers
    return found


def partition_of(app):
    (consumer,) = app.statistics().consumers
    (found,) = consumer.partitions
    return found


def near(seconds: float, measured: float) -> bool:
    """Return True if the sum of durations is at least the time measured inside the handler, and not much longer."""
    return measured <= seconds * 1.001 <= measured * 1.5 + 0.2


def is_age(seconds: float, timestamp: int, before: float, after: float) -> bool:
    """Return True if it is the age of a record at some time from ``before`` to ``after``."""
    return before - 0.001 <= seconds + timestamp / 1000 <= after + 0.001


# ---- lag -----------------------------------------------------------------------------------------------------------


async def test_lag_is_that_of_kafkas_tool_and_work_lag_is_unfinished(  # noqa: PLR0917
    new_app, new_topic, witness, kafka_tool, group, recorder
):
    """While a slow record holds up the commit, lag is that of Kafka's tool and work lag counts unfinished records."""
    topic, let_go, seen = new_topic(), asyncio.Event(), {}
    witness.produce(topic, (b"%d" % n for n in range(100)))
    app = new_app()

    @app.handler(topic, order_by="none", concurrency=10)
    async def handle(record: Record):
        seen[record.offset] = record.timestamp
        if record.offset == 3:
            await let_go.wait()

    async with app:
        await until(lambda: len(seen) == 100)
        await recorder.wait_for(OffsetsCommitted, where=lambda event: 3 in event.offsets.values())
        await until(lambda: handler_of(app).records == 99)
        (row,) = await asyncio.to_thread(kafka_tool.rows, "--describe", "--group", group)
        before, found, after = time.time(), partition_of(app), time.time()
        handler = handler_of(app)
        let_go.set()
        await until(lambda: partition_of(app).lag == 0)
        finished = partition_of(app)

    assert found.committed == int(row["CURRENT-OFFSET"]) == 3
    assert found.end == int(row["LOG-END-OFFSET"]) == 100
    assert found.lag == int(row["LAG"]) == 97
    assert (found.topic, found.partition, found.position, found.work_lag) == (topic, 0, 100, 1)
    assert is_age(found.lag_s, seen[3], before, after)
    assert (handler.in_flight, handler.waiting, handler.records) == (1, 0, 99)
    assert (finished.lag, finished.work_lag, finished.lag_s, finished.committed) == (0, 0, 0.0, 100)


@pytest.mark.parametrize("order_by", ["partition", "key"])
async def test_waiting_records_have_an_age(new_app, new_topic, witness, order_by):
    """The lag in seconds is the age of the oldest unfinished record, which may run, wait or not be decoded yet."""
    topic, let_go, timestamps = new_topic(), asyncio.Semaphore(0), []
    witness.produce(topic, (b"%d" % n for n in range(50)), keys=(b"key" for _ in range(50)))
    app = new_app(max_queued_records=10)

    @app.handler(topic, order_by=order_by, concurrency=4)
    async def handle(record: Record):
        timestamps.append(record.timestamp)
        await let_go.acquire()

    async with app:
        await until(lambda: len(timestamps) == 1)
        before, first, after = time.time(), partition_of(app), time.time()
        for count in range(1, 30):
            let_go.release()
            await until(lambda count=count: len(timestamps) == count + 1)
            since, found, until_then = time.time(), partition_of(app), time.time()
            assert found.work_lag == 50 - count
            assert is_age(found.lag_s, timestamps[-1], since, until_then)
            assert handler_of(app).in_flight == 1
        assert handler_of(app).waiting > 0
        app.pause(handle)
        paused = handler_of(app).is_paused
        app.resume(handle)
        for _ in range(50):
            let_go.release()

    assert first.work_lag == 50
    assert is_age(first.lag_s, timestamps[0], before, after)
    assert paused


async def test_a_polled_record_is_unfinished_until_the_next_poll(kafka_server, new_topic, witness, group):
    """A record that a loop polled is unfinished until the next poll, and determines the lag in seconds."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))
    consumer = Consumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, auto_commit_interval_ms=None
    )

    with pytest.raises(ConsumerStateError):
        consumer.statistics()
    async with consumer:
        record = await consumer.getone()
        before, (first,), after = time.time(), consumer.statistics().partitions, time.time()
        for _ in range(5):
            await consumer.getone()
        await consumer.commit()
        (second,) = consumer.statistics().partitions
        statistics = consumer.statistics()
    stopped = consumer.statistics()

    assert (first.lag, first.work_lag, first.committed) == (10, 10, None)
    assert is_age(first.lag_s, record.timestamp, before, after)
    # A bare commit includes the record in flight.
    assert (second.committed, second.lag) == (6, 4)
    assert statistics.work_lag == second.work_lag == 4
    assert statistics.commits.count == 1
    assert statistics.fetches.count >= 1
    assert statistics.fetched_records == 10
    assert statistics.rebalances.count == 1
    assert statistics.decoder in {"compiled", "python"}
    assert statistics.checksum in {"hardware", "software"}
    assert stopped.partitions == ()
    assert stopped.fetched_records == 10


async def test_unacknowledged_records_have_an_age(kafka_server, new_topic, witness, group):
    """With ack="manual", the lag in seconds is the age of the oldest record that is not acknowledged."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with Consumer(
        topic, bootstrap_servers=kafka_server.bootstrap_servers, group_id=group, ack="manual"
    ) as consumer:
        records = [await consumer.getone() for _ in range(10)]
        for record in records:
            if record.offset not in {2, 7}:
                consumer.ack(record)
        before, (found,), after = time.time(), consumer.statistics().partitions, time.time()

    assert found.work_lag == 2
    assert is_age(found.lag_s, records[2].timestamp, before, after)


# ---- durations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order_by", ["partition", "none"])
async def test_durations_of_suspending_calls_are_measured(new_app, new_topic, witness, order_by):
    """Statistics count the calls, of which some suspend, and the sum of their durations is the time that they took."""
    topic, took = new_topic(), []
    witness.produce(topic, (b"%d" % n for n in range(200)))
    app = new_app()

    @app.handler(topic, order_by=order_by, concurrency=5)
    async def handle(record: Record):
        began_at = time.perf_counter()
        if record.offset % 10 == 0:
            time.sleep(0.003)  # noqa: ASYNC251 - computes before it suspends
        if record.offset % 3:
            await asyncio.sleep(0.001 * (record.offset % 7))
        took.append(time.perf_counter() - began_at)

    async with app:
        await until(lambda: handler_of(app).records == 200)
        found = handler_of(app)

    assert found.calls.count == len(took) == 200
    assert near(found.calls.sum_s, sum(took))
    assert found.batches is None


async def test_durations_of_calls_that_never_suspend_are_measured(new_app, new_topic, witness):
    """The number of calls that never suspend is exact, and the sum of their durations is the time that they took."""
    topic, took = new_topic(), []
    witness.produce(topic, (b"%d" % n for n in range(2_000)))
    app = new_app()

    @app.handler(topic)
    async def handle(record: Record):
        began_at = time.perf_counter()
        while time.perf_counter() - began_at < 0.0001:
            pass
        took.append(time.perf_counter() - began_at)

    async with app:
        await until(lambda: len(took) == 2_000)
        await until(lambda: handler_of(app).records == 2_000)
        found = handler_of(app)

    assert found.calls.count == 2_000
    assert near(found.calls.sum_s, sum(took))
    # Calls are measured in groups, each of which has a mean of at least 0.1 ms.
    assert sum(found.calls.counts[:2]) == 0


async def test_a_plain_function_is_measured_in_its_thread(new_app, new_topic, witness):
    """The duration of a function in a thread is measured as that of a coroutine."""
    topic, took = new_topic(), []
    witness.produce(topic, (b"%d" % n for n in range(20)))
    app = new_app()

    @app.handler(topic)
    def handle(record: Record) -> None:
        began_at = time.perf_counter()
        time.sleep(0.005)
        took.append(time.perf_counter() - began_at)

    since = time.perf_counter()
    async with app:
        await until(lambda: handler_of(app).records == 20)
        found = handler_of(app)
    elapsed = time.perf_counter() - since

    assert found.calls.count == 20
    # The calls overlap, and each also waits for its thread.
    assert sum(took) <= found.calls.sum_s * 1.001 <= 20 * elapsed


async def test_a_batch_is_counted_as_one_call(new_app, new_topic, witness):
    """A batch counts as one call, and its records are counted, too."""
    topic, took = new_topic(), []
    witness.produce(topic, (b"%d" % n for n in range(100)))
    app = new_app()

    @app.batch_handler(topic, max_records=10)
    async def handle(records: list[Record]):
        began_at = time.perf_counter()
        await asyncio.sleep(0.01)
        took.append(time.perf_counter() - began_at)

    async with app:
        await until(lambda: handler_of(app).records == 100)
        found = handler_of(app)

    assert (found.records, found.batches, found.calls.count) == (100, len(took), len(took))
    assert near(found.calls.sum_s, sum(took))


# ---- failures ------------------------------------------------------------------------------------------------------


async def test_failures_are_counted(new_app, new_topic, witness):
    """Statistics count failed attempts, retries, and records that failed for good."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(20)))
    retry = Retry(attempts=3, backoff_ms=500, jitter=False)
    app, attempts = new_app(retry=retry, dead_letter="{topic}.{group}.dead"), []

    @app.handler(topic)
    async def handle(record: Record):
        attempts.append(record.offset)
        if record.offset in {4, 11} or (record.offset == 7 and attempts.count(7) == 1):
            raise RuntimeError("no")

    async with app:
        await until(lambda: handler_of(app).records == 18 and handler_of(app).dead_letters == 2)
        found = handler_of(app)

    assert found.calls.count == len(attempts) == 20 + 2 * 2 + 1
    assert (found.failures, found.retries, found.dead_letters, found.skipped) == (7, 5, 2, 0)
    # Pauses between attempts, of 3.5 s in all, are no part of a call.
    assert found.calls.sum_s < 1


async def test_skipped_records_are_counted_without_a_pause(new_app, new_topic, witness):
    """Records that fail without suspending count as failed, and the records between them as handled."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(1_000)))
    app = new_app(retry=Retry(attempts=1), on_failure="skip")

    @app.handler(topic)
    async def handle(record: Record):
        if record.offset % 10 == 0:
            raise RuntimeError("no")

    async with app:
        await until(lambda: handler_of(app).records + handler_of(app).skipped == 1_000)
        found = handler_of(app)

    assert (found.records, found.skipped, found.failures, found.retries) == (900, 100, 100, 0)
    assert found.calls.count == 1_000


async def test_failed_records_of_a_batch_are_counted(new_app, new_topic, witness):
    """Statistics of a batch handler count failed records and their retries, and only finished calls as batches."""
    topic, calls = new_topic(), []
    witness.produce(topic, (b"%d" % n for n in range(10)))
    app = new_app(retry=QUICK)

    @app.batch_handler(topic, max_records=10, max_wait_ms=500)
    async def handle(records: list[Record]):
        calls.append(len(records))
        if len(calls) < 3:
            raise PartialFailureError({n: RuntimeError("no") for n in range(3)})

    async with app:
        await until(lambda: handler_of(app).records == 10)
        found = handler_of(app)

    assert calls == [10, 3, 3]
    assert (found.failures, found.retries, found.batches, found.calls.count) == (6, 6, 1, 3)


async def test_an_app_has_statistics_at_every_stage(new_app, new_topic):
    """App.statistics() returns statistics before the start, while the app runs, and after the stop."""
    topic = new_topic()
    app = new_app()

    @app.handler(topic, batch=Batch(10))
    async def handle(records: list[Record]):
        pass

    before = app.statistics()
    async with app:
        await app.wait_ready()
        running = app.statistics()
        await until(lambda: app.statistics().loop_lag.count >= 1)
    after = app.statistics()

    assert not before.handlers
    assert not before.is_ready
    assert running.is_ready
    assert [one.handler for one in running.handlers] == [handle.__qualname__]
    assert running.groups[0].group_id == running.consumers[0].group_id
    assert not after.is_ready
    assert not after.handlers
