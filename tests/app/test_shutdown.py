"""When an app stops, canceled records are not finished, and dependencies stay open until handlers have cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

import pytest

from tailrace import App, ConsumerStateError, Depends, HandlerFailedError, Reject, Retry
from tailrace.observe.events import HandlerAbandoned, HandlerFailed, LeaveGroupTimedOut, RecordSkipped
from tailrace.testing import KafkaServer, TestApp
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.witness import Witness

steps: list[str] = []


async def open_bank():
    """Dependency of a handler."""
    try:
        yield "bank"
    finally:
        steps.append("bank closes")


KINDS = pytest.mark.parametrize("kind", ["handler", "batch_handler"])


def declare(app: App, kind: str, handle, topic: str = "orders") -> None:
    """Declare ``handle``, which takes no arguments, as a handler of records or of batches of one."""

    async def on_record(value: bytes) -> None:
        await handle()

    async def on_batch(values: list[bytes]) -> None:
        await handle()

    if kind == "handler":
        app.handler(topic)(on_record)
    else:
        app.batch_handler(topic, max_records=1)(on_batch)


@KINDS
@pytest.mark.parametrize("becomes", ["failure", "rejection", "failure of a second attempt"])
@pytest.mark.parametrize("dead_letter", ["{topic}.dead", None], ids=["dead letters", "skip"])
async def test_a_canceled_record_has_not_failed(kind, becomes, dead_letter):
    """A record whose handler was canceled is not dead-lettered, skipped or committed, whatever the handler raises."""
    events, begun, attempts = EventRecorder(), asyncio.Event(), 0
    retry = Retry(attempts=2 if "second" in becomes else 1, backoff_ms=1)
    app = App(group_id="g", dead_letter=dead_letter, on_failure="skip", retry=retry, hooks=[events])

    async def handle() -> None:
        nonlocal attempts
        attempts += 1
        if attempts < retry.attempts:
            raise ValueError("the first attempt")
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            raise (Reject if becomes == "rejection" else RuntimeError)("the driver's own error") from error

    declare(app, kind, handle)
    async with TestApp(app) as kafka:
        await app.publish("orders", b"0")
        await begun.wait()

    assert kafka.dead_letters("orders") == []
    assert not events.of(RecordSkipped)
    assert kafka.committed("orders") == 0
    assert len(events.of(HandlerFailed)) <= retry.attempts - 1


@KINDS
@pytest.mark.parametrize("end", ["stopped", "failed"])
async def test_dependencies_stay_open_until_canceled_handlers_have_cleaned_up(kind, end):
    """A canceled handler cleans up before stop hooks run and before the publisher and dependencies close."""
    begun = asyncio.Event()
    steps.clear()
    app = App(group_id="g", on_failure="stop", retry=Retry(attempts=1))
    app.on_stop(lambda: steps.append("stop hook"))

    @app.handler("payments")
    async def fail(value: bytes, bank: Annotated[str, Depends(open_bank, scope="app")]) -> None:
        raise ValueError("no")

    async def handle() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            await app.publish("out", b"cleaned up")
            steps.append("handler cleaned up")

    declare(app, kind, handle)
    expected = pytest.raises(HandlerFailedError) if end == "failed" else contextlib.nullcontext()
    with expected:
        async with TestApp(app) as kafka:
            await app.publish("orders", b"0")
            await begun.wait()
            if end == "failed":
                await kafka.send("payments", b"0")

    assert steps == ["handler cleaned up", "stop hook", "bank closes"]
    assert [record.value for record in kafka.published("out")] == [b"cleaned up"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@KINDS
async def test_a_handler_that_swallows_its_cancellation_starts_no_more_records(kind):
    """A handler that swallows its cancellation finishes its record; no other record starts, and no task remains."""
    begun, count = asyncio.Event(), 0
    app = App(group_id="g")

    async def handle() -> None:
        nonlocal count
        count += 1
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return

    declare(app, kind, handle)
    async with TestApp(app) as kafka:
        for n in range(3):
            await app.publish("orders", b"%d" % n)
        await begun.wait()
        await app.stop()

        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert (count, kafka.committed("orders")) == (1, 1)


@KINDS
async def test_a_handler_that_does_not_end_is_abandoned_with_an_event(kind):
    """An app whose handler does not end stops in time, and an event names the handler."""
    begun, let_go, events = asyncio.Event(), asyncio.Event(), EventRecorder()
    app = App(group_id="g", hooks=[events], stop_timeout_ms=20_000)
    tasks = []

    async def handle() -> None:
        tasks.append(asyncio.current_task())
        begun.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    declare(app, kind, handle)
    async with TestApp(app) as kafka:
        await app.publish("orders", b"0")
        await begun.wait()
        began_at = asyncio.get_running_loop().time()
        await app.stop()
        took_s = asyncio.get_running_loop().time() - began_at
        # asyncio.run would wait forever for a task that asyncio knows.
        assert asyncio.all_tasks() == {asyncio.current_task()}
        let_go.set()
        await asyncio.wait(tasks)

        (event,) = events.of(HandlerAbandoned)
        assert ("on_" in event.handler, event.partition.topic, event.offset) == (True, "orders", 0)
        assert took_s == pytest.approx(12, abs=1)
        assert kafka.committed("orders") == 0


@KINDS
async def test_a_handler_cannot_stop_its_own_app(kind):
    """stop() raises ConsumerStateError in a handler, as it would wait for the handler itself."""
    raised, app = [], App(group_id="g")

    async def handle() -> None:
        try:
            await app.stop()
        except ConsumerStateError as error:
            raised.append(str(error))

    declare(app, kind, handle)
    async with TestApp(app) as kafka:
        await kafka.send("orders", b"0")

        assert raised == ["a handler cannot call stop(), which waits for the handler - call it from another task"]
        assert kafka.committed("orders") == 1


@pytest.mark.slow
async def test_several_groups_are_left_in_time_while_no_broker_answers():
    """While no broker answers, several groups with uncommitted records are left concurrently, in time."""
    groups = [f"g{n}" for n in range(4)]
    with KafkaServer(proxied=True) as server:
        witness, events, handled = Witness(server.bootstrap_servers), EventRecorder(), []
        produced, publishing = asyncio.Event(), asyncio.Event()
        options = {"stop_timeout_ms": 8_000, "auto_commit_interval_ms": 60_000, "hooks": [events]}
        app = App(bootstrap_servers=server.bootstrap_servers, group_id="g", **options)

        async def handle(value: bytes) -> None:
            handled.append(value)

        @app.handler("payments")
        async def pay(value: bytes) -> None:
            # The test's own publish() must be acknowledged before the proxy goes silent.
            await produced.wait()
            server.proxy.black_hole()
            publishing.set()
            await app.publish("orders", b"paid")

        for name in ("orders", "payments"):
            server.create_topic(name)
        for group in groups:
            app.handler("orders", group_id=group)(handle)
        witness.produce("orders", [b"0"])
        async with app:
            await until(lambda: len(handled) == len(groups))
            await asyncio.to_thread(witness.produce, "payments", [b"0"])
            produced.set()
            await publishing.wait()
            began_at = asyncio.get_running_loop().time()
        took_s = asyncio.get_running_loop().time() - began_at

    # Sequential LeaveGroup calls would take five times as long, and so would waiting for their answers.
    assert took_s < 16
    assert {event.group_id for event in events.of(LeaveGroupTimedOut)} == {"g", *groups}
    assert asyncio.all_tasks() == {asyncio.current_task()}
