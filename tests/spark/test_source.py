"""``format("tailrace")``: Spark reads Kafka with tailrace's own client."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pyspark
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import BrokerConnectionError, ConfigurationError, OffsetOutOfRangeError, TailraceError, TopicPartition
from tailrace.errors import CorruptCheckpointError
from tailrace.observe.events import CommitFailed, OffsetsCommitted
from tailrace.protocol.groups import OffsetCommitRequest
from tailrace.spark import source
from tailrace.spark.session import java_home
from tailrace.spark.source import (
    LIMITS_BATCHES,
    OffsetRange,
    RangeReader,
    SparkSource,
    StreamReader,
    offsets_json,
    offsets_of_json,
)
from tailrace.testing import KafkaServer
from tests.spark import fares
from tests.support.commands import environment
from tests.support.event_recorder import EventRecorder
from tests.support.witness import Witness

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(540)]

ROOT = Path(__file__).parents[2]
COLUMNS = ("topic", "partition", "offset", "key", "value", "timestamp", "headers")


def own(reader, world, **options):
    """Return the records of the world's topic, or those that the options name, read by tailrace."""
    named = {} if {"app", "subscribePattern"} & options.keys() else {"subscribe": world.topic}
    servers = world.server.bootstrap_servers
    return reader.format("tailrace").options(bootstrap_servers=servers, **{**named, **options}).load()


def java(reader, world, **options):
    """Return the records of the world's topic, read by Spark's Java connector."""
    named = {"kafka.bootstrap.servers": world.server.bootstrap_servers, "subscribe": world.topic}
    return reader.format("kafka").options(**named, includeHeaders="true", **options).load()


def rows_of(table) -> list[tuple]:
    rows = table.select(*COLUMNS).orderBy("partition", "offset").collect()
    return [(*row[:6], [tuple(one) for one in row[6] or ()]) for row in rows]


def run_to_the_end(table, folder: Path) -> None:
    """Write a stream as Parquet, with the trigger availableNow, until it ends."""
    writer = table.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    assert query.awaitTermination(120)


def offsets_in(spark, folder: Path) -> list[tuple]:
    return sorted(
        tuple(one) for one in spark.read.parquet(str(folder / "rows")).select("partition", "offset").collect()
    )


def every_offset(ends: dict[int, int]) -> list[tuple[int, int]]:
    return [(number, offset) for number, end in sorted(ends.items()) for offset in range(end)]


# ---- batches ---------------------------------------------------------------------------------------------------------


def fill_with_everything(world) -> None:
    """Write compressed batches, null keys and values, headers, and an aborted transaction at the end of the log."""
    world.make_topic(2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        world.produce(
            [b"%d" % n if n % 5 else None for n in range(40)],
            keys=[b"k%d" % (n % 3) if n % 4 else None for n in range(40)],
            headers=[("number", b"%d" % number), ("empty", None)],
            compression=codec,
        )
    producer = Producer({"bootstrap.servers": world.server.bootstrap_servers, "transactional.id": world.topic})
    producer.init_transactions()
    for is_kept in (True, False):
        producer.begin_transaction()
        for number in range(20):
            producer.produce(world.topic, b"kept" if is_kept else b"aborted", partition=number % 2)
        producer.flush()
        if is_kept:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_a_batch_has_the_rows_of_the_java_connector(world, isolation_level):
    """Rows are those of ``format("kafka")``: compressed, null, with headers, in transactions, also in split ranges."""
    fill_with_everything(world)
    expected = rows_of(java(world.spark.read, world, **{"kafka.isolation.level": isolation_level}))

    options = {"includeHeaders": "true", "isolation_level": isolation_level}
    assert len(expected) == (220 if isolation_level == "read_committed" else 240)
    assert rows_of(own(world.spark.read, world, **options)) == expected
    table = own(world.spark.read, world, maxRecordsPerPartition="7", **options)
    assert table.rdd.getNumPartitions() > 30
    assert rows_of(table) == expected


def test_a_batch_starts_at_the_committed_offsets(world):
    """With ``group_id``, a batch has the records from the group's committed offsets on, and commits nothing."""
    world.make_topic(1)
    world.produce([b"%d" % n for n in range(30)])
    world.commit(12)

    table = own(world.spark.read, world, group_id=world.group)
    assert [row.offset for row in table.collect()] == list(range(12, 30))
    assert own(world.spark.read, world).count() == 30
    assert world.committed == {0: 12}


def test_a_topic_without_records_is_an_empty_batch(world):
    """An empty topic, and one whose records are all committed, give no rows, and end."""
    world.make_topic(2)
    assert own(world.spark.read, world).collect() == []
    world.produce([b"1"], partition=0)
    world.commit(1)
    assert own(world.spark.read, world, group_id=world.group).collect() == []


# ---- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not LIMITS_BATCHES, reason="needs pyspark 4.2")
def test_a_stream_continues_exactly_and_leaves_no_lag(world, tmp_path):
    """Each record is in one batch of limited size, over a restart, and the group has no lag when the query ends."""
    world.make_topic(2)
    world.produce([b"%d" % n for n in range(100)], keys=[b"%d" % n for n in range(100)])
    table = own(world.spark.readStream, world, group_id=world.group, maxOffsetsPerTrigger="40")
    run_to_the_end(table, tmp_path)
    assert world.committed == world.ends
    first_ends = world.ends

    world.produce([b"%d" % n for n in range(100)], keys=[b"%d" % n for n in range(100)])
    assert world.committed == first_ends
    run_to_the_end(table, tmp_path)

    assert world.committed == world.ends
    assert offsets_in(world.spark, tmp_path) == every_offset(world.ends)
    files = world.spark.read.parquet(str(tmp_path / "rows")).groupBy(F.input_file_name()).count().collect()
    assert max(row["count"] for row in files) <= 40


def test_a_running_stream_commits_its_last_batch(world, tmp_path):
    """The group has no lag while the query waits for records, and a new partition is read from its beginning."""
    world.make_topic(1)
    world.produce([b"%d" % n for n in range(10)])
    table = own(world.spark.readStream, world, group_id=world.group)
    writer = table.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "rows"))
    try:
        world.until(lambda: query.exception() or world.committed == {0: 10})
        world.server.add_partitions(world.topic, 2)
        world.partitions = 2
        world.produce([b"%d" % n for n in range(5)], partition=1)
        world.until(lambda: query.exception() or world.committed == {0: 10, 1: 5})
    finally:
        query.stop()

    assert offsets_in(world.spark, tmp_path) == every_offset({0: 10, 1: 5})


def test_a_stream_starts_at_the_committed_offsets(world, tmp_path):
    """A query without a checkpoint has the records from the group's committed offsets on."""
    world.make_topic(1)
    world.produce([b"%d" % n for n in range(30)])
    world.commit(12)
    run_to_the_end(own(world.spark.readStream, world, group_id=world.group), tmp_path)

    assert offsets_in(world.spark, tmp_path) == [(0, offset) for offset in range(12, 30)]


def test_a_stream_does_not_handle_what_another_client_has_handled(world, tmp_path):
    """A query whose group has committed beyond its checkpoint ends with an error, and moves no offset backward."""
    world.make_topic(1)
    world.produce([b"1", b"2"])
    table = own(world.spark.readStream, world, group_id=world.group)
    run_to_the_end(table, tmp_path)
    world.produce([b"3", b"4"])
    world.commit(3)

    with pytest.raises(PySparkException, match=r"CommitFailedError.*committed offset 3.*ends at offset 2"):
        run_to_the_end(table, tmp_path)
    assert world.committed == {0: 3}


def delete_before(world, offset: int) -> None:
    world.server.delete_records(world.topic, {0: offset})


def test_a_stream_ends_if_its_next_records_were_removed(world, tmp_path):
    """A query whose next record was removed by retention ends with OffsetOutOfRangeError, and skips nothing."""
    world.make_topic(1)
    world.produce([b"1", b"2"])
    table = own(world.spark.readStream, world)
    run_to_the_end(own(world.spark.readStream, world, auto_offset_reset="earliest"), tmp_path)
    world.produce([b"3", b"4", b"5"])
    delete_before(world, 4)

    with pytest.raises(PySparkException, match=r"OffsetOutOfRangeError.*offset 2 is outside the log"):
        run_to_the_end(table, tmp_path)


def test_a_stream_ends_if_its_topic_was_recreated(world, tmp_path):
    """A query whose topic was recreated ends with an error before it reads a record of the new topic."""
    world.make_topic(1)
    world.produce([b"1", b"2"])
    table = own(world.spark.readStream, world, auto_offset_reset="earliest")
    run_to_the_end(table, tmp_path)
    world.server.delete_topic(world.topic)
    world.make_topic(1, world.topic)
    world.produce([b"new"] * 5)

    with pytest.raises(PySparkException, match="was recreated"):
        run_to_the_end(table, tmp_path)
    assert len(offsets_in(world.spark, tmp_path)) == 2


@pytest.mark.skipif(not LIMITS_BATCHES, reason="Spark runs availableNow as one batch before pyspark 4.2")
def test_a_partition_added_between_two_runs_is_read(world, tmp_path):
    """A partition that was added after a run with availableNow is read by the next run, from its beginning."""
    world.make_topic(1)
    world.produce([b"1", b"2"])
    table = own(world.spark.readStream, world, group_id=world.group)
    run_to_the_end(table, tmp_path)
    world.server.add_partitions(world.topic, 2)
    world.partitions = 2
    world.produce([b"3", b"4", b"5"], partition=1)
    run_to_the_end(table, tmp_path)

    assert offsets_in(world.spark, tmp_path) == every_offset({0: 2, 1: 3})
    assert world.committed == {0: 2, 1: 3}


@pytest.mark.parametrize("trigger", ["availableNow", "once"])
def test_the_first_batch_is_repeated_from_its_start(world, tmp_path, trigger):
    """If the first batch fails, the next run repeats it from the same start, although the group has moved on."""
    world.make_topic(1)
    world.produce([b"%d" % n for n in range(10)])
    world.commit(2)
    table = own(world.spark.readStream, world, group_id=world.group, enable_auto_commit="false")
    rows: list[int] = []

    def run(handle) -> None:
        writer = table.writeStream.foreachBatch(handle).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(**{trigger: True}).start().awaitTermination(120)

    def fail(_batch, _number) -> None:
        raise RuntimeError("the sink is full")

    with pytest.raises(PySparkException, match="the sink is full"):
        run(fail)
    world.commit(7)
    run(lambda batch, _: rows.extend(row.offset for row in batch.select("offset").collect()))

    assert sorted(rows) == list(range(2, 10))


def offsets_at(world, offset: int) -> dict:
    """Return offsets of a checkpoint for the first partition of the world's topic."""
    return offsets_json({TopicPartition(world.topic, 0): offset}, {world.topic: id_of(world)})


def test_a_stream_ends_if_its_log_was_truncated(world):
    """A query whose next offset is after the end of the log ends with OffsetOutOfRangeError, and skips nothing.

    So it is after the election of a leader that does not have the last records.
    """
    world.make_topic(1)
    world.produce([b"1", b"2"])

    with stream_reader(world) as reader, pytest.raises(OffsetOutOfRangeError, match="offset 5 is outside") as raised:
        reader.latestOffset(offsets_at(world, 5))
    assert "start the query with a new checkpoint" in "".join(raised.value.__notes__)


def test_a_stream_waits_for_a_transaction_beyond_which_it_has_read(world):
    """With read_committed, a query whose next offset is after the last stable offset waits, and is no error."""
    world.make_topic(1)
    producer = Producer({"bootstrap.servers": world.server.bootstrap_servers, "transactional.id": world.topic})
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(world.topic, b"open", partition=0)
    producer.flush()
    start = offsets_at(world, 3)

    with stream_reader(world, isolation_level="read_committed") as reader:
        assert reader.latestOffset(start) == start
    producer.abort_transaction()


def test_an_idle_stream_renews_its_commits(world, monkeypatch):
    """A stream commits offsets that do not change again, before the broker expires them."""
    monkeypatch.setattr(source, "RECOMMIT_S", 0.0)
    world.make_topic(2)
    world.produce([b"1"], partition=0)
    with stream_reader(world, group_id=world.group, auto_offset_reset="earliest") as reader:
        end = reader.latestOffset(reader.latestOffset())
        assert world.committed == {0: 1, 1: 0}
        world.admin.delete_consumer_groups([world.group])[world.group].result(20)
        assert reader.latestOffset(end) == end
    assert world.committed == {0: 1, 1: 0}


def test_a_stream_goes_on_if_a_commit_has_no_answer(world):
    """A commit without an answer is an event and ends no stream, and the next commit includes its offsets."""
    with KafkaServer(proxied=True) as server:
        world.server, recorder = server, EventRecorder()
        world.topic = "t"
        server.create_topic("t", 1)
        witness = Witness(server.bootstrap_servers)
        asyncio.run(witness.commit("other", "t", 0, ""))  # From here on, the broker has a coordinator.
        options = {"group_id": "g", "auto_offset_reset": "earliest", "default_api_timeout_ms": "5000"}
        with stream_reader(world, recorder, **options) as reader:
            first = reader.latestOffset()
            witness.produce("t", [b"1", b"2"])
            end = reader.latestOffset(first)
            with server.proxy.drop_request(OffsetCommitRequest, times=None):
                assert reader.latestOffset(end) == end
            assert [one.will_retry for one in recorder.of(CommitFailed)] == [True]
            assert reader.latestOffset(end) == end
            assert [one.offsets for one in recorder.of(OffsetsCommitted)][-1] == {TopicPartition("t", 0): 2}


# ---- handlers --------------------------------------------------------------------------------------------------------


def test_rows_are_the_results_of_a_handler(world, tmp_path):
    """With ``app`` and ``handler``, a batch and a stream have the columns and rows of ``results``."""
    world.topic, world.partitions = fares.SOURCED_TOPIC, 2
    world.server.create_topic(fares.SOURCED_TOPIC, 2, exist_ok=True)
    world.produce(fares.trips(60), keys=[b"%d" % (n % 3) for n in range(60)])
    times = sum(world.ends.values()) // 60  # other tests may have produced the same records
    options = {"app": "tests.spark.fares:sourced", "handler": "price", "group_id": world.group}
    batch = own(world.spark.read, world, **options)

    assert batch.schema.simpleString() == "struct<city:string,at:timestamp,cents:bigint,note:string>"
    assert not batch.schema["cents"].nullable
    assert batch.count() == 48 * times
    assert batch.agg(F.sum("cents")).first()[0] == times * sum(120 * (n % 5) for n in range(60))
    run_to_the_end(own(world.spark.readStream, world, **options), tmp_path)
    assert sorted(world.spark.read.parquet(str(tmp_path / "rows")).collect()) == sorted(batch.collect())
    assert world.committed == world.ends or not LIMITS_BATCHES


def test_the_samples_of_the_page_run(world, tmp_path, monkeypatch):
    """The samples of the section about the source run, with the addresses and names of this test."""
    text = (ROOT / "docs" / "howto" / "run-on-spark.md").read_text()
    first = re.search(r"^```python\n(.*?)^```", text.partition("## Results as columns")[2], re.DOTALL | re.MULTILINE)
    section = text.partition("## Read with tailrace's own source")[2].partition("\n## ")[0]
    samples = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    world.server.create_topic("trips", exist_ok=True)
    world.server.create_topic(fares.SOURCED_TOPIC, 2, exist_ok=True)
    servers = f'bootstrap_servers="{world.server.bootstrap_servers}"'
    ending = f'.trigger(availableNow=True).start("{tmp_path}/rows").awaitTermination(120)'
    for old, new in {
        "localhost:9092": world.server.bootstrap_servers,
        'app="shop:billing", handler="charge"': f'app="{fares.__name__}:sourced", handler="price", {servers}',
        "/var/lib/fares": f"{tmp_path}/checkpoint",
        '.toTable("fares")': ending,
    }.items():
        samples = [one.replace(old, new) for one in samples]

    for sample in (first[1], *samples):
        exec(compile(sample, "page", "exec"), vars(module))

    assert module.fares.columns == ["city", "at", "cents", "note"]


def test_a_stream_that_commits_has_the_only_handler_of_its_topic():
    """A stream would commit the records of another handler of the group; without commits, it is allowed."""
    options = {"app": f"{fares.__name__}:shared", "handler": "price"}

    with pytest.raises(ConfigurationError, match=r"handler '.*other' of group 'shared' reads the same topics"):
        StreamReader(SparkSource.of_options(options))

    StreamReader(SparkSource.of_options({**options, "enable_auto_commit": "false"}))


# ---- ranges ----------------------------------------------------------------------------------------------------------


def reader_of(world, **options) -> RangeReader:
    settings = {"bootstrap_servers": world.server.bootstrap_servers, "subscribe": world.topic, **options}
    return SparkSource.of_options(settings).range_reader()


@contextlib.contextmanager
def stream_reader(world, *hooks, **options) -> Iterator[StreamReader]:
    """Yield the planner of a stream, without Spark."""
    settings = {"bootstrap_servers": world.server.bootstrap_servers, "subscribe": world.topic, **options}
    described = SparkSource.of_options(settings)
    reader = StreamReader(dataclasses.replace(described, config=dataclasses.replace(described.config, hooks=hooks)))
    try:
        yield reader
    finally:
        reader.stop()


def id_of(world) -> str:
    with stream_reader(world) as reader:
        return offsets_of_json(reader.latestOffset())[1][world.topic]


def test_a_task_fails_if_records_of_its_range_were_removed(world):
    """A task whose first record was removed after the planning raises OffsetOutOfRangeError."""
    world.make_topic(1)
    world.produce([b"1", b"2", b"3"])
    planned = OffsetRange(world.topic, 0, id_of(world), 0, 3)
    delete_before(world, 2)

    with pytest.raises(OffsetOutOfRangeError, match="offset 0 is outside the log"):
        list(reader_of(world).read(planned))


def test_a_task_fails_if_its_topic_was_recreated(world):
    """A task whose topic was recreated after the planning fails, even if the new topic has records at its offsets."""
    world.make_topic(1)
    world.produce([b"1", b"2"])
    planned = OffsetRange(world.topic, 0, id_of(world), 0, 2)
    reader = reader_of(world)
    assert sum(batch.num_rows for batch in reader.read(planned)) == 2
    world.server.delete_topic(world.topic)
    world.make_topic(1, world.topic)
    world.produce([b"3", b"4", b"5"])

    with pytest.raises(TailraceError, match="was recreated"):
        list(reader.read(planned))


def test_a_range_of_compacted_records_ends(world):
    """A range whose last records were removed by compaction ends with the records that are left."""
    world.make_topic(1)
    resource = ConfigResource(ResourceType.TOPIC, world.topic)
    for name, value in {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "1"}.items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    for done in world.admin.incremental_alter_configs([resource]).values():
        done.result()
    for _ in range(5):
        world.produce([b"value"], keys=[b"key"])
        world.produce([b"value"], keys=[b"other"])

    def rows(end: int) -> int:
        planned = OffsetRange(world.topic, 0, "", 0, end)
        return sum(batch.num_rows for batch in reader_of(world).read(planned))

    # The cleaner runs every 15 seconds.
    world.until(lambda: rows(8) < 8)
    assert rows(8) < 8


def test_a_task_fails_if_its_leader_does_not_answer(world, tmp_path):
    """A task whose broker has stopped raises BrokerConnectionError within ``default_api_timeout_ms``."""
    with KafkaServer() as server:
        world.server = server
        server.create_topic("t", 1)
        reader = reader_of(world, subscribe="t", default_api_timeout_ms="1000")
        assert list(reader.read(OffsetRange("t", 0, "", 0, 0))) == []
    with pytest.raises(BrokerConnectionError):
        list(reader.read(OffsetRange("t", 0, "", 0, 1)))


# ---- drivers of their own --------------------------------------------------------------------------------------------


def started(how: str, folder: Path, variables: Mapping[str, str] = MappingProxyType({}), **options: str):
    """Start a driver without the Java connector in its own process, with environment variables."""
    command = [sys.executable, str(Path(__file__).with_name("source_driver.py")), how, str(folder), json.dumps(options)]
    with (folder / "stderr").open("a") as stderr:
        return subprocess.Popen(
            command,
            env=environment(PYTHONPATH=str(ROOT), **variables),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )


@pytest.mark.slow
def test_a_killed_driver_loses_and_repeats_nothing(world, tmp_path):
    """A stream whose driver is killed twice has each record once in Spark's sink of files, and leaves no lag."""
    world.make_topic(3)
    world.produce([b"%d" % n for n in range(30_000)], keys=[b"%d" % n for n in range(30_000)])
    options = {"bootstrap_servers": world.server.bootstrap_servers, "subscribe": world.topic, "group_id": world.group}
    for kill_at in (2_000, 12_000):
        driver = started("stream", tmp_path, **options)
        java = int(driver.stdout.readline())
        world.until(lambda at=kill_at, one=driver: one.poll() is not None or sum(world.committed.values()) > at)
        os.kill(java, signal.SIGKILL)
        driver.kill()
        driver.communicate(timeout=60)
        assert sum(world.committed.values()) < 30_000

    table = own(world.spark.readStream, world, group_id=world.group).select("partition", "offset")
    run_to_the_end(table, tmp_path)
    assert offsets_in(world.spark, tmp_path) == every_offset(world.ends)
    assert world.committed == world.ends


@pytest.mark.slow
def test_a_declarative_pipeline_reads_without_a_connector(world, tmp_path):
    """``spark-pipelines run`` fills a streaming table with the results of a handler, and leaves no lag."""
    world.topic, world.partitions = fares.SOURCED_TOPIC, 2
    world.server.create_topic(fares.SOURCED_TOPIC, 2, exist_ok=True)
    world.produce(fares.trips(60))
    count = sum(world.ends.values())
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: fares\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: pipeline/**\n"
    )
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "tables.py").write_text(
        "from pyspark import pipelines as dp\n"
        "from pyspark.sql import SparkSession\n\n"
        "@dp.table\n"
        "def priced():\n"
        "    reader = SparkSession.active().readStream.format('tailrace')\n"
        "    reader = reader.options(app='tests.spark.fares:sourced', handler='price')\n"
        f"    servers = '{world.server.bootstrap_servers}'\n"
        f"    return reader.options(bootstrap_servers=servers, group_id='{world.group}').load()\n"
    )
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--remote", "local[2]"]
    command += ["--conf", f"spark.sql.warehouse.dir={tmp_path}/warehouse", "--spec", f"{tmp_path}/spark-pipeline.yml"]
    variables = {"JAVA_HOME": str(java_home(pyspark.__version__)), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command,
        env=environment(PYTHONPATH=str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert world.spark.read.parquet(str(tmp_path / "warehouse" / "priced")).count() == count * 4 // 5
    assert world.committed == world.ends


@pytest.mark.slow
@pytest.mark.parametrize("how", ["classic", "connect"])
def test_no_secret_is_in_plans_logs_or_the_user_interface(world, tmp_path, how):
    """Tasks sign in by a password of the driver, which is in no plan, log, error, checkpoint or event of Spark.

    The user interface shows the event log. On Spark Connect, the source is found by its name, too.
    """
    with KafkaServer(security="PLAIN") as server:
        server.create_topic("t", 1)
        options = {name: str(value) for name, value in server.client_options.items()}
        secret = options.pop("sasl_plain_password")
        producer = Producer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": options["sasl_mechanism"],
                "sasl.username": options["sasl_plain_username"],
                "sasl.password": secret,
            }
        )
        for number in range(500):
            producer.produce("t", b"%d" % number)
        assert producer.flush(60) == 0
        driver = started(
            how, tmp_path, {"TAILRACE_SASL_PLAIN_PASSWORD": secret}, subscribe="t", group_id="g", **options
        )
        out, _ = driver.communicate(timeout=500)

    log = (tmp_path / "stderr").read_text()
    assert driver.returncode == 0, log
    texts = {"stdout": out, **{str(one): one.read_text("latin-1") for one in tmp_path.rglob("*") if one.is_file()}}
    if how == "connect":
        assert json.loads(out) == [0, 500]
    else:
        assert "500" in out.splitlines()
        assert "UnknownTopicError" in out
        assert "did you mean 'bootstrap_servers'" in out
    assert any("SparkListenerSQLExecutionStart" in one for one in texts.values())
    assert [name for name, text in texts.items() if secret in text] == []


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "subscribe or subscribePattern, and neither is set"),
        ({"subscribe": "t", "subscribePattern": "t.*"}, "both are set"),
        ({"subscribe": "t", "bootstrap_server": "b:1"}, "did you mean 'bootstrap_servers'"),
        ({"subscirbe": "t"}, "did you mean 'subscribe'"),
        ({"subscribe": "t", "kafka.bootstrap.servers": "b:1"}, "an option of Spark's Java connector"),
        ({"subscribe": "t", "startingOffsets": "earliest"}, "use auto_offset_reset"),
        ({"subscribe": "t", "maxOffsetsPerTrigger": "0"}, "must be a positive integer, not '0'"),
        ({"subscribe": "t", "fetch_max_wait_ms": "soon"}, "fetch_max_wait_ms"),
        ({"subscribe": "t", "sasl_plain_password": "x"}, "set TAILRACE_SASL_PLAIN_PASSWORD or"),
        ({"subscribe": "t", "ssl_key_pem": "x"}, "ssl_key_pem must not be an option of a source"),
        ({"app": "tests.spark.fares:sourced"}, "handler is missing"),
        ({"app": "tests.spark.fares:sourced", "handler": "price", "subscribe": "t"}, "leave out subscribe"),
        ({"app": "tests.spark.fares:sourced", "handler": "cost"}, "no handler 'cost'"),
        ({"app": "tests.spark.fares:sourced", "handler": "silent"}, "handler .*silent has no return annotation"),
        ({"app": "no_module:app", "handler": "price"}, "(?s)no module 'no_module'.*PYTHONPATH"),
        (
            {"app": "tests.spark.fares:sourced", "handler": "price", "maxRecordsPerPartition": "10"},
            "breaks the order of the handler's records",
        ),
    ],
)
def test_invalid_options_are_refused_when_the_source_is_loaded(options, message):
    """An invalid option raises ConfigurationError without a request to a broker."""
    with pytest.raises(TailraceError, match=message) as raised:
        SparkSource.of_options(options)
    assert type(raised.value).__name__ == "ConfigurationError"


def test_spark_shows_the_error(world):
    """``load()`` raises an error with the type and the message of tailrace's error."""
    with pytest.raises(PySparkException, match="ConfigurationError: there is no option 'subscirbe' - did you mean"):
        own(world.spark.read, world, subscirbe="t", subscribePattern="t")


def test_a_missing_topic_is_an_error(world):
    """Reading a topic that does not exist fails with UnknownTopicError before a task starts."""
    world.topic = "no-such-topic"
    with pytest.raises(PySparkException, match=r"UnknownTopicError.*no-such-topic"):
        own(world.spark.read, world).collect()
    with pytest.raises(PySparkException, match=r"UnknownTopicError.*no topic matches the pattern"):
        own(world.spark.read, world, subscribePattern="no-such-.*").collect()


def test_a_stream_is_refused_while_its_group_has_members(world, tmp_path):
    """A stream that commits ends with GroupNotEmptyError if its group has a live member; with no commits, it runs."""
    world.make_topic(1)
    world.produce([b"1"])
    member = Consumer({"bootstrap.servers": world.server.bootstrap_servers, "group.id": world.group})
    member.subscribe([world.topic])
    try:
        world.until(lambda: member.poll(0.1) or member.assignment())
        with pytest.raises(PySparkException, match="GroupNotEmptyError"):
            run_to_the_end(own(world.spark.readStream, world, group_id=world.group), tmp_path / "a")
        run_to_the_end(
            own(world.spark.readStream, world, group_id=world.group, enable_auto_commit="false"), tmp_path / "b"
        )
    finally:
        member.close()


def test_offsets_of_another_version_are_refused():
    """Offsets of a checkpoint that another version of tailrace has written raise CorruptCheckpointError."""
    with pytest.raises(CorruptCheckpointError, match="version 2, and this version of tailrace reads 1"):
        offsets_of_json({"version": 2, "topics": {}})


def test_another_schema_is_refused(world):
    """Columns that the program declares itself must be those of the source."""
    world.make_topic(1)
    with pytest.raises(PySparkException, match="ConfigurationError: the columns are struct<key:binary"):
        own(world.spark.read.schema("value string"), world).collect()


# ---- installation ----------------------------------------------------------------------------------------------------


def test_wheels_contain_the_module_that_spark_looks_for():
    """All modules beside the package are in the wheel; Spark finds data sources in modules named ``pyspark_…``."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    modules = {file.stem for file in ROOT.glob("src/*.py")}

    assert "pyspark_tailrace" in modules
    assert modules == set(settings["py-modules"])


def test_the_source_can_be_registered(world):
    """``spark.dataSource.register`` takes the class, for sessions in which Spark does not look for modules."""
    from pyspark_tailrace import DefaultSource  # noqa: PLC0415 - what is tested

    world.spark.dataSource.register(DefaultSource)
    world.make_topic(1)
    world.produce([b"1"])
    assert own(world.spark.read, world).count() == 1
