"""Log lines while no broker can be reached."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter

import pytest

from tailrace import App, Consumer, Producer
from tailrace.observe.events import MetadataRefreshFailed, PartitionsAssigned
from tailrace.testing import KafkaServer
from tests.support.event_recorder import EventRecorder

OUTAGE_S = 6
ONE_PER_CONNECTION = {"connection lost"}
OF_SLOW_MACHINES = {"loop blocked", "loop unblocked"}
MEMBERS = {
    "classic": {"heartbeat_interval_ms": 1_000, "auto_commit_interval_ms": 200, "session_timeout_ms": 30_000},
    "kip848": {"group_protocol": "consumer", "auto_commit_interval_ms": 200},
}


def lines_of(caplog, client_id):
    """Return the number of lines of each event that a client has logged."""
    logged = [record.tailrace for record in caplog.records if record.name == "tailrace"]
    return Counter(one["event"] for one in logged if one.get("client_id") == client_id)


@pytest.mark.xdist_group("killed-broker")
async def test_an_outage_is_logged_in_few_lines(group, caplog):
    """While the only broker is down, lines that recur are logged once in 30 s, and the pauses between requests grow."""
    events = {name: EventRecorder() for name in (*MEMBERS, "app", "producer")}
    async with contextlib.AsyncExitStack() as stack:
        server = stack.enter_context(KafkaServer())
        server.create_topic(group)

        def options(name):
            own = {"bootstrap_servers": server.bootstrap_servers, "client_id": name, "hooks": [events[name]]}
            return {**own, "stop_timeout_ms": 1_000}

        producer = await stack.enter_async_context(Producer(**options("producer"), delivery_timeout_ms=120_000))
        await producer.send(group, b"1")
        consumers = []
        for name, member in MEMBERS.items():
            made = Consumer(group, **options(name), **member, group_id=f"{group}-{name}")
            consumers.append(await stack.enter_async_context(made))
            await made.getone()
        app = App(**options("app"), **MEMBERS["classic"], group_id=f"{group}-app")

        @app.handler(group)
        async def handle(value: bytes): ...

        await stack.enter_async_context(app)
        await events["app"].wait_for(PartitionsAssigned)

        caplog.set_level(logging.INFO, "tailrace")
        caplog.clear()
        began_at = time.monotonic()
        server.kill()
        polls = [asyncio.create_task(one.getmany(timeout_ms=60_000)) for one in consumers]
        future = await producer.enqueue(group, b"2")
        for one in events.values():
            await one.wait_for(MetadataRefreshFailed)
        await asyncio.sleep(OUTAGE_S)
        lines = {name: lines_of(caplog, name) for name in events}
        outage_s = time.monotonic() - began_at
        counts = {name: Counter(type(one).__name__ for one in events[name].events) for name in events}
        for task in (*polls, future):
            task.cancel()
        await asyncio.gather(*polls, future, return_exceptions=True)

    for name, logged in lines.items():
        assert logged["metadata refresh failed"] >= 1, (name, logged)
        # An app has a cluster of its own beside its consumer's.
        assert {one for one, count in logged.items() if count > 2} <= ONE_PER_CONNECTION | OF_SLOW_MACHINES, name
        # Pauses of 0.1, 0.2, 0.4, 0.8 s, then of about a second; without growth, there would be 60 requests.
        assert counts[name]["MetadataRefreshFailed"] <= 2 * outage_s + 4, (name, counts[name])
        assert counts[name]["GroupRequestFailed"] <= 2 * outage_s + 4, (name, counts[name])
