"""Members of a group, each reading in its own task, and the records they handled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Self

import aiokafka

from tailrace import Consumer, Record


class Member:
    """Consumer and the task that reads from it until it is stopped."""

    def __init__(self, consumer: Consumer, note: Callable[[Record], None]) -> None:
        self.consumer = consumer
        self.records: list[Record] = []
        self._note = note
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        if self.records:
            # It is handled, although the next one was not requested yet.
            self.consumer.ack(self.records[-1])
        await self.consumer.stop()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        async for record in self.consumer:
            self.records.append(record)
            self._note(record)
            await asyncio.sleep(0)


class ConsumerGroup:
    """Group with changing members and a ledger of handled records, as an ``async with`` block."""

    def __init__(self, new_consumer: Callable[..., Consumer], topic: str, **options: object) -> None:
        self._new_consumer, self._topic, self._options = new_consumer, topic, options
        self.members: list[Member] = []
        self.handled: Counter[tuple[int, int]] = Counter()
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(member.stop() for member in self.members))

    async def join(self, **options: object) -> Member:
        """Add a member, without waiting for its partitions."""
        member = Member(self._new_consumer(self._topic, **{**self._options, **options}), self._note)
        self.members.append(member)
        await member.start()
        return member

    async def leave(self, member: Member) -> None:
        """Stop a member cleanly."""
        self.members.remove(member)
        await member.stop()

    async def shares(self, *sizes: int, timeout_s: float = 30) -> None:
        """Wait until the members have these numbers of partitions, in any order."""
        await until(
            lambda: sorted(len(member.consumer.assignment()) for member in self.members) == sorted(sizes), timeout_s
        )

    async def handle(self, count: int, timeout_s: float = 60) -> None:
        """Wait until this number of different records is handled."""
        async with asyncio.timeout(timeout_s):
            while len(self.handled) < count:
                self._news.clear()
                await self._news.wait()

    def _note(self, record: Record) -> None:
        self.handled[record.partition, record.offset] += 1
        self._news.set()


async def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait for a condition that no event announces."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.02)


async def kill(topic: str) -> None:
    """Simulate the SIGKILL of a consumer, which sends no commit and no LeaveGroup."""
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == f"tailrace consumer {topic}")
    task.cancel()
    await asyncio.wait({task})


async def commit_as_it_is(bootstrap_servers, group, topic, offset, text):
    """Commit metadata byte for byte, as any client of the group can."""
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        place = aiokafka.TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.commit({place: aiokafka.structs.OffsetAndMetadata(offset, text)})
    finally:
        await consumer.stop()
