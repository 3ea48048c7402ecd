"""A live group migrates from the classic protocol to the consumer protocol and back, member by member, under load."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.consumer_group import ConsumerGroup

CLASSIC = {"group_protocol": "classic", "heartbeat_interval_ms": 200, "session_timeout_ms": 20_000}
CONSUMER = {"group_protocol": "consumer"}


async def group_type(quick, group):
    described = quick.admin.describe_consumer_groups([group])[group]
    return (await asyncio.to_thread(described.result, 20)).type.name


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_are_replaced_one_by_one(quick, group, strategy):
    """While members of a group change to the consumer protocol and back, each record is handled once."""
    topic, is_over = quick.topic(6), asyncio.Event()
    classic = {**CLASSIC, "partition_assignment_strategy": strategy}
    types = []

    async def produce():
        count = 0
        while not is_over.is_set():
            count += await asyncio.to_thread(quick.produce, topic, [b"%d" % n for n in range(100)])
        return count

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        old = [await crew.join(**classic), await crew.join(**classic)]
        await crew.shares(3, 3)
        producing = asyncio.create_task(produce())
        for options in (CONSUMER, classic):
            for member in old[:]:
                await crew.handle(len(crew.handled) + 200)
                old.append(await crew.join(**options))
                await crew.shares(2, 2, 2)
                await quick.wait_until_agreed(group, crew)
                await crew.leave(member)
                old.remove(member)
                await crew.shares(3, 3)
                await quick.wait_until_agreed(group, crew)
            types.append(await group_type(quick, group))
        is_over.set()
        await crew.handle(await producing)

    assert types == ["CONSUMER", "CLASSIC"]
    assert {1} == set(crew.handled.values())
