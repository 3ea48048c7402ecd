"""Committed records and offsets as seen by librdkafka's read_committed clients."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tailrace.config import resolve
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.testing import KafkaServer

_END = b"the end"


class CommittedRecords:
    """Topics and transactional producers on a server, and views of committed results."""

    def __init__(self, server: KafkaServer) -> None:
        self.server = server
        self._common = {"bootstrap.servers": server.bootstrap_servers}
        self._admin = AdminClient(self._common)
        self._logger = logging.getLogger("librdkafka")
        self._partitions: dict[str, int] = {}

    def topic(self, partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.server.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        self._partitions[name] = partitions
        return name

    def producer(
        self, name: str | None = None, *, config: dict[str, object] | None = None, **options
    ) -> TransactionalProducer:
        """Return a producer, by default with a unique transactional id."""
        quick = {"fetch_max_wait_ms": 100, "retry_backoff_ms": 20}
        resolved = resolve({**self.server.client_options, **quick, **(config or {})}, {})
        return TransactionalProducer(resolved, transactional_id=name or f"x-{uuid.uuid4().hex[:12]}", **options)

    async def flush(self, producer: TransactionalProducer) -> None:
        """Wait until all records of the open transaction are stored."""
        await producer._running.sender.flush()

    async def committed(self, topic: str) -> list:
        """Return all committed records by partition and offset, after waiting for open transactions."""
        return await asyncio.to_thread(self._committed, topic)

    def _committed(self, topic: str) -> list:
        reader = Consumer(
            {
                **self._common,
                "group.id": "ledger",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            },
            logger=self._logger,
        )
        open_ends = set(range(self._partitions[topic]))
        writer = Producer(self._common, logger=self._logger)
        for partition in open_ends:
            writer.produce(topic, _END, partition=partition)
        assert writer.flush(60) == 0
        reader.assign([TopicPartition(topic, partition, 0) for partition in open_ends])
        found, deadline = [], time.monotonic() + 60
        while open_ends:
            assert time.monotonic() < deadline, f"an open transaction hides the end of {open_ends}"
            for message in reader.consume(500, 0.01):
                assert message.error() is None, message.error()
                if message.value() == _END:
                    open_ends.discard(message.partition())
                else:
                    found.append(message)
        reader.close()
        return sorted((one for one in found if one.value() != _END), key=lambda one: (one.partition(), one.offset()))

    async def values(self, topic: str) -> list[bytes]:
        """Return the values of records in order."""
        return [one.value() for one in await self.committed(topic)]

    async def stable_end(self, topic: str, partition: int = 0) -> int:
        """Return the last stable offset."""
        place = TopicPartition(topic, partition)
        asked = self._admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        return (await asyncio.to_thread(asked[place].result, 20)).offset

    async def group_offsets(self, group: str, topic: str, partitions: Iterable[int] = (0,)) -> dict[int, int]:
        """Return the committed offsets of a group, after waiting for open transactions."""
        while True:
            found = await self.group_offsets_now(group, topic, partitions, stable=True)
            if not any(one.error for one in found):
                return {one.partition: one.offset for one in found if one.offset >= 0}

    async def group_offsets_now(
        self, group: str, topic: str, partitions: Iterable[int] = (0,), *, stable: bool = False
    ) -> list[TopicPartition]:
        """Return the committed offsets of a group without waiting."""
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, one) for one in partitions])
        asked = self._admin.list_consumer_group_offsets([wanted], require_stable=stable)
        return (await asyncio.to_thread(asked[group].result, 20)).topic_partitions
