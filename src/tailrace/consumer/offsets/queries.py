"""Queries of log offsets and committed offsets of any partition, assigned or not.

Each query has a timeout. A query of log offsets of an unknown topic fails after ``TOPIC_GRACE_S`` at the latest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from tailrace.consumer.parts import ConsumerParts
from tailrace.core.offset_map import decode_metadata
from tailrace.core.start_point import EARLIEST, LATEST
from tailrace.error_codes import TRANSIENT, ErrorCode
from tailrace.errors import UnknownPartitionError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import committed_offsets, list_offsets
from tailrace.protocol.records import ListedOffset
from tailrace.records import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = ["TOPIC_GRACE_S", "OffsetQueries", "check_topics"]

TOPIC_GRACE_S = 5.0
"""Time in seconds to wait for an unknown topic, which may have just been created, to appear in the metadata."""


async def check_topics(cluster: Cluster, topics: Iterable[str]) -> None:
    """Check that topics exist in the known metadata; if an error may be temporary, refresh the metadata before raising.

    Raises:
        UnknownTopicError: a topic does not exist.
        BrokerError: a topic may not be read.
    """
    topology = cluster.topology
    for name in topics:
        code = topology.errors.get(name)
        if code is None and name not in topology.topics:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
            if code in TRANSIENT:
                await cluster.refresh()
            raise broker_error(code, f"topic {name!r}")


class OffsetQueries:
    """Queries the partitions' leaders and the group coordinator."""

    def __init__(self, parts: ConsumerParts) -> None:
        self._parts, self._cluster = parts, parts.cluster

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        found = await self._list(dict.fromkeys(partitions, EARLIEST))
        return {partition: one.offset for partition, one in found.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset (exclusive) of each partition."""
        found = await self._list(dict.fromkeys(partitions, LATEST))
        return {partition: one.offset for partition, one in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offset and timestamp of each partition's first record that is not older than the partition's time.

        The times are in milliseconds since 1970. The value of a partition without such a record is None.
        """
        found = await self._list(times)
        return {
            partition: None
            if one.offset < 0
            else OffsetAndTimestamp(one.offset, one.timestamp, one.leader_epoch if one.leader_epoch >= 0 else None)
            for partition, one in found.items()
        }

    async def committed(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets with the user's metadata; a partition without a commit is absent."""
        found = await self.stored_offsets(group_id, partitions)
        return {
            at: one._replace(metadata=decode_metadata(one.metadata, one.offset).user_text) for at, one in found.items()
        }

    async def stored_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets with the stored metadata, which may contain offset maps."""
        return await committed_offsets(
            self._cluster, group_id, list(partitions), timeout_s=self._parts.default_timeout_s
        )

    async def topics(self) -> frozenset[str]:
        """Return the names of all topics that this client may describe; see ``exclude_internal_topics``."""
        with self._cluster.watching(None):
            await self._cluster.retrying(
                self._cluster.refresh, timeout_s=self._parts.default_timeout_s, what="listing the topics"
            )
            topology = self._cluster.topology
        return frozenset(
            name for name, topic in topology.topics.items() if not (topic.is_internal and topology.hides_internal)
        )

    async def partitions_of(self, topics: Iterable[str]) -> dict[str, list[int]]:
        """Return the partition numbers of topics; raise the same errors as ``check_topics``."""
        names = frozenset(topics)
        with self._cluster.watching(names):
            if names - self._cluster.topology.topics.keys():
                await self._retrying(self._cluster.refresh, "looking for the topics")
            await self._retrying(lambda: check_topics(self._cluster, names), "looking for the topics")
        found = self._cluster.topology.topics
        return {name: sorted(found[name].partitions) for name in names if name in found}

    async def check_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that partitions exist."""
        wanted = list(partitions)
        topics = {one.topic for one in wanted}
        existing = await self.partitions_of(topics)
        if any(one.partition not in existing.get(one.topic, ()) for one in wanted):
            # The topic may have grown since the last refresh.
            with self._cluster.watching(topics):
                await self._retrying(self._cluster.refresh, "looking for the partitions")
                existing = await self.partitions_of(topics)
        for one in wanted:
            numbers = existing.get(one.topic, ())
            if one.partition not in numbers:
                raise UnknownPartitionError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"{one}: the topic's partition count is {len(numbers)}, and partitions are numbered from 0",
                )

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        if not wanted:
            return {}
        await self.check_partitions(wanted)
        return await list_offsets(
            self._cluster,
            wanted,
            isolation_level=self._parts.config.isolation_level,
            timeout_s=self._parts.default_timeout_s,
        )

    async def _retrying(self, attempt: Callable[[], Awaitable[None]], what: str) -> None:
        await self._cluster.retrying(attempt, timeout_s=min(self._parts.default_timeout_s, TOPIC_GRACE_S), what=what)
