"""A group member that failed: each poll raises the cause."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import BrokerError, FencedMemberError, RebalanceError
from tailrace.observe.events import ConsumerFailed
from tests.support.consumer_group import until

READS = {
    "getone": lambda consumer: consumer.getone(),
    "getone with a timeout": lambda consumer: consumer.getone(timeout_ms=1000),
    "getone without waiting": lambda consumer: consumer.getone(timeout_ms=0),
    "getmany": lambda consumer: consumer.getmany(),
    "getmany without waiting": lambda consumer: consumer.getmany(timeout_ms=0),
    "async for": lambda consumer: anext(aiter(consumer)),
    "batches": lambda consumer: anext(consumer.batches()),
    "streams": lambda consumer: anext(consumer.streams()),
}


async def expect_from_each_call(consumer, kind, text, recorder):
    await recorder.wait_for(ConsumerFailed)
    async with asyncio.timeout(20):
        await until(lambda: consumer._started.membership is None)
        for read in READS.values():
            with pytest.raises(kind, match=text):
                await read(consumer)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_callback_that_raised_is_the_cause(kafka, group, protocol, recorder):
    """After an error of a callback, every way of reading raises it with the name of the callback."""

    async def callback(*_):
        raise ValueError("no such tenant")

    options = {"group_protocol": protocol, "post_rebalance_callback": callback, "hooks": [recorder]}
    async with kafka.consumer(kafka.topic_with(1), group_id=group, **options) as consumer:
        await expect_from_each_call(consumer, RebalanceError, "post_rebalance_callback raised ValueError", recorder)


async def test_a_session_timeout_that_the_broker_refuses_is_the_cause(kafka, group, recorder):
    """After the broker has refused the session timeout, every way of reading raises INVALID_SESSION_TIMEOUT."""
    options = {"session_timeout_ms": 200, "heartbeat_interval_ms": 50, "hooks": [recorder]}
    async with kafka.consumer(kafka.topic_with(1), group_id=group, **options) as consumer:
        await expect_from_each_call(consumer, BrokerError, "INVALID_SESSION_TIMEOUT", recorder)


async def test_a_fenced_member_fails_with_the_fencing_as_its_cause(kafka, group, recorder):
    """When another member has taken its group_instance_id, every way of reading raises FencedMemberError."""
    topic = kafka.topic_with(1)
    options = {"group_id": group, "group_instance_id": "only", "heartbeat_interval_ms": 100}
    async with kafka.consumer(topic, hooks=[recorder], **options) as older:
        await older.getone()
        async with kafka.consumer(topic, **options):
            await expect_from_each_call(older, FencedMemberError, "FENCED_INSTANCE_ID", recorder)
