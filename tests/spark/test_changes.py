"""Changes of the group, the logs and the brokers during a stream or a backfill."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from tailrace import (
    BrokerConnectionError,
    CommitFailedError,
    ConfigurationError,
    Record,
    TailraceError,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.observe.events import CommitFailed, OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.spark import streaming
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore
from tailrace.spark.session import check_source

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


class EventRecorder:
    """Hook that keeps events; it stays with the driver."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [one for one in self.events if isinstance(one, kind)]


def remove_before(world, offset: int) -> None:
    """Delete records as retention does."""
    removed = world.admin.delete_records([ConfluentTopicPartition(world.topic, 0, offset)])
    next(iter(removed.values())).result(20)


def test_a_stream_skips_records_finished_by_the_app(world):
    """A stream skips the records that the group's offset map lists, in each batch."""
    world.make_topic()
    world.produce(b"%d" % n for n in range(20))
    with SparkOffsetStore(resolve(world.app().options), world.group, Observer()) as store:
        store.commit({TopicPartition(world.topic, 0): PartitionCommit(3, OffsetMap(3, 15, (3, 7, 12)))}, "")

    query = world.pipeline(world.app_with_ledger()).start(
        "enter", trigger="available_now", options={"maxOffsetsPerTrigger": "6"}
    )
    assert query.await_termination(120)

    assert sorted(world.ledger.lines()) == [(0, n) for n in (3, 7, 12, *range(15, 20))]
    assert world.committed == {0: 20}


def test_deleted_offsets_end_a_stream_and_are_counted_by_the_next(world):
    """Deleted offsets end a stream with an error, and the next start counts them once."""
    world.make_topic()
    for _ in range(4):
        world.produce([b"a"] * 5)
    begun, go_on, recorder = world.folder / "begun", world.folder / "go-on", EventRecorder()

    async def wait(_record: Record) -> None:
        begun.touch()
        while not go_on.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.05)

    # The Java client always reads one producer batch ahead.
    options = {"maxOffsetsPerTrigger": "5", "kafka.max.partition.fetch.bytes": "1"}
    query = world.pipeline(world.app_with_ledger(first=wait)).start("enter", options=options)
    world.until(begun.exists)
    remove_before(world, 17)
    go_on.touch()
    with pytest.raises(
        TailraceError, match=r"\[0\] was deleted from the log before Spark read it - start the query again"
    ):
        query.await_termination(120)
    at = world.committed[0]
    world.run_to_the_end(hooks=(recorder,))
    world.run_to_the_end(hooks=(recorder,))

    assert [(one.before, one.after, one.lost) for one in recorder.of(OffsetReset)] == [(at, 17, 17 - at)]
    assert at in {5, 10}
    assert world.ledger.counts() == {(0, n): 1 for n in (*range(at), *range(17, 20))}
    assert world.committed == {0: 20}


def test_an_idle_stream_renews_commits_and_expired_ones_are_restored(world, monkeypatch):
    """An idle stream renews its commits, and committed offsets that have expired are restored from the checkpoint."""
    monkeypatch.setattr(streaming, "RECOMMIT_S", 0.0)
    world.make_topic()
    world.produce([b"a"] * 10)
    query = world.pipeline(world.app_with_ledger()).start("enter")
    world.until(lambda: world.committed == {0: 10})
    world.admin.delete_consumer_groups([world.group])[world.group].result(20)
    world.until(lambda: world.committed == {0: 10})
    query.stop()
    world.admin.delete_consumer_groups([world.group])[world.group].result(20)

    world.run_to_the_end()

    assert world.ledger.counts() == {(0, n): 1 for n in range(10)}
    assert world.committed == {0: 10}


def test_a_commit_by_another_client_ends_the_query(world):
    """A commit by another client ends the query, and the next start continues at that offset."""
    world.make_topic()
    world.produce([b"a"] * 10)
    query = world.pipeline(world.app_with_ledger()).start("enter")
    world.until(lambda: world.committed == {0: 10})
    world.commit(8)
    world.produce([b"b"] * 5)

    with pytest.raises(CommitFailedError, match=r"another client committed offset 8 of .*\[0\] for group "):
        query.await_termination(120)

    assert world.committed == {0: 8}
    assert world.ledger.counts() == {(0, n): 1 for n in range(10)}
    world.run_to_the_end()
    assert world.ledger.counts() == {(0, n): 2 if 8 <= n < 10 else 1 for n in range(15)}


def test_a_commit_by_another_client_ends_the_backfill(world):
    """A commit by another client between two batches ends the backfill."""
    world.make_topic()
    world.produce([b"a"] * 20)

    def move(progress) -> None:
        if progress.done == 10:
            world.commit(15)

    with pytest.raises(CommitFailedError, match=r"another client committed offset 15 of .*\[0\] for group "):
        world.pipeline(world.app_with_ledger()).backfill("enter", max_records_per_batch=10, on_progress=move)

    assert world.committed == {0: 15}
    assert world.ledger.counts() == {(0, n): 1 for n in range(10)}


def test_the_next_start_commits_what_a_query_could_not(world, monkeypatch):
    """A query whose last commit failed raises, and the next start commits its batches."""
    world.make_topic()
    world.produce([b"a"] * 20)
    recorder, commit, last = EventRecorder(), SparkOffsetStore.commit, world.folder / "last"

    async def hang(record: Record) -> None:
        if record.offset >= 15:
            last.touch()
            await asyncio.Event().wait()

    def only_begins(store, offsets, text: str, **more: bool) -> None:
        if not text.startswith("spark begins"):
            raise BrokerConnectionError("nobody answers")
        commit(store, offsets, text, **more)

    monkeypatch.setattr(SparkOffsetStore, "commit", only_begins)
    app = world.app_with_ledger(first=hang, hooks=(recorder,))
    query = world.pipeline(app).start("enter", options={"maxOffsetsPerTrigger": "5"})
    world.until(lambda: last.exists() and recorder.of(CommitFailed))
    with pytest.raises(BrokerConnectionError, match="nobody answers"):
        query.stop(grace_s=0)
    monkeypatch.setattr(SparkOffsetStore, "commit", commit)
    committed = world.committed

    world.run_to_the_end()

    assert recorder.of(CommitFailed)[-1].will_retry is False
    assert committed == {0: 0}
    assert world.committed == {0: 20}
    assert world.ledger.counts() == {(0, n): 1 for n in range(20)}


def test_an_idle_stream_retries_a_failed_commit(world, monkeypatch):
    """An idle stream retries a failed commit without another batch."""
    monkeypatch.setattr(streaming, "_RETRY_S", 0.1)
    world.make_topic()
    world.produce([b"a"] * 10)
    failed, commit = [], SparkOffsetStore.commit

    def fail_once(store, offsets, text: str, **more: bool) -> None:
        if not text.startswith("spark begins") and not failed:
            failed.append(text)
            raise BrokerConnectionError("nobody answers")
        commit(store, offsets, text, **more)

    monkeypatch.setattr(SparkOffsetStore, "commit", fail_once)
    query = world.pipeline(world.app_with_ledger()).start("enter")
    world.until(lambda: world.committed == {0: 10})
    query.stop()

    assert len(failed) == 1
    assert world.ledger.counts() == {(0, n): 1 for n in range(10)}


def test_batch_numbers_are_unique(world):
    """Only an interrupted batch is repeated with its number, since sinks skip known numbers."""
    world.make_topic()
    world.produce([b"%d" % n for n in range(4)])
    app, written = world.app(), []

    @app.handler(world.topic)
    async def number(n: int) -> int:
        return n

    def sink(rows, batch_id: int) -> None:
        written.append((batch_id, sorted(row.value for row in rows.collect())))
        if len(written) == 2:
            raise OSError("written, but not committed")

    pipeline = world.pipeline(app)
    pipeline.backfill(number, sink=sink)
    world.commit(0)
    with pytest.raises(OSError, match="not committed"):
        pipeline.backfill(number, sink=sink)
    world.produce([b"4"])
    assert pipeline.start(number, sink=sink, trigger="available_now").await_termination(120)

    assert written == [(0, [0, 1, 2, 3]), (1, [0, 1, 2, 3]), (1, [0, 1, 2, 3]), (2, [4])]
    assert world.committed == {0: 5}


def test_a_backfill_continues_after_deleted_offsets(world):
    """A backfill continues after deleted offsets, counts them, and handles no record twice."""
    world.make_topic()
    world.produce([b"a"] * 30)
    recorder = EventRecorder()

    def remove(progress) -> None:
        if progress.done == 10:
            remove_before(world, 25)

    report = world.pipeline(world.app_with_ledger(hooks=(recorder,))).backfill(
        "enter", max_records_per_batch=10, on_progress=remove
    )

    assert (report.records, report.lost, report.batches) == (15, 15, 2)
    assert [(one.before, one.after, one.lost) for one in recorder.of(OffsetReset)] == [(10, 25, 15)]
    assert world.ledger.counts() == {(0, n): 1 for n in (*range(10), *range(25, 30))}
    assert world.committed == {0: 30}


def test_a_deleted_topic_ends_the_stream(world):
    """A deleted topic ends the stream with an error that names it."""
    world.make_topic()
    world.produce([b"a"] * 10)
    query = world.pipeline(world.app_with_ledger()).start("enter")
    world.until(lambda: world.committed == {0: 10})
    world.server.delete_topic(world.topic)

    with pytest.raises(UnknownTopicError, match=f"there is no topic '{world.topic}'"):
        query.await_termination(120)


def test_a_recreated_topic_ends_the_backfill(world):
    """A recreated topic ends the backfill, and the next one handles all records of the new topic."""
    topic = world.make_topic()
    world.produce([b"a"] * 20)

    def make_anew(progress) -> None:
        if progress.done == 10:
            world.server.delete_topic(topic)
            world.server.create_topic(topic, 1)
            world.produce([b"b"] * 30)

    pipeline = world.pipeline(world.app_with_ledger())
    with pytest.raises(TailraceError, match=f"'{topic}' was recreated, .* - start again"):
        pipeline.backfill("enter", max_records_per_batch=10, on_progress=make_anew)
    report = pipeline.backfill("enter")

    assert report.records == 30
    assert world.committed == {0: 30}


def test_a_handoff_repeats_until_the_lag_is_small(world):
    """A handoff runs batches until the lag is at most max_lag, and the app handles the rest once."""
    world.make_topic()
    world.produce([b"a"] * 30)
    more = [b"b"] * 20, [b"c"] * 5

    def produce(progress) -> None:
        if progress.done == progress.total:
            world.produce(more[world.ends[0] > 30] if world.ends[0] < 55 else [])

    app = world.app_with_ledger(auto_commit_interval_ms=200)
    status = world.pipeline(app).handoff("enter", max_lag=10, on_progress=produce)

    async def live() -> None:
        async with app:
            while await world.witness.committed(world.group, world.topic, 1) != {0: 55}:  # noqa: ASYNC110 - the broker's
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(live(), 120))

    assert (status.lag, status.members, status.committed) == (5, 0, {(world.topic, 0): 50})
    assert world.ledger.counts() == {(0, n): 1 for n in range(55)}


def test_a_handoff_reads_an_added_partition_from_its_beginning(world):
    """A handoff reads an added partition from its beginning, even if others started at their ends."""
    world.make_topic()
    world.produce([b"a"] * 3)

    def add(_progress) -> None:
        if world.partitions == 1:
            world.partitions = 2
            world.server.add_partitions(world.topic, 2)
            world.produce([b"b"] * 5, partition=1)

    status = world.pipeline(world.app_with_ledger(auto_offset_reset="latest")).handoff("enter", on_progress=add)

    assert status.lag == 0
    assert world.ledger.counts() == {(1, n): 1 for n in range(5)}
    assert world.committed == {0: 3, 1: 5}


def test_invalid_arguments_commit_nothing(world):
    """Invalid triggers, options and patterns raise before a commit or a checkpoint is written."""
    world.make_topic()
    world.produce([b"a"])
    pipeline = world.pipeline(world.app_with_ledger())

    with pytest.raises(ConfigurationError, match="trigger='5 bananas' is not valid"):
        pipeline.start("enter", trigger="5 bananas")
    with pytest.raises(ConfigurationError, match="'failOnDataLoss' cannot be set: the pipeline sets it"):
        pipeline.start("enter", options={"failOnDataLoss": "false"})
    with pytest.raises(ConfigurationError, match="Spark's Kafka source rejects the options"):
        pipeline.backfill("enter", options={"kafka.key.deserializer": "mine"})
    with pytest.raises(ConfigurationError, match=r"no Kafka connector .*spark-sql-kafka-0-10_2\.13:"):
        check_source(world.spark, {}, "kafka-that-is-not-there")
    matching = world.app()

    @matching.handler(pattern=f"{world.topic}-.*")
    async def handle(value: bytes) -> None: ...

    with pytest.raises(UnknownTopicError, match=rf"no topic matches '{world.topic}-\.\*'; patterns are matched once"):
        world.pipeline(matching).start(handle)

    assert world.committed == {}
    assert not (world.folder / "checkpoint").exists()


def test_options_set_after_the_pipeline_was_created_apply(world):
    """A pipeline uses the brokers and the group that the app has at the start of the run."""
    world.make_topic()
    world.produce([b"a"] * 3)
    app = world.app_with_ledger(group_id=None)
    pipeline = world.pipeline(app)
    app.configure(group_id=world.group)

    report = pipeline.backfill("enter")

    assert report.records == 3
    assert world.committed == {0: 3}


def test_a_handlers_own_group_is_used(world):
    """A handler with its own group_id commits to this group."""
    world.make_topic()
    world.produce([b"a"] * 3)

    report = world.pipeline(world.app_with_ledger(group_id=None, declared={"group_id": world.group})).backfill("enter")

    assert report.records == 3
    assert world.committed == {0: 3}
