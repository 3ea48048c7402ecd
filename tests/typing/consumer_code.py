"""A consumer as users write it, for type checkers only; see ``app_code``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack, assert_type

import tailrace
from tailrace import Consumer, ConsumerOptions, ConsumerStatistics, OffsetAndMetadata, Record, TopicPartition

# ---- options ---------------------------------------------------------------------------------------------------------


async def token() -> str:
    return "secret"


async def stored(
    consumer: Consumer, before: Mapping[TopicPartition, int | None], after: Mapping[TopicPartition, int | None]
) -> Mapping[TopicPartition, int] | None:
    return {partition: 0 for partition in after.keys() - before.keys() if partition in consumer.assignment()}


def nothing(_consumer: Consumer, _before: object, _after: object) -> None: ...


def too_few(_consumer: Consumer) -> None: ...


class Listener:
    async def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None: ...


Consumer(
    "orders",
    "refunds",
    bootstrap_servers="localhost:9092",
    group_id="billing",
    group_protocol="consumer",
    auto_offset_reset="earliest",
    post_rebalance_callback=stored,
    rebalance_listener=Listener(),
    sasl_oauth_token_provider=token,
)
Consumer(pattern="orders[.].*", post_rebalance_callback=nothing, partition_assignment_strategy=("range", "sticky"))
Consumer("orders", topics=["refunds"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Consumer(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", group_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", auto_offset_reset="newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", max_poll_interval=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Consumer("orders", session_timeout_ms=5.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", post_rebalance_callback=too_few)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", sasl_oauth_token_provider="t")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def of_billing(*topics: str, **options: Unpack[ConsumerOptions]) -> Consumer:
    return Consumer(*topics, **options)


of_billing("orders", group_id="billing", fetch_max_wait_ms=100)
of_billing("orders", group="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
OPTIONS: ConsumerOptions = {"group_id": "billing", "session_timeout_ms": 10_000}
of_billing("orders", **OPTIONS)
WRONG: ConsumerOptions = {"group": "billing"}  # type: ignore[typeddict-unknown-key]  # pyright: ignore[reportAssignmentType]


# ---- reading ---------------------------------------------------------------------------------------------------------


async def read(consumer: Consumer, some_time_ms: int | None) -> str:
    assert_type(await consumer.getone(), Record)
    assert_type(await consumer.getone(timeout_ms=None), Record)
    assert_type(await consumer.getone(timeout_ms=5), Record | None)
    assert_type(await consumer.getone(timeout_ms=some_time_ms), Record | None)
    assert_type(await consumer.getmany(max_records=10, timeout_ms=100), list[Record])
    await consumer.getone(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await consumer.getone(timeout_ms="5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    _ = (await consumer.getone(timeout_ms=5)).value  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    async for record in consumer:
        assert_type(record, Record)
        look_at(record)
        assert_type(consumer.ack(record), bool)
    return "done"


def look_at(record: Record) -> None:
    assert_type(record.topic, str)
    assert_type(record.partition, int)
    assert_type(record.offset, int)
    assert_type(record.key, bytes | None)
    assert_type(record.value, bytes | None)
    assert_type(record.timestamp, int)
    assert_type(record.headers, Sequence[tuple[str, bytes | None]])
    assert_type(record.topic_partition, TopicPartition)
    record.offset = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    record.value.decode()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    record.offst()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def offsets(consumer: Consumer, place: TopicPartition) -> None:
    await consumer.commit()
    await consumer.commit({place: 5})
    await consumer.commit({place: OffsetAndMetadata(5, "text")})
    await consumer.commit({("orders", 0): 5})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    assert_type(await consumer.committed([place]), dict[TopicPartition, OffsetAndMetadata])
    assert_type(await consumer.position(place), int)
    assert_type(consumer.highwater(place), int | None)
    assert_type(consumer.assignment(), frozenset[TopicPartition])
    assert_type(consumer.subscription(), frozenset[str])
    assert_type(consumer.paused(), frozenset[TopicPartition])
    assert_type(consumer.statistics(), ConsumerStatistics)
    await consumer.seek(place, "5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    consumer.pause([place])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with consumer as same:
        assert_type(same, Consumer)


def run(consumer: Consumer) -> None:
    assert_type(tailrace.run(read(consumer, 5)), str | None)
    tailrace.run(read)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
