"""Manual assignment, and subscriptions that change while a consumer runs."""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from tailrace import (
    CommitFailedError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    GroupAuthorizationFailedError,
    TopicPartition,
    UnknownTopicError,
)
from tailrace.protocol.groups import OffsetFetchRequest
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import ListOffsetsRequest
from tests.support.consumer_group import until
from tests.support.witness import offsets


@pytest.fixture
def filled(new_topic, witness):
    """Return a function that creates topics with ``count`` records in each partition."""

    def make(partitions: int = 1, count: int = 20) -> str:
        topic = new_topic(partitions)
        witness.fill(topic, partitions, count)
        return topic

    return make


async def read(consumer: Consumer, count: int) -> list:
    records = []
    async with asyncio.timeout(20):
        while len(records) < count:
            records += await consumer.getmany(max_records=count - len(records))
    return records


async def test_assign_accepts_every_form_of_partitions(filled, new_consumer):
    """assign() accepts topics, pairs, triples, mappings and lists of them in one call."""
    whole, pair, triple, single, several, mapped = (filled(3) for _ in range(6))
    what = [
        whole,
        (pair, 1),
        (triple, 2, 5),
        {single: 0, several: [0, 2]},
        {(mapped, 1): 15},
        [TopicPartition(pair, 2)],
    ]

    async with new_consumer() as consumer:
        await consumer.assign(*what, at="earliest")
        assigned = consumer.assignment()
        records = await read(consumer, 3 * 20 + 20 + 15 + 20 + 40 + 5 + 20)

    starts = {}
    for record in records:
        starts.setdefault((record.topic, record.partition), record.offset)
    wanted = {(whole, 0): 0, (whole, 1): 0, (whole, 2): 0, (pair, 1): 0, (pair, 2): 0, (triple, 2): 5}
    assert starts == {**wanted, (single, 0): 0, (several, 0): 0, (several, 2): 0, (mapped, 1): 15}
    assert {tuple(one) for one in assigned} == starts.keys()


async def test_assign_begins_at_the_given_start(filled, new_consumer):
    """assign() starts at either end, at an offset or before the end, and by default at auto_offset_reset."""
    topic = filled()
    place = TopicPartition(topic, 0)
    now = int(time.time() * 1000)

    async with new_consumer(auto_offset_reset="latest") as consumer:
        for at, first in (("earliest", 0), ("latest", 20), (7, 7), (None, 20)):
            await consumer.assign(topic, at=at)
            assert await consumer.position(place) == first
        await consumer.assign(topic, tail=3)
        assert offsets(await read(consumer, 3)) == [(0, 17), (0, 18), (0, 19)]
        await consumer.assign(topic, tail=500)
        assert await consumer.position(place) == 0
        assert await consumer.seek_to_time(now - 3_600_000) == {place: 0}


async def test_with_assign_a_group_only_stores_offsets(filled, new_consumer, witness, group):
    """With assign(), offsets are committed for the group, which has no members."""
    topic = filled(2)

    async with new_consumer(group_id=group) as consumer:
        await consumer.assign((topic, 0))
        await read(consumer, 8)
        await consumer.commit()
        members = await witness.members(group)
        await read(consumer, 4)
        await consumer.getmany(max_records=1)
    async with new_consumer(group_id=group) as consumer:
        await consumer.assign(topic)
        resumed = {one: await consumer.position(one) for one in consumer.assignment()}

    committed = await witness.committed(group, topic, 2)
    assert members == {}
    assert committed in ({0: 12}, {0: 12, 1: 0})
    assert resumed == {TopicPartition(topic, 0): 12, TopicPartition(topic, 1): 0}


async def test_a_manual_assignment_cannot_commit_for_a_group_with_members(filled, new_consumer, group):
    """With assign(), commit() for a group with members raises CommitFailedError."""
    topic = filled()

    async with new_consumer(topic, group_id=group) as member, new_consumer(group_id=group) as outside:
        await member.getone()
        await outside.assign(topic, at="earliest")
        await outside.getone()
        async with asyncio.timeout(20):
            with pytest.raises(CommitFailedError):
                await outside.commit()


async def test_without_auto_commit_nothing_is_stored(filled, new_consumer, witness, group):
    """With assign() and enable_auto_commit=False, nothing is committed."""
    topic = filled()

    async with new_consumer(group_id=group, enable_auto_commit=False) as consumer:
        await consumer.assign(topic)
        await read(consumer, 8)

    assert await witness.committed(group, topic, 1) == {}


async def test_a_new_assignment_replaces_the_old_one_as_a_whole(filled, new_consumer):
    """After assign(), no record of the former partitions is delivered; without arguments it assigns none."""
    old, new = filled(2, 2_000), filled()

    async with new_consumer() as consumer:
        await consumer.assign(old, at="earliest")
        await read(consumer, 10)
        await consumer.assign(new, at="earliest")
        records = await read(consumer, 20)
        assert {record.topic for record in records} == {new}
        assert await consumer.getone(timeout_ms=300) is None
        await consumer.assign()
        assert consumer.assignment() == frozenset()


@pytest.mark.parametrize(
    ("what", "options", "error"),
    [
        (("nobody-has-this",), {}, UnknownTopicError),
        (({"{topic}": 9},), {}, UnknownTopicError),
        ((5,), {}, ConfigurationError),
        ((("{topic}", -1),), {}, ConfigurationError),
        ((("{topic}", 0, "middle"),), {}, ConfigurationError),
        (("",), {}, ConfigurationError),
        (("{topic}",), {"at": "middle"}, ConfigurationError),
        (("{topic}",), {"tail": -1}, ConfigurationError),
        (("{topic}",), {"tail": 1, "at": "earliest"}, ConfigurationError),
    ],
    ids=str,
)
async def test_an_invalid_assignment_changes_nothing(filled, new_consumer, what, options, error):
    """An invalid call of assign() raises, and the former assignment remains."""
    topic = filled()
    given = [eval(repr(one).replace("{topic}", topic)) for one in what]

    # An unknown topic is looked up for the duration of a call, and for five seconds at most.
    async with new_consumer(default_api_timeout_ms=3_000) as consumer, asyncio.timeout(30):
        await consumer.assign(topic, at="earliest")
        with pytest.raises(error):
            await consumer.assign(*given, **options)

        assert consumer.assignment() == {TopicPartition(topic, 0)}
        assert (await consumer.getone()).offset == 0


async def test_assigning_and_subscribing_exclude_each_other(filled, new_consumer, group):
    """assign() raises beside a subscription, and subscribe() beside an assignment, until unsubscribe()."""
    topic = filled()

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getone()
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            await consumer.assign(topic)
        await consumer.unsubscribe()
        with pytest.raises(ConsumerStateError, match="reads nothing"):
            await consumer.getone()
        await consumer.assign(topic, at="earliest")
        with pytest.raises(ConsumerStateError, match="unsubscribe"):
            await consumer.subscribe(topic)
        assert (await consumer.getone()).offset == 0


async def test_a_member_may_change_its_topics(filled, new_consumer, witness, group):
    """subscribe() adds and removes topics of a running member."""
    first, second = filled(), filled()

    options = {"heartbeat_interval_ms": 200, "default_api_timeout_ms": 3_000}
    async with new_consumer(first, group_id=group, **options) as consumer:
        await read(consumer, 20)
        await consumer.subscribe(first, second)
        records = await read(consumer, 20)
        assert ({record.topic for record in records}, consumer.subscription()) == ({second}, {first, second})
        await consumer.subscribe(second)
        async with asyncio.timeout(20):
            while consumer.assignment() != {TopicPartition(second, 0)}:
                assert await consumer.getone(timeout_ms=100) is None
        with pytest.raises(UnknownTopicError):
            await consumer.subscribe("nobody-has-this")
        members = await witness.members(group)

    assert list(members.values()) == [frozenset({TopicPartition(second, 0)})]
    assert await witness.committed(group, first, 1) == {0: 20}


async def test_unsubscribing_leaves_the_group_and_commits(filled, new_consumer, witness, group):
    """unsubscribe() commits finished records and leaves the group, and subscribe() joins it again."""
    topic = filled()

    async with new_consumer(topic, group_id=group) as consumer:
        await read(consumer, 5)
        await consumer.getone()
        await consumer.unsubscribe()
        assert (await witness.members(group), consumer.subscription()) == ({}, frozenset())
        assert await witness.committed(group, topic, 1) == {0: 5}
        await consumer.subscribe(topic)
        assert (await consumer.getone()).offset == 5


async def test_a_pattern_replaces_topics(filled, new_consumer, new_topic, group):
    """subscribe(pattern=) replaces topics by the matching ones, with and without a group."""
    first, second = filled(), filled()

    for options in ({"group_id": group}, {"auto_offset_reset": "earliest"}):
        async with new_consumer(first, **options) as consumer:
            await consumer.getone()
            await consumer.subscribe(pattern=f"{second[:-3]}.*")
            async with asyncio.timeout(20):
                while consumer.assignment() != {TopicPartition(second, 0)}:
                    await consumer.getone(timeout_ms=100)

            assert consumer.subscription() == {second}


async def test_a_consumer_without_topics_raises_when_polled(new_consumer, group):
    """A consumer without topics starts, and raises when it is polled."""
    async with new_consumer(group_id=group) as consumer:
        for call in (consumer.getone, consumer.getmany):
            with pytest.raises(ConsumerStateError, match="subscribe\\(\\) or assign\\(\\)"):
                await call()
        with pytest.raises(ConfigurationError, match="neither topics nor a pattern"):
            await consumer.subscribe()
        await until(lambda: consumer.assignment() == frozenset())


async def test_a_failed_assign_changes_nothing(witness_of, group):
    """If the group's offsets may not be read, assign() raises, and subscribe() still works."""
    topic = witness_of.topic_with(3)

    def refused(answer):
        return replace(answer, error_code=30, partitions=())

    async with witness_of.consumer(group_id=group, auto_offset_reset="earliest") as consumer, asyncio.timeout(30):
        with witness_of.proxy.edit_answer(OffsetFetchRequest, refused), pytest.raises(GroupAuthorizationFailedError):
            await consumer.assign(topic)
        with pytest.raises(ConsumerStateError, match="reads nothing"):
            await consumer.getone()
        await consumer.subscribe(topic)

        assert (await consumer.getone()).offset == 0


async def test_a_change_from_a_pattern_to_topics_keeps_their_metadata(quick, group):
    """After a change from a pattern to a topic, the topic's metadata are still refreshed."""
    topic = quick.topic()
    quick.produce(topic, [b"0"])
    options = {"group_id": group, "metadata_max_age_ms": 300, "retry_backoff_max_ms": 100}

    async with quick.consumer(pattern=f"{topic[:-1]}.", **options) as consumer, asyncio.timeout(30):
        await consumer.getone()
        await consumer.subscribe(topic)
        await until(lambda: bool(consumer.assignment()))
        seen = len(quick.proxy.requests(MetadataRequest))
        await until(lambda: len(quick.proxy.requests(MetadataRequest)) >= seen + 3)
        quick.produce(topic, [b"1"])

        while (await consumer.getone()).value != b"1":
            """Skip records that were in flight when the subscription changed: they are delivered again."""
        assert quick.proxy.requests(MetadataRequest)[-1].message.topics is not None
        assert consumer.subscription() == {topic}


async def test_assign_with_reset_offset_on_start_is_bounded(witness_of, group):
    """If the leader does not answer, assign() with reset_offset_on_start returns after default_api_timeout_ms."""
    topic = witness_of.topic_with(5)
    options = {"group_id": group, "reset_offset_on_start": True, "default_api_timeout_ms": 5_000}

    async with witness_of.consumer(**options) as consumer, asyncio.timeout(30):
        with witness_of.proxy.hold_answer(ListOffsetsRequest) as held:
            await consumer.assign(topic)
            assert held.count == 1
            held.release()

        assert (await consumer.getone()).offset == 0
