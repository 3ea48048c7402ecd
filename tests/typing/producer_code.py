"""Producer in user code, for type checkers only; see ``app_code``."""

from __future__ import annotations

import asyncio
from typing import Unpack, assert_type
from uuid import UUID

import msgspec

from tailrace import Consumer, Message, Producer, ProducerOptions, Published, TopicPartition

# ---- options ---------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    total: int


def encode_key(key: UUID) -> bytes:
    return key.bytes


def encode_order(order: Order) -> bytes:
    return msgspec.json.encode(order)


def first(_key: bytes | None, every: object, _available: object) -> int:
    return 0 if every else 1


Producer(bootstrap_servers="localhost:9092", compression_type="zstd", linger_ms=5, acks="all", partitioner=first)
Producer(compression_type="brotli")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Producer(acks=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Producer(linger_ms="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Producer(group_id="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Producer("localhost:9092")  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]


def of_billing(**options: Unpack[ProducerOptions]) -> Producer:
    return Producer(**options)


of_billing(linger_ms=5)
of_billing(linger=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# ---- publishing ------------------------------------------------------------------------------------------------------


async def publish(producer: Producer, consumer: Consumer) -> None:
    assert_type(await producer.send("orders", Order(1), key=5), Published)
    assert_type(await producer.enqueue("orders", None, key=UUID(int=1)), asyncio.Future[Published])
    assert_type(await producer.send_many([Message(Order(1), key=1)], "orders"), list[Published])
    assert_type((await producer.send("orders", b"")).topic_partition, TopicPartition)
    assert_type(await producer.partitions_for("orders"), frozenset[int])
    async with producer.transaction() as transaction:
        await transaction.send_offsets(consumer)
        await transaction.send_offsets(consumer, {TopicPartition("orders", 0): 5})
        await transaction.send_offsets("billing")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await producer.send(5, b"")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await producer.send("orders", b"", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await producer.send("orders", b"", headers={"a": b"b"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def publish_typed() -> None:
    producer = Producer(key_serializer=encode_key, value_serializer=encode_order)
    assert_type(producer, Producer[UUID, Order])
    await producer.send("orders", Order(1), key=UUID(int=1))
    await producer.send("orders", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await producer.send("orders", Order(1), key="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    annotated: Producer[int, Order] = Producer()
    await annotated.send("orders", Order(1), key=1)
    await annotated.send("orders", Order(1), key="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
