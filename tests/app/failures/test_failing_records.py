"""A failing record affects neither other keys nor the app nor the group, and is never lost."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from functools import partial

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tailrace import App, DeadLetterError, Message, PartialFailureError, Record, Retry, TailraceError, TopicPartition
from tailrace.app.failures.policy import is_given_up, is_outage
from tailrace.app.health.checks import Check
from tailrace.app.policies import FailureAction, RetryDecision
from tailrace.errors import SchemaRegistryError
from tailrace.observe.events import (
    ConsumerFailed,
    DeadLetterFailed,
    HandlerFailed,
    OffsetsCommitted,
    PartitionReadPaused,
    RecordDeadLettered,
)
from tailrace.testing import TestApp
from tests.support.commands import environment, tailrace
from tests.support.consumer_group import until
from tests.support.protocol.built_batches import SentRecord, with_header_name
from tests.support.topic_contents import contents_of

ONCE = Retry(attempts=1, backoff_ms=1, max_backoff_ms=100)
IMPATIENT = {"request_timeout_ms": 1_000}
"""Options that shorten the wait for metadata of an unknown topic."""


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        given = {"group_id": group, "hooks": [recorder], "auto_commit_interval_ms": 100, **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **given)

    return make


def set_limit(witness, topic: str, max_message_bytes: int) -> None:
    """Set max.message.bytes of a topic."""
    entry = ConfigEntry("max.message.bytes", str(max_message_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    witness.admin.incremental_alter_configs([resource])[resource].result(20)


async def committed_to(recorder, topic: str, offset: int, partition: int = 0) -> None:
    wanted = {TopicPartition(topic, partition): offset}
    await recorder.wait_for(OffsetsCommitted, where=lambda event: wanted.items() <= event.offsets.items())


def check_of(app: App, name: str = "records") -> Check:
    return next(one for one in app.health().checks if one.name == name)


def poison_all(app: App, topic: str) -> None:
    """Declare a handler that fails with every record of a topic."""

    @app.handler(topic, retry=ONCE)
    async def handle(value: bytes) -> None:
        raise ValueError("poison")


# ---- hostile records ------------------------------------------------------------------------------------------------


async def test_a_record_with_a_header_name_in_latin_1_is_dead_lettered_and_replayed(
    new_app, new_topic, witness, group, recorder
):
    """A header name that is not UTF-8 is read with U+FFFD: its record fails, is dead-lettered, listed and replayed."""
    topic, app, read = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    witness.produce_batch(topic, with_header_name(b"caf\xe9", SentRecord(b"k", b"1", headers=(("XXXX", b"x"),))))
    was_replayed = asyncio.Event()

    @app.handler(topic, retry=ONCE)
    async def handle(record: Record) -> None:
        read.append(next(one for one in record.headers if not one[0].startswith("tailrace-")))
        if len(read) == 1:
            raise ValueError("negative total")
        was_replayed.set()

    async with app, asyncio.timeout(60):
        await recorder.wait_for(RecordDeadLettered)
        commands = (["list"], ["replay", "--all", "--execute"])
        servers = {"TAILRACE_BOOTSTRAP_SERVERS": witness.bootstrap_servers}
        ended = [
            await asyncio.to_thread(partial(tailrace, "dead-letters", one, f"{topic}.{group}.dead", *more, **servers))
            for one, *more in commands
        ]
        await was_replayed.wait()

    assert [one.returncode for one in ended] == [0, 0]
    assert read == [("caf\N{REPLACEMENT CHARACTER}", b"x")] * 2
    letter, *_marks = await contents_of(witness, f"{topic}.{group}.dead")
    assert letter.headers()[0] == ("caf\N{REPLACEMENT CHARACTER}", b"x")


# ---- isolation of keys ---------------------------------------------------------------------------------------------


async def test_a_poisoned_key_does_not_delay_other_keys(new_app, new_topic, witness, group):
    """While one key of twenty keeps failing, the others are handled; the failing record has one dead letter."""
    topic, app, handled = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    handled_before, others_are_through = [], asyncio.Event()
    witness.produce(topic, (b"%d" % n for n in range(4_000)), keys=[b"k%d" % (n % 20) for n in range(4_000)])

    @app.handler(topic, order_by="key", retry=Retry(attempts=3, backoff_ms=100, jitter=False))
    async def handle(record: Record) -> None:
        if record.offset == 7:
            handled_before.append(len(handled))
            if len(handled_before) == 3:
                await others_are_through.wait()
            raise ValueError("poison")
        await asyncio.sleep(0.002)
        handled.append((record.key, record.offset))
        if len(handled) == 3_800:
            others_are_through.set()

    async with app:
        await until(lambda: len(handled) == 3_999)

    assert handled_before[0] < handled_before[1]
    assert {key for key, _ in handled[:3_800]} == {b"k%d" % n for n in range(20) if n != 7}
    assert handled[3_800:] == [(b"k7", offset) for offset in range(27, 4_000, 20)]
    assert [(one.key(), one.value()) for one in await contents_of(witness, f"{topic}.{group}.dead")] == [(b"k7", b"7")]
    assert await witness.committed(group, topic, 1) == {0: 4_000}


async def test_a_full_lane_emits_an_event_and_blocks_only_its_partition(new_app, new_topic, witness, recorder):
    """If half of max_queued_records waits in one lane, an event is emitted and the partition is not read further."""
    topic, app, handled, is_fixed = new_topic(2), new_app(max_queued_records=40), [], False
    witness.produce(topic, (b"%d" % n for n in range(100)), keys=[b"same"] * 100, partition=0)
    witness.produce(topic, (b"%d" % n for n in range(300)), keys=[b"k%d" % (n % 7) for n in range(300)], partition=1)

    @app.handler(topic, order_by="key", retry=ONCE)
    async def handle(record: Record) -> None:
        if record.key == b"same" and not is_fixed:
            raise ValueError("poison")
        handled.append((record.partition, record.offset))
        await asyncio.sleep(0)

    async with app:
        full = await recorder.wait_for(PartitionReadPaused)
        await until(lambda: len(handled) == 300)
        assert check_of(app).status == "degraded"
        is_fixed = True
        await until(lambda: len(handled) == 400)

    assert (full.partition, full.key, full.waiting) == (TopicPartition(topic, 0), b"same", 20)
    assert len(recorder.of(PartitionReadPaused)) == 1
    assert {partition for partition, _ in handled[:300]} == {1}
    assert handled[300:] == [(0, n) for n in range(100)]


def test_a_group_of_registry_errors_counts_as_an_outage():
    """A group of SchemaRegistryErrors alone is an outage; with another error in it, the record has failed."""
    outage = ExceptionGroup("two", [SchemaRegistryError("away"), SchemaRegistryError("away")])
    mixed = ExceptionGroup("two", [SchemaRegistryError("away"), ValueError("bad")])
    decision = RetryDecision(FailureAction.PAUSE, 1.0)

    assert is_outage(outage)
    assert not is_given_up(decision, outage)
    assert not is_outage(mixed)
    assert is_given_up(decision, mixed)


class Outage:
    """Handlers during an outage: records of partition 0 fail, those of partition 1 succeed."""

    def __init__(self) -> None:
        self.is_over = False
        self.tried: Counter[tuple[int, int]] = Counter()
        self.handled: list[tuple[int, int]] = []

    def fails(self, record: Record) -> bool:
        """Record an attempt; return True if it must fail."""
        self.tried[record.partition, record.offset] += 1
        return record.partition == 0 and not self.is_over

    async def run(self, recorder, topic: str, records: int) -> int:
        """Run the outage; return how many different records failed while the other partition was handled, and later."""
        full = await recorder.wait_for(PartitionReadPaused)
        await until(lambda: len(self.handled) == 300)
        # A consumer that reads without limit has started more records by the time that the waiting ones were retried.
        await until(lambda: len(self.tried) >= 338 and self.tried.total() > 500)
        failing = len(self.tried) - 300
        self.is_over = True
        await until(lambda: len(self.handled) == records + 300)

        assert full.partition == TopicPartition(topic, 0)
        assert 0 < full.waiting <= 44
        assert len(set(self.handled)) == records + 300
        return failing


@pytest.mark.parametrize("order_by", ["key", "none"])
@pytest.mark.parametrize("is_in_place", [True, False])
async def test_an_outage_pauses_reading_of_its_partition(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, group, order_by, is_in_place
):
    """Records that wait for a retry never exceed max_queued_records; other partitions continue, all are handled."""
    topic, app, outage = new_topic(2), new_app(max_queued_records=60), Outage()
    witness.produce(topic, (b"" for _ in range(600)), keys=[b"k%d" % n for n in range(600)], partition=0)
    witness.produce(topic, (b"" for _ in range(300)), keys=[b"k%d" % n for n in range(300)], partition=1)
    retry, running, most = Retry(attempts=10_000 if is_in_place else 1, backoff_ms=50, max_backoff_ms=100), 0, 0

    @app.handler(topic, order_by=order_by, retry=retry, concurrency=4)
    async def handle(record: Record) -> None:
        nonlocal running, most
        if outage.fails(record):
            raise ValueError("away")
        running += 1
        most = max(running, most) if len(outage.handled) > 700 else 0
        await asyncio.sleep(0.001)
        running -= 1
        outage.handled.append((record.partition, record.offset))

    async with app:
        failing = await outage.run(recorder, topic, 600)

    assert 40 <= failing <= 44
    assert most <= 4
    assert await witness.committed(group, topic, 2) == {0: 600, 1: 300}


@pytest.mark.parametrize("order_by", ["key", "none"])
async def test_an_outage_of_batches_pauses_reading_of_its_partition(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, group, order_by
):
    """Records of failed batches never exceed max_queued_records; other partitions continue, and all are handled."""
    topic, app, outage = new_topic(2), new_app(max_queued_records=60), Outage()
    for partition in range(2):
        witness.produce(topic, [b""] * 300, keys=[b"k%d" % n for n in range(300)], partition=partition)

    @app.batch_handler(topic, max_records=10, max_wait_ms=20, order_by=order_by, retry=ONCE)
    async def handle(records: list[Record]) -> None:
        failed = {at: ValueError("away") for at, one in enumerate(records) if outage.fails(one)}
        outage.handled.extend((one.partition, one.offset) for at, one in enumerate(records) if at not in failed)
        if failed:
            raise PartialFailureError(failed)

    async with app:
        failing = await outage.run(recorder, topic, 300)

    assert 38 <= failing <= 60
    assert await witness.committed(group, topic, 2) == {0: 300, 1: 300}


async def test_dead_letters_are_replayed_to_success(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, recorder, group
):
    """`tailrace dead-letters replay` sends each record once, and handlers see the original position."""
    topic, app, handled, is_fixed = new_topic(2), new_app(dead_letter="{topic}.{group}.dead"), [], False
    app.configure(metadata_max_age_ms=300)
    witness.produce(topic, [b"1", b"bad", b"2"], keys=[b"a", b"b", b"c"], partition=1)

    @app.handler(topic, retry=ONCE)
    async def handle(record: Record) -> None:
        if record.value == b"bad" and not is_fixed:
            raise ValueError("poison")
        handled.append(record)

    dead = f"{topic}.{group}.dead"
    async with app:
        await recorder.wait_for(RecordDeadLettered)
        await until(lambda: len(handled) == 2)
        is_fixed = True
        replay = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "tailrace", "dead-letters", "replay", dead, "--all", "--execute"],
            env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers),
        )
        assert await replay.wait() == 0
        await until(lambda: len(handled) == 3)

    assert tuple(handled[-1]) == (topic, 1, 1, b"b", b"bad")
    marks = 3  # of the replay's start and end, and of its record
    assert sum((await witness.ends(dead, 2)).values()) == 1 + marks
    assert sum((await witness.committed(group, f"{topic}.{group}.replay", 2)).values()) == 1


# ---- dead letters that are refused ----------------------------------------------------------------------------------


async def test_a_dead_letter_waits_for_its_missing_topic(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, recorder, group
):
    """A record whose dead-letter topic is missing blocks its key only and degrades health until the topic exists."""
    topic, handled = new_topic(), []
    dead = f"{topic}.{group}.dead"

    def app_of(name: str) -> App:
        app = new_app(client_id=name, dead_letter=dead, **IMPATIENT)

        @app.handler(topic, order_by="key", retry=ONCE)
        async def handle(record: Record) -> None:
            if record.value == b"bad":
                raise ValueError("poison")
            handled.append(record.value)

        return app

    first, second = app_of("first"), app_of("second")
    async with first, second:
        kafka_server.delete_topic(dead)
        witness.produce(topic, [b"bad", b"1", b"2"], keys=[b"a", b"b", b"c"])
        refused = await recorder.wait_for(DeadLetterFailed, 2)
        await until(lambda: len(handled) == 2)
        assert first.health().is_live
        assert second.health().is_live
        assert "degraded" in {check_of(first).status, check_of(second).status}
        kafka_server.create_topic(dead)
        await recorder.wait_for(RecordDeadLettered)
        await committed_to(recorder, topic, 3)

    assert (refused.topic, refused.partition, refused.offset) == (dead, TopicPartition(topic, 0), 0)
    assert "exists" in refused.advice
    assert not recorder.of(ConsumerFailed)
    assert [letter.value() for letter in await contents_of(witness, dead)] == [b"bad"]
    assert await witness.committed(group, topic, 1) == {0: 3}


async def test_a_dead_letter_that_is_too_large_is_shortened(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, recorder, group
):
    """A dead letter just too large for its topic omits the traceback, but no byte of the record.

    Earlier and later dead letters of the same partition are complete.
    """
    topic, app = new_topic(), new_app(dead_letter="{topic}.{group}.dead")
    dead, value = f"{topic}.{group}.dead", b"x" * 2_000
    kafka_server.create_topic(dead, config={"max.message.bytes": 3_200})

    @app.handler(topic, retry=ONCE)
    async def handle(given: bytes) -> None:
        raise ValueError("poison " * 300 if given == value else "poison")

    async with app:
        for count, given in enumerate([b"before", value, b"behind"], 1):
            witness.produce(topic, [given])
            await recorder.wait_for(RecordDeadLettered, count)

    before, letter, behind = await contents_of(witness, dead)
    headers = dict(letter.headers())
    assert [one.value() for one in (before, letter, behind)] == [b"before", value, b"behind"]
    assert all("tailrace-error-traceback" in dict(one.headers()) for one in (before, behind))
    assert "tailrace-error-traceback" not in headers
    assert headers["tailrace-error-type"] == b"ValueError"
    assert headers["tailrace-error-message"].startswith(b"poison poison")


async def test_a_record_too_large_for_its_dead_letter_topic_waits(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, recorder, group
):
    """A record too large even for a brief dead letter waits until the limit that the event names has been raised."""
    topic, app = new_topic(), new_app(dead_letter="{topic}.{group}.dead")
    dead, value = f"{topic}.{group}.dead", b"x" * 2_000
    kafka_server.create_topic(dead, config={"max.message.bytes": 1_000})

    poison_all(app, topic)
    async with app:
        witness.produce(topic, [value])
        refused = await recorder.wait_for(DeadLetterFailed)
        await until(lambda: check_of(app).status == "degraded")
        set_limit(witness, dead, 1_000_000)
        await recorder.wait_for(RecordDeadLettered)
        await committed_to(recorder, topic, 1)
        assert check_of(app).status == "ok"

    assert refused.advice == f"raise max.message.bytes of {dead}"
    assert [letter.value() for letter in await contents_of(witness, dead)] == [value]


async def test_a_large_record_has_a_complete_dead_letter(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, kafka_server, recorder, group
):
    """A dead letter of three megabytes is written if the topic allows it."""
    topic, app, value = f"{new_topic()}-large", new_app(dead_letter="{topic}.{group}.dead"), bytes(3_000_000)
    dead = f"{topic}.{group}.dead"
    for name in (topic, dead):
        kafka_server.create_topic(name, config={"max.message.bytes": 4_000_000})

    poison_all(app, topic)
    async with app:
        await app.publish(topic, value)
        await recorder.wait_for(RecordDeadLettered)

    (letter,) = await contents_of(witness, dead)
    assert letter.value() == value


async def test_an_empty_record_has_a_dead_letter(new_app, new_topic, witness, recorder, group):
    """A record with neither key nor value has a dead letter with neither, and with headers about the failure."""
    topic, app = new_topic(), new_app(dead_letter="{topic}.{group}.dead")
    witness.produce(topic, [None])

    @app.handler(topic, retry=ONCE)
    async def handle(value: bytes) -> None: ...

    async with app:
        await recorder.wait_for(RecordDeadLettered)

    (letter,) = await contents_of(witness, f"{topic}.{group}.dead")
    assert (letter.key(), letter.value()) == (None, None)
    assert dict(letter.headers())["tailrace-error-type"] == b"tailrace.errors.DecodeError"


async def test_on_failure_stop_ends_the_app_if_a_dead_letter_is_refused(
    new_app, new_topic, witness, kafka_server, group
):
    """With `on_failure="stop"` the app ends, and the record is not committed."""
    topic = new_topic()
    dead = f"{topic}.{group}.dead"
    app = new_app(dead_letter=dead, on_failure="stop", **IMPATIENT)

    poison_all(app, topic)
    await app.start()
    kafka_server.delete_topic(dead)
    witness.produce(topic, [b"bad"])
    await until(lambda: app.health().status == "failed")
    with pytest.raises(DeadLetterError, match=r"ValueError: poison.*cannot be written to.*exists"):
        await app.stop()

    assert (await witness.committed(group, topic, 1)).get(0, 0) == 0


# ---- results and exceptions of handlers ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["unencodable", "no topic", "no such partition"])
async def test_a_result_that_cannot_be_published_fails_the_record(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, group, what
):
    """A record whose result cannot be published is retried, then dead-lettered; the next record is handled."""
    topic, results = new_topic(), new_topic()
    app, calls = new_app(dead_letter="{topic}.{group}.dead", **IMPATIENT), []
    witness.produce(topic, [b"bad", b"good"])
    bad = {
        "unencodable": object(),
        "no topic": Message(b"x", topic=f"{topic}-missing"),
        "no such partition": Message(b"x", partition=7),
    }[what]

    @app.handler(topic, publish=results, retry=Retry(attempts=2, backoff_ms=1))
    async def handle(value: bytes) -> object:
        calls.append(value)
        return bad if value == b"bad" else b"fine"

    async with app:
        await recorder.wait_for(RecordDeadLettered)
        await committed_to(recorder, topic, 2)

    (letter,) = await contents_of(witness, f"{topic}.{group}.dead")
    headers = dict(letter.headers())
    assert calls == [b"bad", b"bad", b"good"]
    assert (letter.value(), headers["tailrace-error-type"]) == (b"bad", b"tailrace.errors.PublishError")
    assert [one.value() for one in await contents_of(witness, results)] == [b"fine"]


async def test_a_handler_that_does_not_end_fails_after_timeout_ms(new_app, new_topic, witness, recorder, group):
    """`timeout_ms` cancels each attempt, and the next record is handled."""
    topic, app, cancelled = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    witness.produce(topic, [b"endless", b"good"])

    @app.handler(topic, timeout_ms=100, retry=Retry(attempts=2, backoff_ms=1))
    async def handle(value: bytes) -> None:
        if value == b"endless":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(value)
                raise

    async with app:
        buried = await recorder.wait_for(RecordDeadLettered)
        await committed_to(recorder, topic, 2)

    assert buried.error.startswith("TimeoutError")
    assert len(cancelled) == 2


async def test_a_thread_that_exceeds_timeout_ms_fails_when_it_returns(new_app, new_topic, witness, recorder):
    """A plain function that exceeds timeout_ms fails when it returns; attempts never overlap."""
    topic, app, running, most = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), [], []
    witness.produce(topic, [b"1", b"2"])

    @app.handler(topic, timeout_ms=50, retry=Retry(attempts=2, backoff_ms=1))
    def handle(value: bytes) -> None:
        running.append(value)
        most.append(len(running))
        time.sleep(0.2)
        running.pop()

    async with app:
        buried = await recorder.wait_for(RecordDeadLettered, 2)

    assert "a thread cannot be canceled" in buried.error
    assert most == [1, 1, 1, 1]


async def test_health_names_a_handler_that_never_ends(new_app, new_topic, witness):
    """An app without `timeout_ms` is not live if a handler runs longer than `max_poll_interval_ms`; health names it."""
    topic, app = new_topic(), new_app(stop_timeout_ms=1_000, max_poll_interval_ms=1_500)
    witness.produce(topic, [b"endless"])

    @app.handler(topic)
    async def endless(value: bytes) -> None:
        await asyncio.Event().wait()

    async with app:
        await until(lambda: check_of(app, "handlers").status == "failed")
        assert not app.health().is_live
        detail = check_of(app, "handlers").detail

    assert "endless has run for" in detail


@pytest.mark.parametrize("is_retried", [True, False])
async def test_retry_on_looks_into_exception_groups(new_app, new_topic, witness, recorder, is_retried):
    """For an exception group, `Retry(on=...)` applies to its members, all of which must be retryable."""
    topic, app, calls = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    witness.produce(topic, [b"x"])

    async def fail(error: Exception) -> None:
        raise error

    @app.handler(topic, retry=Retry(attempts=3, backoff_ms=1, on=OSError))
    async def handle(value: bytes) -> None:
        calls.append(value)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail(ConnectionResetError("gone")))
            tasks.create_task(fail(TimeoutError("slow") if is_retried else ValueError("a bug")))

    async with app:
        await recorder.wait_for(RecordDeadLettered)

    assert len(calls) == (3 if is_retried else 1)
    assert len(recorder.of(HandlerFailed)) == len(calls)


class WordlessError(Exception):
    """User-defined error whose ``__str__`` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("kind", ["handler", "batch_handler"])
async def test_an_error_whose_str_raises_is_handled(kind, recorder):
    """A record whose error cannot be converted to text is retried and dead-lettered; other records are handled."""
    app = App(group_id="g", dead_letter="{topic}.dead", retry=Retry(attempts=2), hooks=[recorder])

    async def on_record(value: bytes) -> None:
        if value == b"bad":
            raise WordlessError

    async def on_batch(values: list[bytes]) -> None:
        await on_record(values[0])

    getattr(app, kind)("t")(on_record if kind == "handler" else on_batch)
    async with TestApp(app) as kafka:
        await kafka.send("t", b"bad")
        await kafka.send("t", b"good")

        assert [(one.reason, one.attempts) for one in kafka.dead_letters("t")] == [
            ("(no message: __str__ raised RuntimeError)", 2)
        ]
        assert kafka.committed("t") == 2


class Catastrophe(BaseException):
    """BaseException that is not an Exception."""


async def test_a_base_exception_ends_the_app(new_app, new_topic, witness, group):
    """The app ends with a BaseException of a handler, without a retry, and the record is not committed."""
    topic, app = new_topic(), new_app()
    witness.produce(topic, [b"x"])

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        raise Catastrophe("out of everything")

    with pytest.raises(TailraceError, match="Catastrophe: out of everything"):
        await asyncio.wait_for(app.run(), 30)

    assert (await witness.committed(group, topic, 1)).get(0, 0) == 0


PROGRAM = """
import asyncio, sys
from tailrace import App

app = App(bootstrap_servers=sys.argv[1], group_id=sys.argv[3])

@app.handler(sys.argv[2])
async def handle(value: bytes) -> None:
    raise {error}

asyncio.run(app.run())
"""


@pytest.mark.parametrize(("error", "code"), [("SystemExit(7)", 7), ("KeyboardInterrupt", -2)])
async def test_a_handler_may_end_the_process(  # noqa: PLR0917 - fixtures
    new_topic, witness, kafka_server, group, error, code
):
    """SystemExit and KeyboardInterrupt end the process, and the record is not committed."""
    topic = new_topic()
    witness.produce(topic, [b"x"])

    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", PROGRAM.format(error=error), kafka_server.bootstrap_servers, topic, group],
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        await process.communicate()

    assert process.returncode == code
    assert (await witness.committed(group, topic, 1)).get(0, 0) == 0


async def test_forged_headers_are_ignored(new_app, new_topic, witness, recorder, group):
    """A record with tailrace headers in a user's topic is dead-lettered with its own origin, as a first death."""
    topic, app = new_topic(), new_app(dead_letter="{topic}.{group}.dead")
    forged = {
        **{f"tailrace-origin-{part}": b"7" for part in ("partition", "offset", "timestamp")},
        "tailrace-origin-topic": topic.encode(),
        "tailrace-deaths": b"900",
        "tailrace-replays": b"900",
        "tailrace-due-at": b"1",
        "tailrace-attempts": b"900",
    }
    witness.produce(topic, [b"x"], headers=[*forged.items(), ("trace", b"t")])

    poison_all(app, topic)
    async with app:
        await recorder.wait_for(RecordDeadLettered)

    (letter,) = await contents_of(witness, f"{topic}.{group}.dead")
    headers = dict(letter.headers())
    assert (headers["trace"], headers["tailrace-origin-topic"]) == (b"t", topic.encode())
    assert (headers["tailrace-origin-partition"], headers["tailrace-origin-offset"]) == (b"0", b"0")
    assert (headers["tailrace-deaths"], headers["tailrace-attempts"]) == (b"1", b"1")
    assert "tailrace-replays" not in headers
