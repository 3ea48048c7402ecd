"""Results and published messages of handlers: topic, key, partition, headers and trace context."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import anyio.from_thread
import msgspec
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from tailrace import App, ConfigurationError, Header, Key, Message, PublishError, Record, Retry
from tailrace.testing import TestApp

TRACE = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
BAGGAGE = ("baggage", b"customer=ann")
OTHER = ("traceparent", b"00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01")


class Point(NamedTuple):
    x: int
    y: int


@pytest.fixture
def app() -> App:
    return App(group_id="billing", dead_letter="{topic}.dead", retry=Retry(attempts=1))


def values(kafka: TestApp, topic: str) -> list[Any]:
    return [None if one.value is None else json.loads(one.value) for one in kafka.published(topic)]


# ---- results -------------------------------------------------------------------------------------------------------

RETURNED = [
    (None, []),
    (0, [0]),
    ({"a": 1}, [{"a": 1}]),
    (Point(1, 2), [[1, 2]]),
    (Message({"a": 1}), [{"a": 1}]),
    (Message(None, key="k"), [None]),
    (Message([1, 2]), [[1, 2]]),
    ([], []),
    ([1, 2], [1, 2]),
    ((1, 2), [1, 2]),
    ([None, Message(1), None, 2], [1, 2]),
    ([[1, 2], [3]], [[1, 2], [3]]),
]


@pytest.mark.parametrize(("returned", "published"), RETURNED)
async def test_a_list_publishes_each_item_and_none_publishes_nothing(app, returned, published):
    """Each item of a list or tuple is one result, a Message or its value; None publishes nothing."""

    @app.handler("orders", publish="results")
    async def handle(value: bytes) -> object:
        return returned

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

        assert values(kafka, "results") == published
        assert kafka.committed("orders") == 1


@pytest.mark.parametrize(("returned", "published"), [*RETURNED[:-1], ([[1, 2], [3], None, []], [1, 2, 3])])
async def test_batch_handlers_publish_results_as_others_do(app, returned, published):
    """Batch handlers publish results as other handlers do; the result for one record may be a list, too."""

    @app.batch_handler("orders", publish="results")
    async def handle(values: list[bytes]) -> object:
        return returned

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

        assert values(kafka, "results") == published


def declare(app: App, kind: str, returned: object, **options: Any) -> None:
    async def handle(value: bytes) -> object:
        return returned

    async def handle_batch(values: list[bytes]) -> object:
        return returned

    def handle_in_thread(value: bytes) -> object:
        return returned

    match kind:
        case "record":
            app.handler("orders", **options)(handle)
        case "thread":
            app.handler("orders", **options)(handle_in_thread)
        case "batch":
            app.batch_handler("orders", **options)(handle_batch)


@pytest.mark.parametrize("kind", ["record", "thread", "batch"])
@pytest.mark.parametrize("key", [b"7", b"", None])
@pytest.mark.parametrize(
    ("result", "own"),
    [
        ("value", "kept"),
        (Message("value"), "kept"),
        (Message("value", topic="other"), "kept"),
        (Message("value", key=None), None),
        (Message("value", key=8), b"8"),
    ],
    ids=["value", "message", "other topic", "no key", "own key"],
)
async def test_a_result_keeps_the_key_of_its_record(app, kind, key, result, own):
    """A result has the record's key unless its Message has one, or None; results of batches have only their own."""
    declare(app, kind, [result, None], publish="results")
    expected = own if own != "kept" else None if kind == "batch" else key

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", key=key)

        found = [*kafka.published("results"), *kafka.published("other")]
        assert [record.key for record in found] == [expected]


async def test_publish_has_no_key_of_a_record(app):
    """app.publish() in a handler publishes only the key that is passed to it."""

    @app.handler("orders")
    async def handle(value: bytes) -> None:
        await app.publish("out", value)

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", key=b"7")

        assert [record.key for record in kafka.published("out")] == [None]


@pytest.mark.parametrize("kind", ["record", "thread", "batch"])
async def test_a_message_with_a_topic_needs_no_publish_option(app, kind):
    """Without `publish=` a Message is published to its own topic, and plain values are not published."""
    declare(app, kind, [Message(1, topic="a"), 2, None, Message(3, topic="b", key="k")])

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

        assert (values(kafka, "a"), values(kafka, "b")) == ([1], [3])
        assert kafka.committed("orders") == 1


@pytest.mark.parametrize("kind", ["record", "thread", "batch"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Message(1), "a Message has no topic - set topic= of the Message, or publish= of the handler"),
        (Message(object(), topic="a"), "a message to 'a' cannot be encoded"),
        (Message(1, key=object(), topic="a"), "object cannot be encoded as JSON"),
        (Message(1, headers=[("h", 5)], topic="a"), "a header value must be bytes or str, not int"),
    ],
)
async def test_a_message_that_cannot_be_published_fails_its_record(app, kind, wrong, reason):
    """A Message that cannot be published fails its record, and no other result of that record is published."""
    declare(app, kind, [Message(0, topic="a"), wrong])

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

        (letter,) = kafka.dead_letters("orders")
        assert letter.error_type == "tailrace.errors.PublishError"
        assert reason in letter.reason
        assert kafka.published("a") == []


async def test_middleware_may_publish_for_a_handler(app):
    """A middleware's return value is published, also for a handler annotated to return None."""

    def counted(call: Callable[[Record], Any]) -> Callable[[Record], Any]:
        async def around(record: Record) -> object:
            await call(record)
            return Message(record.offset, topic="counted")

        return around

    @app.handler("orders", middleware=[counted])
    async def handle(value: bytes) -> None: ...

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

        assert values(kafka, "counted") == [0]


# ---- traces --------------------------------------------------------------------------------------------------------


async def publish_itself(app: App) -> None:
    await app.publish("out", 1)


async def publish_together(app: App) -> None:
    await asyncio.gather(app.publish("out", 1), app.publish("out", 1))


async def publish_in_a_task(app: App) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.publish("out", 1))


@pytest.mark.parametrize("publish", [publish_itself, publish_together, publish_in_a_task])
async def test_published_messages_continue_the_trace_of_the_record(app, publish):
    """app.publish in a handler or its tasks copies trace headers of the record, and only of that record."""

    @app.handler("orders")
    async def handle(value: bytes) -> None:
        await publish(app)

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[TRACE, ("other", b"1"), BAGGAGE])
        traced = len(kafka.published("out"))
        await kafka.send("orders", b"x")

        headers = [list(one.headers) for one in kafka.published("out")]
        assert headers == [[TRACE, BAGGAGE]] * traced + [[]] * traced


async def test_a_plain_handler_continues_the_trace_of_the_record(app):
    """Trace headers are copied to the result of a plain handler, and to messages sent with `anyio.from_thread`."""

    @app.handler("orders", publish="out")
    def handle(value: bytes) -> object:
        anyio.from_thread.run(app.publish, "out", 1)
        return 2

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[TRACE])

        assert [(one.value, list(one.headers)) for one in kafka.published("out")] == [(b"1", [TRACE]), (b"2", [TRACE])]


async def test_a_new_trace_is_not_replaced(app):
    """A message with trace headers of its own receives none of the record's."""

    @app.handler("orders", publish="out")
    async def handle(value: bytes) -> Message:
        await app.publish("out", 1, headers=[OTHER])
        return Message(2, headers=[OTHER, ("mine", "x")])

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[TRACE, BAGGAGE])

        assert [list(one.headers) for one in kafka.published("out")] == [[OTHER], [OTHER, ("mine", b"x")]]


@pytest.mark.parametrize(
    ("returned", "traces"),
    [
        ([1, None, [Message(2), Message(3, headers=[OTHER])]], [TRACE, None, OTHER]),
        ([1, 2], [None, None]),
        ({"sum": 3}, [None]),
    ],
)
async def test_each_result_of_a_batch_has_the_trace_of_its_record(app, returned, traces):
    """If a batch has one result per record, each has the trace of its record; otherwise none has one."""

    @app.batch_handler("orders", max_records=3, publish="out")
    async def handle(records: list[Record]) -> object:
        records.clear()
        return returned

    async with TestApp(app) as kafka:
        await asyncio.gather(*(kafka.send("orders", b"x", headers=headers) for headers in ([TRACE], [OTHER], [])))

        published = kafka.published("out")
        assert [dict(one.headers).get("traceparent") for one in published] == [one and one[1] for one in traces]


async def test_an_illegal_topic_name_is_refused(app):
    """An illegal topic name is refused in a declaration and by app.publish; in a result it fails the record."""
    with pytest.raises(ConfigurationError, match=r"publish='new orders' is not a legal topic name: .* ' '"):
        app.handler("orders", publish="new orders")
    with pytest.raises(ConfigurationError, match=r"'new orders' is not a legal topic name: .* ' '"):
        app.handler("new orders")

    @app.handler("orders")
    async def handle(value: bytes) -> Message:
        return Message(b"", topic="new orders")

    async with TestApp(app) as kafka:
        with pytest.raises(PublishError, match="is not a legal topic name"):
            await app.publish("new orders", b"1")
        await kafka.send("orders", b"1")

    (dead,) = kafka.dead_letters("orders")
    assert "is not a legal topic name" in dead.reason


async def test_published_messages_carry_the_active_span():
    """Results carry the span of the middleware, and app.publish the active span, by OpenTelemetry's propagator."""
    spans = [SpanContext(0xABC, number, is_remote=False, trace_flags=TraceFlags(1)) for number in (1, 2)]

    def spanned(call):
        async def around(record: Record):
            with use_span(NonRecordingSpan(spans[0])):
                return await call(record)

        return around

    app = App(group_id="billing", middleware=[spanned])

    @app.handler("orders", publish="out")
    async def handle(value: bytes) -> int:
        await app.publish("beside", 0)
        with use_span(NonRecordingSpan(spans[1])):
            await app.publish("beside", 1)
        return 1

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[TRACE, BAGGAGE])
        await kafka.send("orders", b"y")

        out, beside = ([dict(one.headers) for one in kafka.published(topic)] for topic in ("out", "beside"))

    parents = [f"00-{0xABC:032x}-{number:016x}-01".encode() for number in (1, 2)]
    assert [one["traceparent"] for one in out] == [parents[0]] * 2
    assert [one["traceparent"] for one in beside] == parents * 2
    assert [one.get("baggage") for one in out] == [BAGGAGE[1], None]


async def test_results_of_a_batch_carry_the_active_span():
    """Results of a batch carry the span of the middleware, and the baggage of their own record."""
    spans = [SpanContext(0xABC, number, is_remote=False, trace_flags=TraceFlags(1)) for number in (1, 2)]

    def spanned(call):
        async def around(records: list[Record]):
            with use_span(NonRecordingSpan(spans[0])):
                return await call(records)

        return around

    app = App(group_id="billing")

    @app.batch_handler("orders", max_records=2, publish="out", middleware=[spanned])
    async def handle(values: list[bytes]) -> list[int]:
        with use_span(NonRecordingSpan(spans[1])):
            await app.publish("beside", 0)
        return [1, 2]

    async with TestApp(app) as kafka:
        await asyncio.gather(*(kafka.send("orders", b"x", headers=headers) for headers in ([TRACE, BAGGAGE], [OTHER])))

        out, beside = ([dict(one.headers) for one in kafka.published(topic)] for topic in ("out", "beside"))

    parents = [f"00-{0xABC:032x}-{number:016x}-01".encode() for number in (1, 2)]
    assert [one["traceparent"] for one in out] == [parents[0]] * 2
    assert [one.get("baggage") for one in out] == [BAGGAGE[1], None]
    assert [one["traceparent"] for one in beside] == [parents[1]]


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Place(msgspec.Struct):
    city: str


KEYS = [
    (5, int, b"5"),
    (-5, int, b"-5"),
    (1.5, float, b"1.5"),
    (True, bool, b"true"),
    ("ann", str, b"ann"),
    (b"\x00\xff", bytes, b"\x00\xff"),
    (bytearray(b"a"), bytes, b"a"),
    (memoryview(b"a"), bytes, b"a"),
    (UUID(int=7), UUID, b"00000000-0000-0000-0000-000000000007"),
    (Decimal("1.50"), Decimal, b"1.50"),
    (date(2026, 11, 27), date, b"2026-11-27"),
    (datetime(2026, 11, 27, 8, tzinfo=UTC), datetime, b"2026-11-27T08:00:00Z"),
    (timedelta(hours=1), timedelta, b"PT3600S"),
    (Color.RED, Color, b"red"),
    (Level.HIGH, Level, b"3"),
    (Place("Berlin"), Place, b'{"city":"Berlin"}'),
    ([1, "a"], list, b'[1,"a"]'),
    ({"a": 1}, dict, b'{"a":1}'),
    (None, None, None),
]


@pytest.mark.parametrize(("key", "kind", "stored"), KEYS, ids=range(len(KEYS)))
@pytest.mark.parametrize("is_result", [False, True], ids=["publish", "result"])
async def test_keys_of_any_type_are_published_as_handlers_read_them(app, key, kind, stored, is_result):
    """A key that a parameter marked with Key can read is published in that form, and read as the same value."""
    seen = []

    @app.handler("orders")
    async def send(value: bytes) -> object:
        if is_result:
            return Message(value, key=key, topic="out")
        return await app.publish("out", value, key=key)

    async def read(value: bytes, found) -> None:
        seen.append(found)

    read.__annotations__["found"] = Annotated[kind or (str | None), Key]
    app.handler("out")(read)
    async with TestApp(app) as kafka:
        await kafka.send("orders", b"1")
        assert [record.key for record in kafka.published("out")] == [stored]

    assert seen == [bytes(key) if kind is bytes else key]


@pytest.mark.parametrize("key", [float("nan"), float("inf"), object(), {1, object()}, lambda: None])
async def test_a_key_without_text_is_refused(app, key):
    """A key that no parameter can read is refused with its message."""

    @app.handler("orders")
    async def read(value: bytes) -> None: ...

    async with TestApp(app):
        with pytest.raises(PublishError, match="cannot be encoded"):
            await app.publish("orders", b"1", key=key)


async def test_of_several_trace_headers_the_last_one_is_passed_on(app):
    """As for parameters marked with Header, and in Kafka's clients, the last header of a name counts."""
    seen = []

    @app.handler("orders", publish="out")
    async def handle(value: bytes, trace: Annotated[str, Header("traceparent")]) -> bytes:
        seen.append(trace)
        return value

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"1", headers=[("traceparent", b"first"), TRACE])
        assert [list(one.headers) for one in kafka.published("out")] == [[TRACE]]

    assert seen == [TRACE[1].decode()]


@pytest.mark.parametrize("is_pure", [False, True])
def test_a_handler_cannot_change_the_headers_of_its_record(kafka_server, new_topic, group, witness, is_pure):
    """The headers of a record are immutable, so that a dead letter contains those that the producer sent."""
    topic = new_topic()
    witness.produce(topic, [b"1"], headers=[("a", b"1"), ("b", b"2")])
    program = [sys.executable, "-c", CHANGING, kafka_server.bootstrap_servers, group, topic]
    variables = {**os.environ, **({"TAILRACE_PURE_PYTHON": "1"} if is_pure else {})}

    done = subprocess.run(program, env=variables, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tuple", "AttributeError"]


CHANGING = """
import asyncio, sys
from tailrace import App, Record

app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[2])
done = asyncio.Event()

@app.handler(sys.argv[3])
async def handle(record: Record) -> None:
    print(type(record.headers).__name__)
    try:
        record.headers.clear()
    except AttributeError as error:
        print(type(error).__name__)
    done.set()

async def main():
    async with app:
        await done.wait()

asyncio.run(main())
"""
