"""SQL databases: ``Outbox`` publishes what a transaction has written, and ``Inbox`` lets an effect happen once.

The connection is the user's: of asyncpg, psycopg 3 (async), sqlite3, aiosqlite, or SQLAlchemy (async) on PostgreSQL or
SQLite. Its class tells the driver, so this module imports none of them.

The order of the records of a key follows from two locks. A transaction that adds a record locks the key until its end,
so that the ids of a key's rows are in the order of the commits. A relay locks the table while it publishes a batch, and
publishes a record of a key after the record before it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import secrets
import sqlite3
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

import msgspec

from tailrace.app.app import App
from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import AnyCodec
from tailrace.config import resolve
from tailrace.core.backoff import Backoff
from tailrace.core.cluster_metadata import topic_name_fault
from tailrace.errors import ConfigurationError, ConsumerStateError, PublishError, TailraceError
from tailrace.observe.events import OutboxBlocked, OutboxRecovered, OutboxUnavailable
from tailrace.observe.hooks import Hook, Observer
from tailrace.producer.encoding import Message, RecordEncoder, check_not_delayed, messages_of
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.traces import current_trace, with_trace
from tailrace.records import AnyRecord
from tailrace.user_exceptions import error_text

__all__ = ["OUTBOX_ID_HEADER", "Backlog", "DatabaseConnection", "Dialect", "Inbox", "Outbox", "Relay"]

Dialect: TypeAlias = Literal["postgresql", "sqlite"]
"""Database for which a statement is written."""


class DatabaseConnection(Protocol):
    """Connection of asyncpg, psycopg (async), sqlite3 or aiosqlite; AsyncConnection or AsyncSession of SQLAlchemy."""

    @property
    def execute(self) -> Callable[..., Any]:
        """Method that executes a statement."""


OUTBOX_ID_HEADER: Final = "tailrace-outbox-id"
"""Header with the id of an outbox row, by which ``Inbox`` recognizes a record that was published twice."""

_MAX_BLOCKED_KEYS = 1_000
"""Number of keys that wait for a retry at which the relay reads no other keys, such as while no broker answers."""
_MAX_CROWDED_KEYS = 10
"""Maximum number of keys of which a batch reads no rows because they had many rows of the batch before."""
_BATCH_S = 0.25
"""Time in seconds after which a batch publishes no further rows, so that stored rows are deleted soon."""
_STATEMENT_S = 30.0
"""Maximum time of a statement of the relay in seconds."""
_STOP_S = 10.0
"""Maximum time in seconds that the end of a relay waits for its last batch."""
_BUSY_S = 0.01
"""Pause in seconds before a statement is repeated that SQLite refuses during another connection's transaction."""
_RETRY = Backoff(0.5, 60.0)
"""Pauses of a key whose record cannot be published."""
_RECONNECT = Backoff(0.1, 2.0)
"""Pauses after an error of the database; short, because another process may end whose rows this one takes over."""

ValueT = TypeVar("ValueT")

_OUTBOX_COLUMNS = """\
    lane BIGINT NOT NULL,
    topic TEXT NOT NULL,
    key {bytes},
    value {bytes},
    headers TEXT NOT NULL,
    partition INTEGER,
    timestamp_ms BIGINT NOT NULL
"""
_COLUMN_TYPES: Mapping[Dialect, Mapping[str, str]] = {
    "postgresql": {"id": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytes": "BYTEA"},
    "sqlite": {"id": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"},
}


class Backlog(NamedTuple):
    """Rows of an outbox that are not published yet."""

    rows: int
    """Number of rows."""
    age_s: float
    """Time in seconds since the oldest timestamp of these records; 0.0 without rows."""


class Outbox:
    """Table of records to publish, to which a transaction adds records, and which a relay publishes.

    ``await outbox.add(connection, Message(order, key=order.id, topic="orders"))`` adds a record in the transaction of
    ``connection``: it is published if the transaction is committed. ``async with outbox.relay(producer, connect)``
    publishes the rows of committed transactions and deletes them.

    Each record is published at least once. Records with the same topic and key are published in the order of their
    transactions' commits; so are records without a key that have the same topic and ``partition``. Other records have
    no order.

    Args:
        table: name of the table, with or without a schema; ``create_table_sql`` returns its definition.
        codec: codec of values, and of keys if its ``keys`` is True; by default JSON, as of ``Producer``.
        hooks: hooks that receive the events of the relay.

    Raises:
        ConfigurationError: ``table`` is not a name.
    """

    def __init__(
        self, table: str = "tailrace_outbox", *, codec: AnyCodec | None = None, hooks: Sequence[Hook] = ()
    ) -> None:
        self.table: str = _checked_table(table)
        self._encoder = RecordEncoder(JsonCodec() if codec is None else codec)
        self._hooks = tuple(hooks)

    def __repr__(self) -> str:
        return f"<Outbox {self.table}>"

    def create_table_sql(self, dialect: Dialect) -> str:
        """Return the statement that creates the table, for a migration. Nothing is executed.

        Raises:
            ConfigurationError: the dialect is unknown.
        """
        types = _types(dialect)
        columns = f"    id {types['id']},\n{_OUTBOX_COLUMNS.format(**types)}"
        return f"CREATE TABLE IF NOT EXISTS {self.table} (\n{columns});"

    async def add(self, connection: DatabaseConnection, *messages: Message) -> None:
        """Add records in the transaction of ``connection``; they are encoded now.

        On PostgreSQL, the call waits for other transactions that have added a record with the same key until they end.
        Transactions that add records of several keys can therefore deadlock, which PostgreSQL detects, unless they add
        them by one call.

        Args:
            connection: connection, or ``AsyncSession`` of SQLAlchemy, with an open transaction.
            messages: records, each with a topic.

        Raises:
            PublishError: a message has no topic or an illegal one, or cannot be encoded.
            SchemaRegistryError: a schema could not be fetched.
            ConsumerStateError: the connection is in no transaction.
            ConfigurationError: the driver or database is not supported.
        """
        database = _database(connection)
        await database.check_transaction()
        rows = [await self._row_of(message) for message in messages_of(messages)]
        # Calls that lock several keys lock them in the same order.
        for lane, record in sorted(rows, key=lambda row: row[0]):
            headers = msgspec.json.encode(record.headers).decode()
            values = (
                lane, record.topic, record.key, record.value, headers, record.partition, record.timestamp_ms
            )  # fmt: skip
            await database.change(self._insert_sql(database.dialect), *values)

    def _insert_sql(self, dialect: Dialect) -> str:
        columns = "lane, topic, key, value, headers, partition, timestamp_ms"
        if dialect == "sqlite":
            return f"INSERT INTO {self.table} ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - checked name
        # The id is generated for the row of the subquery, that is, once the lock is held.
        return (
            "WITH locked AS MATERIALIZED (SELECT lane, pg_advisory_xact_lock(lane)"  # noqa: S608 - checked name
            " FROM (SELECT CAST(? AS BIGINT) AS lane) AS given)"
            f" INSERT INTO {self.table} ({columns}) SELECT lane, CAST(? AS TEXT), CAST(? AS BYTEA), CAST(? AS BYTEA),"
            " CAST(? AS TEXT), CAST(? AS INTEGER), CAST(? AS BIGINT) FROM locked"
        )

    async def _row_of(self, message: Message) -> tuple[int, OutgoingRecord]:
        topic = message.topic
        if topic is None:
            raise PublishError("a Message has no topic - set topic= of each Message of an outbox")
        if fault := topic_name_fault(topic):
            raise PublishError(f"{topic!r}: {fault}")
        check_not_delayed(message, "an Outbox")
        timestamp_ms = _now_ms() if message.timestamp_ms is None else message.timestamp_ms
        rest = (message.headers, message.partition, timestamp_ms)
        key = None if message.key is msgspec.UNSET else message.key
        record = await self._encoder.encode(topic, message.value, key, rest)
        headers = (*with_trace(record.headers, current_trace()), (OUTBOX_ID_HEADER, str(uuid.uuid4()).encode()))
        return self._lane(record), msgspec.structs.replace(record, headers=headers)

    def _lane(self, record: OutgoingRecord) -> int:
        """Return the number of the records among which ``record`` is in order; it is also that of the lock."""
        if record.key is not None:
            return _hashed(self.table, record.topic, record.key)
        if record.partition is not None:
            return _hashed(self.table, record.topic, record.partition)
        return secrets.randbits(63)

    def relay(
        self,
        producer: Producer[Any, Any] | App,
        connect: Callable[[], DatabaseConnection | Awaitable[DatabaseConnection]],
        *,
        poll_interval_ms: int = 100,
        batch_size: int = 200,
        takeover_ms: int = 15_000,
    ) -> Relay:
        """Return the relay of the table, which publishes while it is started: ``async with outbox.relay(...)``.

        Each instance of a service may have a relay: on PostgreSQL, one of them at a time publishes, in a transaction
        that holds an advisory lock; if its process ends, another one continues at once, and if its process hangs, after
        ``takeover_ms``. On SQLite, the relay whose process has the lock file ``<database>-<table>-relay`` publishes
        until it ends.

        A record that cannot be published blocks its key, not others: it is retried after pauses of up to a minute.
        ``OutboxBlocked`` reports it, ``OutboxUnavailable`` an unreachable database, and ``OutboxRecovered`` the end of
        both.

        Args:
            producer: producer without ``transactional_id``, or app, with ``acks="all"`` and idempotence, which are the
                defaults. It must be started before the relay. Rows are encoded already: its codec and serializers are
                not used.
            connect: function without arguments that returns a new connection, or an awaitable of one, such as
                ``lambda: asyncpg.connect(dsn)`` or ``engine.connect``. The relay uses one connection, which it closes.
            poll_interval_ms: pause in milliseconds after a batch that was not full.
            batch_size: maximum number of rows that are read at once.
            takeover_ms: time in milliseconds after which PostgreSQL ends the transaction of a process that hangs.

        Raises:
            ConfigurationError: an argument is invalid.
        """
        limits = {"poll_interval_ms": poll_interval_ms, "batch_size": batch_size, "takeover_ms": takeover_ms}
        for name, value in limits.items():
            _check_positive(name, value)
        return Relay(self, producer, connect, Observer(self._hooks), limits)

    async def backlog(self, connection: DatabaseConnection) -> Backlog:
        """Return the number and age of the rows that are not published yet; the query reads all of them.

        Raises:
            ConfigurationError: the driver or database is not supported.
        """
        select = f"SELECT count(*), min(timestamp_ms) FROM {self.table}"  # noqa: S608 - checked name
        ((rows, oldest_ms),) = await _database(connection).rows(select)
        return Backlog(rows, 0.0 if oldest_ms is None else max(0.0, (_now_ms() - oldest_ms) / 1000))


class Inbox:
    """Table of the records whose effects have happened in this database.

    ``if await inbox.claim(connection, record): ...`` in a transaction lets the effect of the transaction happen once,
    though the record is delivered or published several times.

    A record that an ``Outbox`` has published is recognized by its ``id_header``; other records by topic, partition,
    offset and timestamp, so that a recreated topic is not mistaken for the one before.

    Args:
        group_id: consumer group whose effects they are. Each group has its own claims in a table.
        table: name of the table, with or without a schema; ``create_table_sql`` returns its definition.
        id_header: header with the id of a record; ``"id"`` for Debezium's outbox event router.
        retention_ms: age in milliseconds from which ``delete_expired`` deletes claims. It must exceed the time after
            which a record may be delivered again, such as the retention of the topics.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        group_id: str,
        *,
        table: str = "tailrace_inbox",
        id_header: str = OUTBOX_ID_HEADER,
        retention_ms: int = 14 * 24 * 3_600_000,
    ) -> None:
        if not group_id:
            raise ConfigurationError("group_id must not be empty - pass the group_id of the handlers")
        _check_positive("retention_ms", retention_ms)
        self.table: str = _checked_table(table)
        self._group_id, self._id_header, self._retention_ms = group_id, id_header, retention_ms

    def __repr__(self) -> str:
        return f"<Inbox {self.table} group_id={self._group_id!r}>"

    def create_table_sql(self, dialect: Dialect) -> str:
        """Return the statement that creates the table, for a migration. Nothing is executed.

        Raises:
            ConfigurationError: the dialect is unknown.
        """
        _types(dialect)
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (\n"
            "    group_id TEXT NOT NULL,\n    record_id TEXT NOT NULL,\n    claimed_at_ms BIGINT NOT NULL,\n"
            "    PRIMARY KEY (group_id, record_id)\n);"
        )

    async def claim(self, connection: DatabaseConnection, record: AnyRecord) -> bool:
        """Claim a record in the transaction of ``connection``; return False if it was claimed before.

        A claim is committed or rolled back with the transaction. On PostgreSQL, the call waits for another transaction
        that has claimed the record until it ends; with isolation levels above READ COMMITTED, it then raises the
        driver's serialization error, and the transaction is to be repeated.

        Raises:
            ConsumerStateError: the connection is in no transaction.
            ConfigurationError: the driver or database is not supported.
        """
        database = _database(connection)
        await database.check_transaction()
        inserted = await database.change(
            f"INSERT INTO {self.table} (group_id, record_id, claimed_at_ms) VALUES (?, ?, ?)"  # noqa: S608 - checked name
            " ON CONFLICT DO NOTHING",
            self._group_id,
            self._id_of(record),
            _now_ms(),
        )
        return inserted == 1

    async def delete_expired(self, connection: DatabaseConnection) -> int:
        """Delete the group's claims that are older than ``retention_ms``, and return their number.

        The transaction of the connection, if it has one, is left open.

        Raises:
            ConfigurationError: the driver or database is not supported.
        """
        return await _database(connection).change(
            f"DELETE FROM {self.table} WHERE group_id = ? AND claimed_at_ms < ?",  # noqa: S608 - checked name
            self._group_id,
            _now_ms() - self._retention_ms,
        )

    def _id_of(self, record: AnyRecord) -> str:
        for name, value in reversed(record.headers):
            if name == self._id_header and value:
                return value.decode(errors="backslashreplace").replace("\0", "\\0")
        return f"{record.topic}/{record.partition}/{record.offset}/{record.timestamp}"


# ---- relay -----------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    id: int
    lane: int
    record_id: bytes
    """Value of the header ``OUTBOX_ID_HEADER``; unlike ``id``, no later row has it after a restore of the database."""
    record: OutgoingRecord


class _BlockedKey(NamedTuple):
    failures: int
    retry_at: float
    """Time of the event loop's clock."""


class Relay:
    """Task that publishes and deletes the rows of an outbox; ``Outbox.relay`` returns it.

    ``async with relay`` starts and stops it, as do ``app.on_start(relay.start)`` and ``app.on_stop(relay.stop)``.
    """

    def __init__(
        self,
        outbox: Outbox,
        producer: Producer[Any, Any] | App,
        connect: Callable[[], DatabaseConnection | Awaitable[DatabaseConnection]],
        observer: Observer,
        limits: Mapping[str, int],
    ) -> None:
        self._table, self._producer, self._connect, self._observer = outbox.table, producer, connect, observer
        self._batch_size = limits["batch_size"]
        self._poll_s, self._takeover_s = limits["poll_interval_ms"] / 1000, limits["takeover_ms"] / 1000
        self._lock_number = _hashed(outbox.table, "relay", 0)
        self._lock_file: sqlite3.Connection | None = None
        self._database: _Database | None = None
        self._database_failures = 0
        self._reported_error = ""
        """Last error that was reported since the last batch without an error."""
        self._valid_until = 0.0
        """Time until which no other process can hold the lock."""
        self._batch_ends = 0.0
        """Time from which the current batch publishes no further rows."""
        self._blocked: dict[int, _BlockedKey] = {}
        self._crowded: set[int] = set()
        """Keys with many of the rows of the last batch, of which the next batch reads no rows."""
        self._stored: set[bytes] = set()
        """Record ids of published rows that are not deleted yet."""
        self._is_reported = False
        """True after an event that ``OutboxRecovered`` has not followed."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Relay {self._table} {'stopped' if self._task is None else 'started'}>"

    async def start(self) -> None:
        """Connect to the database, and begin to publish.

        Raises:
            ConfigurationError: the producer is transactional or not idempotent, the driver or database is not
                supported, or ``connect`` returns a connection in autocommit mode of SQLAlchemy.
            ConsumerStateError: the producer or app is not started, or was stopped; or the relay is started already.
            Exception: errors of the driver, for example because the table does not exist.
        """
        if self._task is not None:
            raise ConsumerStateError("this relay is started already")
        _check_producer(self._producer)
        self._clock = asyncio.get_running_loop().time
        self._stopping = asyncio.Event()
        try:
            self._database = await self._open()
            await self._check(self._database)
        except BaseException:
            await self._close()
            raise
        # The records have the traces of their rows, not that of the task that starts the relay.
        self._task = asyncio.create_task(self._run(), name="tailrace outbox relay", context=Context())

    async def stop(self) -> None:
        """Wait for the records that are being published, for ten seconds at most, and close the connection."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        try:
            await asyncio.wait((task,), timeout=_STOP_S)
        finally:
            task.cancel()
            await asyncio.wait((task,), timeout=_STOP_S)
            await self._close()
            if self._lock_file is not None:
                self._lock_file.close()
                self._lock_file = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = self._poll_s
            try:
                if self._database is None:
                    self._database = await self._open()
                if await self._relay_batch(self._database):
                    pause_s = 0.0
            except Exception as error:  # noqa: BLE001 - errors of drivers have no common class; each one is reported
                self._database_failures += 1
                pause_s = _RECONNECT.pause_s(self._database_failures, 0.5)
                if error_text(error) != self._reported_error:
                    self._reported_error = error_text(error)
                    self._observer.emit(OutboxUnavailable(self._table, self._reported_error, exception=error))
                    self._is_reported = True
                await self._close()
            else:
                self._database_failures, self._reported_error = 0, ""
                if self._is_reported and not self._blocked:
                    self._observer.emit(OutboxRecovered(self._table))
                    self._is_reported = False
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    # ---- one batch ---------------------------------------------------------------------------------------------

    async def _relay_batch(self, database: _Database) -> bool:
        """Publish and delete a batch of rows; return True if there may be more to publish at once."""
        now = self._clock()
        waiting = {lane for lane, blocked in self._blocked.items() if blocked.retry_at > now}
        if len(waiting) >= _MAX_BLOCKED_KEYS:
            return False
        await self._statement(database.begin)
        if not await self._lock(database):
            await self._statement(database.commit)
            return False
        # A key with thousands of rows does not keep other keys waiting: every other batch is theirs.
        crowded = self._crowded
        rows = await self._read(database, waiting | crowded)
        counts = Counter(row.lane for row in rows)
        is_full = len(rows) == self._batch_size
        if not is_full and not crowded:
            # Rows that are gone, for example because someone has deleted them, block nothing.
            for lane in self._blocked.keys() - waiting - counts.keys():
                del self._blocked[lane]
        await self._publish(database, [row for row in rows if row.record_id not in self._stored])
        stored = [row for row in rows if row.record_id in self._stored]
        if stored:
            ids = ", ".join(str(row.id) for row in stored)
            await self._statement(database.change, f"DELETE FROM {self._table} WHERE id IN ({ids})")  # noqa: S608 - checked name, integers
        await self._statement(database.commit)
        self._stored.difference_update(row.record_id for row in stored)
        if not (is_full or crowded or waiting):
            self._stored.clear()  # rows that another relay has deleted
        share = self._batch_size // _MAX_CROWDED_KEYS
        self._crowded = {lane for lane, count in counts.items() if is_full and count > share}
        return bool(crowded) or (bool(stored) and (is_full or len(stored) < len(rows)))

    async def _read(self, database: _Database, excluded: set[int]) -> list[_Row]:
        where = f" WHERE lane NOT IN ({', '.join(map(str, excluded))})" if excluded else ""
        select = (
            f"SELECT id, lane, topic, value, key, headers, partition, timestamp_ms FROM {self._table}{where}"  # noqa: S608 - checked name, integers
            f" ORDER BY id LIMIT {self._batch_size}"
        )
        return [_row(values) for values in await self._statement(database.rows, select)]

    async def _publish(self, database: _Database, rows: Sequence[_Row]) -> None:
        """Publish rows, one at a time of each key."""
        lanes: dict[int, list[_Row]] = {}
        for row in rows:
            lanes.setdefault(row.lane, []).append(row)
        failures: list[tuple[_Row, TailraceError]] = []
        self._batch_ends = self._clock() + _BATCH_S
        lost: Exception | None = None
        async with asyncio.TaskGroup() as tasks:
            pending = {tasks.create_task(self._publish_lane(lane, failures)) for lane in lanes.values()}
            while pending and lost is None:
                _, pending = await asyncio.wait(pending, timeout=self._takeover_s / 3)
                try:
                    if pending:
                        # The database ends the transaction of a process that sends nothing for takeover_ms.
                        await self._statement(database.rows, "SELECT 1")
                except Exception as error:  # noqa: BLE001 - raised below
                    lost = error
            for task in pending:
                task.cancel()
        if lost is not None:
            raise lost
        if failures:
            self._block(failures)

    async def _publish_lane(self, rows: Sequence[_Row], failures: list[tuple[_Row, TailraceError]]) -> None:
        for row in rows:
            if row is not rows[0] and (self._stopping.is_set() or self._clock() >= self._batch_ends):
                return
            # If this process hung until the transaction ended, another one may have published this row and later ones.
            if self._clock() >= self._valid_until:
                return
            try:
                await self._producer.publish_encoded(row.record)
            except TailraceError as error:
                failures.append((row, error))
                return
            self._stored.add(row.record_id)
            self._blocked.pop(row.lane, None)

    def _block(self, failures: Sequence[tuple[_Row, TailraceError]]) -> None:
        newly = [(row, error) for row, error in failures if row.lane not in self._blocked]
        for row, _ in failures:
            known = self._blocked.get(row.lane)
            count = 1 if known is None else known.failures + 1
            self._blocked[row.lane] = _BlockedKey(count, self._clock() + _RETRY.pause_s(count, 0.5))
        if newly:
            row, error = newly[0]
            keys, topic = len(self._blocked), row.record.topic
            self._observer.emit(OutboxBlocked(self._table, keys, row.id, topic, error_text(error), exception=error))
            self._is_reported = True

    # ---- connection and lock -----------------------------------------------------------------------------------

    async def _lock(self, database: _Database) -> bool:
        """Return True if this relay holds the lock until the end of the transaction."""
        if database.dialect == "postgresql":
            takeover = f"set_config('idle_in_transaction_session_timeout', '{int(self._takeover_s * 1000)}', true)"
            lock = f"SELECT {takeover}, pg_try_advisory_xact_lock({self._lock_number})"
            ((_, is_locked),) = await self._statement(database.rows, lock)
            return bool(is_locked)
        self._valid_until = float("inf")
        if self._lock_file is None:
            ((_, _, path), *_) = await self._statement(database.rows, "PRAGMA database_list")
            file = sqlite3.connect(
                f"{path}-{self._table}-relay" if path else ":memory:", timeout=0, isolation_level=None
            )
            try:
                file.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                file.close()
                return False
            self._lock_file = file
        return True

    async def _statement(self, execute: Callable[..., Awaitable[ValueT]], *arguments: str) -> ValueT:
        """Execute a statement, after whose start the transaction is valid for at least ``takeover_ms``."""
        async with asyncio.timeout(_STATEMENT_S):
            while True:
                started = self._clock()
                try:
                    returned = await execute(*arguments)
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                else:
                    self._valid_until = max(self._valid_until, started + self._takeover_s)
                    return returned
                # Another connection writes. If its user is in this event loop, it can only end while this task waits.
                await asyncio.sleep(_BUSY_S)

    async def _open(self) -> _Database:
        async with asyncio.timeout(_STATEMENT_S):
            connection = self._connect()
            database = _database(await connection if inspect.isawaitable(connection) else connection)
            if isinstance(database, _Sqlite):
                await database.rows("PRAGMA busy_timeout = 0")
        return database

    async def _check(self, database: _Database) -> None:
        await self._statement(database.begin)
        if database.dialect == "postgresql":
            setting = "idle_in_transaction_session_timeout"
            await self._statement(database.rows, f"SELECT set_config('{setting}', '12345', true)")
            ((shown,),) = await self._statement(database.rows, f"SELECT current_setting('{setting}')")
            if shown != "12345ms":
                raise ConfigurationError("connect must return a connection that is not in autocommit mode")
        await self._statement(database.rows, f"SELECT id FROM {self._table} LIMIT 1")  # noqa: S608 - checked name
        await self._statement(database.commit)

    async def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            with suppress(Exception):
                async with asyncio.timeout(_STOP_S):
                    await database.close()


def _check_producer(producer: Producer[Any, Any] | App) -> None:
    if isinstance(producer, App):
        runtime = producer.runtime
        runtime.started_run  # noqa: B018 - raises unless the app is started
        config = runtime.config.producer_config(resolve(runtime.options))
    else:
        producer.statistics()
        config = producer.config
    if config.transactional_id is not None:
        raise ConfigurationError("a relay publishes without transactions - pass a Producer without transactional_id")
    if config.acks != "all" or config.enable_idempotence is False:
        raise ConfigurationError(
            "a relay needs acks='all' and idempotence, without which records can be lost or change their order"
        )


def _row(values: tuple[Any, ...]) -> _Row:
    number, lane, topic, value, key, headers, partition, timestamp_ms = values
    decoded = msgspec.json.decode(headers, type=list[tuple[str, bytes | None]])
    return _Row(
        number, lane, decoded[-1][1] or b"", OutgoingRecord(topic, value, key, decoded, partition, timestamp_ms)
    )


# ---- drivers ---------------------------------------------------------------------------------------------------------


_READ_COMMITTED = "READ COMMITTED"


class _Database(ABC):
    """Connection of any driver. Statements have ``?`` for each argument."""

    dialect: Dialect = "postgresql"

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - of any driver
        self.connection = connection

    @abstractmethod
    async def is_in_transaction(self) -> bool:
        """Return True if the next statement belongs to a transaction that the user ends."""

    @abstractmethod
    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a query and return its rows."""

    @abstractmethod
    async def change(self, sql: str, *arguments: object) -> int:
        """Execute a statement and return the number of rows that it has changed."""

    async def begin(self) -> None:  # noqa: B027 - SQLite begins a transaction with the first change
        """Begin a transaction that is READ COMMITTED on PostgreSQL.

        The snapshot of another isolation level could be older than the relay's lock, and contain rows that another
        relay has deleted.
        """

    async def commit(self) -> None:
        await self.connection.commit()

    async def close(self) -> None:
        await self.connection.close()

    async def check_transaction(self) -> None:
        if not await self.is_in_transaction():
            raise ConsumerStateError(
                "the connection is in no transaction, so that the row would be committed alone - begin a transaction"
            )


class _Asyncpg(_Database):
    async def is_in_transaction(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(sql)]

    async def change(self, sql: str, *arguments: object) -> int:
        first, *rest = sql.split("?")
        numbered = first + "".join(f"${number}{text}" for number, text in enumerate(rest, 1))
        return int((await self.connection.execute(numbered, *arguments)).rpartition(" ")[2])

    async def begin(self) -> None:
        await self.connection.execute(f"BEGIN ISOLATION LEVEL {_READ_COMMITTED}")

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")


class _Psycopg(_Database):
    async def is_in_transaction(self) -> bool:
        connection = self.connection
        return not connection.autocommit or connection.info.transaction_status.name != "IDLE"

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        from psycopg.rows import tuple_row  # noqa: PLC0415 - its connection exists

        async with self.connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql)
            return cast("list[tuple[Any, ...]]", await cursor.fetchall())

    async def change(self, sql: str, *arguments: object) -> int:
        async with self.connection.cursor() as cursor:
            await cursor.execute(sql.replace("?", "%s"), arguments or None)
            return int(cursor.rowcount)

    async def begin(self) -> None:
        if self.connection.autocommit:
            await self.connection.execute("BEGIN")
        await self.connection.execute(f"SET TRANSACTION ISOLATION LEVEL {_READ_COMMITTED}")


class _Sqlite(_Database):
    """Connection of sqlite3, whose calls block the event loop, or of aiosqlite."""

    dialect = "sqlite"

    async def is_in_transaction(self) -> bool:
        connection = self.connection
        if connection.in_transaction:
            return True
        return connection.isolation_level is not None and getattr(connection, "autocommit", None) is not True

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = await _result(self.connection.cursor())
        try:
            cursor.row_factory = None
            await _result(cursor.execute(sql))
            return cast("list[tuple[Any, ...]]", await _result(cursor.fetchall()))
        finally:
            await _result(cursor.close())

    async def change(self, sql: str, *arguments: object) -> int:
        cursor = await _result(self.connection.execute(sql, arguments))
        try:
            return int(cursor.rowcount)
        finally:
            await _result(cursor.close())

    async def commit(self) -> None:
        await _result(self.connection.commit())

    async def close(self) -> None:
        await _result(self.connection.close())


class _SqlAlchemy(_Database):
    """``AsyncConnection`` or ``AsyncSession``, which begin transactions themselves."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - of either class
        super().__init__(connection)
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        name = bind.dialect.name
        if name not in _COLUMN_TYPES:
            raise ConfigurationError(f"the database must be postgresql or sqlite, not {name}")
        self.dialect = cast("Dialect", name)

    async def is_in_transaction(self) -> bool:
        connection = self.connection
        if hasattr(connection, "get_bind"):
            connection = await connection.connection()
        driver = connection.sync_connection.connection.dbapi_connection
        return bool(driver.isolation_level if self.dialect == "sqlite" else not driver.autocommit)

    async def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in (await self._execute(sql, ())).all()]

    async def change(self, sql: str, *arguments: object) -> int:
        return int((await self._execute(sql, arguments)).rowcount)

    async def begin(self) -> None:
        if self.dialect == "postgresql":
            await self._execute(f"SET TRANSACTION ISOLATION LEVEL {_READ_COMMITTED}", ())

    async def _execute(self, sql: str, arguments: Sequence[object]) -> Any:  # noqa: ANN401 - a result
        from sqlalchemy import text  # noqa: PLC0415 - its connection exists

        first, *rest = sql.split("?")
        named = first + "".join(f":p{number}{after}" for number, after in enumerate(rest))
        return await self.connection.execute(text(named), {f"p{number}": one for number, one in enumerate(arguments)})


_DRIVERS: Mapping[tuple[str, str], type[_Database]] = {
    ("asyncpg", "Connection"): _Asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _Asyncpg,
    ("psycopg", "AsyncConnection"): _Psycopg,
    ("sqlite3", "Connection"): _Sqlite,
    ("aiosqlite", "Connection"): _Sqlite,
    ("sqlalchemy", "AsyncConnection"): _SqlAlchemy,
    ("sqlalchemy", "AsyncSession"): _SqlAlchemy,
}


def _database(connection: DatabaseConnection) -> _Database:
    for kind in type(connection).__mro__:
        found = _DRIVERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found(connection)
    raise ConfigurationError(
        "the connection must be one of asyncpg, psycopg (AsyncConnection), sqlite3, aiosqlite or SQLAlchemy"
        f" (AsyncConnection, AsyncSession), not {type(connection).__module__}.{type(connection).__qualname__}"
    )


async def _result(returned: Any) -> Any:  # noqa: ANN401 - of sqlite3, or a coroutine of aiosqlite
    return await returned if inspect.isawaitable(returned) else returned


# ---- values ----------------------------------------------------------------------------------------------------------


def _checked_table(table: object) -> str:
    if not isinstance(table, str) or not re.fullmatch(r"(?:[A-Za-z_]\w*\.)?[A-Za-z_]\w*", table, re.ASCII):
        raise ConfigurationError(f"table must be a name such as 'tailrace_outbox' or 'billing.outbox', not {table!r}")
    return table


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigurationError(f"{name} must be a positive integer, not {value!r}")


def _types(dialect: Dialect) -> Mapping[str, str]:
    try:
        return _COLUMN_TYPES[dialect]
    except (KeyError, TypeError):
        raise ConfigurationError(f"dialect must be 'postgresql' or 'sqlite', not {dialect!r}") from None


def _hashed(table: str, topic: str, scope: bytes | int) -> int:
    """Return a signed number of 64 bits, as PostgreSQL's advisory locks have."""
    content = repr((table, topic, scope)).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)


def _now_ms() -> int:
    return int(time.time() * 1000)
