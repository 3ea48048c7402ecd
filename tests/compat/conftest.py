"""Topic of two partitions, and consumers and producers with aiokafka's interface, as in aiokafka's tests."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
import pytest_asyncio
from confluent_kafka import Producer

from tailrace import TopicPartition
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.aiokafka_interface import AiokafkaInterface
from tests.support.aiokafka_producer_interface import AiokafkaProducerInterface


class Compat:
    """One test's topic, group, consumers and producers."""

    def __init__(self, server, topic: str, group: str) -> None:
        self.server, self.topic, self.group = server, topic, group
        self.first, self.second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        self.made: list[AiokafkaInterface] = []
        self.producers: list[AiokafkaProducerInterface] = []

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

    async def reader(self, topic: str | None = None, **options: object) -> AiokafkaInterface:
        """Start a consumer without a group that reads a topic from its beginning."""
        consumer = self.consumer(topic or self.topic, **{"auto_offset_reset": "earliest", **options})
        await consumer.start()
        return consumer

    def producer(self, **options: object) -> AiokafkaProducerInterface:
        """Return a producer that is not started, and stop it after the test."""
        options = {"bootstrap_servers": self.server.bootstrap_servers, **options}
        self.producers.append(AiokafkaProducerInterface(consumers=self.made, **options))
        return self.producers[-1]

    async def started_producer(self, **options: object) -> AiokafkaProducerInterface:
        producer = self.producer(**options)
        await producer.start()
        return producer

    async def transactional(self, **options: object) -> AiokafkaProducerInterface:
        """Start a producer whose transactional id is the name of the test's topic."""
        return await self.started_producer(transactional_id=self.topic, **options)

    @property
    def proxy(self) -> FaultProxy:
        return self.server.proxy


@pytest_asyncio.fixture
async def compat(kafka_server, new_topic, group) -> AsyncIterator[Compat]:
    found = Compat(kafka_server, new_topic(2), group)
    yield found
    for consumer in found.made:
        await consumer.stop()


@pytest.fixture(scope="session")
def creating_server() -> Iterator[KafkaServer]:
    """Start a broker as that of aiokafka's tests: it creates missing topics with two partitions. It has a proxy."""
    with KafkaServer(proxied=True, config={"auto.create.topics.enable": "true", "num.partitions": "2"}) as started:
        yield started


@pytest_asyncio.fixture
async def publishing(creating_server) -> AsyncIterator[Compat]:
    """Provide a topic of two partitions, and consumers and producers, on the broker that creates topics."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    creating_server.create_topic(name, 2)
    found = Compat(creating_server, name, f"g-{name}")
    yield found
    for one in (*found.producers, *found.made):
        await one.stop()
