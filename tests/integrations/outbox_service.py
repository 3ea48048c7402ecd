"""Service of the tests: an app that relays an outbox, and applies each record once: URL BROKERS TOPIC NAME."""

from __future__ import annotations

import asyncio
import sys

import psycopg

from tailrace import App, Record
from tailrace.integrations.sql import Inbox, Outbox

url, brokers, topic, name = sys.argv[1:]
outbox, inbox = Outbox(), Inbox("service")
app = App(
    bootstrap_servers=brokers,
    group_id="service",
    group_instance_id=name,
    auto_offset_reset="earliest",
    session_timeout_ms=30_000,
)
idle: list[psycopg.AsyncConnection] = []


def connect():
    return psycopg.AsyncConnection.connect(url, application_name=name)


relay = outbox.relay(app, connect, poll_interval_ms=10, takeover_ms=2_000)
app.on_start(relay.start)
app.on_stop(relay.stop)


@app.handler(topic, order_by="key", concurrency=4)
async def apply(record: Record) -> None:
    connection = idle.pop() if idle else await psycopg.AsyncConnection.connect(url, application_name="effects")
    async with connection.transaction():
        if await inbox.claim(connection, record):
            await connection.execute("INSERT INTO effects (key, value) VALUES (%s, %s)", (record.key, record.value))
    idle.append(connection)


asyncio.run(app.run())
