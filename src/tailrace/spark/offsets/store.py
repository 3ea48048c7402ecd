"""Requests of the driver to Kafka for metadata, offsets and commits.

The driver is no member of the group, so the coordinator rejects its commits while the group has a live member. A member
may join and leave between two requests of the driver. Its commits are detected: if the group's offsets differ from
those that the driver last read or committed, the driver commits no more offsets. A commit moves an offset backward only
with ``may_go_back``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from tailrace.admin.groups import check_idle, describe_group
from tailrace.admin.offsets import (
    EARLIEST,
    LATEST,
    GroupOffset,
    commit_offsets,
    committed_offsets,
    epoch_end_offsets,
    list_offsets,
)
from tailrace.admin.topics import partitions_of
from tailrace.app.handlers import Handler
from tailrace.app.topics.creation import create_delay_topics, create_group_topics
from tailrace.app.topics.routes import Routes
from tailrace.config import ConsumerConfig
from tailrace.config.options import IsolationLevel
from tailrace.core.offset_map import EncodedMetadata, OffsetMap, encode_metadata
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    CommitFailedError,
    TailraceError,
    TopicRecreatedError,
    UnknownGroupError,
    UnknownTopicError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.observe.events import OffsetMapDropped, OffsetsCommitted
from tailrace.observe.hooks import Observer
from tailrace.protocol.groups import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import TopicPartition
from tailrace.spark.loop_thread import LoopThread
from tailrace.spark.offsets.ranges import Offsets

__all__ = [
    "RECOMMIT_S",
    "ClusterState",
    "LogBounds",
    "PartitionCommit",
    "SparkOffsetStore",
    "commit_metadata",
    "remaining_map",
]

RECOMMIT_S = 600.0
"""Interval at which an idle query commits again, so that the broker does not expire the group's offsets."""

_MEMBER_JOINED = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.STALE_MEMBER_EPOCH,
}
_OPERATION = "running its handlers on Spark"
"""Operation that is named in the error for a group with live members."""
_MIN_LIMIT_FOR_TEXT = 256
"""Smallest limit of the metadata's size at which commits contain a text."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """First offset and end offset of a partition's log."""

    begin: int
    end: int


@dataclass(frozen=True)
class ClusterState:
    """State of cluster and group before a run.

    Attributes:
        cluster_id: id of the cluster; empty if the brokers have none.
        topic_ids: id of each topic to read; empty if the brokers have none.
        logs: bounds of the log of each partition to read.
        committed: committed offsets of the group.
        epoch_ends: end offset of the leader epoch of each offset map in ``committed``, by partition.
    """

    cluster_id: str
    topic_ids: Mapping[str, str]
    logs: Mapping[TopicPartition, LogBounds]
    committed: Mapping[TopicPartition, GroupOffset]
    epoch_ends: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """Commit of one partition."""

    offset: int
    offset_map: OffsetMap | None = None
    """Offset map of records finished after the offset."""


def remaining_map(offset_map: OffsetMap | None, offset: int) -> OffsetMap | None:
    """Return the part of an offset map from ``offset`` on; None if there is no such part."""
    return None if offset_map is None else offset_map.from_offset(offset)


def commit_metadata(commit: PartitionCommit, text: str, limit: int, writer: str) -> EncodedMetadata:
    """Encode the offset map of a commit, ``text`` and ``writer`` in at most ``limit`` bytes.

    If they do not fit, the text is left out, and then also the writer. If the offset map alone does not fit, only text
    and writer are encoded. The text is always left out if ``limit`` is less than 256.
    """
    text = text if limit >= _MIN_LIMIT_FOR_TEXT else ""
    for kept_text, kept_writer in ((text, writer), ("", writer), ("", "")):
        encoded = encode_metadata(commit.offset_map, kept_text, limit, writer=kept_writer)
        if not encoded.is_map_dropped:
            return encoded
    return replace(encode_metadata(None, text, limit, writer=writer), is_map_dropped=True)


class SparkOffsetStore(AbstractContextManager["SparkOffsetStore"]):
    """Synchronous access to the committed offsets of one group, and to the metadata and offsets of its topics.

    Args:
        config: configuration of the connection.
        group_id: the group; empty to read logs only.
        observer: receiver of events about commits.
    """

    def __init__(self, config: ConsumerConfig, group_id: str, observer: Observer) -> None:
        self.group_id = group_id
        self._config, self._observer = config, observer
        self._thread = LoopThread("tailrace spark")
        self._cluster = Cluster(config, observer)
        self._timeout_s = config.default_api_timeout_ms / 1000
        self._is_open = True
        self._commit_lock = asyncio.Lock()
        self._expected: dict[TopicPartition, set[tuple[int, str]]] = {}
        """Offset and metadata that were read or committed last; several pairs if the result of a commit is unknown."""
        self._topic_ids: dict[str, UUID] = {}
        """Topic ids at the last call of ``cluster_state`` or ``topic_ids``."""
        self._watched_maps: Mapping[TopicPartition, OffsetMap] = {}
        """Offset maps set by ``watch_maps``, except those that lie completely before a committed offset."""
        try:
            self._thread.call(self._cluster.reach(config.start_timeout_ms / 1000))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and stop the thread; do nothing if the store is closed already."""
        if self._is_open:
            self._is_open = False

            async def end() -> None:
                self._cluster.close()

            self._thread.call(end())
            self._thread.close()

    @property
    def now(self) -> float:
        """Time of the event loop in seconds, which is monotonic."""
        return self._thread.loop.time()

    # ---- queries -----------------------------------------------------------------------------------------------

    def check_idle(self) -> None:
        """Check that the group has no live members.

        Raises:
            GroupNotEmptyError: the group has live members; the message names them.
        """
        self._thread.call(self._check_idle())

    def check_unchanged(self) -> None:
        """Check that the group has no live members, and that only the driver has changed the group's offsets.

        Without this check, records that members have handled in the meantime would be handled again.

        Raises:
            GroupNotEmptyError: the group has live members.
            CommitFailedError: the group's offsets were changed by another client.
            TailraceError: a topic was recreated, or a log was truncated below the end of a watched offset map.
        """
        self._thread.call(self._check_unchanged())

    def check_logs(self) -> None:
        """Check that no topic was recreated, and that no log was truncated below the end of a watched offset map.

        Raises:
            TailraceError: a topic was recreated, or a log was truncated.
        """
        self._thread.call(self._check_logs())

    def cluster_state(self, topics: Sequence[str], patterns: Sequence[Any]) -> ClusterState:
        """Return the partitions to read, the bounds of their logs, and the group's committed offsets.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        partitions = self.partitions(topics, patterns)
        topic_ids = self.topic_ids({one.topic for one in partitions})
        # Committed offsets are read first, so that none of them is after the end of a log that is read later.
        committed = self.committed(partitions)
        return ClusterState(
            self._cluster.topology.cluster_id or "",
            topic_ids,
            self.logs(partitions),
            committed,
            self.epoch_ends(committed),
        )

    def partitions(self, topics: Collection[str], patterns: Sequence[Any]) -> list[TopicPartition]:
        """Return all partitions of the named topics and of every topic whose full name matches a pattern.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        return self._thread.call(self._partitions(topics, patterns))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids of topics after ``partitions``, empty if the brokers have none; commits check them."""
        self._topic_ids = {one: self._cluster.topology.topic_id(one) for one in topics}
        return {one: "" if topic_id == NO_TOPIC_ID else str(topic_id) for one, topic_id in self._topic_ids.items()}

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Read the group's committed offsets; ``check_unchanged`` and ``commit`` compare later offsets with them."""
        return self._thread.call(self._read_committed(partitions))

    def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogBounds]:
        """Return the current bounds of the logs.

        With ``isolation_level="read_committed"``, a log ends at the last stable offset.

        Raises:
            UnknownTopicError: a topic no longer exists.
        """
        # This raises for a deleted topic, whereas a request for its offsets would wait for a leader.
        self.partitions({one.topic for one in partitions}, ())
        begins, ends = (
            self.offsets_at(dict.fromkeys(partitions, EARLIEST)),
            self.offsets_at(dict.fromkeys(partitions, LATEST)),
        )
        return {one: LogBounds(begins[one], ends[one]) for one in partitions}

    def offsets_at(
        self, times: Mapping[TopicPartition, int], *, isolation_level: IsolationLevel | None = None
    ) -> Offsets:
        """Return the offset of the first record at or after a time in each partition; -1 if there is no such record.

        A time is in milliseconds since 1970, or is ``EARLIEST`` or ``LATEST``. By default, the isolation level is that
        of the configuration.
        """
        found = self._thread.call(
            list_offsets(self._cluster, times, isolation_level=isolation_level, timeout_s=self._timeout_s)
        )
        return {one: listed.offset for one, listed in found.items()}

    def epoch_ends(self, committed: Mapping[TopicPartition, GroupOffset]) -> Offsets:
        """Return the end offset of the leader epoch of each offset map; empty if brokers do not offer the request.

        Raises:
            TailraceError: a leader does not answer.
        """
        decoded = {one: commit.decoded_metadata.offset_map for one, commit in committed.items()}
        maps = {one: offset_map for one, offset_map in decoded.items() if offset_map is not None}
        return self._thread.call(self._epoch_ends(maps))

    def watch_maps(self, maps: Mapping[TopicPartition, OffsetMap]) -> None:
        """Make ``check_unchanged`` and ``commit`` fail if a log was truncated below the end of its offset map."""
        self._watched_maps = maps

    def members(self) -> int:
        """Return the number of live members of the group."""

        async def count() -> int:
            try:
                group = await describe_group(self._cluster, self.group_id, timeout_s=self._timeout_s)
            except UnknownGroupError:
                return 0
            return len(group.members)

        return self._thread.call(count())

    # ---- changes -----------------------------------------------------------------------------------------------

    def create_topics(self, handlers: Iterable[Handler]) -> None:
        """Create missing retry topics, dead-letter topics and topics of delayed messages, as the app does.

        Raises:
            BrokerError: a retry topic, or a topic of delayed messages, cannot be created.
        """
        routes = Routes(self.group_id, handlers)
        if routes.publish_delays_ms:
            self._thread.call(create_delay_topics(self._config, routes, self._observer))
        self._thread.call(create_group_topics(self._config, routes, self._observer))

    def commit(
        self, offsets: Mapping[TopicPartition, PartitionCommit], text: str, *, may_go_back: bool = False
    ) -> None:
        """Commit offsets, except for partitions whose committed offset is already higher.

        Args:
            offsets: commits by partition.
            text: text in the metadata of the commits.
            may_go_back: True to commit lower offsets as well, because a log does not contain the committed offset.

        Raises:
            GroupNotEmptyError: a member joined the group.
            CommitFailedError: the commit was rejected, or the group's offsets were changed by another client.
            TailraceError: a topic was recreated, or a log was truncated below the end of a watched offset map.
            BrokerConnectionError: the coordinator does not answer in time.
        """
        self._thread.call(self._commit(offsets, text, may_go_back=may_go_back))

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _check_idle(self) -> None:
        try:
            group = await describe_group(self._cluster, self.group_id, timeout_s=self._timeout_s)
        except UnknownGroupError:
            return
        check_idle(group, _OPERATION)

    async def _check_unchanged(self) -> None:
        await self._check_idle()
        await self._check_logs()
        async with self._commit_lock:
            if self._expected:
                self._check_expected(await self._committed(self._expected))

    async def _check_logs(self) -> None:
        """Check that no topic was recreated, because Spark would read the new topic, and that no log was truncated."""
        await partitions_of(self._cluster, self._topic_ids, timeout_s=self._timeout_s)
        for name, topic_id in self._topic_ids.items():
            current = self._cluster.topology.topic_id(name)
            if NO_TOPIC_ID not in {topic_id, current} and topic_id != current:
                raise _recreated_error(name)
        for partition, end in (await self._epoch_ends(self._watched_maps)).items():
            if reason := self._watched_maps[partition].epoch_contradiction(end):
                raise TailraceError(
                    f"the log of {partition} was truncated: {reason} - start again to handle the records it has now"
                )

    async def _epoch_ends(self, maps: Mapping[TopicPartition, OffsetMap]) -> Offsets:
        epochs = {one: offset_map.leader_epoch for one, offset_map in maps.items() if offset_map.leader_epoch >= 0}
        if not epochs:
            return {}
        try:
            return await epoch_end_offsets(self._cluster, epochs, timeout_s=self._timeout_s)
        except UnsupportedVersionError:
            # Some services, such as Azure Event Hubs, do not offer OffsetForLeaderEpoch.
            return {}

    async def _read_committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        async with self._commit_lock:
            committed = await self._committed(partitions)
            self._expected = {one: {(commit.offset, commit.metadata)} for one, commit in committed.items()}
            return committed

    async def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        if not self.group_id:
            return {}
        return await committed_offsets(
            self._cluster, self.group_id, list(partitions), stable=True, timeout_s=self._timeout_s
        )

    def _check_expected(self, committed: Mapping[TopicPartition, GroupOffset]) -> None:
        """Check that no other client has committed. A missing offset has expired, and does not count as a change."""
        for one, expected in self._expected.items():
            if one in committed and (committed[one].offset, committed[one].metadata) not in expected:
                raise CommitFailedError(
                    f"another client committed offset {committed[one].offset} of {one} for group {self.group_id!r}"
                    " - start again to continue from there"
                )

    async def _partitions(self, topics: Collection[str], patterns: Sequence[Any]) -> list[TopicPartition]:
        names = set(topics)
        if patterns:
            with self._cluster.watching(None):
                await self._cluster.retrying(
                    self._cluster.refresh, timeout_s=self._timeout_s, what="looking for topics"
                )
                names = names.union(*map(self._cluster.topology.matching, patterns))
        counts = await partitions_of(self._cluster, names, timeout_s=self._timeout_s)
        if missing := sorted(names - counts.keys()):
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {missing[0]!r}")
        return sorted(TopicPartition(name, number) for name, count in counts.items() for number in range(count))

    async def _commit(self, offsets: Mapping[TopicPartition, PartitionCommit], text: str, *, may_go_back: bool) -> None:
        if offsets:
            await self._check_logs()
            async with self._commit_lock:
                await self._commit_locked(offsets, text, may_go_back=may_go_back)

    async def _commit_locked(
        self, offsets: Mapping[TopicPartition, PartitionCommit], text: str, *, may_go_back: bool
    ) -> None:
        current = await self._committed(offsets.keys() | self._expected.keys())
        self._check_expected(current)
        commits = {
            one: commit
            for one, commit in offsets.items()
            if may_go_back or one not in current or current[one].offset <= commit.offset
        }
        if not commits:
            return
        metadata = {one: self._metadata(one, commit, text) for one, commit in commits.items()}
        for one, commit in commits.items():
            self._expected.setdefault(one, set()).add((commit.offset, metadata[one]))
        what, topic_ids = f"committing offsets of group {self.group_id!r}", self._topic_ids
        entries = [
            CommitOffset(*one, commit.offset, metadata=metadata[one], topic_id=topic_ids.get(one.topic, NO_TOPIC_ID))
            for one, commit in commits.items()
        ]
        try:
            codes = await commit_offsets(self._cluster, self.group_id, entries, timeout_s=self._timeout_s, what=what)
        except TopicRecreatedError as error:
            raise _recreated_error(error.partitions[0].topic) from error
        if _MEMBER_JOINED & set(codes.values()):
            await self._check_idle()
            raise CommitFailedError(
                f"{what}: a member joined the group and left it again - start again; the last batch is handled again"
            )
        for one in commits:
            if code := codes[one]:
                raise CommitFailedError(str(broker_error(code, f"{what}: {one}")))
        self._expected |= {one: {(commit.offset, metadata[one])} for one, commit in commits.items()}
        self._watched_maps = {
            one: offset_map
            for one, offset_map in self._watched_maps.items()
            if one not in offsets or offsets[one].offset_map
        }
        self._observer.emit(OffsetsCommitted(self.group_id, {one: commit.offset for one, commit in commits.items()}))

    def _metadata(self, partition: TopicPartition, commit: PartitionCommit, text: str) -> str:
        limit = self._config.offset_metadata_max_bytes
        encoded = commit_metadata(commit, text, limit, self._config.client_id)
        if encoded.is_map_dropped:
            reason = f"it does not fit into offset_metadata_max_bytes={limit}"
            self._observer.emit(OffsetMapDropped(partition, commit.offset, reason))
        return encoded.text


def _recreated_error(topic: str) -> TailraceError:
    return TailraceError(
        f"topic {topic!r} was recreated, so its offsets belong to other records"
        " - start again to read the new topic by auto_offset_reset"
    )
