"""A cluster for the length of a block, and what others do to groups: librdkafka, and Kafka's own tool."""

from __future__ import annotations

import subprocess
from contextlib import closing

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from penstock.embedded import jars
from penstock.embedded.java import find_java
from penstock.net.cluster import Cluster

_TOOLS = (f"org.apache.kafka:kafka-tools:{jars.KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")
_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


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
        main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        self._command = [str(find_java()), *_OPTIONS, "-cp", class_path, main, "--bootstrap-server", bootstrap_servers]

    def say(self, *arguments: str) -> str:
        """What it prints."""
        return subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=60, check=False
        ).stdout

    def rows(self, *arguments: str) -> list[dict[str, str]]:
        """The table that it prints, by its own headings."""
        lines = [line.split() for line in self.say(*arguments).splitlines() if line.strip()]
        header = next(n for n, line in enumerate(lines) if line[0] == "GROUP")
        return [dict(zip(lines[header], line, strict=False)) for line in lines[header + 1 :]]


def commit_to(bootstrap_servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit by librdkafka, outside of any membership."""
    with closing(ConfluentConsumer({"bootstrap.servers": bootstrap_servers, "group.id": group})) as consumer:
        entries = [ConfluentTopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=entries, asynchronous=False)
