"""Handlers with ``pattern=``, on the real broker: topics that they read, and their failed records."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tailrace import App, Record, Reject, Retry
from tailrace.app.failures.dead_letters import read_dead_letter, replay_record
from tailrace.observe.events import HandlersOverlap, RecordDeadLettered
from tests.support.consumer_group import until
from tests.support.topic_contents import contents_of

ONCE = Retry(attempts=1)


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        given = {"group_id": group, "hooks": [recorder], "auto_commit_interval_ms": 100, "metadata_max_age_ms": 500}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **{**given, "retry": ONCE, **options})

    return make


async def test_dead_letters_of_matched_topics_are_replayed_to_success(  # noqa: PLR0917 - fixtures
    new_app, new_topic, kafka_server, witness, group, recorder
):
    """A handler with a pattern reads later topics and replays, but no dead-letter topic of any group."""
    first, is_fixed, seen = new_topic(), False, []
    later, letters, replays = f"{first}-later", f"{first}.{group}.dead", f"{first}.{group}.replay"
    app = new_app(dead_letter="{topic}.{group}.dead")
    for name in (letters, f"{first}.other.retry.5s", f"{first}.other.replay", f"{first}.other.dead"):
        kafka_server.create_topic(name)
        witness.produce(name, [b"a letter of others"])
    witness.produce(first, [b"good", b"poison"])

    @app.handler(pattern=f"{first}.*")
    async def handle(value: bytes, record: Record) -> None:
        if value == b"poison" and not is_fixed:
            raise ValueError("not yet")
        seen.append((record.topic, record.offset, value))

    async with app:
        await recorder.wait_for(RecordDeadLettered)
        kafka_server.create_topic(later)
        witness.produce(later, [b"late"])
        await until(lambda: len(seen) == 2)
        is_fixed, (_, letter) = True, await contents_of(witness, letters)
        record = Record(letters, 0, 1, letter.key(), letter.value(), 0, tuple(letter.headers()))
        again = replay_record(read_dead_letter(record))
        witness.produce(replays, [again.value], headers=list(again.headers))
        await until(lambda: len(seen) == 3)

    assert seen == [(first, 0, b"good"), (later, 0, b"late"), (first, 1, b"poison")]
    assert len(recorder.of(RecordDeadLettered)) == 1
    assert [await witness.committed(group, name, 1) for name in (first, replays)] == [{0: 2}, {0: 1}]
    assert await witness.committed(group, letters, 1) == {}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_pattern_may_match_nothing_yet(new_app, kafka_server, witness, protocol):
    """An app whose pattern matches nothing is ready and a member, and reads the first matching topic once it exists."""
    prefix, seen = f"t-{uuid.uuid4().hex}", []
    app = new_app(group_protocol=protocol)

    @app.handler(pattern=f"{prefix}.*")
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with app:
        async with asyncio.timeout(20):
            await app.wait_ready()
        kafka_server.create_topic(f"{prefix}-1")
        witness.produce(f"{prefix}-1", [b"0"])
        await until(lambda: seen)

    assert seen == [b"0"]


async def test_replays_from_before_the_start_are_handled(new_app, new_topic, kafka_server, witness, group):
    """Records of the replay topic are handled, whatever auto_offset_reset is for other topics."""
    topic, app, seen = new_topic(), new_app(auto_offset_reset="latest"), []
    kafka_server.create_topic(f"{topic}.{group}.replay")
    witness.produce(f"{topic}.{group}.replay", [b"once more"])

    @app.handler(pattern=topic)
    async def handle(value: bytes) -> None:
        seen.append(value)

    async with app:
        await until(lambda: seen)

    assert seen == [b"once more"]


async def test_two_patterns_that_match_one_topic_emit_an_event(new_app, new_topic, witness, recorder):
    """An event names two handlers whose patterns match a topic; the handler declared first receives its records."""
    topic, app, seen = new_topic(), new_app(), []
    witness.produce(topic, [b"0", b"1"])

    @app.handler(pattern=f"{topic}.*")
    async def first(value: bytes) -> None:
        seen.append(value)

    @app.handler(pattern=f".*{topic}")
    async def second(value: bytes) -> None:
        raise AssertionError(value)

    async with app:
        await until(lambda: len(seen) == 2)

    (event,) = recorder.of(HandlersOverlap)
    assert (event.topic, event.handlers) == (topic, (first.__qualname__, second.__qualname__))


async def test_patterns_share_topics_by_when(new_app, new_topic, kafka_server, witness, recorder):
    """A pattern and a name may match the same topic without an event if both handlers have `when=`."""
    topic, app, seen = new_topic(), new_app(), []
    witness.produce(topic, [b"1", b"2"])

    @app.handler(pattern=f"{topic}.*", when=lambda record: record.value == b"1")
    async def odd(value: bytes) -> None:
        seen.append(("odd", value))

    @app.handler(topic, when=lambda record: record.value == b"2")
    async def even(value: bytes) -> None:
        seen.append(("even", value))

    async with app:
        await until(lambda: len(seen) == 2)

    assert sorted(seen) == [("even", b"2"), ("odd", b"1")]
    assert not recorder.of(HandlersOverlap)


async def test_dead_letter_topics_can_be_matched_on_purpose(new_app, new_topic, kafka_server, witness, group):
    """A pattern that matches only dead-letter topics reads them, but not that of its own group."""
    topic, app, seen = new_topic(), new_app(dead_letter="{topic}.{group}.dead"), []
    billing, own = f"{topic}.billing.dead", f"{topic}.billing.dead.{group}.dead"
    for name in (billing, own):
        kafka_server.create_topic(name)
    witness.produce(own, [b"buried before"])
    witness.produce(billing, [b"dead"])

    @app.handler(pattern=f"{topic}.*[.]dead")
    async def look(value: bytes) -> None:
        seen.append(value)
        raise Reject("again")

    async with app:
        await until(lambda: bool(seen))

    assert seen == [b"dead"]
    assert await witness.ends(own, 1) == {0: 2}
