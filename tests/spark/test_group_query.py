"""Queries of the user that run in a group: commits of their batches, and checks before the first record."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import (
    App,
    BrokerConnectionError,
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    CorruptCheckpointError,
    GroupNotEmptyError,
    TailraceError,
    TopicPartition,
)
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap, decode_metadata
from tailrace.observe.events import CommitFailed
from tailrace.observe.hooks import Observer
from tailrace.spark import SparkQuery, group_source, results, start_in_group, streaming
from tailrace.spark.offsets.query_log import QueryLog
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore
from tests.spark.test_stream import Live
from tests.support.event_recorder import EventRecorder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


class Rows:
    """Query of a test: the handler's results in a Parquet table."""

    def __init__(self, world, **options) -> None:
        self.world, self.table = world, str(world.folder / "table")
        self.app = make_app(world, **options)

    def records(self, **options: str):
        reader = self.world.spark.readStream.format("kafka")
        return reader.options(**{**group_source(self.app, "double"), "maxOffsetsPerTrigger": "10", **options}).load()

    def start(self, rows=None, checkpoint: str = "checkpoint", *, app: App | None = None, write=None) -> SparkQuery:
        rows = self.records().select("offset", results(self.app, "double")) if rows is None else rows
        folder = str(self.world.folder / checkpoint)
        return start_in_group(app or self.app, "double", rows, folder, write or self.write)

    def write(self, writer):
        return writer.trigger(availableNow=True).start(self.table)

    def write_forever(self, writer):
        return writer.start(self.table)

    def run(self, **options) -> None:
        assert self.start(**options).await_termination(120)

    @property
    def found(self) -> list[int]:
        """Offsets of the rows in the table, sorted."""
        return sorted(row.offset for row in self.world.spark.read.parquet(self.table).collect())


def ten_records(world) -> Rows:
    """Produce ten records to a new topic, and return the rows of its handler."""
    world.make_topic()
    world.produce(numbers(0, 10))
    return Rows(world)


def make_app(world, **options) -> App:
    """Return an app whose handler writes to the ledger and returns twice the number."""
    app, folder = world.app(**options), str(world.ledger.folder)

    async def double(number: int) -> int:
        file = os.open(f"{folder}/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(file, b"0 %d\n" % number)
        os.close(file)
        return 2 * number

    app.handler(world.topic)(double)
    return app


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(begin, end)]


def test_batches_of_any_query_are_committed(world):
    """A query with Spark's own sink starts at the group's offset, commits each batch, and the app continues there."""
    world.make_topic()
    world.produce(numbers(0, 40))
    world.commit(5)
    rows = Rows(world)

    rows.run()
    world.produce(numbers(40, 60))
    rows.run()

    assert rows.found == list(range(5, 60))
    assert world.ledger.counts() == {(0, n): 1 for n in range(5, 60)}
    assert world.committed == {0: 60}
    world.produce(numbers(60, 70))
    world.continue_live(1)
    assert world.ledger.counts() == {(0, n): 1 for n in range(5, 70)}


def test_the_first_start_is_committed_before_the_first_batch(world):
    """The options for Spark's source commit the start of a new group, by auto_offset_reset."""
    world.make_topic(2)
    world.produce(numbers(0, 10), partition=0)

    options = group_source(make_app(world, auto_offset_reset="latest"), "double")

    assert world.committed == {0: 10, 1: 0}
    assert options["subscribe"] == world.topic
    assert options["startingOffsets"] == f'{{"{world.topic}": {{"0": 10, "1": 0}}}}'


def test_windows_and_several_topics_are_committed(world):
    """A query with a watermark, a window and another source commits only the offsets of the handler's topics."""
    world.make_topic(2)
    world.produce(numbers(0, 30), keys=numbers(0, 30))
    rows = Rows(world)
    ticks = world.spark.readStream.format("rate").load().selectExpr("timestamp", "-1L AS value")
    counted = rows.records().select("timestamp", results(rows.app, "double")).union(ticks)
    windows = counted.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute")).count()

    world.spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        query = rows.start(windows, write=lambda writer: writer.start(rows.table))
        world.until(lambda: world.committed == world.ends or not query.is_active)
        query.stop()
    finally:
        world.spark.conf.unset("spark.sql.shuffle.partitions")

    assert world.committed == world.ends
    assert len(world.ledger.lines()) == 30


def test_a_batch_of_the_commit_log_is_committed_by_the_next_start(world):
    """If the driver could not commit a batch that Spark has written, the next start commits it and repeats nothing."""
    rows = ten_records(world)
    rows.run()
    text = decode_metadata(world.metadata, 10).user_text
    world.produce(numbers(10, 20))
    rows.run()
    # As if the driver had been killed before the commit of the second batch.
    with SparkOffsetStore(resolve(rows.app.options), world.group, Observer()) as store:
        store.commit({TopicPartition(world.topic, 0): PartitionCommit(10)}, text, may_go_back=True)

    rows.run()

    assert world.committed == {0: 20}
    assert rows.found == list(range(20))
    assert set(world.ledger.counts().values()) == {1}


@pytest.mark.parametrize("is_new_group", [True, False])
def test_the_first_batch_is_committed_by_the_next_start(world, monkeypatch, is_new_group):
    """If the driver dies before its first commit, the next start commits the finished batches and repeats nothing."""
    world.make_topic()
    world.produce(numbers(0, 20))
    begin = 0 if is_new_group else 5
    if not is_new_group:
        with SparkOffsetStore(resolve(make_app(world).options), world.group, Observer()) as store:
            store.commit({TopicPartition(world.topic, 0): PartitionCommit(5, OffsetMap(5, 15, (7,)))}, "")
    rows, commit = Rows(world), SparkOffsetStore.commit

    def only_begins(store, offsets, text: str, **more: bool) -> None:
        if not text.startswith("spark begins"):
            raise BrokerConnectionError("no broker answers")
        commit(store, offsets, text, **more)

    monkeypatch.setattr(SparkOffsetStore, "commit", only_begins)
    with pytest.raises(BrokerConnectionError):
        rows.run()
    monkeypatch.setattr(SparkOffsetStore, "commit", commit)
    assert world.committed == {0: begin}
    assert (decode_metadata(world.metadata, begin).offset_map is None) == is_new_group
    world.produce(numbers(20, 30))

    rows.run()

    assert rows.found == list(range(begin, 30))
    assert world.ledger.counts() == {(0, n): 1 for n in range(begin, 30)}
    assert world.committed == {0: 30}


def test_a_group_that_was_reset_to_the_start_is_refused(world):
    """If the group was reset to the query's start, its records are not skipped silently."""
    rows = ten_records(world)
    rows.run()
    world.commit(0)

    with pytest.raises(ConfigurationError, match=r"reads .*\[0\] from offset 10, and its group has committed offset 0"):
        rows.start()
    assert world.committed == {0: 0}


def test_a_query_whose_commits_fail_is_stopped(world, monkeypatch):
    """If the checkpoint cannot be read for a time, Spark's query is stopped, because nothing would be committed."""
    monkeypatch.setattr(streaming, "_MAX_FAILING_S", 0.2)
    monkeypatch.setattr(streaming, "_RETRY_S", 0.1)
    world.make_topic()
    world.produce(numbers(0, 10))
    rows, start = Rows(world), QueryLog.start

    def fail(log: QueryLog):
        if log.last_planned is not None:
            raise OSError("the store does not answer")
        return start(log)

    monkeypatch.setattr(QueryLog, "start", fail)
    query = rows.start(write=rows.write_forever)

    with pytest.raises(TailraceError, match="the store does not answer"):
        query.await_termination(120)
    assert not query.query.isActive
    assert world.committed == {0: 0}


def test_a_query_survives_calls_of_spark_that_fail(world, monkeypatch):
    """If calls of Spark and reads of the checkpoint fail once, the query goes on, and its batches are committed."""
    monkeypatch.setattr(streaming, "_RETRY_S", 0.1)
    world.make_topic()
    world.produce(numbers(0, 10))
    rows, start, failures = Rows(world, hooks=[events := EventRecorder()]), QueryLog.start, []

    def fail_once(log: QueryLog):
        if log.last_planned is not None and not failures:
            failures.append(1)
            raise OSError("the store does not answer")
        return start(log)

    monkeypatch.setattr(QueryLog, "start", fail_once)
    query = rows.start(write=rows.write_forever)
    world.until(lambda: world.committed == {0: 10} or not query.is_active)
    with monkeypatch.context() as patch:
        patch.setattr(type(query.query), "awaitTermination", lambda *_: failures.append(2) or 1 / 0)
        world.until(lambda: failures[-1] == 2)
    world.produce(numbers(10, 20))
    world.until(lambda: world.committed == {0: 20} or not query.is_active)
    query.stop()

    assert query.await_termination(0)
    assert world.committed == {0: 20}
    assert [one.will_retry for one in events.of(CommitFailed)] == [True, True]


def test_stop_commits_the_last_batch(world):
    """stop() waits for the running batch, commits it, and later starts repeat nothing."""
    world.make_topic()
    world.produce(numbers(0, 200))
    rows = Rows(world)
    query = rows.start(write=rows.write_forever)
    world.until(lambda: world.committed != {0: 0})
    query.stop()

    committed = world.committed[0]
    assert rows.found[:committed] == list(range(committed))
    rows.run()
    assert rows.found == list(range(200))
    assert world.committed == {0: 200}


# ---- bad input ---------------------------------------------------------------------------------------------------


def test_a_group_with_a_live_member_is_refused_before_the_first_record(world):
    """The source and the start raise while the group has a live member, and no record is handled."""
    world.make_topic()
    world.produce(numbers(0, 3))
    rows = Rows(world)
    records = rows.records().select("offset", results(rows.app, "double"))
    live = world.app(client_id="the-live-one")

    @live.handler("another-topic")
    async def wait(_number: int) -> None:
        await asyncio.Event().wait()

    world.make_topic(name="another-topic")
    with Live(live):
        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            group_source(rows.app, "double")
        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            rows.start(records)

    assert world.ledger.lines() == []


def test_a_member_that_joins_ends_the_query(world):
    """If a member joins, the commit is refused and the query ends with an error that names the member."""
    rows = ten_records(world)
    query = rows.start(write=rows.write_forever)
    world.until(lambda: world.committed == {0: 10})
    live = world.app(client_id="the-live-one")

    @live.handler("another-topic-2")
    async def wait(_number: int) -> None:
        await asyncio.Event().wait()

    world.make_topic(name="another-topic-2")
    with Live(live):
        world.produce(numbers(10, 20))
        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            query.await_termination(120)

    assert world.committed == {0: 10}


def test_a_second_query_of_the_group_is_refused(world):
    """While a query runs, another app of the same group cannot start a query over its topics."""
    rows = ten_records(world)
    query = rows.start(write=rows.write_forever)
    other = Rows(world)

    with pytest.raises(ConsumerStateError, match=r"a query of .*double for group .* stop\(\) it first"):
        start_in_group(other.app, "double", rows.records(), str(world.folder / "other"), other.write)
    query.stop()


def test_another_query_of_the_group_elsewhere_ends_the_first(world):
    """If another process commits for the group, the query ends with an error and commits nothing."""
    rows = ten_records(world)
    query = rows.start(write=rows.write_forever)
    world.until(lambda: world.committed == {0: 10})
    world.commit(3)
    world.produce(numbers(10, 20))

    with pytest.raises(CommitFailedError, match=r"another client committed offset 3 of .*\[0\]"):
        query.await_termination(120)
    assert world.committed == {0: 3}


def test_a_checkpoint_of_another_query_is_refused(world):
    """A checkpoint with other offsets than the group's, or of other topics, is refused before a record is handled."""
    rows = ten_records(world)
    rows.run()
    handled = len(world.ledger.lines())
    world.commit(4)
    with pytest.raises(ConfigurationError, match=r"reads .*\[0\] from offset 10, and its group has committed offset 4"):
        rows.start()
    world.make_topic()
    with pytest.raises(ConfigurationError, match=r"does not read the topics of handler '.*double'"):
        Rows(world).start()

    assert len(world.ledger.lines()) == handled


def test_a_query_that_starts_elsewhere_ends_without_a_commit(world):
    """A new query that does not start at the group's offset, or reads other topics, ends and commits nothing."""
    world.make_topic()
    world.produce(numbers(0, 10))
    world.commit(4)
    rows = Rows(world)
    earlier = rows.records(startingOffsets="earliest").select("offset", results(rows.app, "double"))
    ticks = world.spark.readStream.format("rate").load()

    with pytest.raises(ConfigurationError, match=r"from offset 0, and its group has committed offset 4"):
        rows.start(earlier, write=rows.write_forever).await_termination(120)
    with pytest.raises(ConfigurationError, match=r"reads none of the topics of handler '.*double'"):
        rows.start(ticks, "ticks", write=lambda writer: writer.start(str(world.folder / "t"))).await_termination(120)
    assert world.committed == {0: 4}


def test_a_recreated_topic_ends_the_query(world):
    """If the topic is recreated between two batches, nothing of it is committed, and its checkpoint is refused."""
    rows = ten_records(world)
    query = rows.start(write=rows.write_forever)
    world.until(lambda: world.committed == {0: 10})
    world.admin.delete_topics([world.topic])[world.topic].result(20)
    world.until(lambda: world.topic not in world.admin.list_topics(timeout=20).topics)
    world.make_topic(name=world.topic)
    world.produce(numbers(0, 20))

    with pytest.raises(TailraceError):
        query.await_termination(120)
    assert world.committed.get(0) in {None, -1001}
    with pytest.raises(ConfigurationError, match=r"from offset [12]0, and its group has committed offset 0"):
        rows.start()
    rows.table = str(world.folder / "again")
    rows.run(checkpoint="again")
    assert rows.found == list(range(20))


def test_other_handlers_of_the_topic_are_refused(world):
    """A second handler of the group and topic would miss the committed records, so it is refused."""
    world.make_topic()
    rows = Rows(world)
    app = world.app()

    @app.handler(world.topic, when=lambda record: record.offset % 2 == 0)
    async def double(number: int) -> int:
        return 2 * number

    @app.handler(world.topic, when=lambda record: record.offset % 2 == 1)
    async def other(number: int) -> int:
        return number

    records = rows.records()
    with pytest.raises(ConfigurationError, match=r"handler '.*other' of group .* give one of the handlers another"):
        rows.start(records, app=app)


def test_wrong_arguments_are_refused(world):
    """A batch DataFrame, and a function that starts no query, raise errors with the right call."""
    world.make_topic()
    rows = Rows(world)

    with pytest.raises(ConfigurationError, match=r"spark\.readStream"):
        rows.start(world.spark.range(3))
    with pytest.raises(ConfigurationError, match=r"write must return the query .*writer\.start\(\)"):
        rows.start(write=lambda writer: writer)
    # The refused start has left nothing that a later one would meet.
    rows.run()


def test_a_query_that_write_does_not_return_is_stopped(world):
    """If write starts a query and does not return it, or raises, the query is stopped, and no other query is."""
    world.make_topic()
    world.produce(numbers(0, 10))
    rows, started = Rows(world), []

    def forget(writer) -> None:
        started.append(writer.start(rows.table))

    def fail(writer) -> None:
        forget(writer)
        raise OSError("the disk is full")

    other = world.spark.readStream.format("rate").load().writeStream.format("noop")
    other = other.option("checkpointLocation", str(world.folder / "noop")).start()
    try:
        with pytest.raises(ConfigurationError, match="write must return the query that it started, not None"):
            rows.start(write=forget)
        with pytest.raises(OSError, match="the disk is full"):
            rows.start(checkpoint="another", write=fail)
        assert [one.isActive for one in started] == [False, False]
        assert other.isActive
    finally:
        for one in (*started, other):
            one.stop()


def test_a_damaged_checkpoint_is_named(world):
    """A file of the checkpoint that cannot be read raises an error with its path."""
    world.make_topic()
    world.produce(numbers(0, 3))
    rows = Rows(world)
    rows.run()
    (world.folder / "checkpoint" / ".metadata.crc").unlink(missing_ok=True)
    (world.folder / "checkpoint" / "metadata").write_text("{")

    with pytest.raises(CorruptCheckpointError, match="checkpoint/metadata cannot be read"):
        rows.start()


def test_the_sample_of_the_page_runs(world, monkeypatch):
    """The sample of the page, with a broker and a folder of this test, fills a table and commits."""
    page = (Path(__file__).parents[2] / "docs" / "howto" / "run-on-spark.md").read_text()
    first, sample = (
        page.partition(heading)[2].partition("```python\n")[2].partition("```")[0]
        for heading in ("## Results as columns", "## Queries in the app's group")
    )
    world.make_topic(2, name="trips")
    world.topic, world.partitions = "trips", 2
    world.produce([b'{"city": "Oslo", "km": 3, "at": "2026-01-01T12:00:00Z"}'] * 5)
    # A program or a notebook, from which workers cannot import.
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    world.spark.sql(f"CREATE DATABASE page LOCATION '{world.folder}/page'")
    try:
        world.spark.catalog.setCurrentDatabase("page")
        exec(first.replace("localhost:9092", world.server.bootstrap_servers), vars(module))
        changes = {"/var/lib/fares": f"{world.folder}/checkpoint", 'processingTime="5 seconds"': "availableNow=True"}
        for old, new in changes.items():
            assert old in sample
            sample = sample.replace(old, new)
        exec(sample, vars(module))
        assert [row.cents for row in world.spark.table("fares").collect()] == [360] * 5
    finally:
        world.spark.catalog.setCurrentDatabase("default")
        world.spark.sql("DROP DATABASE page CASCADE")
    world.group = "fares"
    assert world.committed == world.ends
