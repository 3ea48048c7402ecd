"""Retry topics: each record is handled when it is due, and does not delay other records."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import time
from typing import Annotated

import pyarrow as pa
import pytest

from tailrace import (
    App,
    ConfigurationError,
    Header,
    Message,
    PartialFailureError,
    Record,
    Reject,
    Retry,
    TopicPartition,
)
from tailrace.app.handlers import Handlers
from tailrace.app.sources import ConsumerSource
from tailrace.observe.events import OffsetsCommitted, PartitionsRevoked, RecordDeadLettered, RecordDelayed, TopicCreated
from tailrace.testing import TestApp
from tests.support.consumer_group import until
from tests.support.loop_turns import LoopTurns
from tests.support.topic_contents import contents_of

ONCE = Retry(attempts=1)


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        given = {"group_id": group, "hooks": [recorder], "auto_commit_interval_ms": 100, **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **given)

    return make


async def test_a_record_is_retried_after_its_delay(new_app, new_topic, witness, group, recorder):
    """A retry topic with the partitions of its topic delays the record; the same handler gets the original record."""
    topic, app, seen = new_topic(3), new_app(), []
    witness.produce(topic, [b"7"], keys=[b"ann"], partition=2)

    @app.handler(topic, retry=Retry(attempts=1, topic_delays_ms=[700]))
    async def handle(value: bytes, record: Record, attempts: Annotated[int, Header("tailrace-attempts")] = 0) -> None:
        seen.append((time.monotonic(), value, record.key, record.topic, record.partition, record.offset, attempts))
        if len(seen) == 1:
            raise ValueError("not yet")

    async with app:
        await until(lambda: len(seen) == 2)

    retries = f"{topic}.{group}.retry.700ms"
    (first, *as_first), (second, *as_second) = seen
    assert second - first >= 0.7
    assert as_first == [b"7", b"ann", topic, 2, 0, 0]
    assert as_second == [b"7", b"ann", topic, 2, 0, 1]
    assert [(one.topic, one.partitions) for one in recorder.of(TopicCreated)] == [(retries, 3)]
    assert sum((await witness.ends(retries, 3)).values()) == 1
    assert sum((await witness.committed(group, retries, 3)).values()) == 1
    assert (await witness.committed(group, topic, 3))[2] == 1


async def test_a_record_passes_all_retry_topics_and_is_dead_lettered(new_app, new_topic, witness, group, recorder):
    """A record has the same number of attempts in each retry topic; its dead letter has its origin and all attempts."""
    topic, app, tried = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    witness.produce(topic, [b"poison"])

    @app.handler(topic, retry=Retry(attempts=2, backoff_ms=1, topic_delays_ms=[200, 400]), dead_letter=None)
    async def handle(value: bytes) -> None:
        tried.append(time.monotonic())
        raise ValueError("poison")

    async with app:
        await recorder.wait_for(RecordDeadLettered)

    assert len(tried) == 6
    assert tried[2] - tried[1] >= 0.2
    assert tried[4] - tried[3] >= 0.4
    delays = ("retry.200ms", "retry.400ms")
    assert [await witness.ends(f"{topic}.{group}.{one}", 1) for one in (*delays, "dead")] == [{0: 1}] * 3
    (letter,) = await contents_of(witness, f"{topic}.{group}.dead")
    headers = dict(letter.headers())
    assert headers["tailrace-attempts"] == b"6"
    assert (headers["tailrace-origin-topic"], headers["tailrace-origin-offset"]) == (topic.encode(), b"0")
    assert "tailrace-due-at" not in headers
    assert [await witness.committed(group, f"{topic}.{group}.{one}", 1) for one in delays] == [{0: 1}] * 2


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_failed_records_of_a_batch_come_back_in_batches(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, recorder, delivery
):
    """Failed records of a batch are delayed singly, and handled in a batch again when they are due."""
    topic, batches = new_topic(), []
    app = new_app(dead_letter="{topic}.{group}.dead", delivery=delivery)
    witness.produce(topic, (b"%d" % n for n in range(10)))

    # Only full batches start, so that the time between waiting records does not matter.
    @app.batch_handler(topic, max_records=5, max_wait_ms=7_000, retry=Retry(attempts=1, topic_delays_ms=[200, 400]))
    async def store(records: list[Record]) -> None:
        batches.append((time.monotonic(), [(record.topic, record.offset) for record in records]))
        raise PartialFailureError({at: ValueError("odd") for at, one in enumerate(records) if one.offset % 2})

    async with app:
        await recorder.wait_for(RecordDeadLettered, 5)

    assert [[offset for _, offset in batch] for _, batch in batches] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
        [1, 3, 5, 7, 9],
        [1, 3, 5, 7, 9],
    ]
    assert {name for _, batch in batches for name, _ in batch} == {topic}
    assert [batches[at + 1][0] - batches[at][0] >= delay_s for at, delay_s in ((1, 0.2), (2, 0.4))] == [True, True]
    assert (await witness.committed(group, topic, 1)) == {0: 10}
    if delivery == "at_least_once":
        delays = ("retry.200ms", "retry.400ms")
        assert [await witness.committed(group, f"{topic}.{group}.{one}", 1) for one in delays] == [{0: 5}] * 2
        letters = await contents_of(witness, f"{topic}.{group}.dead")
        headers = [dict(letter.headers()) for letter in letters]
        assert [one["tailrace-attempts"] for one in headers] == [b"3"] * 5
        assert [int(one["tailrace-origin-offset"]) for one in headers] == [1, 3, 5, 7, 9]


async def test_an_impossible_origin_does_not_fail_the_batch(new_app, new_topic, witness, group):
    """A record of a retry topic whose origin no record can have is handled as its own, with the others of its batch."""
    topic, app, tables = new_topic(), new_app(), []
    retries = f"{topic}.{group}.retry.300ms"
    forged = [("tailrace-origin-topic", b"x"), ("tailrace-origin-partition", b"2147483648")]

    @app.batch_handler(topic, max_wait_ms=500, retry=Retry(attempts=1, topic_delays_ms=[300]), on_failure="skip")
    async def handle(table: pa.RecordBatch) -> None:
        tables.append(table)

    async with app:
        witness.produce(retries, [b"1"])
        witness.produce(retries, [b"2"], headers=[*forged, ("tailrace-origin-offset", b"0")])
        await until(lambda: sum(table.num_rows for table in tables) == 2)

    read = [row for table in tables for row in table.to_pylist()]
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in read] == [
        (retries, 0, 0, b"1"),
        (retries, 0, 1, b"2"),
    ]


async def test_delayed_records_do_not_block_others(new_app, new_topic, witness, group, recorder):
    """While records are delayed, other records of the topic are handled and committed, and the app uses little CPU."""
    topic, app, good = new_topic(), new_app(), []
    witness.produce(topic, (b"%d" % n for n in range(1_000)))

    @app.handler(topic, retry=Retry(attempts=1, topic_delays_ms=[60_000]))
    async def handle(n: int) -> None:
        if n % 2:
            raise ValueError("odd")
        good.append(n)

    async with app:
        await recorder.wait_for(RecordDelayed, 500)
        await until(lambda: len(good) == 500)
        at_end = {TopicPartition(topic, 0): 1_000}
        await recorder.wait_for(OffsetsCommitted, where=lambda event: at_end.items() <= event.offsets.items())
        # The partition of the retry topic is assigned, and its first records are fetched and wait.
        with LoopTurns() as turns:
            await asyncio.sleep(1)
        committed = (await witness.committed(group, f"{topic}.{group}.retry.1m", 1)).get(0, 0)

    retries = f"{topic}.{group}.retry.1m"
    assert await witness.committed(group, topic, 1) == {0: 1_000}
    assert good == list(range(0, 1_000, 2))
    assert turns.per_second < 200
    assert await witness.ends(retries, 1) == {0: 500}
    assert committed == 0


class SecondTries:
    """Second attempts at numbers that failed once, by several apps of a group.

    Attributes:
        of: numbers, with the app that handled each.
        soonest_s: shortest time between the first attempt at a number and the second.
    """

    def __init__(self, new_app, topic: str, delay_ms: int) -> None:
        self._new_app, self._topic, self._delay_ms = new_app, topic, delay_ms
        self._failed_at: dict[int, float] = {}
        self.of: list[tuple[int, str]] = []
        self.soonest_s = float("inf")

    def app_of(self, name: str) -> App:
        app = self._new_app(client_id=name, heartbeat_interval_ms=200)

        @app.handler(self._topic, retry=Retry(attempts=1, topic_delays_ms=[self._delay_ms]), order_by="none")
        async def handle(n: int) -> None:
            if n not in self._failed_at:
                self._failed_at[n] = time.monotonic()
                raise ValueError("not yet")
            self.of.append((n, name))
            self.soonest_s = min(self.soonest_s, time.monotonic() - self._failed_at[n])

        return app


async def test_the_next_owner_continues_the_delay(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, recorder, monkeypatch
):
    """A member that leaves does not commit its delayed records; the next owner handles each once when it is due."""
    topic, ahead_s = new_topic(), 57
    second_tries = SecondTries(new_app, topic, 60_000)
    witness.produce(topic, (b"%d" % n for n in range(50)))

    retries = f"{topic}.{group}.retry.1m"
    async with second_tries.app_of("first"):
        await recorder.wait_for(RecordDelayed, 50)
    assert (await witness.committed(group, retries, 1)).get(0, 0) == 0
    assert not second_tries.of
    # Shifts the clock instead of waiting a minute, which leaves the first member time to stop before a record is due.
    monkeypatch.setattr(ConsumerSource, "wall_clock", lambda _source: time.time() + ahead_s)
    async with second_tries.app_of("second"):
        await until(lambda: len(second_tries.of) == 50)

    assert sorted(second_tries.of) == [(n, "second") for n in range(50)]
    assert second_tries.soonest_s + ahead_s >= 60
    assert await witness.committed(group, retries, 1) == {0: 50}
    assert await witness.ends(retries, 1) == {0: 50}


async def test_a_rebalance_does_not_lose_delayed_records(new_app, new_topic, witness, group, recorder):
    """When a second member takes over partitions with delayed records, each record is handled once, when it is due."""
    topic = new_topic(4)
    second_tries = SecondTries(new_app, topic, 12_000)  # leaves the second member time to join
    numbers = [b"%d" % n for n in range(80)]
    witness.produce(topic, numbers, keys=numbers)  # by key, the retry topic has records in all its partitions

    async with second_tries.app_of("first"):
        await recorder.wait_for(RecordDelayed, 80)
        async with second_tries.app_of("second"):
            await recorder.wait_for(PartitionsRevoked)
            await until(lambda: len(second_tries.of) == 80)

    assert sorted(n for n, _ in second_tries.of) == list(range(80))
    assert {name for _, name in second_tries.of} == {"first", "second"}
    assert second_tries.soonest_s >= 12
    assert sum((await witness.committed(group, f"{topic}.{group}.retry.12s", 4)).values()) == 80


async def test_a_record_returns_to_the_handler_that_failed(new_app, new_topic, witness):
    """A delayed record returns to the handler that failed, even if an earlier handler matches it by then."""
    topic, app, greedy_ones, seen = new_topic(), new_app(), [], []
    witness.produce(topic, [b"a", b"b"])

    @app.handler(topic, when=lambda _record: bool(seen))
    async def greedy(value: bytes) -> None:
        greedy_ones.append(value)

    @app.handler(topic, when=lambda record: record.topic == topic, retry=Retry(attempts=1, topic_delays_ms=[100]))
    async def failing(record: Record) -> None:
        seen.append((record.topic, record.offset, record.value))
        if len(seen) == 1:
            raise ValueError("not yet")

    async with app:
        await until(lambda: len(seen) + len(greedy_ones) >= 3)

    assert seen[0] == seen[-1] == (topic, 0, b"a")
    assert b"a" not in greedy_ones


async def test_records_that_are_not_retryable_skip_the_retry_topics(new_app, new_topic, witness, group, recorder):
    """Rejected and undecodable records are dead-lettered at once; so are failures that `Retry(on=...)` excludes."""
    topic, app = new_topic(), new_app(dead_letter="{topic}.{group}.dead")
    witness.produce(topic, [b"1", b"no number", b"2"])

    @app.handler(topic, retry=Retry(attempts=1, on=OSError, topic_delays_ms=[100]))
    async def handle(n: int) -> None:
        if n == 1:
            raise Reject("no ones")
        raise ValueError("a bug")

    async with app:
        await recorder.wait_for(RecordDeadLettered, 3)

    assert await witness.ends(f"{topic}.{group}.retry.100ms", 1) == {0: 0}
    assert await witness.ends(f"{topic}.{group}.dead", 1) == {0: 3}


@pytest.mark.parametrize("begins_at", ["latest", "none", dt.timedelta(0)])
async def test_retry_and_replay_topics_are_read_from_their_beginning(  # noqa: PLR0917 - fixtures
    new_app, new_topic, kafka_server, witness, group, begins_at
):
    """Retry and replay topics are read from the beginning, also if auto_offset_reset is "latest"."""
    topic, app, seen = new_topic(), new_app(auto_offset_reset=begins_at), []
    await witness.commit(group, topic, 0, "")
    for own in (f"{topic}.{group}.retry.100ms", f"{topic}.{group}.replay"):
        kafka_server.create_topic(own)
        witness.produce(own, [own.encode()])

    @app.handler(topic, retry=Retry(attempts=1, topic_delays_ms=[100]))
    async def handle(value: bytes) -> None:
        seen.append(value.decode())

    async with app:
        await until(lambda: len(seen) == 2)

    assert sorted(seen) == [f"{topic}.{group}.replay", f"{topic}.{group}.retry.100ms"]


async def test_test_app_delays_records_in_virtual_time():
    """TestApp uses the same retry topics in virtual time, until the record is handled or dead-lettered."""
    app, tried = App(group_id="billing", dead_letter="{topic}.{group}.dead"), []

    @app.handler("orders", retry=Retry(attempts=1, topic_delays_ms=[60_000, 3_600_000]))
    async def handle(record: Record) -> None:
        tried.append((asyncio.get_running_loop().time(), record.topic, record.value))
        if record.value == b"poison" or len(tried) == 1:
            raise ValueError("not yet")

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"once")
        assert [(topic, value) for _, topic, value in tried] == [("orders", b"once")] * 2
        assert tried[1][0] - tried[0][0] >= 59
        await kafka.send("orders", b"poison")
        assert len(tried) == 5
        assert tried[4][0] - tried[3][0] >= 3_599
        assert [(one.reason, one.attempts) for one in kafka.dead_letters("orders")] == [("not yet", 3)]
        assert kafka.committed("orders") == 2


@pytest.mark.parametrize("comes_by", ["headers", "letters"])
async def test_headers_of_another_group_are_ignored(comes_by):
    """A group ignores tailrace headers of another group, in copied headers as in dead letters that it reads."""
    retry = Retry(attempts=1, topic_delays_ms=[60_000])
    app, seen = App(group_id="billing", dead_letter="{topic}.{group}.dead", retry=retry), []
    topic = "invoices" if comes_by == "headers" else "orders.billing.dead"

    @app.handler("orders")
    async def bill(record: Record, attempts: Annotated[int, Header("tailrace-attempts")] = 0) -> Message | None:
        if not attempts or comes_by == "letters":
            raise ValueError("not yet")
        return Message(record.value, headers=record.headers, topic=topic)

    @app.handler(topic, group_id="post")
    async def send(record: Record) -> None:
        seen.append((record.topic, record.offset, record.value))
        raise ValueError("no stamp")

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"7")
        letters = [(one.reason, one.attempts, one.deaths) for one in kafka.dead_letters(topic)]
        (buried,) = kafka.published(f"{topic}.post.dead")

    assert seen == [(topic, 0, b"7")] * 2
    assert letters == [("no stamp", 2, 1)]
    assert buried.value == b"7"


class TopicNames:
    """Codec that decodes a record to its topic's name."""

    def decode(self, _data: bytes, _annotation: object, record: Record) -> str:
        return record.topic

    def encode(self, value: bytes) -> bytes:
        return value


@pytest.mark.parametrize("kind", ["handler", "batch_handler"])
async def test_a_codec_sees_the_origin_topic_of_a_record(kind):
    """Codecs see the origin topic of a record from a retry topic, alone or in a batch."""
    app, decoded = App(group_id="billing", codec=TopicNames()), []

    async def handle(values: str) -> None:
        decoded.append(values)
        if len(decoded) == 1:
            raise ValueError("not yet")

    handle.__annotations__["values"] = str if kind == "handler" else list[str]
    getattr(app, kind)("orders", retry=Retry(attempts=1, topic_delays_ms=[60_000]))(handle)

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"7")

    assert decoded == (["orders"] * 2 if kind == "handler" else [["orders"]] * 2)


async def test_due_records_form_new_batches():
    """Records of a retry topic that are due are handled in batches again."""
    app, batches = App(group_id="billing"), []

    @app.batch_handler("orders", max_records=2, order_by="none", retry=Retry(attempts=1, topic_delays_ms=[60_000]))
    async def store(values: list[bytes]) -> None:
        batches.append(values)
        if len(batches) <= 3:
            raise ValueError("not yet")

    async with TestApp(app) as kafka, asyncio.TaskGroup() as sending:
        for value in (b"0", b"1", b"2", b"3", b"4"):
            sending.create_task(kafka.send("orders", value))

    assert batches[:3] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert batches[3:] == batches[:3]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"retry_topics": [5_000]}, r"retry_topics.* use retry=Retry\(topic_delays_ms="),
        ({"overtaking": True}, r"overtaking.* use retry=Retry\(allow_reordering=True\)"),
    ],
)
def test_errors_of_former_options_show_their_replacement(options, hint):
    """Options that moved into Retry raise an error that shows the new spelling."""
    for declare in (Handlers().handler, Handlers().batch_handler):
        with pytest.raises(ConfigurationError, match=hint):
            declare("orders", **options)


def test_retry_topics_are_refused_with_an_order_of_keys():
    """Retry topics are refused for a handler that keeps the order of keys, unless `allow_reordering` is set."""
    for declare in (Handlers().handler, Handlers().batch_handler):
        with pytest.raises(ConfigurationError, match=r'order_by="key".*allow_reordering=True'):
            declare("orders", order_by="key", retry=Retry(topic_delays_ms=[5_000]))


def test_retry_topics_are_refused_with_a_pattern():
    """Retry topics are refused for a handler with a pattern, as its topics are not known at the start."""
    for declare in (Handlers().handler, Handlers().batch_handler):
        with pytest.raises(ConfigurationError, match="cannot be used with pattern="):
            declare(pattern="orders.*", retry=Retry(topic_delays_ms=[5_000]))


def test_retry_topics_are_accepted_without_an_order_of_keys():
    """allow_reordering is required only for handlers that keep the order of keys."""
    handlers = Handlers()
    handlers.handler("orders", retry=Retry(topic_delays_ms=[5], allow_reordering=True), order_by="key")(print)
    handlers.handler("orders", retry=Retry(topic_delays_ms=(5,)), order_by="none")(print)
    handlers.handler("orders", retry=Retry(topic_delays_ms=[5, 60]))(print)

    assert [one.retry.topic_delays_ms for one in handlers.declared] == [(5,), (5,), (5, 60)]


@pytest.mark.parametrize(
    ("options", "fault"), [({"order_by": "key"}, "allow_reordering"), ({}, "cannot be used with pattern=")]
)
async def test_retry_topics_of_the_app_are_checked_for_each_handler(options, fault):
    """The start fails if a handler cannot use the app's retry topics and has no retry policy of its own."""
    app = App(group_id="g", retry=Retry(topic_delays_ms=[5_000]))
    topics = {"pattern": "orders.*"} if fault == "cannot be used with pattern=" else {}

    @app.handler(*([] if topics else ["orders"]), **topics, **options)
    async def handle(value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match=f"handle: .*{fault}"):
        async with TestApp(app):
            pass
    app.declared[0] = dataclasses.replace(app.declared[0], retry=Retry(attempts=2))
    async with TestApp(app):
        pass


async def test_retry_topics_of_the_app_are_used_by_its_handlers():
    """The app's retry policy, including its retry topics, applies to handlers without a policy of their own."""
    app = App(group_id="g", retry=Retry(attempts=1, topic_delays_ms=[60_000]), dead_letter="{topic}.dead")
    tried = []

    @app.handler("orders")
    async def handle(value: bytes) -> None:
        tried.append(asyncio.get_running_loop().time())
        raise OSError("away")

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"0")

        assert round(tried[1] - tried[0]) == 60
        assert kafka.committed("orders.g.retry.1m") == 1
        assert len(kafka.dead_letters("orders")) == 1
