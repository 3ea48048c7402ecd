"""Contents of a topic as read by librdkafka."""

from __future__ import annotations

import asyncio

from confluent_kafka import Consumer, Message, TopicPartition

from tests.support.witness import Witness


async def contents_of(witness: Witness, topic: str, partitions: int = 1) -> list[Message]:
    """Return all records of a topic up to its current end, by partition."""

    def read() -> list[Message]:
        found = []
        for partition in range(partitions):
            consumer = Consumer({"bootstrap.servers": witness.bootstrap_servers, "group.id": "letters"})
            try:
                where = TopicPartition(topic, partition, 0)
                _, end = consumer.get_watermark_offsets(where, 20)
                consumer.assign([where])
                last = -1
                while last + 1 < end:
                    (message,) = consumer.consume(1, 20)
                    assert message.error() is None
                    found.append(message)
                    last = message.offset()
            finally:
                consumer.close()
        return found

    return await asyncio.to_thread(read)
