"""Topics and groups of a test's own on the shared broker, and witnesses of them: librdkafka, and Kafka's own tool."""

from __future__ import annotations

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient
from witness import Witness

from penstock.config import resolve
from penstock.embedded import jars
from penstock.embedded.java import find_java
from penstock.net.cluster import Cluster

_TOOLS = (f"org.apache.kafka:kafka-tools:{jars.KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")


class Reached(Cluster):
    """A cluster for the length of an ``async with``."""

    async def __aenter__(self) -> Cluster:
        await self.bootstrap()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class KafkasTool:
    """``kafka-consumer-groups``, as Kafka ships it."""

    def __init__(self, bootstrap_servers: str) -> None:
        class_path = ":".join(map(str, jars.class_path(*_TOOLS)))
        self._command = [str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", class_path]
        self._command += ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"]
        self._command += ["--bootstrap-server", bootstrap_servers]

    def say(self, *arguments: str) -> str:
        """What it prints."""
        done = subprocess.run([*self._command, *arguments], capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """The table that it prints, by its own headings."""
        lines = [line.split() for line in self.say(*arguments).splitlines() if line.strip()]
        header = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
        return [dict(zip(lines[header], line, strict=False)) for line in lines[header + 1 :]]


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def witness(kafka_server) -> Witness:
    return Witness(kafka_server.bootstrap_servers)


@pytest.fixture
def admin(kafka_server) -> Iterator[AdminClient]:
    return AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers})


@pytest.fixture
def reached(kafka_server) -> Callable[..., Reached]:
    def make(**options: object) -> Reached:
        return Reached(resolve({"bootstrap_servers": kafka_server.bootstrap_servers, **options}, {}))

    return make


@pytest.fixture
def kafkas_tool(kafka_server) -> KafkasTool:
    return KafkasTool(kafka_server.bootstrap_servers)


@pytest.fixture
def new_topic(kafka_server) -> Callable[..., str]:
    """Makes a topic, with so many records of so many bytes in each partition, a second apart from ``since_ms`` on."""

    def make(partitions: int = 1, records: int = 0, *, since_ms: int | None = None) -> str:
        topic = f"t-{uuid.uuid4().hex[:12]}"
        kafka_server.create_topic(topic, partitions)
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
        first_ms = int(time.time() * 1000) - 3_600_000 if since_ms is None else since_ms
        for partition in range(partitions):
            for n in range(records):
                producer.produce(topic, b"%d" % n, partition=partition, timestamp=first_ms + 1000 * n)
        assert producer.flush(20) == 0
        return topic

    return make


@pytest.fixture
def commit(kafka_server) -> Callable[..., None]:
    """Commits by librdkafka, outside of any membership: ``commit(group, topic, {0: 5, 1: (7, "text")})``."""

    def make(group: str, topic: str, offsets: dict[int, int | tuple[int, str]]) -> None:
        settings = {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": group}
        with closing(ConfluentConsumer(settings)) as consumer:
            consumer.commit(offsets=list(_entries(topic, offsets)), asynchronous=False)

    return make


def _entries(topic: str, offsets: dict[int, int | tuple[int, str]]) -> Iterable[ConfluentTopicPartition]:
    for partition, said in offsets.items():
        offset, text = said if isinstance(said, tuple) else (said, "")
        yield ConfluentTopicPartition(topic, partition, offset, metadata=text)


@pytest.fixture
def committed(witness) -> Callable[..., dict[int, int]]:
    """The group's committed offsets, by partition, as librdkafka sees them."""
    return lambda group, topic, partitions: asyncio.run(witness.committed(group, topic, partitions))
