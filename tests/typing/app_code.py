"""App in user code, for type checkers only: results have their types, and misuse is an error.

Each ``ignore`` names an expected error: if the error is missing, the checkers report the ``ignore``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Annotated, Any, Unpack, assert_type

import msgspec
import pyarrow as pa
from aiohttp import web
from fastapi import FastAPI

import tailrace
from tailrace import (
    App,
    Batch,
    ConfigurationError,
    Consumer,
    ConsumerOptions,
    Depends,
    HandlerOptions,
    Handlers,
    Header,
    Key,
    Message,
    Record,
    Reject,
    Retry,
    TailraceError,
)
from tailrace.testing import KafkaServer


class Order(msgspec.Struct):
    customer: str
    total: int


class Invoice(msgspec.Struct):
    due: int


class Bank:
    async def charge(self, order: Order) -> Invoice:
        return Invoice(order.total)


async def open_bank() -> AsyncIterator[Bank]:
    yield Bank()


def now() -> Iterator[float]:
    yield 0.0


tailrace.Ap()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

# ---- options ---------------------------------------------------------------------------------------------------------

billing = App(
    group_id="billing",
    dead_letter="{topic}.{group}.dead",
    retry=Retry(attempts=5, backoff_ms=200, on=(ConnectionError, TimeoutError), not_on=ConnectionResetError),
    on_failure="stop",
    bootstrap_servers=["a:9092", "b:9092"],
    session_timeout_ms=10_000,
)
App(group="billing")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
App(session_timeout_ms="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
App(on_failure="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
App(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
# mypy also compares the value with an option; which one depends on mypy's cache.
App("billing")  # type: ignore[call-arg, arg-type, unused-ignore]  # pyright: ignore[reportCallIssue]
Retry(attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Retry(on=ValueError())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Depends(open_bank, scope="session")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Header(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.configure(heartbeat_interval_ms=1_000)
billing.configure(heartbeat_ms=1_000)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def new_handlers(**options: Unpack[HandlerOptions]) -> Handlers:
    made = Handlers()
    made.handler("orders", **options)(print)
    return made


new_handlers(order_by="key", retry=Retry(topic_delays_ms=[5_000], allow_reordering=True))
new_handlers(oder_by="key")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Retry(topic_delays_ms=["5s"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
Batch(max_records="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def new_app(**options: Unpack[ConsumerOptions]) -> App:
    return App(on_failure="skip", **options)


new_app(group_id="billing", client_rack="a")
new_app(group_id="billing", client_rock="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# ---- handlers --------------------------------------------------------------------------------------------------------


@billing.handler("orders", order_by="key", concurrency=200, timeout_ms=30_000, publish="invoices", retry=Retry())
async def charge(
    order: Order,
    customer: Annotated[str, Key],
    bank: Annotated[Bank, Depends(open_bank, scope="app")],
    at: Annotated[float, Depends(now)] = 0.0,
    trace: Annotated[str | None, Header("trace")] = None,
) -> Invoice:
    assert_type(order, Order)
    assert_type(customer, str)
    assert_type(bank, Bank)
    assert_type(at, float)
    assert_type(trace, str | None)
    if order.total < 0:
        raise Reject("negative total")
    return await bank.charge(order)


@billing.handler("clicks", when=lambda record: record.value is not None, unmatched="skip")
def store(record: Record) -> list[Message]:
    return [Message(record.value, key=record.key, headers=record.headers)]


def timed(call: Callable[[Record], Awaitable[object]]) -> Callable[[Record], Awaitable[object]]:
    return call


def timed_batch(call: Callable[[list[Record]], Awaitable[object]]) -> Callable[[list[Record]], Awaitable[object]]:
    return call


class Upper:
    def decode(self, data: bytes, annotation: Any, record: Record) -> object:
        return annotation(data.upper() + record.topic.encode())

    def encode(self, value: Any) -> bytes:
        return bytes(value)


@billing.handler("clicks", batch=Batch(max_records=500, max_bytes=1_000_000), middleware=[timed_batch], codec=Upper())
async def store_many(values: list[bytes]) -> int:
    return len(values)


billing.handler("t", middleware=[timed])(store)
billing.batch_handler("t", max_records=5, middleware=[timed_batch])(store_many)


@billing.batch_handler("t")
async def store_table(table: pa.RecordBatch) -> None:
    table.num_rows.bit_count()


billing.batch_handler("t", middleware=[timed])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
billing.batch_handler("t", max_record=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
billing.handler("t", batch=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t", codec=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

handlers = Handlers()


class Clerk:
    @handlers.handler(pattern="refunds[.].*", group_id="refunds")
    async def refund(self, order: Order | None) -> None: ...


async def decorated_functions_keep_their_types() -> None:
    assert_type(await charge(Order("ann", 5), "ann", Bank(), trace="t"), Invoice)
    assert_type(store(Record("t", 0, 0, None, None, 0)), list[Message])
    assert_type(await Clerk().refund(None), None)
    kept: Callable[[Clerk, Order | None], Coroutine[Any, Any, None]] = Clerk.refund
    await kept(Clerk(), None)
    await charge(5, "ann", Bank())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge(Order("ann", 5))  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


billing.include(handlers)
billing.include(Clerk())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler(store)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t")(5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
billing.handler("t", order_by="keys")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t", concurrency="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t", retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
billing.handler("t", when=lambda: True)  # type: ignore[misc, arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t", on_failure="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
billing.handler("t", publish=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Message(b"", partition="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ---- start and stop --------------------------------------------------------------------------------------------------


async def start_and_stop() -> None:
    async with billing as same:
        assert_type(same, App)
        await same.wait_ready()
        await same.publish("orders", Order("ann", 5), key="ann", headers=[("trace", b"1"), ("null", None)])
        await same.publish("orders", b"", key=None)
        await same.publish("orders", b"", headers={"trace": b"1"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await same.publish("orders")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        await same.publish(b"orders", b"")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(billing.options, ConsumerOptions)
    assert_type(billing.health().is_live, bool)
    assert_type(await billing.run(), None)


def frameworks() -> None:
    fast = FastAPI(lifespan=billing.lifespan)
    fast.mount("/health", billing.health_app)
    service = web.Application()
    service.cleanup_ctx.append(billing.cleanup_ctx)


def errors(error: ConfigurationError) -> TailraceError:
    return error


def an_app_and_a_consumer_take_the_options_of_a_test_server(kafka: KafkaServer) -> None:
    App(group_id="billing", **kafka.client_options)
    Consumer("orders", **kafka.client_options)
    kafka.create_topic("orders", config={"retention.ms": 1_000, "cleanup.policy": "compact", "preallocate": True})
    kafka.create_topic("orders", config={"retention.ms": None})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


def a_handler_is_paused() -> None:
    billing.pause(charge)
    billing.pause("charge")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def a_provider_is_replaced(other: Callable[[], Awaitable[Bank]]) -> None:
    billing.override(open_bank, other)
    billing.override(open_bank, Bank())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
