"""Other clients, confluent-kafka (librdkafka) and aiokafka, that produce and observe."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Iterable

from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata as AioOffsetAndMetadata
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException, Producer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from tailrace import Record, TopicPartition
from tailrace.error_codes import ErrorCode

_NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class Witness:
    """View of a broker by another client."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int = -1,
        compression: str = "none",
        batch_bytes: int = 1_000_000,
        keys: Iterable[bytes] | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> int:
        """Produce records, wait until all are acknowledged, and return their number."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "linger.ms": 5,
                "compression.type": compression,
                "batch.size": batch_bytes,
                "queue.buffering.max.messages": 1_000_000,
            },
            logger=logging.getLogger("librdkafka"),
        )
        count = 0
        for value, key in zip(values, keys or iter(lambda: None, 0), strict=False):
            producer.produce(topic, value, key=key, partition=partition, headers=headers)
            count += 1
            if count % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(30) == 0
        return count

    def produce_batch(self, topic: str, batch: bytes, partition: int = 0) -> None:
        """Produce the bytes of a record batch as they are, by a Produce request written by hand (version 8)."""
        host, port = self.bootstrap_servers.rsplit(":", 1)
        name = topic.encode()
        request = struct.pack(">hhih", 0, 8, 1, -1) + struct.pack(">hhi", -1, -1, 30_000)
        request += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(batch)) + batch
        with socket.create_connection((host, int(port)), 30) as broker, broker.makefile("rwb") as stream:
            stream.write(struct.pack(">i", len(request)) + request)
            stream.flush()
            response = stream.read(struct.unpack(">i", stream.read(4))[0])
        error_code = struct.unpack_from(">h", response, 4 + 4 + 2 + len(name) + 4 + 4)[0]
        assert error_code == 0, error_code

    def fill(self, topic: str, partitions: int, count: int) -> None:
        """Produce this many numbers to each partition."""
        for partition in range(partitions):
            self.produce(topic, (b"%d" % n for n in range(count)), partition=partition)

    async def committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """Return the committed offsets of a group by partition, without missing ones."""
        found = await self._committed(group, [AioTopicPartition(topic, partition) for partition in range(partitions)])
        return {at.partition: one.offset for at, one in found.items() if one.offset >= 0}

    async def metadata(self, group: str, topic: str, partition: int = 0) -> str:
        """Return the metadata of a committed offset."""
        wanted = AioTopicPartition(topic, partition)
        found = await self._committed(group, [wanted])
        return found[wanted].metadata.rstrip("\0")  # librdkafka appends it

    async def _committed(
        self, group: str, wanted: list[AioTopicPartition]
    ) -> dict[AioTopicPartition, AioOffsetAndMetadata]:
        """Ask aiokafka until the coordinator answers.

        The admin client of librdkafka reads past the end of the metadata and may crash.
        """
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(KafkaError):
                    admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers)
                    try:
                        await admin.start()
                        found = await admin.list_consumer_group_offsets(group, partitions=wanted)
                    finally:
                        await admin.close()
                    # A coordinator that is loading omits partitions.
                    if found.keys() >= set(wanted):
                        return found
                await asyncio.sleep(0.05)

    async def commit(self, group: str, topic: str, offset: int, metadata: str, partition: int = 0) -> None:
        """Commit for a group that has no members, as another client does."""

        def commit() -> None:
            consumer = ConfluentConsumer({"bootstrap.servers": self.bootstrap_servers, "group.id": group})
            try:
                place = ConfluentTopicPartition(topic, partition, offset, metadata=metadata)
                consumer.commit(offsets=[place], asynchronous=False)
            finally:
                consumer.close()

        await asyncio.to_thread(commit)

    async def members(self, group: str) -> dict[str, frozenset[TopicPartition]]:
        """Return the members of a group by id, with their assignments."""
        found = await self.described(group)
        return {
            member.member_id: frozenset(
                TopicPartition(one.topic, one.partition) for one in member.assignment.topic_partitions
            )
            for member in found.members
        }

    async def state(self, group: str) -> str:
        """Return the state of a group, such as STABLE or EMPTY."""
        return (await self.described(group)).state.name

    async def described(self, group: str) -> ConsumerGroupDescription:
        """Return the description of a group, after waiting until a new broker has loaded its groups."""
        async with asyncio.timeout(30):
            while True:
                asked = self.admin.describe_consumer_groups([group])
                try:
                    return await asyncio.to_thread(asked[group].result, 20)
                except KafkaException as error:
                    if error.args[0].code() not in _NOT_YET:
                        raise
                await asyncio.sleep(0.02)

    async def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the end offset of each partition."""

        def ask() -> dict[int, int]:
            consumer = ConfluentConsumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "witness"})
            try:
                return {
                    p: consumer.get_watermark_offsets(ConfluentTopicPartition(topic, p), 20)[1]
                    for p in range(partitions)
                }
            finally:
                consumer.close()

        return await asyncio.to_thread(ask)


def offsets(records: Iterable[Record]) -> list[tuple[int, int]]:
    """Return partition and offset of the records in the order of arrival."""
    return [(record.partition, record.offset) for record in records]
