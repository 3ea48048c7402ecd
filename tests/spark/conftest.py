"""Spark session shared by the tests of this folder, and a ledger that workers write.

``TAILRACE_TEST_SPARK_MASTER`` sets the master, such as ``local-cluster[2,1,1024]`` for separate executors. The session
runs on the JRE of the wheel, whatever Java is installed; drivers started by tests use the installed Java.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.logger import PySparkLogger

from tailrace import App, Record
from tailrace.spark import SparkPipeline, spark_session
from tests.support.commands import SOON_OVER, without_java
from tests.support.standalone_spark import standalone_spark
from tests.support.witness import Witness


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        hidden = without_java(os.environ, tmp_path_factory.mktemp("no-java"))
        patch.setenv("PATH", hidden["PATH"])
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("SPARK_SUBMIT_OPTS", SOON_OVER)
        session = spark_session(master=os.environ.get("TAILRACE_TEST_SPARK_MASTER", "local[2]"))
    with session, pytest.MonkeyPatch.context() as patch:
        # PySpark's loggers replace the format of each handler that is added to them. pytest adds its own handler to all
        # loggers that do not propagate, and would use the format in all later tests.
        patch.setattr(PySparkLogger, "addHandler", logging.Logger.addHandler)
        yield session


@pytest.fixture(scope="session")
def standalone(tmp_path_factory):
    with standalone_spark(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def few_partitions(spark):
    """Let Spark shuffle to 2 partitions instead of 200, each of which has a task, and state of its own."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.unset("spark.sql.shuffle.partitions")


class Ledger:
    """Folder in which handlers of all processes log their records, one file for each process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def lines(self) -> list[tuple[int, int]]:
        """Return partition and offset of each handled record, in order by process."""
        files = sorted(self.folder.iterdir())
        return [tuple(map(int, line.split())) for file in files for line in file.read_text().splitlines()]

    def counts(self) -> Counter[tuple[int, int]]:
        """Return how often each record was handled."""
        return Counter(self.lines())

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that handled records."""
        return [int(file.name) for file in self.folder.iterdir()]


class World:
    """Topic, group and ledger of a test, and what librdkafka reads from the broker."""

    def __init__(self, spark, server, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self.witness = Witness(server.bootstrap_servers)
        self.admin = self.witness.admin
        self.group = f"g-{uuid.uuid4().hex[:12]}"
        self.ledger = Ledger(folder / "ledger")
        self.topic, self.partitions = "", 0

    def make_topic(self, partitions: int = 1, name: str = "") -> str:
        """Create a topic, which becomes the topic of the test if no name is given."""
        made = name or f"t-{uuid.uuid4().hex[:12]}"
        self.server.create_topic(made, partitions)
        if not name:
            self.topic, self.partitions = made, partitions
        return made

    def produce(self, values: Iterable[bytes | None], **options) -> None:
        self.witness.produce(self.topic, values, **options)

    def app(self, **options) -> App:
        """Return an app of the test's group without handlers."""
        return App(**{"bootstrap_servers": self.server.bootstrap_servers, "group_id": self.group, **options})

    def app_with_ledger(self, *, first=None, declared=None, named=None, **options) -> App:
        """Return an app whose handler ``enter`` awaits ``first`` and then writes to the ledger."""
        app, folder, files = self.app(**options), str(self.ledger.folder), {}

        async def enter(record: Record) -> None:
            if first is not None:
                await first(record)
            if os.getpid() not in files:
                files[os.getpid()] = os.open(f"{folder}/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.write(files[os.getpid()], b"%d %d\n" % (record.partition, record.offset))

        enter.__qualname__ = named or enter.__qualname__
        app.handler(self.topic, **(declared or {}))(enter)
        return app

    def continue_live(self, members: int = 2) -> None:
        """Run members of the group, without Spark, until all current records are committed."""
        ends = self.ends

        async def live() -> None:
            async with contextlib.AsyncExitStack() as running:
                apps = [self.app_with_ledger(auto_commit_interval_ms=200) for _ in range(members)]
                for app in apps:
                    await running.enter_async_context(app)
                await asyncio.gather(*(app.wait_ready() for app in apps))
                # Polls the broker: no event reports another client's view.
                while await self.witness.committed(self.group, self.topic, self.partitions) != ends:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)

        asyncio.run(asyncio.wait_for(live(), 120))

    def run_to_the_end(self, checkpoint: str = "checkpoint", **options) -> None:
        """Handle existing records in a stream with the trigger available_now."""
        query = self.pipeline(self.app_with_ledger(**options), checkpoint).start("enter", trigger="available_now")
        assert query.await_termination(120)

    @staticmethod
    def until(happened: Callable[[], object]) -> None:
        """Wait for an event in Spark, a worker process or the broker."""
        waiting, give_up_at = threading.Event(), time.monotonic() + 120
        while not happened():
            assert time.monotonic() < give_up_at, "the condition was not met in time"
            waiting.wait(0.05)

    def pipeline(self, app: App, checkpoint: str = "checkpoint") -> SparkPipeline:
        return SparkPipeline(app, self.spark, checkpoint=str(self.folder / checkpoint))

    # ---- as the broker sees it ---------------------------------------------------------------------------------

    @property
    def committed(self) -> dict[int, int]:
        """Committed offsets of the group by partition."""
        return asyncio.run(self.witness.committed(self.group, self.topic, self.partitions))

    @property
    def ends(self) -> dict[int, int]:
        """End offsets of the topic by partition."""
        return asyncio.run(self.witness.ends(self.topic, self.partitions))

    @property
    def metadata(self) -> str:
        """Commit metadata of the first partition."""
        return asyncio.run(self.witness.metadata(self.group, self.topic))

    def commit(self, offset: int, metadata: str = "") -> None:
        """Commit an offset of the first partition with another client."""
        asyncio.run(self.witness.commit(self.group, self.topic, offset, metadata))

    def read(self, topic: str, partitions: int = 1) -> list:
        """Read all records of a topic."""
        ends = asyncio.run(self.witness.ends(topic, partitions))
        reader = Consumer({"bootstrap.servers": self.server.bootstrap_servers, "group.id": "reader"})
        reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        found = []
        try:
            while len(found) < sum(ends.values()):
                found += [one for one in reader.consume(500, 0.2) if one.error() is None]
        finally:
            reader.close()
        return sorted(found, key=lambda one: (one.partition(), one.offset()))


@pytest.fixture
def world(spark, kafka_server, tmp_path) -> World:
    return World(spark, kafka_server, tmp_path)
