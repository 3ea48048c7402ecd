"""A live group of aiokafka members is migrated to tailrace and back, under load."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from tailrace import NoCommonAssignorError
from tests.support.consumer_group import Member, until

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100}
PARTITIONS, MEMBERS, EACH = 4, 2, 20


class Theirs:
    """Member of aiokafka, with the interface of ``consumer_group.Member``."""

    def __init__(self, consumer: AIOKafkaConsumer, note) -> None:
        self._consumer, self._note = consumer, note
        self._reading: asyncio.Task | None = None

    async def start(self) -> None:
        await self._consumer.start()
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        await self._consumer.stop()

    def share(self) -> int:
        return len(self._consumer.assignment())

    async def _read(self) -> None:
        async for record in self._consumer:
            self._note(record)


class Ours(Member):
    """Member of tailrace."""

    def share(self) -> int:
        return len(self.consumer.assignment())


class Move:
    """The group, the ledger of handled records, and the produced ones."""

    def __init__(self, kafka, group) -> None:
        self.kafka, self.group, self.topic = kafka, group, kafka.topic(PARTITIONS)
        self.handled: Counter[tuple[int, int]] = Counter()
        self.members: list[Theirs | Ours] = []
        self.produced = 0

    def theirs(self) -> Theirs:
        options = {"group_id": self.group, "auto_offset_reset": "earliest", "max_poll_interval_ms": 6_000, **QUICK}
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.kafka.bootstrap_servers,
            partition_assignment_strategy=[RoundRobinPartitionAssignor],
            metadata_max_age_ms=1_000,
            **options,
        )
        return Theirs(consumer, self._note)

    def ours(self, *strategies: str) -> Ours:
        options = {"partition_assignment_strategy": strategies} if strategies else {}
        return Ours(self.kafka.consumer(self.topic, group_id=self.group, **QUICK, **options), self._note)

    def _note(self, record) -> None:
        self.handled[record.partition, record.offset] += 1

    async def join(self, member: Theirs | Ours) -> None:
        self.members.append(member)
        await member.start()
        await self.settle()

    async def leave(self) -> None:
        """Stop the oldest member."""
        await self.members.pop(0).stop()
        await self.settle()

    async def replace_all(self, make) -> None:
        """Replace the members one after the other under load: a new one joins, and the oldest one leaves."""
        for _ in range(MEMBERS):
            await self.join(make())
            await self.leave()

    async def settle(self) -> None:
        """Wait until every partition has an owner and all produced records are handled."""
        for partition in range(PARTITIONS):
            self.produced += self.kafka.produce(self.topic, [b"x"] * EACH, partition=partition)
        await until(lambda: sum(member.share() for member in self.members) == PARTITIONS)
        await until(lambda: len(self.handled) == self.produced)


@pytest.mark.slow
async def test_a_group_is_migrated_member_by_member_and_back(kafka, group):
    """While a group moves from roundrobin to cooperative-sticky and back, no record is lost or repeated."""
    move = Move(kafka, group)
    steps = [
        lambda: move.ours("roundrobin"),
        lambda: move.ours("cooperative-sticky", "roundrobin"),
        move.ours,
        lambda: move.ours("cooperative-sticky", "roundrobin"),
        lambda: move.ours("roundrobin"),
        move.theirs,
    ]
    try:
        for _ in range(MEMBERS):
            await move.join(move.theirs())
        for make in steps:
            await move.replace_all(make)
    finally:
        await asyncio.gather(*(member.stop() for member in move.members))

    assert len(move.handled) == move.produced
    assert [one for one, times in move.handled.items() if times > 1] == []


async def test_a_member_without_a_common_strategy_raises(kafka, group):
    """A member with the default strategy in a group of aiokafka raises, and the other member continues."""
    move = Move(kafka, group)
    try:
        await move.join(move.theirs())
        async with kafka.consumer(move.topic, group_id=group, **QUICK) as consumer:
            with pytest.raises(NoCommonAssignorError, match=r"set partition_assignment_strategy to \('roundrobin',\)"):
                await consumer.getone()
        await move.settle()
    finally:
        await asyncio.gather(*(member.stop() for member in move.members))

    assert len(move.handled) == move.produced
