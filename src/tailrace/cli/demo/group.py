"""Consumer group of the demo: two consumers in one process, each in a task."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tailrace.cli.demo.counts import HandledFlights, PartitionProof
from tailrace.cli.demo.flights import Flight
from tailrace.cli.demo.handler import arrived
from tailrace.cli.demo.publishing import FlightPublisher
from tailrace.config import ConsumerOptions
from tailrace.consumer.consumer import Consumer
from tailrace.errors import ConsumerTimeoutError
from tailrace.records import TopicPartition

__all__ = ["MEMBERS", "GroupReader"]

MEMBERS = 2

_JOIN_TIMEOUT_S = 15
_STALL_S = 20
_POLL_INTERVAL_S = 0.05


class GroupReader:
    """Consumer group of two members that reads and counts all records of ``publisher``.

    Args:
        topic: topic to read.
        partitions: number of partitions of the topic.
        publisher: publisher of the records.
        options: options of each consumer.

    Attributes:
        counts: counts of the handled records.
    """

    def __init__(self, topic: str, partitions: int, publisher: FlightPublisher, options: ConsumerOptions) -> None:
        self.counts = HandledFlights(partitions, MEMBERS)
        self.joined_s = 0.0
        """Seconds until both members had partitions and every partition was assigned, or until the join timed out."""
        self.reading_s = 0.0
        """Seconds from the first record to the last."""
        self.members: tuple[_Member, ...] = tuple(
            _Member(f"tailrace-demo-{number}", self._check_joined) for number in range(1, MEMBERS + 1)
        )
        self._topic, self._partitions, self._publisher, self._options = topic, partitions, publisher, options
        self._joined, self._all_read = asyncio.Event(), asyncio.Event()
        self._expected = math.inf
        self._first_at = math.nan

    async def run(self) -> None:
        """Join the group, read until every record is handled, commit, and leave the group.

        Raises:
            ConsumerTimeoutError: no record arrived for 20 seconds, although published records are unread.
        """
        async with asyncio.TaskGroup() as tasks:
            began = self._now()
            readers = [tasks.create_task(self._read(number)) for number in range(MEMBERS)]
            try:
                async with asyncio.timeout(_JOIN_TIMEOUT_S):
                    await self._joined.wait()
            except TimeoutError:
                # Read nevertheless: a member without partitions does not prevent the other member from reading.
                self._joined.set()
            self.joined_s = self._now() - began
            await self._wait_for_all()
            for reader in readers:
                reader.cancel()

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """Return the counts of each partition, given the numbers of produced records and the committed offsets."""
        return self.counts.proof(produced, committed)

    async def _read(self, number: int) -> None:
        decode = msgspec.json.Decoder(Flight).decode
        member = self.members[number]
        options: ConsumerOptions = {**self._options, "client_id": member.name, "rebalance_listener": member}
        async with Consumer(self._topic, **options) as consumer:
            # Start after both members have joined, because the second one takes over partitions of the first.
            await self._joined.wait()
            async for record in consumer:
                if not self.counts.handled:
                    self._first_at = self._now()
                arrival = await arrived(decode(record.value or b"null"))
                self.counts.add(number, record, arrival.route, arrival.delay)
                if self.counts.handled >= self._expected:
                    self._end()

    async def _wait_for_all(self) -> None:
        seen, seen_at = -1, self._now()
        while not self._all_read.is_set():
            if self._publisher.is_complete:
                self._expected = self._publisher.count
                if self.counts.handled >= self._expected:
                    self._end()
            if self.counts.handled != seen or self.counts.handled >= self._publisher.count:
                seen, seen_at = self.counts.handled, self._now()
            elif self._now() - seen_at > _STALL_S:
                raise ConsumerTimeoutError(
                    f"{seen:,} of {self._publisher.count:,} records arrived, and none for {_STALL_S} s"
                    " - check that the brokers run"
                )
            try:
                async with asyncio.timeout(_POLL_INTERVAL_S):
                    await self._all_read.wait()
            except TimeoutError:
                continue

    def _end(self) -> None:
        if not self._all_read.is_set():
            self.reading_s = self._now() - self._first_at
            self._all_read.set()

    def _check_joined(self) -> None:
        assigned = [len(member.partitions) for member in self.members]
        if all(assigned) and sum(assigned) == self._partitions:
            self._joined.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Member:
    """Rebalance listener of one consumer: keeps the assigned partitions, and calls ``on_assigned`` for new ones."""

    def __init__(self, name: str, on_assigned: Callable[[], None]) -> None:
        self.name = name
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._on_assigned = on_assigned

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Add newly assigned partitions."""
        self.partitions |= partitions
        self._on_assigned()

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Remove revoked or lost partitions."""
        self.partitions -= partitions

    on_partitions_lost = on_partitions_revoked
