"""Outbox and Inbox with a real PostgreSQL and SQLite, by each driver; librdkafka reads what was published."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import sys
import types
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import aiosqlite
import asyncpg
import msgspec
import psycopg
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import tailrace
from tailrace import App, ConfigurationError, ConsumerStateError, Message, Producer, PublishError, Record
from tailrace.integrations.sql import OUTBOX_ID_HEADER, Inbox, Outbox
from tailrace.observe.events import OutboxBlocked, OutboxRecovered, OutboxUnavailable
from tailrace.producer.traces import record_trace
from tests.support.consumer_group import until
from tests.support.postgresql import running_postgresql
from tests.support.topic_contents import contents_of

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "outbox.md"
TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
)
DRIVERS = ("asyncpg", "psycopg", "sqlalchemy", "sqlalchemy-session", "sqlite3", "aiosqlite")


class Order(msgspec.Struct):
    id: int


@pytest.fixture(scope="module")
def server_url():
    with running_postgresql() as url:
        yield url


@pytest.fixture
def postgresql(server_url) -> str:
    """URL of a database of this test's own."""
    name = f"d{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server_url.removesuffix("postgres") + name


class Database:
    """Database as a service uses it by one driver: connections, transactions, and plain statements."""

    def __init__(self, driver: str, url: str, path: str) -> None:
        self.driver = driver
        self.url, self.path = url, path
        self.dialect = "sqlite" if "sqlite" in driver else "postgresql"
        self.engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))

    def connect(self):
        """Return a new connection, or an awaitable of one."""
        match self.driver:
            case "asyncpg":
                return asyncpg.connect(self.url)
            case "psycopg":
                return psycopg.AsyncConnection.connect(self.url)
            case "sqlite3":
                return sqlite3.connect(self.path)
            case "aiosqlite":
                return aiosqlite.connect(self.path)
            case _:
                return self.engine.connect()

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator:
        """Yield a connection in a transaction, which is committed at the end, or rolled back after an exception."""
        match self.driver:
            case "asyncpg":
                connection = await self.connect()
                try:
                    async with connection.transaction():
                        yield connection
                finally:
                    await connection.close()
            case "psycopg":
                async with await self.connect() as connection:
                    yield connection
            case "sqlite3":
                with contextlib.closing(self.connect()) as connection, connection:
                    yield connection
            case "aiosqlite":
                async with self.connect() as connection:
                    yield connection
                    await connection.commit()
            case "sqlalchemy":
                async with self.engine.begin() as connection:
                    yield connection
            case _:
                async with AsyncSession(self.engine) as session, session.begin():
                    yield session

    def execute(self, sql: str) -> list[tuple]:
        """Execute a statement by another connection, and return its rows."""
        opened = sqlite3.connect(self.path) if self.dialect == "sqlite" else psycopg.connect(self.url)
        with contextlib.closing(opened) as connection, connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    async def until_rows(self, count: int) -> None:
        """Wait until the outbox has ``count`` rows."""
        await until(lambda: self.execute("SELECT count(*) FROM tailrace_outbox") == [(count,)])


@pytest.fixture
async def new_database(postgresql, tmp_path):
    made = []

    def make(driver: str) -> Database:
        database = Database(driver, postgresql, str(tmp_path / "service.db"))
        made.append(database)
        database.execute(Outbox().create_table_sql(database.dialect))
        database.execute(Inbox("g").create_table_sql(database.dialect))
        return database

    yield make
    for one in made:
        await one.engine.dispose()


@pytest.fixture
async def producer(kafka_server):
    async with Producer(bootstrap_servers=kafka_server.bootstrap_servers) as producer:
        yield producer


@pytest.fixture(params=DRIVERS)
def database(request, new_database) -> Database:
    return new_database(request.param)


def by_key(records) -> dict[bytes, list[bytes]]:
    """Return the values of each key in the order of the topic."""
    found = defaultdict(list)
    for one in records:
        found[one.key()].append(one.value())
    return found


# ---- outbox ----------------------------------------------------------------------------------------------------------


async def test_only_what_a_transaction_commits_is_published(database, producer, new_topic, witness):
    """Records of a committed transaction are published as they were added, and deleted; others are never seen."""
    topic, outbox = new_topic(), Outbox()
    async with outbox.relay(producer, database.connect, poll_interval_ms=10):
        async with database.transaction() as connection:
            await outbox.add(
                connection,
                Message(Order(1), key=7, topic=topic, headers=[("kind", "new"), ("none", None)], timestamp_ms=1_000),
                Message(None, key=7, topic=topic),
                Message(b"\x00raw", topic=topic, partition=0),
            )
        with contextlib.suppress(ZeroDivisionError):
            async with database.transaction() as connection:
                await outbox.add(connection, Message(Order(2), key=7, topic=topic))
                raise ZeroDivisionError
        await database.until_rows(0)

    found = await contents_of(witness, topic)
    assert by_key(found) == {b"7": [b'{"id":1}', None], None: [b"\x00raw"]}
    first = found[[one.key() for one in found].index(b"7")]
    assert first.headers()[:2] == [("kind", b"new"), ("none", None)]
    assert first.timestamp()[1] == 1_000
    assert len({dict(one.headers())[OUTBOX_ID_HEADER] for one in found}) == 3


async def test_a_row_outside_a_transaction_is_refused(new_database):
    """A connection that would commit the row alone raises ConsumerStateError, and nothing is stored."""
    outbox, inbox, message = Outbox(), Inbox("g"), Message(b"v", key="k", topic="t")
    record = Record("t", 0, 0, None, None, 0)
    plain, psycopg_database, sqlite = map(new_database, ("asyncpg", "psycopg", "sqlite3"))
    alchemy = new_database("sqlalchemy")
    async with contextlib.AsyncExitStack() as stack:
        one = await plain.connect()
        stack.push_async_callback(one.close)
        two = await psycopg.AsyncConnection.connect(psycopg_database.url, autocommit=True)
        stack.push_async_callback(two.close)
        three = stack.enter_context(contextlib.closing(sqlite3.connect(sqlite.path, isolation_level=None)))
        four = await stack.enter_async_context(alchemy.engine.connect())
        await four.execution_options(isolation_level="AUTOCOMMIT")
        engine = create_async_engine(
            alchemy.url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
        )
        stack.push_async_callback(engine.dispose)
        five = await stack.enter_async_context(AsyncSession(engine))
        for connection in (one, two, three, four, five):
            with pytest.raises(ConsumerStateError, match="in no transaction"):
                await outbox.add(connection, message)
            with pytest.raises(ConsumerStateError, match="in no transaction"):
                await inbox.claim(connection, record)
        # The same connections are accepted in a transaction.
        async with one.transaction():
            assert await inbox.claim(one, record)
        async with two.transaction():
            assert not await inbox.claim(two, record)
        three.execute("BEGIN")
        assert await inbox.claim(three, record)

    assert plain.execute("SELECT count(*) FROM tailrace_outbox") == [(0,)]


async def test_ids_of_a_key_are_in_the_order_of_commits(new_database):
    """On PostgreSQL, a transaction that adds a record waits for another one with the same key, not for other keys."""
    database, outbox = new_database("asyncpg"), Outbox()
    first, second, third = [await database.connect() for _ in range(3)]
    try:
        async with first.transaction():
            await outbox.add(first, Message(b"1", key="k", topic="t"))
            async with third.transaction():
                await asyncio.wait_for(outbox.add(third, Message(b"other", key="x", topic="t")), 20)

            async def later() -> None:
                async with second.transaction():
                    await outbox.add(second, Message(b"2", key="k", topic="t"))

            waiting = asyncio.create_task(later())
            await until(lambda: database.execute("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
            assert not waiting.done()
            await outbox.add(first, Message(b"1b", key="k", topic="t"))
        await asyncio.wait_for(waiting, 20)
    finally:
        for one in (first, second, third):
            await one.close()

    rows = database.execute("SELECT value FROM tailrace_outbox ORDER BY id")
    assert [value for (value,) in rows if value != b"other"] == [b"1", b"1b", b"2"]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "sqlalchemy", "sqlite3"])
async def test_relays_of_several_instances_publish_each_row_once_and_in_order(
    driver, new_database, kafka_server, new_topic, witness
):
    """Three relays, each with its producer, publish no row twice, and the rows of each key in order."""
    database, topic, outbox = new_database(driver), new_topic(3), Outbox()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            own = await stack.enter_async_context(Producer(bootstrap_servers=kafka_server.bootstrap_servers))
            relay = outbox.relay(own, database.connect, poll_interval_ms=1, batch_size=7)
            await stack.enter_async_context(relay)
        for number in range(60):
            async with database.transaction() as connection:
                await outbox.add(connection, *(Message(b"%d" % number, key=f"k{key}", topic=topic) for key in range(5)))
        await database.until_rows(0)

    found = by_key(await contents_of(witness, topic, 3))
    assert found == {b"k%d" % key: [b"%d" % number for number in range(60)] for key in range(5)}


async def test_a_record_that_cannot_be_published_blocks_only_its_key(
    new_database, producer, new_topic, witness, recorder
):
    """One event reports a record that its topic refuses; other keys go on, and its key goes on once it is accepted."""
    topic, outbox = new_topic(1, max_message_bytes=5_000), Outbox(hooks=[recorder])
    database = new_database("asyncpg")
    async with outbox.relay(producer, database.connect, poll_interval_ms=10, batch_size=3):
        async with database.transaction() as connection:
            poison = [Message(b"x" * 9_000, key="bad", topic=topic)]
            poison += [Message(b"%d" % number, key="bad", topic=topic) for number in range(10)]
            await outbox.add(connection, *poison)
        blocked = await recorder.wait_for(OutboxBlocked)
        for number in range(10):
            async with database.transaction() as connection:
                await outbox.add(connection, Message(b"%d" % number, key="good", topic=topic))
        await database.until_rows(11)

        assert (blocked.table, blocked.keys, blocked.topic) == ("tailrace_outbox", 1, topic)
        assert "PublishTooLargeError" in blocked.error
        limit = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[limit])
        for future in witness.admin.incremental_alter_configs([resource]).values():
            await asyncio.to_thread(future.result, 20)
        await database.until_rows(0)
        await recorder.wait_for(OutboxRecovered)

    found = by_key(await contents_of(witness, topic))
    assert found[b"good"] == [b"%d" % number for number in range(10)]
    assert found[b"bad"] == [b"x" * 9_000, *(b"%d" % number for number in range(10))]
    assert len(recorder.of(OutboxBlocked)) == 1


async def test_a_record_has_the_trace_of_its_transaction(new_database, producer, new_topic, witness):
    """A record has the trace that was active when it was added, not the one that was active when the relay started."""
    database, topic, outbox = new_database("aiosqlite"), new_topic(1), Outbox()
    async with database.transaction() as connection:
        token = record_trace.set([("traceparent", b"00-11111111111111111111111111111111-1111111111111111-01")])
        await outbox.add(connection, Message(b"traced", key="k", topic=topic))
        record_trace.reset(token)
        await outbox.add(connection, Message(b"other", key="k", topic=topic))
    record_trace.set([("traceparent", b"00-22222222222222222222222222222222-2222222222222222-01")])
    async with outbox.relay(producer, database.connect):
        await database.until_rows(0)

    traces = {
        one.value(): dict(one.headers()).get("traceparent", b"")[3:5] for one in await contents_of(witness, topic)
    }
    assert traces == {b"traced": b"11", b"other": b""}


async def test_a_relay_keeps_no_snapshot_while_it_publishes(new_database, kafka_server, new_topic):
    """Even if the database's default is REPEATABLE READ, the transaction of a batch does not hold back vacuum.

    asyncpg keeps the snapshot of the last statement until the next one.
    """
    database, topic, outbox = new_database("psycopg"), new_topic(1), Outbox()
    name = database.url.rpartition("/")[2]
    database.execute(f"ALTER DATABASE {name} SET default_transaction_isolation TO 'repeatable read'")
    async with database.transaction() as connection:
        await outbox.add(connection, Message(b"v", key="k", topic=topic))
    seen = []

    class WatchedProducer(Producer):
        async def publish_encoded(self, record):
            snapshots = "SELECT backend_xmin FROM pg_stat_activity"
            seen.extend(database.execute(f"{snapshots} WHERE state = 'idle in transaction' AND datname = '{name}'"))
            return await super().publish_encoded(record)

    async with (
        WatchedProducer(bootstrap_servers=kafka_server.bootstrap_servers) as producer,
        outbox.relay(producer, database.connect),
    ):
        await database.until_rows(0)

    assert seen == [(None,)]


async def test_a_key_with_many_rows_does_not_keep_other_keys_waiting(new_database, producer, new_topic, witness):
    """A row behind hundreds of rows of another key is published before them, and their order remains."""
    database, topic, outbox = new_database("asyncpg"), new_topic(1), Outbox()
    async with database.transaction() as connection:
        await outbox.add(connection, *(Message(b"%d" % number, key="hot", topic=topic) for number in range(300)))
    async with database.transaction() as connection:
        await outbox.add(connection, Message(b"v", key="other", topic=topic))
    async with outbox.relay(producer, database.connect, batch_size=20):
        await database.until_rows(0)

    found = await contents_of(witness, topic)
    assert [one.key() for one in found].index(b"other") <= 40
    assert by_key(found)[b"hot"] == [b"%d" % number for number in range(300)]


async def test_rows_that_cannot_be_deleted_are_not_published_again(
    new_database, producer, new_topic, witness, recorder
):
    """If the database refuses the deletion of published rows, the relay repeats the deletion, not the publishing."""
    database, topic, outbox = new_database("psycopg"), new_topic(), Outbox(hooks=[recorder])
    database.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$;"
        "CREATE TRIGGER refuse BEFORE DELETE ON tailrace_outbox EXECUTE FUNCTION refuse()"
    )
    async with database.transaction() as connection:
        await outbox.add(connection, *(Message(b"%d" % number, key="k", topic=topic) for number in range(3)))
    # The batches are full of a key that the next batch leaves to other keys.
    async with outbox.relay(producer, database.connect, poll_interval_ms=10, batch_size=2):
        unavailable = await recorder.wait_for(OutboxUnavailable)
        database.execute("DROP TRIGGER refuse ON tailrace_outbox")
        await database.until_rows(0)

    assert "full" in unavailable.error
    assert by_key(await contents_of(witness, topic)) == {b"k": [b"0", b"1", b"2"]}


async def test_a_relay_waits_for_a_transaction_of_its_own_event_loop(
    new_database, producer, new_topic, witness, recorder
):
    """While another connection of sqlite3 has SQLite's write lock, the relay waits without blocking the event loop."""
    database, topic, outbox = new_database("sqlite3"), new_topic(1), Outbox(hooks=[recorder])
    async with database.transaction() as connection:
        await outbox.add(connection, Message(b"v", key="k", topic=topic))
    with contextlib.closing(sqlite3.connect(database.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        async with outbox.relay(producer, database.connect, poll_interval_ms=10):
            while not await contents_of(witness, topic):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.01)
            writer.execute("COMMIT")
            await database.until_rows(0)

    assert by_key(await contents_of(witness, topic)) == {b"k": [b"v"]}
    assert recorder.of(OutboxUnavailable) == []


async def test_a_lost_connection_to_the_database_is_replaced(new_database, producer, new_topic, witness, recorder):
    """After PostgreSQL has ended its connection, the relay emits one event, reconnects and goes on."""
    database, topic, outbox = new_database("psycopg"), new_topic(), Outbox(hooks=[recorder])
    async with outbox.relay(producer, database.connect, poll_interval_ms=10):
        database.execute(TERMINATE)
        await recorder.wait_for(OutboxUnavailable)
        async with database.transaction() as connection:
            await outbox.add(connection, Message(b"v", key="k", topic=topic))
        await database.until_rows(0)
        await recorder.wait_for(OutboxRecovered)

    assert by_key(await contents_of(witness, topic)) == {b"k": [b"v"]}
    assert len(recorder.of(OutboxUnavailable)) == 1


async def test_after_a_long_outage_of_the_database_the_relay_goes_on_soon(new_database, producer, recorder):
    """However often the relay fails to connect, it tries again soon: six times in a few seconds."""
    database, attempts = new_database("psycopg"), 0

    async def connect():
        nonlocal attempts
        attempts += 1
        if 1 < attempts < 7:
            raise ConnectionRefusedError("the database is down")
        return await database.connect()

    async with Outbox(hooks=[recorder]).relay(producer, connect, poll_interval_ms=10):
        database.execute(TERMINATE)
        # If pauses doubled without a limit, these would last at least 31 seconds.
        async with asyncio.timeout(15):
            await recorder.wait_for(OutboxRecovered)

    assert len(recorder.of(OutboxUnavailable)) == 2, "one event for each different error"


async def test_wrong_arguments_of_an_outbox_say_what_to_do(new_database, producer, kafka_server):
    """Each wrong argument raises an error that names the value, before anything is written."""
    database = new_database("sqlalchemy")
    for table in ("outbox; DROP TABLE x", "", "a.b.c", 5):
        with pytest.raises(ConfigurationError, match="table must be a name"):
            Outbox(table)
    with pytest.raises(ConfigurationError, match="dialect must be"):
        Outbox().create_table_sql("mysql")
    with pytest.raises(ConfigurationError, match=re.escape("not builtins.int")):
        await Outbox().add(5, Message(b"v", topic="t"))
    async with database.transaction() as connection:
        with pytest.raises(PublishError, match="a Message has no topic"):
            await Outbox().add(connection, Message(b"v", topic="t"), Message(b"v"))
        with pytest.raises(PublishError, match="an Outbox cannot delay a Message"):
            await Outbox().add(connection, Message(b"v", topic="t", delay_ms=5))
        with pytest.raises(PublishError, match="must be a list of Message objects, not of Order"):
            await Outbox().add(connection, Order(1))
        with pytest.raises(PublishError, match="may contain only"):
            await Outbox().add(connection, Message(b"v", topic="a b"))
        with pytest.raises(PublishError, match="cannot be encoded"):
            await Outbox().add(connection, Message(b"v", topic="t"), Message({1, object()}, topic="t"))
        assert (await connection.execute(text("SELECT count(*) FROM tailrace_outbox"))).scalar() == 0

    async def enter(*arguments, outbox=None, **options) -> None:
        async with (outbox or Outbox()).relay(*arguments, **options):
            pytest.fail("the relay has started")

    with pytest.raises(ConfigurationError, match="batch_size must be a positive integer, not 0"):
        await enter(producer, database.connect, batch_size=0)
    with pytest.raises(ConsumerStateError, match="not started"):
        await enter(Producer(bootstrap_servers=kafka_server.bootstrap_servers), database.connect)
    with pytest.raises(ConfigurationError, match="needs acks='all'"):
        async with Producer(bootstrap_servers=kafka_server.bootstrap_servers, acks=1) as unsafe:
            await enter(unsafe, database.connect)
    with pytest.raises(ConfigurationError, match="without transactional_id"):
        async with Producer(bootstrap_servers=kafka_server.bootstrap_servers, transactional_id="x") as transactional:
            await enter(transactional, database.connect)
    autocommit = database.engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigurationError, match="not in autocommit mode"):
        await enter(producer, autocommit.connect)
    with pytest.raises(Exception, match='relation "missing" does not exist'):
        await enter(producer, database.connect, outbox=Outbox("missing"))


async def test_an_exception_in_the_block_of_a_relay_passes_unchanged(new_database, producer):
    """The end of a relay neither wraps nor replaces the exception of its block."""
    with pytest.raises(ZeroDivisionError):
        async with Outbox().relay(producer, new_database("aiosqlite").connect):
            raise ZeroDivisionError


async def test_an_app_relays_by_its_own_producer_whenever_it_runs(new_database, kafka_server, new_topic, witness):
    """A relay of an app's start and stop hooks publishes in each run of the app, and rows in between wait."""
    database, topic, outbox = new_database("aiosqlite"), new_topic(), Outbox()
    app = App(bootstrap_servers=kafka_server.bootstrap_servers)
    relay = outbox.relay(app, database.connect, poll_interval_ms=10)
    app.on_start(relay.start)
    app.on_stop(relay.stop)
    with pytest.raises(ConsumerStateError, match="not started"):
        await relay.start()
    for number in range(2):
        async with database.transaction() as connection:
            await outbox.add(connection, Message(b"%d" % number, key="k", topic=topic))
            backlog = await outbox.backlog(connection)
            assert (backlog.rows, 0 <= backlog.age_s < 3_600) == (1, True)
        async with app:
            with pytest.raises(ConsumerStateError, match="started already"):
                await relay.start()
            await database.until_rows(0)

    assert by_key(await contents_of(witness, topic)) == {b"k": [b"0", b"1"]}


async def test_the_samples_of_the_page_publish_and_take_effect_once(
    postgresql, kafka_server, new_topic, monkeypatch, capsys
):
    """The first sample stores and publishes an order; the app of the page charges it once, and publishes that."""
    topic, charges, page = new_topic(1), new_topic(1), types.ModuleType("page")
    monkeypatch.setattr(tailrace, "run", Coroutine.close)
    monkeypatch.setitem(sys.modules, "page", page)
    text = PAGE.read_text().replace("postgresql://localhost/shop", postgresql)
    text = text.replace("localhost:9092", kafka_server.bootstrap_servers).replace('"orders"', f'"{topic}"')
    text = text.replace('"charges"', f'"{charges}"')
    group = f"billing-{uuid.uuid4().hex[:8]}"
    text = text.replace('group_id="billing")', f'group_id="{group}", auto_offset_reset="earliest")', 1)
    for sample in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(sample, vars(page))
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(capsys.readouterr().out)
        connection.execute("CREATE TABLE orders (id INTEGER, total INTEGER)")
        connection.execute("CREATE TABLE charges (id INTEGER, total INTEGER)")

        await page.main()
        async with page.app:
            await until(lambda: connection.execute("SELECT * FROM charges").fetchall() == [(1, 250)])
            # The app's relay deletes the row after its record is stored, so perhaps after the record is handled.
            await until(lambda: connection.execute("SELECT count(*) FROM tailrace_outbox").fetchone() == (0,))

        assert connection.execute("SELECT * FROM orders").fetchall() == [(1, 250)]


# ---- inbox -----------------------------------------------------------------------------------------------------------


async def test_a_record_is_claimed_once(database):
    """A claim is committed with its transaction; a second delivery or copy of an outbox row returns False."""
    inbox, other = Inbox("billing"), Inbox("shipping")
    record = Record("t", 0, 5, b"k", b"v", 1_000)
    published = [Record("t", 0, offset, b"k", b"v", 1_000, ((OUTBOX_ID_HEADER, b"one"),)) for offset in (6, 9)]
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as connection:
            assert await inbox.claim(connection, record)
            raise ZeroDivisionError
    async with database.transaction() as connection:
        assert await inbox.claim(connection, record)
        assert await inbox.claim(connection, published[0])
    async with database.transaction() as connection:
        assert not await inbox.claim(connection, record)
        assert not await inbox.claim(connection, published[1])
        assert await other.claim(connection, record)
        # The record of a topic that was recreated has another timestamp.
        assert await inbox.claim(connection, Record("t", 0, 5, b"k", b"v", 2_000))


async def test_a_claim_waits_for_the_transaction_that_has_claimed_the_record(new_database):
    """While another transaction has a claim, the outcome is open: if it is rolled back, the second claim succeeds."""
    database, inbox, record = new_database("psycopg"), Inbox("g"), Record("t", 0, 0, None, None, 0)

    async def claim() -> bool:
        async with database.transaction() as connection:
            return await inbox.claim(connection, record)

    async with await psycopg.AsyncConnection.connect(database.url) as first:
        assert await inbox.claim(first, record)
        second = asyncio.create_task(claim())
        await until(lambda: database.execute("SELECT 1 FROM pg_locks WHERE NOT granted") != [])
        assert not second.done()
        await first.rollback()
        assert await asyncio.wait_for(second, 20)


async def test_expired_claims_of_the_group_are_deleted(database):
    """delete_expired() deletes the group's claims that are older than its retention, and returns their number."""
    inbox, short, other = Inbox("g"), Inbox("g", retention_ms=1), Inbox("other")
    async with database.transaction() as connection:
        for offset in range(3):
            await inbox.claim(connection, Record("t", 0, offset, None, None, 0))
        await other.claim(connection, Record("t", 0, 0, None, None, 0))
    database.execute("UPDATE tailrace_inbox SET claimed_at_ms = claimed_at_ms - 1000")
    async with database.transaction() as connection:
        assert await inbox.delete_expired(connection) == 0
        assert await short.delete_expired(connection) == 3
    assert database.execute("SELECT group_id FROM tailrace_inbox") == [("other",)]


def test_wrong_arguments_of_an_inbox_say_what_to_do():
    """Each wrong argument raises an error that names it."""
    with pytest.raises(ConfigurationError, match="group_id must not be empty"):
        Inbox("")
    with pytest.raises(ConfigurationError, match="retention_ms must be a positive integer, not 0"):
        Inbox("g", retention_ms=0)
