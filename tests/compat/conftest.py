"""Topic of two partitions and consumers with aiokafka's interface, as in aiokafka's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest_asyncio
from confluent_kafka import Producer

from tailrace import TopicPartition
from tests.support.aiokafka_interface import AiokafkaInterface


class Compat:
    """One test's topic, group and consumers."""

    def __init__(self, server, topic: str, group: str) -> None:
        self.server, self.topic, self.group = server, topic, group
        self.first, self.second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        self.made: list[AiokafkaInterface] = []

    def new_topic(self, name: str, partitions: int = 2) -> str:
        self.server.create_topic(name, partitions)
        return name

    def send(
        self,
        partition: int,
        values: Iterable[object],
        *,
        topic: str | None = None,
        compression: str = "none",
        **fields: object,
    ) -> list[bytes]:
        """Produce numbers or bytes, wait for the acknowledgements, and return the values as bytes."""
        producer = Producer(
            {"bootstrap.servers": self.server.bootstrap_servers, "compression.type": compression, "linger.ms": 20}
        )
        sent = [value if isinstance(value, bytes) else str(value).encode() for value in values]
        for value in sent:
            producer.produce(topic or self.topic, value, partition=partition, **fields)
        assert producer.flush(20) == 0
        return sent

    def consumer(self, *topics: str, **options: object) -> AiokafkaInterface:
        """Return a consumer that is not started, and stop it after the test."""
        options = {"bootstrap_servers": self.server.bootstrap_servers, **options}
        self.made.append(AiokafkaInterface(*topics, **options))
        return self.made[-1]

    async def started(self, **options: object) -> AiokafkaInterface:
        """Start a member of the test's group that reads the test's topic from its beginning."""
        consumer = self.consumer(self.topic, **{"group_id": self.group, "auto_offset_reset": "earliest", **options})
        await consumer.start()
        return consumer


@pytest_asyncio.fixture
async def compat(kafka_server, new_topic, group) -> AsyncIterator[Compat]:
    found = Compat(kafka_server, new_topic(2), group)
    yield found
    for consumer in found.made:
        await consumer.stop()
