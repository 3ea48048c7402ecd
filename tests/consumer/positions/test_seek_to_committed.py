"""``seek_to_committed``: continue where a restarted consumer would start."""

from __future__ import annotations

import pytest

from tailrace import ConsumerStateError, OffsetOutOfRangeError, TopicPartition
from tests.support.proxied_broker import numbers

NEVER = {"enable_auto_commit": False}


async def test_reading_continues_at_the_committed_offset(new_topic, new_consumer, witness, group):
    """seek_to_committed() moves to the committed offsets and returns them."""
    topic = new_topic(2)
    witness.fill(topic, 2, 20)
    first, second = (TopicPartition(topic, number) for number in range(2))

    async with new_consumer(topic, group_id=group, **NEVER) as consumer:
        await consumer.assigned()
        await consumer.commit({first: 7, second: 9})
        await consumer.getmany(first, max_records=15, min_records=15)
        await consumer.getmany(second, max_records=15, min_records=15)
        assert await consumer.seek_to_committed() == {first: 7, second: 9}
        assert numbers(await consumer.getmany(first)) == list(range(7, 20))
        assert numbers(await consumer.getmany(second)) == list(range(9, 20))
        assert await consumer.seek_to_committed(second) == {second: 9}
        assert await consumer.position() == {first: 20, second: 9}


async def test_without_a_committed_offset_the_reset_policy_applies(new_topic, new_consumer, witness, group):
    """Without a committed offset, seek_to_committed() applies auto_offset_reset, and raises if that is "none"."""
    topic = new_topic()
    witness.fill(topic, 1, 10)
    place = TopicPartition(topic, 0)

    async with new_consumer(topic, group_id=group, **NEVER) as consumer:
        await consumer.getmany(max_records=5, min_records=5)
        assert await consumer.seek_to_committed(place) == {place: 0}
        assert numbers(await consumer.getmany()) == list(range(10))
        await consumer.reconfigure(auto_offset_reset="none")
        with pytest.raises(OffsetOutOfRangeError, match="no committed offset"):
            await consumer.seek_to_committed()


async def test_acknowledged_records_are_not_repeated(new_topic, new_consumer, witness, group):
    """After seek_to_committed(), records that the offset map lists as finished are skipped."""
    topic = new_topic()
    witness.fill(topic, 1, 6)

    async with new_consumer(topic, group_id=group, ack="manual", **NEVER) as consumer:
        records = await consumer.getmany(min_records=6)
        for number in (0, 2, 4):
            assert consumer.ack(records[number])
        await consumer.commit()
        assert await consumer.seek_to_committed() == {TopicPartition(topic, 0): 1}
        again = await consumer.getmany(min_records=3)
        assert numbers(again) == [1, 3, 5]
        assert not consumer.ack(records[1])
        assert all(map(consumer.ack, again))

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.assigned()
        assert await consumer.position(TopicPartition(topic, 0)) == 1


async def test_commits_follow_the_seek(new_topic, new_consumer, witness, group):
    """After seek_to_committed(), automatic commits continue at the committed offset."""
    topic = new_topic()
    witness.fill(topic, 1, 10)

    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.getmany(max_records=8, min_records=8)
        await consumer.commit({TopicPartition(topic, 0): 4})
        await consumer.seek_to_committed()
        await consumer.getmany(max_records=2)
        await consumer.getmany(max_records=1)

    assert await witness.committed(group, topic, 1) == {0: 6}


async def test_seek_to_committed_needs_a_group_and_an_assigned_partition(new_topic, new_consumer, group):
    """seek_to_committed() raises without a group, and for a partition that is not assigned."""
    topic = new_topic()
    async with new_consumer(topic) as consumer:
        with pytest.raises(ConsumerStateError, match=r"seek_to_committed\(\) needs a group_id"):
            await consumer.seek_to_committed()
    async with new_consumer(topic, group_id=group) as consumer:
        await consumer.assigned()
        with pytest.raises(ConsumerStateError, match=r"\[3\] is not assigned"):
            await consumer.seek_to_committed(TopicPartition(topic, 3))
