"""What is asked about logs on the user's behalf: where they begin, where they end, what stands at a time.

Rule of this file: any partition may be asked about, assigned or not. One call is bounded by its time-out; a topic that
nobody knows has a shorter grace, since it may have been made just now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial

import anyio

from tailrace.consumer.offsets.requests import by_leader, committed_offsets, list_offsets
from tailrace.core.offset_map import decode_metadata
from tailrace.core.positions.start_point import EARLIEST, LATEST, StartPoint
from tailrace.error_codes import RETRIABLE, ErrorCode
from tailrace.errors import BrokerError, TailraceError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.protocol.list_offsets import ListedOffset
from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = ["TOPIC_GRACE_S", "OffsetQueries", "check_topics"]

TOPIC_GRACE_S = 5.0
"""How long a topic that nobody knows may take to appear."""


async def check_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    """See that topics exist; one attempt.

    Raises:
        UnknownTopicError: one does not, as far as this picture goes.
        BrokerError: one may not be read.
    """
    topology = cluster.topology
    for name in topics:
        code = topology.errors.get(name)
        if code is None and name not in topology.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
            if code in RETRIABLE:
                await cluster.refresh()
            raise broker_error(code, f"topic {name!r}")


class OffsetQueries:
    """Asks the partitions' leaders.

    Args:
        isolation_level: as ListOffsets has it, at the time of asking: what ends a log is the last record that may be
            read.
        now_ms: the time.
    """

    def __init__(
        self, cluster: Cluster, timeout_s: float, isolation_level: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        self._cluster, self._timeout_s, self._isolation_level, self._now_ms = (
            cluster,
            timeout_s,
            isolation_level,
            now_ms,
        )

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each."""
        found = await self._ask(dict.fromkeys(partitions, EARLIEST))
        return {partition: one.offset for partition, one in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record of each."""
        found = await self._ask(dict.fromkeys(partitions, LATEST))
        return {partition: one.offset for partition, one in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, StartPoint]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each that is not older than its time; None where there is none."""
        now_ms = self._now_ms()
        found = await self._ask({partition: start.fixed(now_ms).number for partition, start in times.items()})
        return {
            partition: None
            if one.offset < 0
            else OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch if one.leader_epoch >= 0 else None)
            for partition, one in found.items()
        }

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, with the user's own texts; a partition without a commit is absent."""
        found = await self._cluster.retrying(
            partial(committed_offsets, self._cluster, group_id, list(partitions)),
            timeout_s=self._timeout_s,
            what=f"reading the committed offsets of group {group_id!r}",
        )
        return {
            at: one._replace(metadata=decode_metadata(one.metadata, one.offset).user_text) for at, one in found.items()
        }

    async def partitions_of(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """The partitions that topics have now.

        Raises:
            UnknownTopicError: a topic does not exist.
            BrokerError: a topic may not be read.
        """
        names = frozenset(topics)
        token = object()
        self._cluster.watch(token, names)
        try:
            if names - self._cluster.topology.topics.keys():
                await self._retrying(self._cluster.refresh, "looking for the topics")
            await self._retrying(lambda: check_topics(self._cluster, names), "looking for the topics")
        finally:
            self._cluster.unwatch(token)
        found = self._cluster.topology.topics
        return {name: sorted(found[name].partitions) for name in names if name in found}

    async def check(self, partitions: Iterable[TopicPartition]) -> None:
        """See that partitions exist.

        Raises:
            UnknownTopicError: one of them does not.
        """
        wanted = list(partitions)
        there = await self.partitions_of({one.topic for one in wanted})
        for one in wanted:
            if one.partition not in there.get(one.topic, ()):
                raise broker_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{one}: the topic has {len(there.get(one.topic, ()))} partitions, numbered from 0 on",
                )

    async def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        if not wanted:
            return {}
        found: dict[TopicPartition, ListedOffset] = {}
        token = object()
        # To the end: a round that has to be repeated looks for the leaders anew.
        self._cluster.watch(token, {one.topic for one in wanted})
        try:
            await self.check(wanted)
            await self._cluster.retrying(
                lambda: self._round(wanted, found), timeout_s=self._timeout_s, what="listing offsets"
            )
        finally:
            self._cluster.unwatch(token)
        return {partition: found[partition] for partition in wanted}

    async def _round(self, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, ListedOffset]) -> None:
        """Ask all leaders of what is not found yet, at once."""
        led, leaderless = by_leader(self._cluster, wanted.keys() - found.keys())
        failures: list[TailraceError] = []
        level = self._isolation_level()

        async def ask(leader_id: int, partitions: list[TopicPartition]) -> None:
            try:
                questions = {partition: wanted[partition] for partition in partitions}
                listed, refused = await list_offsets(self._cluster, leader_id, questions, isolation_level=level)
            except TailraceError as error:
                failures.append(error)
            else:
                found.update(listed)
                failures.extend(refused)

        async with anyio.create_task_group() as tasks:
            for leader_id, partitions in led.items():
                tasks.start_soon(ask, leader_id, partitions)
        if leaderless:
            failures.append(broker_error(ErrorCode.LEADER_NOT_AVAILABLE, f"{leaderless[0]} has no leader now"))
        if failures:
            final = [error for error in failures if isinstance(error, BrokerError) and not error.retriable]
            if not final:
                await self._cluster.refresh()
            raise (final or failures)[0]

    async def _retrying(self, attempt: Callable[[], Awaitable[None]], what: str) -> None:
        await self._cluster.retrying(attempt, timeout_s=min(self._timeout_s, TOPIC_GRACE_S), what=what)
