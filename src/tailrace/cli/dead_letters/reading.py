"""Reads a topic of dead letters, from its beginning to where it ends now: without a group, and nothing is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from difflib import get_close_matches

from tailrace.app.failures.dead_letters import DeadLetter, read_dead_letter
from tailrace.cli.dead_letters.selection import LetterPlace, LetterSelection, place_of
from tailrace.config import ConsumerOptions
from tailrace.consumer.consumer import Consumer
from tailrace.consumer.offsets.requests import LATEST, by_leader, list_offsets
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, ConsumerTimeoutError, UnknownTopicError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.records import Record, TopicPartition

__all__ = ["Letters", "partitions_of"]

_QUIET_S = 60.0
_LOOK_MS = 500
_READ_COMMITTED = 1


async def partitions_of(cluster: Cluster, topics: Collection[str], timeout_s: float) -> dict[str, int]:
    """How many partitions each topic has; one that does not exist is left out.

    Raises:
        BrokerError: a name is no topic's, or we may not know of it.
        BrokerConnectionError: nobody answers in time.
    """

    async def look() -> dict[str, int]:
        await cluster.refresh()
        for name in topics:
            code = cluster.topology.errors.get(name, ErrorCode.NONE)
            if code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                raise broker_error(code, f"topic {name!r}")
        return cluster.topology.partitions_of(topics)

    cluster.watch(look, topics)
    try:
        return await cluster.retrying(look, timeout_s=timeout_s, what=f"looking for {', '.join(topics)}")
    finally:
        cluster.unwatch(look)


class Letters:
    """The letters of a topic.

    Args:
        cluster: where it is; reached already.
        topic: of dead letters.
        options: of the consumer that reads it.
        timeout_s: how long brokers may take to answer a question.

    Attributes:
        others: records that were read and are no dead letters.
    """

    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions, timeout_s: float) -> None:
        self.others = 0
        self._cluster, self._topic, self._options, self._timeout_s = cluster, topic, options, timeout_s

    async def read(self, places: Collection[LetterPlace] = ()) -> AsyncIterator[DeadLetter]:
        """All of them, or no more than it takes to see those at ``places``.

        Raises:
            UnknownTopicError: there is no such topic.
            ConsumerTimeoutError: records are there, and none comes.
            TailraceError: whatever ends the reading.
        """
        ends = await self._ends()
        begins = {}
        if places:
            begins = {p: min(one.offset for one in places if one.partition == p) for p, _ in places}
            last = {p: max(one.offset for one in places if one.partition == p) for p, _ in places}
            ends = {p: min(end, last[p] + 1) for p, end in ends.items() if p in last}
        async for record in self._records(begins, ends):
            letter = read_dead_letter(record)
            if letter is None:
                self.others += 1
            else:
                yield letter

    async def chosen(self, choice: LetterSelection) -> list[DeadLetter]:
        """Those that are meant, by when they failed.

        Raises:
            ConfigurationError: no letter stands where one was said to.
        """
        found = [letter async for letter in self.read(choice.places) if choice.takes(letter)]
        if choice.places and not (choice.since_ms or choice.error_types):
            self._miss(set(choice.places) - {place_of(letter) for letter in found})
        return choice.first(found)

    def _miss(self, missing: Iterable[LetterPlace]) -> None:
        if places := ", ".join(map(str, sorted(missing))):
            raise ConfigurationError(
                f"{self._topic} has no dead letter at {places} - `tailrace dead-letters list {self._topic}` says what"
                " is there, and the oldest of each kind"
            )

    async def _records(self, begins: Mapping[int, int], ends: Mapping[int, int]) -> AsyncIterator[Record]:
        if not ends:
            return
        loop = asyncio.get_running_loop()
        async with Consumer(self._topic, **self._options) as consumer:
            unread = {TopicPartition(self._topic, partition): end for partition, end in ends.items()}
            if others := consumer.assignment() - unread.keys():
                consumer.pause(*others)
            for partition, offset in begins.items():
                if (chosen := TopicPartition(self._topic, partition)) in unread:
                    await consumer.seek(chosen, offset)
            heard_at = loop.time()
            while unread := {one: end for one, end in unread.items() if await consumer.position(one) < end}:
                records = await consumer.getmany(timeout_ms=_LOOK_MS)
                for record in records:
                    if record.offset < ends.get(record.partition, 0):
                        yield record
                if records:
                    heard_at = loop.time()
                elif loop.time() - heard_at > _QUIET_S:
                    raise ConsumerTimeoutError(
                        f"nothing came of {', '.join(map(str, sorted(unread)))} for {_QUIET_S:.0f} s, and records are"
                        " there - are the leaders of these partitions alive?"
                    )

    # ---- the end of now ----------------------------------------------------------------------------------------

    async def _ends(self) -> dict[int, int]:
        counts = await partitions_of(self._cluster, [self._topic], self._timeout_s)
        if self._topic not in counts:
            raise await self._unknown()
        partitions = [TopicPartition(self._topic, number) for number in range(counts[self._topic])]

        async def ask() -> dict[int, int]:
            led, leaderless = by_leader(self._cluster, partitions)
            refused = [broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{one}: nobody leads it") for one in leaderless]
            ends: dict[int, int] = {}
            for leader_id, those in led.items():
                wanted = dict.fromkeys(those, LATEST)
                found, not_found = await list_offsets(self._cluster, leader_id, wanted, isolation_level=_READ_COMMITTED)
                refused += not_found
                ends |= {one.partition: listed.offset for one, listed in found.items()}
            if refused:
                await self._cluster.refresh()
                raise refused[0]
            return ends

        self._cluster.watch(self, [self._topic])
        try:
            return await self._cluster.retrying(
                ask, timeout_s=self._timeout_s, what=f"finding the ends of {self._topic}"
            )
        finally:
            self._cluster.unwatch(self)

    async def _unknown(self) -> UnknownTopicError:
        """With the names of topics that may have been meant."""
        self._cluster.watch(self, None)
        try:
            await self._cluster.refresh()
        finally:
            self._cluster.unwatch(self)
        there = sorted(name for name, topic in self._cluster.topology.topics.items() if not topic.is_internal)
        dead = [name for name in there if name.endswith((".dead", "dlq", "DLQ", "dead-letters"))]
        close = list(dict.fromkeys([*get_close_matches(self._topic, there, n=3), *dead]))[:5]
        hint = f"did you mean {' or '.join(close)}?" if close else "no topic here looks like one of dead letters"
        return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {self._topic!r}, {hint}")
