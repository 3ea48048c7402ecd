"""The group: two consumers in one program, each a task, as anybody would write them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tailrace.cli.demo.counts import HandledFlights, PartitionProof
from tailrace.cli.demo.flights import Flight
from tailrace.cli.demo.handler import arrived
from tailrace.cli.demo.replay import Replay
from tailrace.config import ConsumerOptions
from tailrace.consumer.consumer import Consumer
from tailrace.errors import ConsumerTimeoutError
from tailrace.records import TopicPartition

__all__ = ["MEMBERS", "Reading"]

MEMBERS = 2

_JOINING_S = 15
_QUIET_S = 20
_LOOK_S = 0.05


class Reading:
    """Reads what ``replay`` publishes, all of it, and counts.

    Args:
        topic: where from.
        partitions: how many it has.
        replay: what is to come.
        options: of each consumer.
    """

    def __init__(self, topic: str, partitions: int, replay: Replay, options: ConsumerOptions) -> None:
        self.tally = HandledFlights(partitions, MEMBERS)
        self.joined_s = 0.0
        """How long it took until each partition had its member."""
        self.reading_s = 0.0
        """From the first record to the last."""
        self.members: tuple[_Member, ...] = tuple(
            _Member(f"tailrace-demo-{number}", self._look) for number in range(1, MEMBERS + 1)
        )
        self._topic, self._partitions, self._replay, self._options = topic, partitions, replay, options
        self._joined, self._all_read = asyncio.Event(), asyncio.Event()
        self._expected = math.inf
        self._first_at = math.nan

    async def run(self) -> None:
        """Join, read until every record was handled, commit and leave.

        Raises:
            ConsumerTimeoutError: records are there and none comes.
            TailraceError: whatever ends a member's reading.
        """
        async with asyncio.TaskGroup() as tasks:
            began = self._now()
            readers = [tasks.create_task(self._read(number)) for number in range(MEMBERS)]
            try:
                async with asyncio.timeout(_JOINING_S):
                    await self._joined.wait()
            except TimeoutError:
                self._joined.set()  # those who have partitions read them, and those who failed say so
            self.joined_s = self._now() - began
            await self._wait_for_all()
            for reader in readers:
                reader.cancel()

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """By partition: what was produced (offsets from 0), handled and committed."""
        return self.tally.proof(produced, committed)

    async def _read(self, number: int) -> None:
        decode = msgspec.json.Decoder(Flight).decode
        member = self.members[number]
        options: ConsumerOptions = {**self._options, "client_id": member.name, "rebalance_listener": member}
        async with Consumer(self._topic, **options) as consumer:
            await self._joined.wait()  # so that neither reads what is the other's a moment later
            async for record in consumer:
                if not self.tally.handled:
                    self._first_at = self._now()
                arrival = await arrived(decode(record.value or b"null"))
                self.tally.take(number, record, arrival.route, arrival.delay)
                if self.tally.handled >= self._expected:
                    self._end()

    async def _wait_for_all(self) -> None:
        seen, seen_at = -1, self._now()
        while not self._all_read.is_set():
            if self._replay.is_complete:
                self._expected = self._replay.count
                if self.tally.handled >= self._expected:
                    self._end()
            if self.tally.handled != seen or self.tally.handled >= self._replay.count:
                seen, seen_at = self.tally.handled, self._now()
            elif self._now() - seen_at > _QUIET_S:
                raise ConsumerTimeoutError(
                    f"{seen:,} of {self._replay.count:,} records came, and none for {_QUIET_S} s"
                    " - do the brokers still answer?"
                )
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._all_read.wait()
            except TimeoutError:
                continue

    def _end(self) -> None:
        if not self._all_read.is_set():
            self.reading_s = self._now() - self._first_at
            self._all_read.set()

    def _look(self) -> None:
        held = [len(member.partitions) for member in self.members]
        if all(held) and sum(held) == self._partitions:
            self._joined.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Member:
    """What one consumer has, as its rebalance listener is told."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name = name
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._changed = changed

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """These came."""
        self.partitions |= partitions
        self._changed()

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """These went to somebody else."""
        self.partitions -= partitions

    on_partitions_lost = on_partitions_revoked
