"""Promises of aiokafka's consumer tests about groups, subscriptions and offsets, under the names of its tests."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from tailrace import (
    CommitFailedError,
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    InvalidSessionTimeoutError,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RebalanceError,
    TopicPartition,
    UnknownTopicError,
)
from tests.support.aiokafka_interface import AiokafkaInterface, values_of
from tests.support.consumer_group import until

NEVER = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}


class Listener:
    """Listener that records its calls and lets a test wait for assignments."""

    def __init__(self) -> None:
        self.revoked: list[set[TopicPartition]] = []
        self.assigned: list[set[TopicPartition]] = []
        self._news = asyncio.Event()

    async def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        self.revoked.append(partitions)

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        self.assigned.append(partitions)
        self._news.set()

    async def until(self, count: int) -> set[TopicPartition]:
        """Wait for the ``count``-th assignment."""
        async with asyncio.timeout(20):
            while len(self.assigned) < count:
                self._news.clear()
                await self._news.wait()
        return self.assigned[-1]


async def both_assigned(first: AiokafkaInterface, second: AiokafkaInterface, partitions: set[TopicPartition]) -> None:
    """Wait until two members have divided these partitions."""
    await until(
        lambda: first.assignment() | second.assignment() == partitions and not first.assignment() & second.assignment()
    )


# ---- subscriptions and assignments -----------------------------------------------------------------------------------


async def test_offset_behavior__resuming_behavior(compat):
    """When a member stops, the other one continues its partitions at the committed offsets."""
    sent = compat.send(0, range(100)) + compat.send(1, range(100, 200))
    first = await compat.started(heartbeat_interval_ms=100)
    second = await compat.started(heartbeat_interval_ms=100)
    await both_assigned(first, second, {compat.first, compat.second})

    seen = await values_of(first, 10)
    await first.stop()
    # The record in flight is not finished here, so it is delivered again; aiokafka counts it as consumed.
    seen += await values_of(second, len(sent) - len(seen) + 1)
    assert set(seen) == set(sent)


async def test_subscribe_manual(compat):
    """assign() raises beside a subscription, and after unsubscribe() each call replaces the former one."""
    sent = compat.send(0, range(10)), compat.send(1, range(10, 20))
    consumer = await compat.started()
    with pytest.raises(ConsumerStateError, match=re.escape("unsubscribe() first")):
        await consumer.inner.assign([compat.first])
    consumer.unsubscribe()
    consumer.assign([compat.first])
    assert await values_of(consumer, 10) == sent[0]
    await consumer.commit()
    assert await consumer.position(compat.first) == 10
    consumer.unsubscribe()
    consumer.assign([compat.second])
    assert await values_of(consumer, 10) == sent[1]


async def test_manual_subscribe_pattern(compat):
    """A subscription by pattern commits and resumes, and a subscription by name follows in the same group."""
    sent = compat.send(0, range(10)), compat.send(1, range(10, 20))
    options = {"group_id": compat.group, **NEVER}
    consumer = compat.consumer(**options)
    consumer.subscribe(pattern=compat.topic[:-2])
    await consumer.start()
    await consumer.seek_to_committed()
    assert set(await values_of(consumer, 20)) == {*sent[0], *sent[1]}
    await consumer.commit({compat.first: OffsetAndMetadata(9, "")})
    assert await consumer.seek_to_committed(compat.first) == {compat.first: 9}
    assert await values_of(consumer, 1, compat.first) == [b"9"]
    await consumer.commit({compat.first: OffsetAndMetadata(10, "")})
    await consumer.stop()

    consumer = compat.consumer(**options)
    consumer.subscribe(topics=(compat.topic,))
    await consumer.start()
    await consumer.seek_to_committed()
    assert await values_of(consumer, 10) == sent[1]
    assert consumer.subscription() == {compat.topic}


async def test_subscribe_errors(compat):
    """subscribe() raises for topics with a pattern, for neither, and for invalid ones."""
    consumer = await compat.started()
    inner = consumer.inner
    for topics, pattern in (((compat.topic,), "some"), ((), None), ((), "^(spome(")):
        with pytest.raises(ConfigurationError):
            await inner.subscribe(*topics, pattern=pattern)
    with pytest.raises(ConfigurationError, match="a topic must be a name"):
        await inner.subscribe(["some_topic"])
    assert inner.subscription() == {compat.topic}


async def test_manual_subscribe_nogroup(compat):
    """A subscription without a group reads all partitions."""
    sent = compat.send(0, range(10)) + compat.send(1, range(10, 20))
    consumer = compat.consumer(group_id=None, **NEVER)
    consumer.subscribe(topics=(compat.topic,))
    await consumer.start()

    assert set(await values_of(consumer, 20)) == set(sent)


async def test_consumer_group_without_subscription(compat):
    """A consumer with a group that subscribes to nothing starts and stops."""
    consumer = compat.consumer(group_id=compat.group, heartbeat_interval_ms=100, **NEVER)
    await consumer.start()
    assert consumer.assignment() == set()
    await consumer.stop()


@pytest.mark.parametrize("group_id", ["in-a-group", None])
async def test_consumer_subscribe_pattern_with_autocreate(compat, group_id):
    """Topics that are created later and match the pattern are read.

    This includes aiokafka's test_consumer_subscribe_pattern_autocreate_no_group_id.
    """
    prefix = f"{compat.group}-pattern-"
    group_id = group_id and compat.group
    consumer = compat.consumer(group_id=group_id, metadata_max_age_ms=200, auto_offset_reset="earliest")
    await consumer.start()
    consumer.subscribe(pattern=f"^{prefix}.*$")
    waiting = asyncio.create_task(consumer.getone())
    assert await asyncio.wait([waiting], timeout=0.3) == (set(), {waiting})
    assert consumer.subscription() == set()

    topics: set[str] = set()
    for number in (1, 2):
        topics.add(compat.new_topic(f"{prefix}{number}"))
        await until(lambda: consumer.subscription() == topics)
        assert not waiting.done()
    compat.send(0, [b"test msg"], topic=f"{prefix}1")
    assert (await asyncio.wait_for(waiting, 20)).value == b"test msg"


async def test_consumer_rebalance_on_new_topic(compat):
    """The partitions of a new topic that matches the pattern are divided among the members."""
    prefix = f"{compat.group}-rebalance-"
    members = []
    for _ in range(2):
        consumer = compat.consumer(group_id=compat.group, metadata_max_age_ms=200, heartbeat_interval_ms=100)
        consumer.subscribe(pattern=f"^{prefix}.*$", listener=Listener())
        await consumer.start()
        members.append(consumer)
    assert [member.assignment() for member in members] == [set(), set()]

    partitions: set[TopicPartition] = set()
    for number in (1, 2):
        topic = compat.new_topic(f"{prefix}{number}")
        partitions |= {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        await both_assigned(*members, partitions)


async def test_exclude_internal_topics(compat):
    """With ``exclude_internal_topics=False``, a pattern matches Kafka's own topics, too."""
    before = await compat.started()
    await before.commit({compat.first: 0})
    consumer = compat.consumer(group_id=f"{compat.group}-2", exclude_internal_topics=False)
    consumer.subscribe(pattern="^(__consumer_offsets|t-none)$")
    await consumer.start()

    assert consumer.subscription() == {"__consumer_offsets"}


async def test_consumer_cleanup_unassigned_data_getone(compat):
    """After another subscription, getone() returns no buffered record of the former topics."""
    other, third = compat.new_topic(f"{compat.topic}-other"), compat.new_topic(f"{compat.topic}-third")
    compat.send(0, [1, 2, 3])
    compat.send(0, [5, 6, 7], topic=other)
    compat.send(0, [8], topic=third)
    consumer = await compat.started(heartbeat_interval_ms=200)
    await consumer.getone()

    consumer.subscribe([other])
    assert await values_of(consumer, 1) == [b"5"]
    consumer.subscribe([third])
    assert await values_of(consumer, 1) == [b"8"]


async def test_consumer_cleanup_unassigned_data_getmany(compat):
    """After another subscription, getmany() returns no buffered record of the former topics."""
    other, third = compat.new_topic(f"{compat.topic}-other"), compat.new_topic(f"{compat.topic}-third")
    compat.send(0, [1, 2, 3])
    compat.send(0, [5, 6, 7], topic=other)
    compat.send(0, [8], topic=third)
    consumer = await compat.started(heartbeat_interval_ms=200)
    await consumer.getone()

    consumer.subscribe([other])
    found = await consumer.getmany(timeout_ms=10_000, max_records=1)
    assert [record.value for record in found[TopicPartition(other, 0)]] == [b"5"]
    consumer.subscribe([third])
    found = await consumer.getmany(timeout_ms=10_000, max_records=1)
    assert [record.value for record in found[TopicPartition(third, 0)]] == [b"8"]


async def test_consumer_fast_unsubscribe(compat):
    """unsubscribe() may be called before the group has answered."""
    consumer = Consumer(bootstrap_servers=compat.server.bootstrap_servers, group_id=compat.group)
    async with consumer, asyncio.timeout(20):
        await consumer.subscribe(compat.topic)
        await consumer.unsubscribe()
        assert consumer.assignment() == set()


async def test_consumer_manual_assignment_with_group(compat):
    """Offsets of assigned partitions are committed for the group, and the next consumer continues there."""
    compat.send(0, range(10))
    for begin in (0, 5):
        consumer = compat.consumer(group_id=compat.group, **NEVER)
        consumer.assign([compat.first])
        await consumer.start()
        assert await values_of(consumer, 5) == [b"%d" % n for n in range(begin, begin + 5)]
        await consumer.commit()
        await consumer.stop()


async def test_consumer_manual_assignment_no_group_before_start(compat):
    """assign() may be called before start()."""
    compat.send(0, range(10))
    consumer = compat.consumer(group_id=None, **NEVER)
    consumer.assign([compat.first])
    await consumer.start()

    assert await values_of(consumer, 10) == [b"%d" % n for n in range(10)]


async def test_consumer_manual_assignment_no_group_after_start(compat):
    """assign() may be called after start()."""
    compat.send(0, range(10))
    consumer = compat.consumer(group_id=None, **NEVER)
    await consumer.start()
    consumer.assign([compat.first])

    assert await values_of(consumer, 10) == [b"%d" % n for n in range(10)]


async def test_consumer_seek_on_unassigned(compat):
    """A seek of a partition that is not assigned raises."""
    consumer = compat.consumer(group_id=compat.group, **NEVER)
    await consumer.start()
    consumer.assign([compat.first])

    for seek in (consumer.seek_to_beginning, consumer.seek_to_committed, consumer.seek_to_end):
        with pytest.raises(ConsumerStateError, match="is not assigned"):
            await seek(compat.second)


async def test_consumer_seek_errors(compat):
    """A seek with a wrong offset or partition raises."""
    consumer = await compat.started()
    for offset in (-1, ""):
        with pytest.raises(ConfigurationError, match="offset="):
            await consumer.inner.seek(compat.first, offset)
    for seek in (consumer.seek_to_beginning, consumer.seek_to_committed, consumer.seek_to_end):
        with pytest.raises(ConfigurationError, match="a partition must be a TopicPartition"):
            await seek(1)


async def test_consumer_arguments(compat):
    """Invalid values of options raise."""
    for options in ({"security_protocol": "SOME"}, {"isolation_level": "READ_CCC"}, {"security_protocol": "SASL_SSL"}):
        with pytest.raises(ConfigurationError, match=next(iter(options)) + "|sasl_plain"):
            compat.consumer(compat.topic, **options)


# ---- commits and positions -------------------------------------------------------------------------------------------


async def test_consumer_commit_validation(compat):
    """commit() raises for wrong offsets, metadata and partitions, and without a membership."""
    consumer = await compat.started()
    for wrong in ({}, "something", {compat.first: "5"}, {"my_topic": OffsetAndMetadata(0)}):
        with pytest.raises(ConfigurationError):
            await consumer.commit(wrong)
    for metadata in (1_000, b"\x00\x02"):
        with pytest.raises(ConfigurationError, match="metadata of OffsetAndMetadata must be a string"):
            await consumer.commit({compat.first: (0, metadata)})
    with pytest.raises(UnknownTopicError, match=r"\[10\]"):
        await consumer.commit({TopicPartition(compat.topic, 10): 1_000})
    consumer.unsubscribe()
    with pytest.raises(CommitFailedError, match="belongs to no generation"):
        await consumer.commit({compat.first: 1_000})


async def test_consumer_position(compat):
    """position() follows each record, and raises for a partition that is not assigned."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started(enable_auto_commit=False)

    assert await consumer.position(compat.first) == 0
    await consumer.getone()
    assert await consumer.position(compat.first) == 1
    with pytest.raises(ConsumerStateError, match="is not assigned"):
        await consumer.position(TopicPartition(compat.topic, 1_000))
    consumer.unsubscribe()
    with pytest.raises(ConsumerStateError, match="is not assigned"):
        await consumer.position(compat.first)


async def test_consumer_commit_no_group(compat):
    """Without a group, commit() and committed() raise."""
    consumer = await compat.started(group_id=None)
    offset = await consumer.position(compat.first)

    with pytest.raises(ConsumerStateError, match="needs a group_id"):
        await consumer.commit({compat.first: offset})
    with pytest.raises(ConsumerStateError, match="needs a group_id"):
        await consumer.committed(compat.first)


async def test_consumer_commit(compat):
    """commit() accepts offsets, with or without metadata."""
    compat.send(0, [1, 2, 3])
    consumer = await compat.started()

    record = await consumer.getone()
    await consumer.commit({compat.first: record.offset + 1})
    assert await consumer.committed(compat.first) == record.offset + 1
    record = await consumer.getone()
    await consumer.commit({compat.first: (record.offset + 2, "My metadata 2")})
    assert await consumer.committed(compat.first) == record.offset + 2


async def test_commit_not_blocked_by_long_poll_fetch(compat):
    """A commit does not wait for a fetch that waits at the broker."""
    compat.send(0, range(10))
    consumer = await compat.started(fetch_max_wait_ms=30_000)
    await consumer.getmany(timeout_ms=20_000)
    waiting = asyncio.create_task(consumer.getmany(timeout_ms=60_000))
    assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting})

    began = time.monotonic()
    await consumer.commit()
    assert not waiting.done()
    assert time.monotonic() - began < 15
    waiting.cancel()


async def test_offsets_for_times_single(compat):
    """offsets_for_times(), beginning_offsets() and end_offsets() return the offsets of a partition."""
    high = int(time.time() * 1000)
    compat.send(0, [1], timestamp=high - 2_000)
    compat.send(0, [1], timestamp=high)
    consumer = await compat.started()
    place = compat.first

    for time_ms, offset in ((high - 2_000, 0), (high - 1_000, 1), (high, 1), (0, 0)):
        found = await consumer.offsets_for_times({place: time_ms})
        assert found == {place: OffsetAndTimestamp(offset, high if offset else high - 2_000, 0)}
    assert await consumer.offsets_for_times({place: 9_999_999_999_999}) == {place: None}
    assert await consumer.offsets_for_times({}) == {}
    assert await consumer.beginning_offsets([place]) == {place: 0}
    assert await consumer.end_offsets([place]) == {place: 2}


async def test_kafka_consumer_offsets_search_many_partitions(compat):
    """Offsets of several partitions are returned by one call."""
    now = int(time.time() * 1000)
    both = (compat.first, compat.second)
    for partition in both:
        compat.send(partition.partition, [1], timestamp=now)
    consumer = await compat.started()

    assert await consumer.offsets_for_times(dict.fromkeys(both, now)) == dict.fromkeys(
        both, OffsetAndTimestamp(0, now, 0)
    )
    assert await consumer.beginning_offsets(both) == dict.fromkeys(both, 0)
    assert await consumer.end_offsets(both) == dict.fromkeys(both, 1)


async def test_kafka_consumer_offsets_errors(compat):
    """A negative time and an unknown partition raise."""
    consumer = await compat.started()
    with pytest.raises(ConfigurationError, match="a time must be milliseconds since 1970"):
        await consumer.offsets_for_times({compat.first: -1})
    with pytest.raises(UnknownTopicError, match=r"\[100\]"):
        await consumer.offsets_for_times({TopicPartition(compat.topic, 100): 0})


# ---- groups ----------------------------------------------------------------------------------------------------------


async def test_rebalance_listener_with_coroutines(compat):
    """The next owners start at the offsets that a listener commits before the revocation."""
    compat.send(0, range(10))
    compat.send(1, range(10, 20))
    both = {compat.first, compat.second}

    class Committing(Listener):
        consumer: AiokafkaInterface

        async def on_partitions_revoked(self, partitions):
            await self.consumer.inner.commit()
            await super().on_partitions_revoked(partitions)

    members, listeners = [], []
    for _ in range(2):
        consumer = compat.consumer(group_id=compat.group, rebalance_drain_ms=100, heartbeat_interval_ms=100, **NEVER)
        listener = Committing()
        listener.consumer = consumer
        consumer.subscribe([compat.topic], listener=listener)
        await consumer.start()
        members.append(consumer)
        listeners.append(listener)
        if len(members) == 1:
            assert await values_of(consumer, 1, compat.first) == [b"0"]
            assert await values_of(consumer, 1, compat.second) == [b"10"]
            # The record in flight is not finished: here commit() in a callback does not include it.
            await consumer.commit()
            assert listener.assigned == [both]
    await both_assigned(*members, both)

    found = {record.partition: record.value for record in [await member.getone() for member in members]}
    assert found == {0: b"1", 1: b"11"}
    assert listeners[0].revoked == [both]
    assert [listener.assigned[-1] for listener in listeners] == [set(member.assignment()) for member in members]


async def test_rebalance_listener_no_deadlock_callbacks(compat):
    """A listener may query offsets and seek."""
    found: list[object] = []

    class Seeking(Listener):
        async def on_partitions_assigned(self, _partitions):
            inner = consumer.inner
            found.append(await inner.committed(compat.first))
            found.append(await inner.position(compat.first))
            await inner.seek_to_end(compat.first)
            found.append(await inner.position(compat.first))

    compat.send(0, [1])
    consumer = compat.consumer(group_id=compat.group, **NEVER)
    consumer.subscribe([compat.topic], listener=Seeking())
    await consumer.start()
    assert found == [None, 0, 1]


async def test_consumer_invalid_session_timeout(compat):
    """A session timeout that the broker refuses raises at the start."""
    consumer = compat.consumer(
        compat.topic, group_id=compat.group, session_timeout_ms=200, heartbeat_interval_ms=50, **NEVER
    )
    with pytest.raises(InvalidSessionTimeoutError):
        await consumer.start()


async def test_max_poll_interval_ms(compat):
    """A member that is not polled loses its partitions to the other one, and may continue later."""
    compat.send(0, range(10))
    compat.send(1, range(10, 20))
    stuck = await compat.started(max_poll_interval_ms=3_000, heartbeat_interval_ms=100)
    other = await compat.started(heartbeat_interval_ms=100)
    await both_assigned(stuck, other, {compat.first, compat.second})

    async with asyncio.timeout(20):
        records = [await other.getone() for _ in range(20)]
    assert {int(record.value) for record in records} == set(range(20))
    # Or the rebalance would wait for the record in flight.
    assert other.inner.ack(records[-1])
    compat.send(0, range(20, 30))
    compat.send(1, range(30, 40))
    # In tailrace the next call raises, since the partitions were reassigned, and the one after it joins again.
    with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
        await stuck.getone()
    async with asyncio.timeout(20):
        assert all(int(value) >= 20 for value in await values_of(stuck, 5))


async def test_kip_345_enabled(compat):
    """A static member that leaves and returns within its session gets its partitions back without a rebalance."""
    members = []
    for number in (1, 2):
        consumer = compat.consumer(
            group_id=compat.group, group_instance_id=f"member-{number}", heartbeat_interval_ms=100, **NEVER
        )
        consumer.subscribe([compat.topic], listener=Listener())
        await consumer.start()
        members.append(consumer)
    await both_assigned(*members, {compat.first, compat.second})
    staying, leaving = members
    listener = staying._listener.current
    calls, before = len(listener.assigned), leaving.assignment()

    leaving.unsubscribe()
    await leaving.settle()
    leaving.subscribe([compat.topic], listener=Listener())
    await leaving.settle()
    assert leaving.assignment() == before
    assert len(listener.assigned) == calls


async def test_kip_345_disabled(compat):
    """The partitions of a dynamic member that unsubscribes move to the other member at once."""
    both = {compat.first, compat.second}
    members = []
    for _ in range(2):
        consumer = compat.consumer(group_id=compat.group, heartbeat_interval_ms=100, **NEVER)
        consumer.subscribe([compat.topic], listener=Listener())
        await consumer.start()
        members.append(consumer)
    await both_assigned(*members, both)

    members[1].unsubscribe()
    await members[1].settle()
    await until(lambda: members[0].assignment() == both)
    members[1].subscribe([compat.topic], listener=Listener())
    await members[1].settle()
    await both_assigned(*members, both)
