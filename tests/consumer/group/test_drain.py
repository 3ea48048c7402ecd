"""Records in flight of a consumer whose partitions are revoked."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.observe.events import DrainTimedOut
from tests.support.consumer_group import until

LONG = {"rebalance_drain_ms": 250_000, "max_poll_interval_ms": 300_000}

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


async def with_one_of_each(consumer):
    """Read records until one of each partition is in flight."""
    held = await consumer.getmany(min_records=2)
    assert {record.partition for record in held} == {0, 1}


@both_protocols
async def test_a_rebalance_does_not_wait_for_records_that_are_never_committed(quick, group, protocol, recorder):
    """A consumer that commits nothing releases a revoked partition without another poll."""
    topic = quick.topic_with(1, partitions=2)
    options = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False, **LONG}

    async with quick.consumer(topic, hooks=[recorder], **options) as first:
        await with_one_of_each(first)
        async with asyncio.timeout(60), quick.consumer(topic, **options) as second:
            assert (await second.getone()).offset == 0
    assert not recorder.of(DrainTimedOut)


@both_protocols
async def test_a_rebalance_waits_for_records_that_the_user_commits(quick, group, protocol):
    """A consumer that has called commit() before may finish and commit its records before the revocation."""
    topic = quick.topic_with(1, partitions=2)
    options = {"group_id": group, "group_protocol": protocol, "enable_auto_commit": False, **LONG}

    async with quick.consumer(topic, **options) as first, asyncio.timeout(90):
        await until(first.assignment)
        await first.commit()
        await with_one_of_each(first)
        async with quick.consumer(topic, **options) as second:
            joining = asyncio.create_task(until(second.assignment))
            done, _ = await asyncio.wait([joining], timeout=3)
            assert not done
            await first.commit()
            await first.getmany(timeout_ms=0)
            await joining
            assert await second.getone(timeout_ms=500) is None
