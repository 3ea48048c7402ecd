"""Service of the tests: an app that relays an outbox, and applies each record once: DATABASE BROKERS TOPIC NAME.

DATABASE is the URL of a PostgreSQL database, or the path of an SQLite database.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiosqlite
import psycopg

from tailrace import App, Record
from tailrace.integrations.sql import Inbox, Outbox

database, brokers, topic, name = sys.argv[1:]
outbox, inbox = Outbox(), Inbox("service")
app = App(
    bootstrap_servers=brokers,
    group_id="service",
    group_instance_id=name,
    auto_offset_reset="earliest",
    session_timeout_ms=30_000,
)
idle: list[Any] = []
if database.startswith("postgresql:"):
    insert = "INSERT INTO effects (key, value) VALUES (%s, %s)"
else:
    insert = "INSERT INTO effects (key, value) VALUES (?, ?)"


def connect(used_by: str = name) -> Any:
    if database.startswith("postgresql:"):
        return psycopg.AsyncConnection.connect(database, application_name=used_by)
    return aiosqlite.connect(database, timeout=30)


relay = outbox.relay(app, connect, poll_interval_ms=10, takeover_ms=2_000)
app.on_start(relay.start)
app.on_stop(relay.stop)


@app.handler(topic, order_by="key", concurrency=4)
async def apply(record: Record) -> None:
    connection = idle.pop() if idle else await connect("effects")
    if await inbox.claim(connection, record):
        await connection.execute(insert, (record.key, record.value))
    await connection.commit()
    idle.append(connection)


asyncio.run(app.run())
