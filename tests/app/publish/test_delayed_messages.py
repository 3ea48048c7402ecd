"""Delayed messages in virtual time: when they are published, what they contain, and which delays are refused."""

from __future__ import annotations

import asyncio
import math
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from tailrace import App, ConfigurationError, HandlerFailedError, Message, PublishError, Record, Retry
from tailrace.app.failures.dead_letters import replay_record
from tailrace.testing import TestApp

TRACE = ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


def new_app(*delays_ms: int, **options) -> App:
    return App(group_id="billing", publish_delays_ms=delays_ms, **options)


def now_ms(kafka: TestApp) -> float:
    return kafka._now_s() * 1000


def lateness_ms(kafka: TestApp, topic: str, due_ms: float) -> list[int]:
    """Return for each record of a topic how many whole milliseconds after ``due_ms`` it was published."""
    return [one.timestamp - math.floor(due_ms) for one in kafka.published(topic)]


async def test_a_message_is_published_after_its_delay_as_it_is():
    """The message waits in the topic of its delay; then its topic has it, with its own headers and partition only."""
    app = new_app(300_000, 30_000)
    async with TestApp(app, partitions={"reminders": 3}) as kafka:
        due_ms = now_ms(kafka) + 30_000
        place = await app.publish(
            "reminders", {"n": 1}, key="ann", headers=[("kind", "late"), TRACE], partition=2, delay_ms=30_000
        )
        assert kafka.published("reminders") == []
        await kafka.settled()

        (record,) = kafka.published("reminders")
        (waited,) = kafka.published("billing.delayed-publish.30s")
        assert kafka.published("billing.delayed-publish.5m") == []
    assert place is not None
    assert place.topic == "billing.delayed-publish.30s"
    assert (record.value, record.key, record.partition) == (b'{"n":1}', b"ann", 2)
    assert record.headers == (("kind", b"late"), TRACE)
    assert 0 <= record.timestamp - math.floor(due_ms) <= 2
    assert (waited.value, waited.key) == (b'{"n":1}', b"ann")


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_handlers_delay_their_results(delivery):
    """A Message of a handler is delayed, also in a list, a tombstone, or with publish=; it keeps the record's key."""
    app, seen = new_app(5_000, delivery=delivery), []

    @app.handler("orders", publish="reminders")
    async def remind(record: Record) -> list[Message]:
        return [Message("soon"), Message("later", delay_ms=5_000), Message(None, topic="orders.due", delay_ms=5_000)]

    @app.handler("orders.due")
    async def see(record: Record) -> None:
        seen.append((record.key, record.value, record.headers))

    async with TestApp(app) as kafka:
        sent = await kafka.send("orders", b"x", key="ann")

        first, second = kafka.published("reminders")
        assert kafka.committed("billing.delayed-publish.5s") == 2
    assert (first.value, first.key, second.value, second.key) == (b"soon", b"ann", b"later", b"ann")
    assert 5_000 <= second.timestamp - sent.timestamp <= 5_500
    assert seen == [(b"ann", None, ())]


async def test_a_batch_handler_and_publish_many_delay_messages():
    """Results of batches and the messages of publish_many may have different delays; all others are published now."""
    app = new_app(1_000, 2_000)

    @app.batch_handler("orders", publish="reminders")
    async def remind(values: list[bytes]) -> list[Message]:
        return [Message(one, delay_ms=1_000) for one in values]

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"batch")
        began_ms = now_ms(kafka)
        places = await app.publish_many(
            [Message("b", delay_ms=2_000), Message("a", topic="reminders", delay_ms=1_000), Message("now")], "reminders"
        )
        await kafka.settled()

        texts = [one.value for one in kafka.published("reminders")]
        assert texts == [b"batch", b"now", b"a", b"b"]
        assert [one.topic for one in places if one] == [
            "billing.delayed-publish.2s", "billing.delayed-publish.1s", "reminders"
        ]  # fmt: skip
        assert lateness_ms(kafka, "reminders", began_ms + 2_000)[-1] >= 0


@pytest.mark.parametrize(
    ("left_ms", "waits"),
    [
        (1, 1), (999, 1), (1_000, 1), (1_500, 2), (9_500, 1), (25_500, 2 + 5 + 1), (59_999, 1), (60_000, 1),
        (61_500, 1 + 2), (119_999, 2), (600_000, 1), (480_000, 8),
    ],
)  # fmt: skip
async def test_at_is_kept_by_the_fewest_waits(left_ms, waits):
    """A message waits for the longest declared delays first; one that nearly fits is one wait, not many short ones."""
    app = new_app(1_000, 10_000, 60_000, 600_000)
    async with TestApp(app) as kafka:
        at = datetime.fromtimestamp(kafka._now_s(), UTC) + timedelta(milliseconds=left_ms)
        await app.publish("reminders", "x", at=at.astimezone(timezone(timedelta(hours=9))))
        await kafka.settled()

        (late_ms,) = lateness_ms(kafka, "reminders", at.timestamp() * 1000)
        written = sum(len(kafka.published(f"billing.delayed-publish.{one}")) for one in ("1s", "10s", "1m", "10m"))
    assert 0 <= late_ms <= 100
    assert written == waits


async def test_a_message_is_late_by_the_shortest_delay_at_most():
    """Messages wait for messages before them that are due later, but not longer than the shortest declared delay."""
    app = new_app(1_000, 10_000)
    async with TestApp(app) as kafka:
        began_ms = now_ms(kafka)
        for left_ms in (1_000, 10, 10_000, 9_100, 3_005, 8_000):
            await app.publish("reminders", str(left_ms), delay_ms=left_ms)
        await kafka.settled()

        late_ms = {int(one.value): one.timestamp - math.floor(began_ms) for one in kafka.published("reminders")}
    late_ms = {left_ms: waited_ms - left_ms for left_ms, waited_ms in late_ms.items()}
    assert 980 <= late_ms.pop(10) <= 1_020
    assert 890 <= late_ms.pop(9_100) <= 920
    assert late_ms.keys() == {1_000, 10_000, 3_005, 8_000}
    assert all(0 <= one <= 20 for one in late_ms.values()), late_ms


async def test_a_time_that_has_come_is_published_at_once():
    """delay_ms=0 and a time in the past are published to the topic itself."""
    app = new_app(1_000)
    async with TestApp(app) as kafka:
        places = [
            await app.publish("reminders", "x", delay_ms=0),
            await app.publish("reminders", "x", at=datetime.now(UTC) - timedelta(days=1)),
        ]
        assert [one.topic for one in places if one] == ["reminders", "reminders"]
        assert len(kafka.published("reminders")) == 2


async def test_records_of_a_key_and_delay_keep_their_order():
    """Messages with the same key and the same declared delay are published in order."""
    app = new_app(1_000)
    async with TestApp(app, partitions={"reminders": 4, "billing.delayed-publish.1s": 4}) as kafka:
        for n in range(200):
            await app.publish("reminders", n, key=n % 7, delay_ms=1_000)
        await kafka.settled()

        by_key = {}
        for one in kafka.published("reminders"):
            by_key.setdefault(one.key, []).append(int(one.value))
    assert {int(key): values for key, values in by_key.items()} == {key: list(range(key, 200, 7)) for key in range(7)}


async def test_a_timestamp_is_kept_and_is_not_that_of_the_waiting_record():
    """Message(timestamp_ms=...) is the timestamp of the message; the waiting record has the current time."""
    app = new_app(1_000)
    async with TestApp(app) as kafka:
        began_ms = now_ms(kafka)
        await app.publish_many([Message("x", timestamp_ms=5, delay_ms=1_000)], "reminders")
        await kafka.settled()

        assert [one.timestamp for one in kafka.published("reminders")] == [5]
        assert kafka.published("billing.delayed-publish.1s")[0].timestamp >= int(began_ms)


async def test_headers_of_an_earlier_failure_are_not_published():
    """Headers that begin with tailrace- direct delayed messages, so those that a handler passes on are left out."""
    app = new_app(1_000)
    async with TestApp(app) as kafka:
        headers = [("tailrace-publish-topic", "x"), ("tailrace-publish-partition", "7"), ("kind", "x")]
        await app.publish("reminders", "x", headers=headers, delay_ms=1_000)
        await kafka.settled()

        assert [one.headers for one in kafka.published("reminders")] == [(("kind", b"x"),)]
        assert kafka.published("x") == []


async def test_middleware_codec_and_retries_of_the_app_do_not_concern_delayed_messages():
    """The app's middleware and codec see a delayed message once, when it is published; its retry topics do not."""
    calls = []

    class Codec:
        def encode(self, value: object) -> bytes:
            calls.append(value)
            return b"encoded"

        def decode(self, _data, _annotation, _record):
            raise AssertionError("a waiting message was decoded")

    def middleware(call):
        async def called(record):
            raise AssertionError("a waiting message reached the middleware")

        return called

    app = new_app(1_000, codec=Codec(), middleware=[middleware])
    async with TestApp(app) as kafka:
        await app.publish("reminders", 5, delay_ms=1_000)
        await kafka.settled()

        assert [one.value for one in kafka.published("reminders")] == [b"encoded"]
    assert calls == [5]


async def test_patterns_do_not_match_waiting_messages():
    """A handler with a pattern receives delayed messages when they are published, and not while they wait."""
    app, seen = new_app(1_000), []

    @app.handler(pattern=".*")
    async def see(record: Record) -> None:
        seen.append(record.topic)

    async with TestApp(app) as kafka:
        await app.publish("reminders", "x", delay_ms=1_000)
        await kafka.settled()
    assert seen == ["reminders"]


# ---- failures ------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_refused_becomes_a_dead_letter_that_can_be_replayed():
    """A refused message is a dead letter of the app, with its destination; the replay publishes it there."""
    app = new_app(1_000, dead_letter="{topic}.{group}.dead", retry=Retry(attempts=5, topic_delays_ms=[7_000]))
    async with TestApp(app) as kafka:
        await app.publish("reminders", "x", key="k", headers=[("kind", "x")], partition=3, delay_ms=1_000)
        await kafka.settled()
        (dead,) = kafka.dead_letters("billing.delayed-publish.1s")
        assert kafka.published("reminders") == []

        kafka._log._counts = {"reminders": 4}
        again = replay_record(dead)
        topic = "billing.delayed-publish.1s.billing.replay"
        await app.publish(topic, again.value, key=again.key, headers=again.headers)
        await kafka.settled()
        (record,) = kafka.published("reminders")
    assert "reminders has no partition 3" in dead.reason
    assert dead.headers == (("kind", b"x"),)
    assert (record.partition, record.key, record.value, record.headers) == (3, b"k", b"x", (("kind", b"x"),))


async def test_a_refused_message_waits_and_others_are_published():
    """Without a dead-letter topic, a refused message is retried at intervals, and the others do not wait for it."""
    app = new_app(1_000)
    async with TestApp(app) as kafka:
        await app.publish("reminders", "x", partition=3, delay_ms=1_000)
        await app.publish("reminders", "y", delay_ms=1_000)
        with pytest.raises(HandlerFailedError, match="delayed-publish failed at billing"):
            await kafka.settled()
        assert [one.value for one in kafka.published("reminders")] == [b"y"]
        assert app.health().status == "degraded"
        kafka._log._counts = {"reminders": 4}
        await asyncio.sleep(60)
        assert sorted(one.value for one in kafka.published("reminders")) == [b"x", b"y"]
        assert app.health().status == "ok"


async def test_a_foreign_record_in_a_topic_of_a_delay_is_refused():
    """A record that app.publish did not write names no topic, and fails for good."""
    app = new_app(1_000, dead_letter="{topic}.dead")
    async with TestApp(app) as kafka:
        await kafka.send("billing.delayed-publish.1s", b"x")
        (dead,) = kafka.dead_letters("billing.delayed-publish.1s")
    assert "has no valid header tailrace-publish-topic" in dead.reason


# ---- bad input -----------------------------------------------------------------------------------------------------

SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"delay_ms": -1}, "delay_ms must be a non-negative integer, not -1"),
        ({"delay_ms": 1.5}, "delay_ms must be a non-negative integer, not 1.5"),
        ({"delay_ms": True}, "delay_ms must be a non-negative integer, not True"),
        ({"delay_ms": timedelta(seconds=1)}, "delay_ms must be a non-negative integer, not datetime.timedelta"),
        (
            {"delay_ms": 300_001},
            "delay_ms=300001 exceeds 300000 ms, the longest of App(publish_delays_ms=[30000, 300000]) - declare a",
        ),
        ({"at": SOON + timedelta(days=36_500)}, "ms, exceeds 300000 ms, the longest of App(publish_delays_ms=[30000"),
        ({"at": datetime(2030, 1, 1)}, "at must be a datetime with a time zone, such as datetime.now(UTC) + "),  # noqa: DTZ001
        ({"at": 1_900_000_000}, "at must be a datetime with a time zone"),
        ({"at": SOON, "delay_ms": 5}, "contradict each other - pass one of them"),
    ],
)
async def test_an_invalid_delay_is_refused_before_anything_is_published(given, text):
    """publish, publish_many and results raise PublishError, which says what is wrong and what to declare."""
    app = new_app(300_000, 30_000, on_failure="skip", retry=Retry(attempts=1))

    @app.handler("orders", publish="reminders")
    async def remind(value: bytes) -> list[Message]:
        return [Message("first"), Message("second", **given)]

    async with TestApp(app) as kafka:
        with pytest.raises(PublishError, match=re.escape(text)):
            await app.publish("reminders", "x", **given)
        with pytest.raises(PublishError, match=re.escape(text)):
            await app.publish_many([Message("first"), Message("second", **given)], "reminders")
        await kafka.send("orders", b"x")
        assert kafka.published("reminders") == []


async def test_undeclared_delays_are_refused():
    """Without publish_delays_ms, an app refuses delayed messages, and says what to set."""
    app = App(group_id="billing")
    async with TestApp(app):
        for given in ({"delay_ms": 5}, {"at": SOON}):
            with pytest.raises(PublishError, match=re.escape("set App(publish_delays_ms=[30_000])")):
                await app.publish("reminders", "x", **given)


@pytest.mark.parametrize("given", [5_000, [0], [-5], ["30s"], [True], [1.5], None])
def test_invalid_declarations_are_refused(given):
    """publish_delays_ms is a list of positive integers."""
    with pytest.raises(ConfigurationError, match="publish_delays_ms must be a list of positive integers such as"):
        App(publish_delays_ms=given)


async def test_delays_need_a_group_and_their_topics_are_the_apps_own():
    """An app without group_id cannot publish delayed messages, and no handler may read the topics of delays."""
    app = App(publish_delays_ms=[1_000])
    with pytest.raises(ConfigurationError, match=re.escape("publish_delays_ms needs a group")):
        await app.start()

    other = new_app(1_000)

    @other.handler("billing.delayed-publish.1s")
    async def handle(value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match="which only the app itself reads"):
        await other.start()
