"""Outbox and Inbox while the process that relays is killed or stopped, as librdkafka and the database see it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import aiosqlite
import psycopg
import pytest

from tailrace import Message
from tailrace.integrations.sql import OUTBOX_ID_HEADER, Inbox, Outbox
from tests.support.commands import environment
from tests.support.consumer_group import until
from tests.support.postgresql import running_postgresql
from tests.support.topic_contents import contents_of

SERVICE = Path(__file__).with_name("outbox_service.py")
KEYS, FAULTS = 7, 10


class Services:
    """Two instances of the service, of which one relays at a time, and a database with the rows of a writer."""

    def __init__(self, database: str, brokers: str, topic: str, log: Path) -> None:
        self._arguments, self._log = (database, brokers, topic), log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._database, self._topic = database, topic
        self._is_sqlite = not database.startswith("postgresql:")
        self._written = [0] * KEYS
        """Number of committed rows of each key."""
        for table in (Outbox(), Inbox("service")):
            self.execute(table.create_table_sql("sqlite" if self._is_sqlite else "postgresql"))
        number, binary = ("INTEGER PRIMARY KEY", "BLOB") if self._is_sqlite else ("BIGSERIAL", "BYTEA")
        self.execute(f"CREATE TABLE effects (id {number}, key {binary}, value {binary})")

    def execute(self, sql: str) -> list[tuple]:
        opened = sqlite3.connect(self._database, timeout=30) if self._is_sqlite else psycopg.connect(self._database)
        with contextlib.closing(opened) as connection, connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    # ---- processes ---------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        command = [sys.executable, str(SERVICE), *self._arguments, name]
        with (self._log / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment())

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait(20)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    async def relaying(self, besides: str = "") -> str:
        """Return the name of the instance that holds PostgreSQL's lock and has rows to publish."""
        query = (
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND application_name LIKE 'instance-%%'"
            " AND application_name <> %s"
        )
        give_up_at = time.monotonic() + 60
        async with await psycopg.AsyncConnection.connect(self._database, autocommit=True) as connection:
            while time.monotonic() < give_up_at:
                if rows := await (await connection.execute(query, (besides,))).fetchall():
                    return rows[0][0]
                await asyncio.sleep(0.002)
            sessions = await (await connection.execute("SELECT * FROM pg_stat_activity")).fetchall()
        running = {name: one.poll() for name, one in self._running.items()}
        raise AssertionError(f"no instance but {besides} relays\n{running}\n{sessions}\n{self.logs()}")

    async def until_relayed(self) -> None:
        """Wait until a row that is committed after this call, and those before it, are published and deleted."""
        count = sum(self._written)
        await until(lambda: sum(self._written) > count + 1, 60)
        ((last,),) = self.execute("SELECT coalesce(max(id), 0) FROM tailrace_outbox")
        await until(lambda: self.execute(f"SELECT 1 FROM tailrace_outbox WHERE id <= {last}") == [], 60)

    def logs(self) -> str:
        return "".join(one.read_text() for one in self._log.glob("*.log"))

    # ---- rows --------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Commit rows of each key until the end of the context, and wait until they are published and have effects.

        The end of the context ends the processes.
        """
        task = asyncio.create_task(self._write())
        try:
            yield
            task.cancel()
            await asyncio.wait({task})
            total = sum(self._written)
            await until(lambda: self.execute("SELECT count(*) FROM tailrace_outbox") == [(0,)], 120)
            await until(lambda: self.execute("SELECT count(*) FROM effects")[0][0] >= total, 120)
        finally:
            task.cancel()
            for one in self._running.values():
                one.kill()
                one.wait(20)

    async def _write(self) -> None:
        outbox, written = Outbox(), self._written
        if self._is_sqlite:
            opened = aiosqlite.connect(self._database, timeout=30)
        else:
            opened = await psycopg.AsyncConnection.connect(self._database, application_name="writer")
        async with opened as connection:
            while True:
                for key in range(KEYS):
                    message = Message(b"%d" % written[key], key=str(key), topic=self._topic)
                    await outbox.add(connection, message)
                    if written[key] % 10 == 5 and key == 0:
                        await connection.rollback()
                        await outbox.add(connection, message)
                    committing = asyncio.ensure_future(connection.commit())
                    try:
                        await asyncio.shield(committing)
                    finally:
                        await committing
                        written[key] += 1
                await asyncio.sleep(0.1)

    async def check(self, witness) -> None:
        """Check that first copies and effects have the order of the commits of their key, and that none is missing."""
        applied, published, ids = defaultdict(list), defaultdict(list), set()
        for key, value in self.execute("SELECT key, value FROM effects ORDER BY id"):
            applied[key].append(int(value))
        for record in await contents_of(witness, self._topic, 3):
            identity = dict(record.headers())[OUTBOX_ID_HEADER]
            if identity not in ids:
                ids.add(identity)
                published[record.key()].append(int(record.value()))
        expected = {b"%d" % key: list(range(count)) for key, count in enumerate(self._written)}
        assert published == expected
        assert applied == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
async def test_nothing_is_lost_reordered_or_applied_twice(kafka_server, new_topic, witness, tmp_path):
    """On PostgreSQL, the relaying instance is killed ten times, and stopped ten times for longer than takeover_ms.

    Every committed row is published, first copies are in the order of the commits of their key, and an effect with a
    claim in the inbox happens once for each row, in the same order. The other instance takes over each time.
    """
    with running_postgresql() as url:
        services = Services(url, kafka_server.bootstrap_servers, new_topic(3), tmp_path)
        async with services.writing():
            for name in ("instance-1", "instance-2"):
                services.start(name)
            for _ in range(FAULTS):
                name = await services.relaying()
                services.kill(name)
                await services.relaying(besides=name)
                services.start(name)

                name = await services.relaying()
                services.send_signal(name, signal.SIGSTOP)
                await services.relaying(besides=name)
                await asyncio.sleep(0.1)
                services.send_signal(name, signal.SIGCONT)
        await services.check(witness)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_is_lost_reordered_or_applied_twice_on_sqlite(kafka_server, new_topic, witness, tmp_path):
    """On SQLite, the same holds while the relaying instance is killed ten times; the other one takes over."""
    services = Services(str(tmp_path / "service.db"), kafka_server.bootstrap_servers, new_topic(3), tmp_path)
    services.execute("PRAGMA journal_mode = WAL")
    names = ("instance-1", "instance-2")
    async with services.writing():
        services.start(names[0])
        await services.until_relayed()
        services.start(names[1])
        for number in range(FAULTS):
            # The relaying instance is the one that was killed before the last kill.
            services.kill(names[number % 2])
            await services.until_relayed()
            services.start(names[number % 2])
    await services.check(witness)
