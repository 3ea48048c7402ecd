"""Delayed messages on a broker: their times, and kills, rebalances, restarts and missing topics in between."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import ConfigResource

from tailrace import App, Consumer, Message, Record, Retry
from tailrace.app.sources import ConsumerSource
from tailrace.observe.events import (
    HandlerFailedPermanently,
    PartitionsAssigned,
    PartitionsRevoked,
    RecordDeadLettered,
    TopicCreated,
)
from tests.app.publish import delayed_messages_program
from tests.support.commands import environment, tailrace
from tests.support.consumer_group import until


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(*delays_ms: int, **options) -> App:
        given = {"group_id": group, "hooks": [recorder], "auto_commit_interval_ms": 100, **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, publish_delays_ms=delays_ms, **given)

    return make


@pytest.fixture
def published(kafka_server):
    """Values of a topic that are committed, by number of copies."""

    async def read(topic: str, count: int, timeout_s: float = 60) -> Counter[int]:
        """Read until ``count`` different values were found, and then what the topic has in addition."""
        found: Counter[int] = Counter()
        options = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        async with Consumer(topic, bootstrap_servers=kafka_server.bootstrap_servers, **options) as consumer:
            async with asyncio.timeout(timeout_s):
                while len(found) < count:
                    record = await consumer.getone()
                    found[int(record.value)] += 1
            while (record := await consumer.getone(timeout_ms=500)) is not None:
                found[int(record.value)] += 1
        return found

    return read


async def test_an_app_without_handlers_publishes_its_messages_when_they_are_due(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, recorder, kafka_server
):
    """Messages are published no earlier than declared, and not a delay later; the lag of the group shows them."""
    topic, app = new_topic(2), new_app(300, 4_000, 600_000, auto_offset_reset="latest")
    async with app:
        options = {"bootstrap_servers": kafka_server.bootstrap_servers, "auto_offset_reset": "earliest"}
        first_began = time.time()
        # The group has no assignment yet, and starts at the beginning nevertheless.
        place = await app.publish(topic, "short", key="a", delay_ms=300)
        async with Consumer(topic, **options) as consumer:
            short = await consumer.getone(timeout_ms=30_000)
            began = time.time()
            await app.publish(topic, "declared", key="b", headers=[("kind", "late")], delay_ms=4_000)
            await app.publish(topic, "at", partition=1, at=datetime.fromtimestamp(began, UTC) + timedelta(seconds=4.4))
            await app.publish(topic, "waits", delay_ms=600_000)
            found = {(record := await consumer.getone(timeout_ms=30_000)).value: record for _ in range(2)}
        lag = await asyncio.to_thread(
            tailrace, "lag", group, "--bootstrap-servers", kafka_server.bootstrap_servers, "--json"
        )

    waited = {value.decode(): one.timestamp / 1000 - began for value, one in found.items()}
    assert place is not None
    assert place.topic == f"{group}.delayed-publish.300ms"
    assert (found[b"declared"].key, found[b"declared"].headers) == (b"b", (("kind", b"late"),))
    assert found[b"at"].partition == 1
    assert short.value == b"short"
    # Timestamps have no fractions of a millisecond.
    assert short.timestamp / 1000 - first_began >= 0.299
    assert waited.keys() == {"declared", "at"}
    for value, least in (("declared", 4), ("at", 4.4)):
        assert least - 0.001 <= waited[value] <= least + 3.9
    assert [one.topic.removeprefix(f"{group}.delayed-publish.") for one in recorder.of(TopicCreated)] == [
        "300ms", "4s", "10m"
    ]  # fmt: skip
    lags = {
        one["topic"].removeprefix(f"{group}.delayed-publish."): one["lag"]
        for one in map(json.loads, lag.stdout.splitlines())
    }
    assert lags["10m"] == 1


async def test_the_topics_of_delays_are_created_like_those_of_handlers(new_app, new_topic, witness, group):
    """The topics have the partitions of the largest topic of the group, and retain messages after they are due."""
    topic, app = new_topic(3), new_app(86_400_000)

    @app.handler(topic)
    async def handle(value: bytes) -> None: ...

    @app.on_start
    async def delay() -> None:
        await app.publish(topic, "from a start hook", delay_ms=86_400_000)

    async with app:
        delays = f"{group}.delayed-publish.24h"
        assert sum((await witness.ends(delays, 3)).values()) == 1
    resource = ConfigResource(ConfigResource.Type.TOPIC, delays)
    (settings,) = witness.admin.describe_configs([resource]).values()
    assert int(settings.result()["retention.ms"].value) == 8 * 86_400_000


class Program:
    """Process that publishes delayed messages when they are due."""

    def __init__(self, topic: str, **options: object) -> None:
        self._topic, self._options = topic, options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, count: int = 0) -> None:
        """Start the process, and wait until it has delayed ``count`` messages."""
        arguments = (delayed_messages_program.__file__, self._topic, str(count), json.dumps(self._options))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, env=environment()
        )
        assert self._process.stdout is not None
        assert await asyncio.wait_for(self._process.stdout.readline(), 30) == b"delayed\n"

    async def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_killed_processes_lose_no_message(  # noqa: PLR0917 - fixtures
    kafka_server, new_topic, witness, group, published, delivery
):
    """After SIGKILL while messages wait, and twice while they are published, each one is published.

    With transactions, each is published exactly once. Otherwise, only those since the last commit have a copy.
    """
    topic, count = new_topic(2), 4_000
    transactional = {"transactional_id": "{group}", "transaction_interval_ms": 20}
    options = {
        "bootstrap_servers": kafka_server.bootstrap_servers,
        "group_id": group,
        "group_instance_id": "one",
        "auto_commit_interval_ms": 50,
        "publish_delays_ms": [1_000, 4_000],
        "delivery": delivery,
        **(transactional if delivery == "exactly_once" else {}),
    }
    program = Program(topic, **options)
    try:
        await program.start(count)
        await program.kill()
        assert sum((await witness.ends(topic, 2)).values()) == 0
        for least in (1, count // 3):
            await program.start()
            while sum((await witness.ends(topic, 2)).values()) < least:  # noqa: ASYNC110 - an offset sets no event
                await asyncio.sleep(0.005)
            await program.kill()
        await program.start()
        found = await published(topic, count)
    finally:
        await program.kill()

    assert found.keys() == set(range(count))
    if delivery == "exactly_once":
        assert set(found.values()) == {1}


async def test_a_rebalance_loses_and_repeats_no_message(new_app, new_topic, group, recorder, published, kafka_server):  # noqa: PLR0917
    """When a second member takes over partitions with waiting messages, each message is published once, when due."""
    topic, delays = new_topic(), f"{group}.delayed-publish.8s"
    kafka_server.create_topic(delays, 4)
    first, second = (new_app(8_000, client_id=name, heartbeat_interval_ms=200) for name in ("first", "second"))
    async with first:
        began = time.time()
        await first.publish_many([Message(n, key=n, delay_ms=8_000) for n in range(200)], topic)
        await recorder.wait_for(PartitionsAssigned)
        async with second:
            await recorder.wait_for(PartitionsRevoked)
            found = await published(topic, 200)
            ended = time.time()
            shares = [app.statistics().handlers[0].records for app in (first, second)]

    assert found == Counter(range(200))
    assert ended - began >= 8
    assert sum(shares) == 200
    assert all(shares)


async def test_messages_that_became_due_while_no_app_ran_are_published_at_the_start(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, published, monkeypatch
):
    """A stopped app commits no waiting message; the next one publishes those that became due, and the others later."""
    topic = new_topic()
    async with new_app(60_000) as app:
        await app.publish_many([Message(n, delay_ms=60_000) for n in range(50)], topic)
        await app.wait_ready()
    assert await witness.ends(topic, 1) == {0: 0}
    assert (await witness.committed(group, f"{group}.delayed-publish.1m", 1)).get(0, 0) == 0
    # Shifts the clock instead of waiting a minute.
    monkeypatch.setattr(ConsumerSource, "wall_clock", lambda _source: time.time() + 61)
    async with new_app(60_000):
        found = await published(topic, 50)

    assert found == Counter(range(50))
    assert await witness.committed(group, f"{group}.delayed-publish.1m", 1) == {0: 50}


async def test_a_missing_topic_is_reported_and_the_message_waits_for_it(
    new_app, name, recorder, kafka_server, published
):
    """A message to a topic that does not exist stays, is reported, and is published when the topic exists."""
    app = new_app(100, retry=Retry(max_backoff_ms=500))
    async with app:
        await app.publish(name, 7, delay_ms=100)
        failed = await recorder.wait_for(HandlerFailedPermanently)
        assert app.health().status == "degraded"
        kafka_server.create_topic(name)
        assert await published(name, 1) == Counter([7])
        await until(lambda: app.health().status == "ok")

    assert failed.handler == "delayed-publish"
    assert "does not exist" in failed.error


async def test_a_message_that_no_broker_takes_becomes_a_dead_letter_and_is_replayed(  # noqa: PLR0917 - fixtures
    new_app, new_topic, name, recorder, kafka_server, published, group
):
    """With dead_letter=, a message to a missing topic is a dead letter; `tailrace dead-letters replay` publishes it."""
    app = new_app(100, dead_letter="{topic}.{group}.dead")
    async with app:
        await app.publish(name, 7, delay_ms=100)
        letter = await recorder.wait_for(RecordDeadLettered)
        kafka_server.create_topic(name)
        options = ("--bootstrap-servers", kafka_server.bootstrap_servers, "--execute")
        replayed = await asyncio.to_thread(tailrace, "dead-letters", "replay", letter.dead_letter, "--all", *options)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert await published(name, 1) == Counter([7])

    assert letter.dead_letter == f"{group}.delayed-publish.100ms.{group}.dead"


async def test_handlers_of_transactions_delay_their_results_exactly_once(new_app, new_topic, witness, published):
    """A delayed result becomes visible with the commit of its handler's transaction, and is published once."""
    source, topic, app, attempts = new_topic(), new_topic(), new_app(500, delivery="exactly_once"), Counter()
    witness.produce(source, (b"%d" % n for n in range(100)))
    app.configure(auto_offset_reset="earliest")

    @app.handler(source, order_by="none")
    async def delay(record: Record) -> Message:
        attempts[record.offset] += 1
        if record.offset == 50 and attempts[50] < 3:
            raise ValueError("aborts the transaction, or is retried in it")
        return Message(record.value, topic=topic, delay_ms=500)

    async with app:
        found = await published(topic, 100)

    assert found == Counter(range(100))
