"""End offsets of partitions that are not fetched."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.protocol.records import ListOffsetsRequest
from tests.support.consumer_group import until


@pytest.fixture(autouse=True)
def short_interval(monkeypatch):
    monkeypatch.setattr("tailrace.consumer.fetch.fetcher._INTERVAL_S", 0.2)


def only(consumer):
    (found,) = consumer.statistics().partitions
    return found


async def test_the_lag_of_a_paused_partition_grows(new_topic, new_consumer, witness, group):
    """The statistics of a paused partition include records written during the pause."""
    topic = new_topic()
    witness.produce(topic, (b"%d" % n for n in range(10)))

    async with new_consumer(topic, group_id=group, enable_auto_commit=False) as consumer:
        await consumer.getone()
        consumer.pause()
        # The fetch in flight at the pause may bring one more batch, so that it is waited for.
        await asyncio.sleep(1)
        witness.produce(topic, (b"%d" % n for n in range(100)))
        await until(lambda: only(consumer).end == 110)
        found = only(consumer)

    assert (found.lag, found.work_lag) == (110, 110)


async def test_the_lag_of_a_full_buffer_grows(new_topic, new_consumer, witness, group):
    """The statistics of a partition whose buffer is full include records written since."""
    topic = new_topic()
    witness.produce(topic, (b"x" * 1_000 for _ in range(100)), batch_bytes=10_000)

    async with new_consumer(
        topic, group_id=group, enable_auto_commit=False, max_buffered_bytes=30_000, max_queued_records=1
    ) as consumer:
        await consumer.getone()
        await asyncio.sleep(1)
        witness.produce(topic, (b"x" * 1_000 for _ in range(50)), batch_bytes=10_000)
        await until(lambda: only(consumer).end == 150)
        found = only(consumer)

    assert found.lag >= 149


async def test_nothing_is_requested_unless_statistics_are_read(witness_of, group):
    """A consumer requests the end offset of a paused partition only after statistics() was called."""
    topic = witness_of.topic_with(10)

    def requests():
        return len(witness_of.proxy.requests(ListOffsetsRequest, client_id=group))

    async with witness_of.consumer(topic, group_id=group, client_id=group, enable_auto_commit=False) as consumer:
        await consumer.getone()
        consumer.pause()
        before = requests()
        await asyncio.sleep(1)
        unread = requests()
        consumer.statistics()
        await until(lambda: requests() > unread)
        await asyncio.sleep(1)
        read = requests()

    assert (unread - before, read - before) == (0, 1)
