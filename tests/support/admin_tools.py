"""Administration by other clients (librdkafka, Kafka's tool), and calls of the command line."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.cli import main
from tailrace.embedded import jars
from tailrace.embedded.jars import find_java
from tailrace.net.cluster import Cluster
from tailrace.testing import KafkaServer

_TOOLS = (f"org.apache.kafka:kafka-tools:{jars.KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class Reached(Cluster):
    """Connected cluster for the duration of an ``async with``."""

    async def __aenter__(self) -> Cluster:
        await self.bootstrap()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class KafkaTool:
    """Tool of Kafka, by default ``kafka-consumer-groups``."""

    def __init__(self, bootstrap_servers: str, main: str = CONSUMER_GROUPS) -> None:
        # This tool alone is in the jar of the broker.
        class_path = ":".join(map(str, jars.class_path(*(() if main == CONFIGS else _TOOLS))))
        self._command = [str(find_java()), *_OPTIONS, "-cp", class_path, main, "--bootstrap-server", bootstrap_servers]
        if main == CONSUMER_GROUPS:
            # Its default is 5 s.
            self._command += ["--timeout", "60000"]

    def output(self, *arguments: str) -> str:
        """Return the output of the tool."""
        return subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=120, check=False
        ).stdout

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """Return the printed table by its headings."""
        lines = [line.split() for line in self.output(*arguments).splitlines() if line.strip()]
        header = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
        return [dict(zip(lines[header], line, strict=False)) for line in lines[header + 1 :]]


def commit_to(bootstrap_servers: str, group: str, topic: str, offsets: dict[int, int], text: str = "") -> None:
    """Commit by librdkafka without membership, with metadata for each offset."""
    with closing(ConfluentConsumer({"bootstrap.servers": bootstrap_servers, "group.id": group})) as consumer:
        metadata = [text] if text else []
        entries = [
            ConfluentTopicPartition(topic, partition, offset, *metadata) for partition, offset in offsets.items()
        ]
        consumer.commit(offsets=entries, asynchronous=False)


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    errors: str

    @property
    def lines(self) -> list[dict]:
        """Return the decoded lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def words(self) -> str:
        """Output as one line, independent of line breaks."""
        return " ".join(self.out.split())

    @property
    def fits(self) -> bool:
        """True if no line exceeds 80 columns."""
        return all(len(line.rstrip()) <= 80 for line in self.out.splitlines())


class Kafka:
    """Shared broker with topics, records and commits of other clients, and commands that use it."""

    def __init__(self, server: KafkaServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self.bootstrap_servers, self._capsys = server, server.bootstrap_servers, capsys
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        self.group = f"g-{uuid.uuid4().hex[:12]}"

    def topic(self, partitions: int = 1) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.server.create_topic(name, partitions)
        return name

    def produce(self, topic: str, *values: bytes | None, partition: int = 0, since_ms: int = 0, **more: object) -> None:
        """Produce acknowledged records, a second apart from ``since_ms`` on."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for n, value in enumerate(values):
            producer.produce(topic, value, partition=partition, timestamp=since_ms and since_ms + 1000 * n, **more)
        assert producer.flush(20) == 0

    def commit(self, topic: str, offsets: dict[int, int], group: str | None = None, text: str = "") -> None:
        commit_to(self.bootstrap_servers, group or self.group, topic, offsets, text)

    def committed(self, topic: str, group: str | None = None) -> dict[int, int]:
        """Return the committed offsets by librdkafka."""
        asked = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group or self.group)])
        found = asked[group or self.group].result(20)
        return {one.partition: one.offset for one in found.topic_partitions if one.topic == topic and one.offset >= 0}

    def groups(self) -> set[str]:
        found = self._admin.list_consumer_groups().result(20)
        return {one.group_id for one in found.valid}

    @contextmanager
    def member(self, topic: str, client_id: str = "north") -> Iterator[ConfluentConsumer]:
        """Run a live member of the group by librdkafka, with assigned partitions."""
        settings = {"bootstrap.servers": self.bootstrap_servers, "group.id": self.group, "client.id": client_id}
        with closing(ConfluentConsumer({**settings, "auto.offset.reset": "earliest"})) as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + 60
            while not consumer.assignment():
                consumer.poll(0.05)
                assert time.monotonic() < deadline
            yield consumer

    def call(self, *arguments: str) -> Done:
        """Run `tailrace …` in this process, on a screen of 80 columns.

        It runs in a thread, because it has its own event loop besides that of pytest-asyncio.
        """
        self._capsys.readouterr()
        with ThreadPoolExecutor(1) as thread:
            try:
                code = thread.submit(main, arguments).result()
            except SystemExit as ended:
                code = int(str(ended.code))
        metadata = self._capsys.readouterr()
        return Done(code, metadata.out, metadata.err)
