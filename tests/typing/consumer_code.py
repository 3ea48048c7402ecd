"""Consumer in user code, for type checkers only; see ``app_code``."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, assert_type

import pyarrow as pa

import tailrace
from tailrace import (
    Consumer,
    ConsumerOptions,
    ConsumerStatistics,
    OffsetAndMetadata,
    Record,
    RecordStream,
    TopicPartition,
)
from tailrace.observe.events import Event

# ---- options ---------------------------------------------------------------------------------------------------------


async def token() -> str:
    return "secret"


async def stored(
    consumer: Consumer, before: Mapping[TopicPartition, int | None], after: Mapping[TopicPartition, int | None]
) -> Mapping[TopicPartition, int] | None:
    return {partition: 0 for partition in after.keys() - before.keys() if partition in consumer.assignment()}


def nothing(_consumer: Consumer, _before: object, _after: object) -> None: ...


def too_few(_consumer: Consumer) -> None: ...


class Hook:
    def on_event(self, event: Event) -> None: ...


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
    hooks=[Hook()],
    group_error_reactions={14: "retry", 27: lambda _code: "rejoin"},
    sasl_oauth_token_provider=token,
)
Consumer("orders", sasl_oauth_token_provider="aws:eu-west-1", sasl_oauthbearer_extensions=["logicalCluster=lkc-1"])
Consumer(pattern="orders[.].*", post_rebalance_callback=nothing, partition_assignment_strategy=("range", "sticky"))
Consumer("orders", topics=["refunds"])  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Consumer(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", group_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", auto_offset_reset="newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", max_poll_interval=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Consumer("orders", session_timeout_ms=5.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", post_rebalance_callback=too_few)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", rebalance_listener=Hook())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", hooks=[Listener()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Consumer("orders", partition_assignment_strategy="fair")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Consumer("orders", sasl_oauth_token_provider=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


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
    place = TopicPartition("orders", 0)
    assert_type(await consumer.getone(place, place), Record)
    assert_type(await consumer.getmany(place, max_records=10), list[Record])
    await consumer.getone(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await consumer.getone([place])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await consumer.getone(timeout_ms="5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    _ = (await consumer.getone(timeout_ms=5)).value  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    async for record in consumer:
        assert_type(record, Record)
        look_at(record)
        assert_type(consumer.ack(record), bool)
    async for batch in consumer.batches():
        assert_type(batch, list[Record])
    async for table in consumer.arrow_batches(max_records=5, max_wait_ms=5):
        assert_type(table, pa.RecordBatch)
        assert_type(consumer.ack(table), bool)
    consumer.arrow_batches(max_records="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async for partition, stream in consumer.streams():
        assert_type(partition, TopicPartition)
        assert_type(stream, RecordStream)
    return "done"


# ---- deserializers ---------------------------------------------------------------------------------------------------


class Order:
    customer: str

    @classmethod
    def parse(cls, data: bytes) -> Order:
        raise NotImplementedError


def text(data: bytes) -> str:
    return data.decode()


assert_type(Consumer("orders"), Consumer[bytes, bytes])
assert_type(Consumer("orders", value_deserializer=Order.parse), Consumer[bytes, Order])
assert_type(Consumer("orders", key_deserializer=text), Consumer[str, bytes])
assert_type(Consumer("orders", key_deserializer=text, value_deserializer=Order.parse), Consumer[str, Order])
assert_type(Consumer("orders", value_deserializer=json.loads), Consumer[bytes, Any])
Consumer("orders", value_deserializer=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ORDERS: ConsumerOptions[str, Order] = {"key_deserializer": text, "value_deserializer": Order.parse}
assert_type(Consumer("orders", **ORDERS), Consumer[str, Order])


async def read_orders(orders: Consumer[str, Order]) -> None:
    record = await orders.getone()
    assert_type(record, Record[str, Order])
    assert_type(record.key, str | None)
    assert_type(record.value, Order | None)
    assert_type(await orders.getone(timeout_ms=5), Record[str, Order] | None)
    assert_type(await orders.getmany(), list[Record[str, Order]])
    async for batch in orders.batches():
        assert_type(batch, list[Record[str, Order]])
    async for _partition, stream in orders.streams():
        assert_type(stream, RecordStream[str, Order])
        async for one in stream:
            assert_type(one, Record[str, Order])
    async with orders as same:
        assert_type(same, Consumer[str, Order])
    assert_type(orders.ack(record), bool)
    anything: Record[object, object] = record
    any_consumer: Consumer[object, object] = orders
    _ = (anything, any_consumer)
    _ = record.value.customer  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    look_at(record)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def look_at(record: Record) -> None:
    assert_type(record.topic, str)
    assert_type(record.partition, int)
    assert_type(record.offset, int)
    assert_type(record.key, bytes | None)
    assert_type(record.value, bytes | None)
    assert_type(record.timestamp, int)
    assert_type(record.headers, Sequence[tuple[str, bytes | None]])
    assert_type(record.timestamp_type, Literal["CreateTime", "LogAppendTime"] | None)
    assert_type(record.topic_partition, TopicPartition)
    record.offset = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    record.value.decode()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    record.offst()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def offsets(consumer: Consumer, place: TopicPartition) -> None:
    await consumer.commit()
    await consumer.commit({place: 5})
    await consumer.commit({place: OffsetAndMetadata(5, "text")})
    await consumer.commit(place, place)
    await consumer.commit({("orders", 0): 5})  # type: ignore[dict-item]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await consumer.commit([place])  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await consumer.committed(place), OffsetAndMetadata | None)
    assert_type(await consumer.committed([place]), dict[TopicPartition, OffsetAndMetadata])
    assert_type(await consumer.committed(), dict[TopicPartition, OffsetAndMetadata])
    assert_type(await consumer.position(place), int)
    assert_type(await consumer.position(consumer.assignment()), dict[TopicPartition, int])
    assert_type(await consumer.position(), dict[TopicPartition, int])
    assert_type(await consumer.end_offsets(place), int)
    assert_type(await consumer.beginning_offsets([place]), dict[TopicPartition, int])
    assert_type(await consumer.seek(place, 5), int)
    assert_type(await consumer.seek([place], -5, whence="latest", spread=True), dict[TopicPartition, int])
    assert_type(await consumer.seek({place: 5}), dict[TopicPartition, int])
    assert_type(await consumer.seek_to_committed(place), dict[TopicPartition, int])
    assert_type(await consumer.assigned(timeout_ms=5), frozenset[TopicPartition])
    assert_type(await consumer.topics(), frozenset[str])
    assert_type(await consumer.partitions_for_topic("orders"), frozenset[int])
    assert_type(consumer.highwater(place), int | None)
    assert_type(consumer.last_stable_offset(place), int | None)
    assert_type(consumer.assignment(), frozenset[TopicPartition])
    assert_type(consumer.subscription(), frozenset[str])
    assert_type(consumer.paused(), frozenset[TopicPartition])
    assert_type(consumer.statistics(), ConsumerStatistics)
    await consumer.seek(place, "5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await consumer.end_offsets("orders")  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    consumer.pause([place])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.assign("orders", ("orders", 0), ("orders", 0, 5), ("orders", 1, "latest"), {"orders": [0, 1]})
    await consumer.assign({place: 5}, [place], {("orders", 0): dt.timedelta(hours=1)}, at="earliest")
    await consumer.assign("orders", at=dt.datetime.now(dt.UTC))
    await consumer.assign(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.assign("orders", at="newest")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    async with consumer as same:
        assert_type(same, Consumer)


async def assign(consumer: Consumer, place: TopicPartition, day: dt.timedelta) -> None:
    await consumer.assign("orders", at="earliest")
    await consumer.assign(place, ("orders", 1), ("orders", 2, 17), ("orders", 3, day))
    await consumer.assign([place], {place}, {("orders", 1), ("orders", 2)}, consumer.assignment())
    await consumer.assign({"orders": 0}, {"orders": [0, 1]}, {"orders": range(3)}, {place: 17}, {("orders", 0): day})
    await consumer.assign(["orders", "refunds"], [("orders", 0)], at=day)
    await consumer.assign("orders", tail=10)
    await consumer.assign()
    await consumer.assign(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.assign(("orders", "0"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.assign("orders", at="first")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await consumer.assign({"orders": "0"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def unpacked(record: Record) -> None:
    _topic, _partition, _offset, key, _value = record
    assert_type(key, str | int | bytes | None)


def run(consumer: Consumer) -> None:
    assert_type(tailrace.run(read(consumer, 5)), str | None)
    tailrace.run(read)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
