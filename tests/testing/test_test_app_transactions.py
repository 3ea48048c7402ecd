"""TestApp with ``delivery="exactly_once"`` opens, commits and aborts transactions as in production."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tailrace import App, HandlerFailedError, Record, Retry
from tailrace.testing import TestApp


def exactly_once(**options) -> App:
    return App(group_id="g", delivery="exactly_once", **{"retry": Retry(attempts=2), **options})


async def test_records_of_a_failed_attempt_are_not_published():
    """Records that a failed attempt publishes do not appear, and those of the successful attempt do."""
    app, tried = exactly_once(), []

    @app.handler("a", publish="b")
    async def handle(value: bytes) -> bytes:
        tried.append(value)
        await app.publish("log", b"%d" % len(tried))
        await asyncio.sleep(1)
        if len(tried) == 1:
            raise OSError("not yet")
        return value

    @app.handler("b", group_id="other")
    async def pass_on(value: bytes) -> None:
        await app.publish("c", value)

    async with TestApp(app) as kafka:
        await kafka.send("a", b"x")
        assert [kafka.published(topic, bytes) for topic in ("log", "b", "c")] == [[b"2"], [b"x"], [b"x"]]
        assert kafka.committed("a") == kafka.committed("b") == 1


async def test_a_failed_record_delays_later_ones():
    """Records before a failed one are committed, later ones wait, and none is published twice when it succeeds."""
    app, is_broken, tried = exactly_once(), True, []

    @app.handler("t", publish="out", order_by="none")
    async def handle(value: bytes) -> bytes:
        tried.append(value)
        await asyncio.sleep(0 if value == b"1" else 0.01)
        if value == b"1" and is_broken:
            raise OSError("away")
        return value

    async with TestApp(app) as kafka:
        sent = await asyncio.gather(*(kafka.send("t", value) for value in (b"0", b"1", b"2")), return_exceptions=True)
        assert [type(one) for one in sent if isinstance(one, Exception)] == [HandlerFailedError]
        assert (kafka.committed("t"), kafka.published("out", bytes)) == (1, [b"0"])
        assert app.health().status == "degraded"
        is_broken = False
        await asyncio.sleep(60)
        await kafka.settled()

        assert (kafka.committed("t"), sorted(kafka.published("out", bytes))) == (3, [b"0", b"1", b"2"])
        assert app.health().status == "ok"


async def test_retry_topics_and_dead_letters_work_in_transactions():
    """Delays of retry topics pass in virtual time, and the dead letter exists when send() returns."""
    retry = Retry(attempts=1, topic_delays_ms=[60_000, 3_600_000])
    app, tried = exactly_once(dead_letter="{topic}.{group}.dead", retry=retry), []

    @app.batch_handler("t")
    async def handle(values: list[bytes]) -> None:
        tried.append(asyncio.get_running_loop().time())
        await app.publish("out", b"never")
        raise OSError("away")

    async with TestApp(app) as kafka:
        await kafka.send("t", b"0")

        assert [round(after - before) for before, after in itertools.pairwise(tried)] == [60, 3_600]
        assert [letter.attempts for letter in kafka.dead_letters("t")] == [3]
        assert kafka.published("out") == []
        assert kafka.committed("t") == kafka.committed("t.g.retry.1h") == 1


async def test_a_due_record_is_handled_when_its_handler_is_resumed():
    """A record that becomes due while its handler is paused is handled when the handler is resumed."""
    app, tried = exactly_once(retry=Retry(attempts=1, topic_delays_ms=[5_000])), []

    @app.handler("t")
    async def handle(_value: bytes) -> None:
        tried.append(asyncio.get_running_loop().time())
        if len(tried) == 1:
            raise OSError("away")

    async with TestApp(app) as kafka, asyncio.TaskGroup() as sending:
        sending.create_task(kafka.send("t", b"0"))
        await asyncio.sleep(3)
        app.pause(handle)
        await asyncio.sleep(9)
        app.resume(handle)

    assert [round(at - tried[0]) for at in tried] == [0, 12]


async def test_deferred_records_are_retried_independently():
    """A deferred record is retried when it is due, although another one waits for a paused handler."""
    app, tried = exactly_once(retry=Retry(attempts=2, backoff_ms=20_000, jitter=False)), {"a": [], "b": []}

    def handle(topic: str):
        @app.handler(topic)
        async def handler(_value: bytes) -> None:
            tried[topic].append(asyncio.get_running_loop().time())
            if len(tried[topic]) == 1:
                raise OSError("away")

        return handler

    held, _ = handle("a"), handle("b")
    async with TestApp(app) as kafka, asyncio.TaskGroup() as sending:
        sending.create_task(kafka.send("a", b"0"))
        await asyncio.sleep(5)
        app.pause(held)
        await asyncio.sleep(5)
        sending.create_task(kafka.send("b", b"0"))
        await asyncio.sleep(90)
        app.resume(held)

    assert [round(at - tried["a"][0]) for at in (*tried["a"], *tried["b"])] == [0, 100, 10, 30]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("order_by", ["partition", "key"])
async def test_a_deferred_record_holds_up_its_lane(order_by, in_batches):
    """Later records of a lane start after the deferred record has succeeded."""
    app, tried = exactly_once(retry=Retry(attempts=2, backoff_ms=20_000, jitter=False)), []

    async def handle(record: Record) -> None:
        tried.append(record.offset)
        await asyncio.sleep(0.01)
        if tried == [0]:
            raise OSError("away")

    async def handle_batch(records: list[Record]) -> None:
        await handle(*records)

    if in_batches:
        app.batch_handler("t", order_by=order_by, max_records=1)(handle_batch)
    else:
        app.handler("t", order_by=order_by)(handle)
    async with TestApp(app) as kafka, asyncio.TaskGroup() as sending:
        for _ in range(3):
            sending.create_task(kafka.send("t", b"x", key="k"))

    assert tried == [0, 0, 1, 2]
