"""A group's retry, replay and dead-letter topics exist when its app is ready; a missing output topic is reported."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import App, Record, Retry
from tailrace.app.failures.dead_letters import read_dead_letter, replay_record
from tailrace.observe.events import RecordDeadLettered, TopicCreated, TopicMissing
from tests.support.consumer_group import until
from tests.support.topic_contents import contents_of


@pytest.fixture
def new_app(kafka_server, group, recorder):
    def make(**options):
        given = {"group_id": group, "hooks": [recorder], "dead_letter": "{topic}.{group}.dead", **options}
        return App(bootstrap_servers=kafka_server.bootstrap_servers, retry=Retry(attempts=1), **given)

    return make


@pytest.mark.parametrize("is_pattern", [False, True])
async def test_group_topics_are_created_at_the_start(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, group, recorder, is_pattern
):
    """Dead-letter and replay topics are created at the start, so a replay is read without a metadata refresh."""
    topic, seen, is_fixed, app = new_topic(2), [], False, new_app(metadata_max_age_ms=300_000)
    dead, replay = f"{topic}.{group}.dead", f"{topic}.{group}.replay"

    @app.handler(*([] if is_pattern else [topic]), pattern=f"{topic}.*" if is_pattern else None)
    async def handle(record: Record) -> None:
        if not is_fixed:
            raise ValueError("poison")
        seen.append(record.value)

    async with app:
        await app.wait_ready()
        made = {one.topic: one.partitions for one in recorder.of(TopicCreated)}
        witness.produce(topic, [b"poison"])
        await recorder.wait_for(RecordDeadLettered)
        is_fixed, (letter,) = True, await contents_of(witness, dead, 2)
        again = replay_record(read_dead_letter(Record(dead, 0, 0, letter.key(), letter.value(), 0, letter.headers())))
        witness.produce(replay, [again.value], headers=list(again.headers))
        await until(lambda: seen == [b"poison"])

    assert made == {dead: 2, replay: 2}


async def test_group_topics_of_a_later_topic_are_created(  # noqa: PLR0917 - fixtures
    new_app, new_topic, kafka_server, witness, group, recorder
):
    """The replay of a topic that is created later and matched by a pattern is read without a restart."""
    first, seen, is_fixed = new_topic(), [], False
    app = new_app(metadata_max_age_ms=1_000)
    later = f"{first}-later"
    own = {f"{later}.{group}.dead": 3, f"{later}.{group}.replay": 3}
    made_before = None

    @app.handler(pattern=f"{first}.*")
    async def handle(record: Record) -> None:
        nonlocal made_before
        if made_before is None:
            made_before = {
                one.topic: one.partitions for one in recorder.of(TopicCreated) if one.topic.startswith(later)
            }
        if not is_fixed:
            raise ValueError("poison")
        seen.append(record.value)

    async with app:
        await app.wait_ready()
        kafka_server.create_topic(later, 3)
        witness.produce(later, [b"poison"])
        await recorder.wait_for(RecordDeadLettered)
        is_fixed, (letter,) = True, await contents_of(witness, f"{later}.{group}.dead", 3)
        again = replay_record(
            read_dead_letter(Record(f"{later}.{group}.dead", 0, 0, letter.key(), letter.value(), 0, letter.headers()))
        )
        witness.produce(f"{later}.{group}.replay", [again.value], headers=list(again.headers))
        await until(lambda: seen == [b"poison"])

    assert made_before == own
    assert not recorder.of(TopicMissing)


async def test_a_handler_without_dead_letters_has_no_replay_topic(new_app, new_topic, recorder):
    app = new_app(dead_letter=None)

    @app.handler(new_topic())
    async def handle(value: bytes) -> None: ...

    async with app:
        await app.wait_ready()

    assert not recorder.of(TopicCreated)


async def test_a_missing_publish_topic_is_reported_at_the_start(new_app, new_topic, recorder, name):
    """An event names the topic and the handler before the first record is handled; the app starts all the same."""
    app, there = new_app(dead_letter=None), new_topic()

    @app.handler(new_topic(), publish=name)
    async def charge(value: bytes) -> bytes:
        return value

    @app.handler(new_topic(), publish=there)
    async def copy(value: bytes) -> bytes:
        return value

    async with asyncio.timeout(60), app:
        pass

    (missing,) = recorder.of(TopicMissing)
    assert missing.topic == name
    assert "charge" in missing.error
    assert "create it" in missing.advice
