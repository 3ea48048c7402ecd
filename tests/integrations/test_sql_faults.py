"""Outbox and Inbox while the process that relays is killed or stopped, as librdkafka and PostgreSQL see it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

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
    """Two instances of the service, of which one relays at a time."""

    def __init__(self, url: str, brokers: str, topic: str, log: Path) -> None:
        self._arguments, self._log, self.url = (url, brokers, topic), log, url
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        command = [sys.executable, str(SERVICE), *self._arguments, name]
        with (self._log / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(command, stdout=log, stderr=log, env=environment())

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait(20)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def end(self) -> None:
        for one in self._running.values():
            one.kill()
            one.wait(20)

    async def relaying(self, besides: str = "") -> str:
        """Return the name of the instance that holds the relay's lock and has rows to publish."""
        query = (
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE locktype = 'advisory' AND granted AND application_name LIKE 'instance-%%'"
            " AND application_name <> %s"
        )
        until = time.monotonic() + 60
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            while time.monotonic() < until:
                if rows := await (await connection.execute(query, (besides,))).fetchall():
                    return rows[0][0]
                await asyncio.sleep(0.002)
        raise AssertionError("no instance relays\n" + "".join(one.read_text() for one in self._log.glob("*.log")))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
async def test_nothing_is_lost_reordered_or_applied_twice(kafka_server, new_topic, witness, tmp_path):
    """The relaying instance is killed ten times, and stopped ten times for longer than takeover_ms.

    Every committed row is published, first copies are in the order of the commits of their key, and an effect with a
    claim in the inbox happens once for each row, in the same order. The other instance takes over each time.
    """
    topic, outbox = new_topic(3), Outbox()
    with running_postgresql() as url, psycopg.connect(url, autocommit=True) as database:
        database.execute(outbox.create_table_sql("postgresql"))
        database.execute(Inbox("service").create_table_sql("postgresql"))
        database.execute("CREATE TABLE effects (id BIGSERIAL, key BYTEA, value BYTEA)")
        services = Services(url, kafka_server.bootstrap_servers, topic, tmp_path)
        written = [0] * KEYS
        writing = asyncio.create_task(write(url, outbox, topic, written))
        try:
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
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
            total = sum(written)
            await until(lambda: database.execute("SELECT count(*) FROM tailrace_outbox").fetchone() == (0,), 60)
            await until(lambda: database.execute("SELECT count(*) FROM effects").fetchone()[0] >= total, 60)
        finally:
            writing.cancel()
            services.end()
        applied = defaultdict(list)
        for key, value in database.execute("SELECT key, value FROM effects ORDER BY id"):
            applied[key].append(int(value))

    expected = {b"%d" % key: list(range(count)) for key, count in enumerate(written)}
    published, ids = defaultdict(list), defaultdict(set)
    for record in await contents_of(witness, topic, 3):
        identity = dict(record.headers())[OUTBOX_ID_HEADER]
        if identity not in ids[record.key()]:
            ids[record.key()].add(identity)
            published[record.key()].append(int(record.value()))
    assert published == expected
    assert applied == expected


async def write(url: str, outbox: Outbox, topic: str, written: list[int]) -> None:
    """Commit rows of each key until canceled, some of which are rolled back."""
    async with await psycopg.AsyncConnection.connect(url, application_name="writer") as connection:
        while True:
            for key in range(KEYS):
                await outbox.add(connection, Message(b"%d" % written[key], key=str(key), topic=topic))
                if written[key] % 10 == 5 and key == 0:
                    await connection.rollback()
                    await outbox.add(connection, Message(b"%d" % written[key], key=str(key), topic=topic))
                committing = asyncio.ensure_future(connection.commit())
                try:
                    await asyncio.shield(committing)
                finally:
                    await committing
                    written[key] += 1
            await asyncio.sleep(0.1)
