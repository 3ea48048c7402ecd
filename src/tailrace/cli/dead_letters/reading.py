"""Reading of a dead-letter topic up to its current end, without a group and without commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from difflib import get_close_matches

from tailrace.app.failures.dead_letters import DeadLetter, read_dead_letter
from tailrace.cli.dead_letters.marks import ReplayMarks
from tailrace.cli.dead_letters.selection import DeadLetterFilter, DeadLetterPosition, position_of
from tailrace.config import ConsumerOptions
from tailrace.consumer.consumer import Consumer
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, ConsumerTimeoutError, UnknownTopicError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import LATEST, list_offsets
from tailrace.records import Record, TopicPartition

__all__ = ["DeadLetterReader", "partitions_of"]

_STALL_S = 60.0
"""Maximum time to wait for a record while the topic has unread offsets."""
_POLL_TIMEOUT_MS = 500
_READ_COMMITTED = 1
"""``isolation_level`` of requests."""


async def partitions_of(cluster: Cluster, topics: Collection[str], timeout_s: float) -> dict[str, int]:
    """Return the number of partitions of each of ``topics`` that exists.

    Raises:
        BrokerError: a topic name is illegal, or describing the topic is not authorized.
        BrokerConnectionError: no broker answers in time.
    """

    async def refresh() -> dict[str, int]:
        await cluster.refresh()
        for name in topics:
            code = cluster.topology.errors.get(name, ErrorCode.NONE)
            if code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                raise broker_error(code, f"topic {name!r}")
        return cluster.topology.partition_counts(topics)

    cluster.watch(refresh, topics)
    try:
        return await cluster.retrying(refresh, timeout_s=timeout_s, what=f"looking for {', '.join(topics)}")
    finally:
        cluster.unwatch(refresh)


class DeadLetterReader:
    """Reads and selects the dead letters of a topic.

    Args:
        cluster: connected cluster.
        topic: dead-letter topic.
        options: options of the consumer that reads the topic.
        timeout_s: time limit for requesting the metadata, and again for the end offsets; it includes retries.

    Attributes:
        others: number of records that were read and are neither dead letters nor marks.
        marks: marks of replays that were read.
    """

    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions, timeout_s: float) -> None:
        self.others, self.marks = 0, ReplayMarks()
        self._read_to: dict[int, int] = {}
        self._cluster, self._topic, self._options, self._timeout_s = cluster, topic, options, timeout_s

    async def read(self) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters from the end of the last call, or the first, to the current end of the topic.

        The dead letters of a partition are in the order of their offsets. ``marks`` receives the marks of replays, and
        ``others`` is increased by each other record that is not a dead letter.

        Raises:
            UnknownTopicError: the topic does not exist.
            ConsumerTimeoutError: no record arrived for a minute, although the topic has unread records.
        """
        begins, self._read_to = self._read_to, await self._ends()
        async for record in self._records(begins, self._read_to):
            letter = read_dead_letter(record)
            if letter is not None:
                yield letter
            elif not self.marks.add(record):
                self.others += 1

    async def select(self, selection: DeadLetterFilter) -> list[DeadLetter]:
        """Return the selected dead letters in the order of their failures, at most ``selection.limit``.

        Raises:
            ConfigurationError: there is no dead letter at a selected position. Positions are not checked if the
                selection also has a time or error types, because these may exclude a dead letter at a position.
        """
        found = [letter async for letter in self.read() if selection.matches(letter)]
        if selection.positions and not (selection.since_ms or selection.error_types):
            self._raise_if_missing(set(selection.positions) - {position_of(letter) for letter in found})
        return selection.sort_and_limit(found)

    def _raise_if_missing(self, missing: Iterable[DeadLetterPosition]) -> None:
        if positions := ", ".join(map(str, sorted(missing))):
            raise ConfigurationError(
                f"{self._topic} has no dead letter at {positions} - find positions with `tailrace dead-letters list"
                f" {self._topic}`"
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
            last_record_at = loop.time()
            while unread := {one: end for one, end in unread.items() if await consumer.position(one) < end}:
                records = await consumer.getmany(timeout_ms=_POLL_TIMEOUT_MS)
                for record in records:
                    if record.offset < ends.get(record.partition, 0):
                        yield record
                if records:
                    last_record_at = loop.time()
                elif loop.time() - last_record_at > _STALL_S:
                    raise ConsumerTimeoutError(
                        f"no record of {', '.join(map(str, sorted(unread)))} arrived for {_STALL_S:.0f} s, although"
                        " the log has more records - check that the leaders of these partitions run"
                    )

    # ---- current end -------------------------------------------------------------------------------------------

    async def _ends(self) -> dict[int, int]:
        counts = await partitions_of(self._cluster, [self._topic], self._timeout_s)
        if self._topic not in counts:
            raise await self._unknown_topic_error()
        partitions = [TopicPartition(self._topic, number) for number in range(counts[self._topic])]
        ends = await list_offsets(
            self._cluster,
            dict.fromkeys(partitions, LATEST),
            isolation_level=_READ_COMMITTED,
            timeout_s=self._timeout_s,
        )
        return {one.partition: listed.offset for one, listed in ends.items()}

    async def _unknown_topic_error(self) -> UnknownTopicError:
        """Return an error that suggests similar topics and dead-letter topics."""
        self._cluster.watch(self, None)
        try:
            await self._cluster.refresh()
        finally:
            self._cluster.unwatch(self)
        existing = sorted(name for name, topic in self._cluster.topology.topics.items() if not topic.is_internal)
        dead = [name for name in existing if name.endswith((".dead", "dlq", "DLQ", "dead-letters"))]
        close = list(dict.fromkeys([*get_close_matches(self._topic, existing, n=3), *dead]))[:5]
        hint = f"did you mean {' or '.join(close)}?" if close else "and no other looks like a dead-letter topic"
        return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {self._topic!r}, {hint}")
