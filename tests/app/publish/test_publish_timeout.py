"""A request whose broker is gone is answered in time, and its error says whether the record may be stored."""

from __future__ import annotations

import asyncio
import collections
import logging

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from tailrace import App, ConfigurationError, Message, PublishError, PublishTimeoutError
from tailrace.observe.events import ConnectionLost
from tailrace.testing import KafkaServer
from tests.support.consumer_group import until
from tests.support.loop_timer import LoopTimer
from tests.support.topic_contents import contents_of
from tests.support.witness import Witness


@pytest.fixture
def mortal_server():
    with KafkaServer() as started:
        yield started


def service_of(app: App, late_s: list[float]) -> web.Application:
    """Return a web service that publishes the body of each POST, and answers 503 if it cannot.

    ``late_s`` receives the seconds between a timer of ten seconds and the answer 503. Both are due at the same time in
    the same event loop, so a slow machine delays both.
    """

    async def place(request: web.Request) -> web.Response:
        body = await request.read()
        in_time = LoopTimer(10)
        try:
            await app.publish("orders", body)
        except PublishTimeoutError as error:
            late_s.append(in_time.late_s)
            return web.Response(status=503, text=str(error))
        return web.Response(status=202)

    service = web.Application()
    service.cleanup_ctx.append(app.cleanup_ctx)
    service.router.add_post("/orders", place)
    return service


@pytest.mark.slow
async def test_a_post_is_answered_in_ten_seconds_after_the_broker_was_killed(mortal_server, caplog):
    """A service answers a POST 10 s after it received it with a killed broker, and counts equal log lines."""
    mortal_server.create_topic("orders")
    app = App(bootstrap_servers=mortal_server.bootstrap_servers, stop_timeout_ms=1_000)
    caplog.set_level(logging.INFO, "tailrace")
    late_s: list[float] = []
    async with TestClient(TestServer(service_of(app, late_s))) as client:
        assert (await client.post("/orders", data=b"1")).status == 202
        mortal_server.kill()
        caplog.clear()
        answers = await asyncio.gather(*(client.post("/orders", data=b"%d" % n) for n in range(2, 22)))
        texts = {await one.text() for one in answers}
        lines = collections.Counter(one.getMessage() for one in caplog.records)

    assert {one.status for one in answers} == {503}
    assert len(late_s) == 20
    assert -0.5 < min(late_s) <= max(late_s) < 0.5, late_s
    assert all("orders: no acknowledgement within 10 s; the record " in one for one in texts)
    assert all(
        " - check that partition 0 has a leader and enough in-sync replicas; last error: " in one for one in texts
    )
    assert max(lines.values()) == 1, lines
    assert lines.total() <= 5, lines


@pytest.mark.parametrize("topic", ["orders", "unused"])
async def test_a_record_that_was_not_sent_is_not_stored_later(mortal_server, topic, recorder):
    """With may_be_stored=False, the record is not stored after the broker is back; the next one is."""
    mortal_server.create_topic("orders")
    mortal_server.create_topic("unused")
    app = App(bootstrap_servers=mortal_server.bootstrap_servers, publish_timeout_ms=4_000, hooks=[recorder])
    async with app, asyncio.timeout(90):
        await app.publish("orders", b"first")
        mortal_server.kill()
        await until(lambda: "main:records" in [one.channel for one in recorder.of(ConnectionLost)])
        in_time = LoopTimer(4)
        with pytest.raises(PublishTimeoutError, match="; the record was not sent, and is not stored - check") as caught:
            await app.publish(topic, b"lost")
        assert in_time.late_s < 1.5
        assert not caught.value.may_be_stored
        mortal_server.restart()
        (place,) = await app.publish_many([Message(b"last", topic=topic)])

    found = await contents_of(Witness(mortal_server.bootstrap_servers), topic)
    assert [one.value() for one in found] == [b"first", b"last"][topic != "orders" :]
    assert (place.topic, place.offset) == (topic, len(found) - 1)


async def test_a_record_that_was_sent_may_be_stored(mortal_server):
    """With a suspended broker, may_be_stored is True; a handler's message is not limited by publish_timeout_ms."""
    mortal_server.create_topic("orders")
    mortal_server.create_topic("out")
    app = App(bootstrap_servers=mortal_server.bootstrap_servers, group_id="g", publish_timeout_ms=4_000)
    handled, began = asyncio.Event(), asyncio.Event()

    @app.handler("orders")
    async def handle(value: bytes) -> None:
        if value == b"start":
            mortal_server.pause()
            began.set()
            await app.publish("out", b"from the handler")
            handled.set()

    async with app, asyncio.timeout(60):
        await app.publish("out", b"warm")
        await app.publish("orders", b"start")
        await began.wait()
        with pytest.raises(PublishTimeoutError, match="no acknowledgement within 4 s; the record ") as caught:
            await app.publish("orders", b"sent")
        mortal_server.resume()
        await handled.wait()

    assert caught.value.may_be_stored
    found = await contents_of(Witness(mortal_server.bootstrap_servers), "out")
    assert [one.value() for one in found] == [b"warm", b"from the handler"]


class SilentRegistry:
    """Codec whose schema registry never answers."""

    keys = False

    def decoder(self, _annotation: object) -> object:
        raise NotImplementedError

    def encode(self, _value: object) -> bytes:
        raise NotImplementedError

    async def encode_for(self, _topic: str, _value: object, *, is_key: bool = False) -> bytes:
        assert not is_key
        await asyncio.Event().wait()
        raise NotImplementedError


async def test_a_schema_registry_that_hangs_does_not_hang_a_request(kafka_server, new_topic):
    """publish() waits for a schema for publish_timeout_ms at most, then says that nothing is stored."""
    app = App(bootstrap_servers=kafka_server.bootstrap_servers, codec=SilentRegistry(), publish_timeout_ms=300)
    async with app, asyncio.timeout(20):
        for call in (app.publish(new_topic(), 5), app.publish_many([Message(5)], new_topic())):
            with pytest.raises(
                PublishTimeoutError, match=r"no schema within 0\.3 s; the message was not sent"
            ) as caught:
                await call
            assert not caught.value.may_be_stored


@pytest.mark.parametrize(
    ("messages", "words"), [(5, "messages must be a list of Message objects, not 5"), ([b"v"], "not of bytes: b'v'")]
)
async def test_publish_many_takes_messages_only(kafka_server, messages, words):
    """Anything but messages raises PublishError, and nothing is published."""
    async with App(bootstrap_servers=kafka_server.bootstrap_servers) as app:
        with pytest.raises(PublishError, match=words):
            await app.publish_many(messages, "orders")
        assert app.statistics().producers[0].published_records == 0


async def test_publish_many_returns_all_places_or_publishes_nothing(kafka_server, new_topic):
    """publish_many() returns the places in order; if a message cannot be encoded, none is published."""
    topic, other = new_topic(), new_topic()
    async with App(bootstrap_servers=kafka_server.bootstrap_servers) as app:
        with pytest.raises(PublishError, match=r"publish_many\(\): a message to .* cannot be encoded"):
            await app.publish_many([Message(1), Message({1, object()})], topic)
        with pytest.raises(PublishError, match=r"publish_many\(\): a Message has no topic"):
            await app.publish_many([Message(1)])
        with pytest.raises(PublishError, match=r"2 of 3 records were not published; the first: .* has no partition 7"):
            await app.publish_many([Message(1, partition=7), Message(2), Message(3, partition=8)], topic)
        places = await app.publish_many([*(Message(one) for one in range(5)), Message(9, topic=other)], topic)

    assert [(one.topic, one.offset) for one in places] == [*((topic, one) for one in range(1, 6)), (other, 0)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"publish_timeout_ms": 0}, "publish_timeout_ms must be a positive integer, not 0"),
        (
            {"producer": {"linger_ms": 10_000}},
            "linger_ms=10000 must be less than publish_timeout_ms=10000, which includes it - lower the first or raise",
        ),
    ],
)
def test_invalid_limits_are_refused(options, text):
    """One sentence names the value and the next step."""
    with pytest.raises(ConfigurationError) as caught:
        App(**options)

    assert text in str(caught.value)
