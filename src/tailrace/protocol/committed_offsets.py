"""Committed offsets of a group: OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID

from tailrace.protocol.encoding.fields import OneElement, by_topic, field
from tailrace.protocol.encoding.primitives import int16, int32, int64
from tailrace.protocol.message import NO_TOPIC_ID, ApiMessage, Request

__all__ = [
    "CommitOffset",
    "CommitResult",
    "CommittedOffset",
    "DeletedOffset",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchPartition",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetToDelete",
]


_LAST_BY_NAME = 9
"""Last version of OffsetCommit and OffsetFetch with topic names; later versions have only topic ids."""


class _TopicEntry(Protocol):
    @property
    def topic_id(self) -> UUID: ...


def _newest_version(entries: Iterable[_TopicEntry]) -> int | None:
    return _LAST_BY_NAME if any(entry.topic_id == NO_TOPIC_ID for entry in entries) else None


# ---- commits ---------------------------------------------------------------------------------------------------


class CommitOffset(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    offset: int64 = field("committed_offset", default=-1)
    leader_epoch: int32 = field("committed_leader_epoch", since=6, ignorable=True, default=-1)
    metadata: str | None = field("committed_metadata", default="")
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class CommitResult(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    error_code: int16 = 0
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class OffsetCommitResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=3, default=0, kw_only=True)
    partitions: tuple[CommitResult, ...] = by_topic()


class OffsetCommitRequest(Request[OffsetCommitResponse], key=8, versions=(2, 10), flexible_from=8):
    group_id: str
    generation_id: int32 = field("generation_id_or_member_epoch", default=-1, kw_only=True)
    """Generation, or member epoch (KIP-848); -1 if the committer is not a member."""
    member_id: str = field(default="", kw_only=True)
    group_instance_id: str | None = field(since=7, default=None, kw_only=True)
    retention_time_ms: int64 = field(until=4, default=-1, kw_only=True)
    partitions: tuple[CommitOffset, ...] = by_topic()

    @property
    def newest_version(self) -> int | None:
        """Version 9 if the topic id of a partition is unknown; otherwise None."""
        return _newest_version(self.partitions)


# ---- fetching --------------------------------------------------------------------------------------------------

_GROUPS = OneElement("groups", since=8)


class CommittedOffset(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_index", default=0)
    offset: int64 = field("committed_offset", default=-1)
    """Committed offset; -1 if the group has none."""
    leader_epoch: int32 = field("committed_leader_epoch", since=5, default=-1)
    metadata: str | None = ""
    error_code: int16 = 0
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


class OffsetFetchResponse(ApiMessage):
    throttle_time_ms: int32 = field(since=3, default=0, kw_only=True)
    group_id: str = field(since=8, inside=_GROUPS, default="", kw_only=True)
    partitions: tuple[CommittedOffset, ...] = by_topic(inside=_GROUPS)
    error_code: int16 = field(inside=_GROUPS, default=0)
    """Error code for the whole group; if it is not 0, the response has no partitions."""


class OffsetFetchPartition(ApiMessage):
    topic: str = field("name", per_topic=True, until=_LAST_BY_NAME, ignorable=True, default="")
    partition: int32 = field("partition_indexes", default=0)
    topic_id: UUID = field(per_topic=True, since=10, ignorable=True, default=NO_TOPIC_ID)


# Version 1 cannot request all partitions, and its response has no error code for the whole group. Brokers since 0.10.2
# support version 2.
class OffsetFetchRequest(Request[OffsetFetchResponse], key=9, versions=(2, 10), flexible_from=6):
    group_id: str = field(inside=_GROUPS)
    member_id: str | None = field(since=9, ignorable=True, inside=_GROUPS, default=None, kw_only=True)
    member_epoch: int32 = field(since=9, ignorable=True, inside=_GROUPS, default=-1, kw_only=True)
    partitions: tuple[OffsetFetchPartition, ...] | None = by_topic(
        partitions="partition_indexes", bare=True, inside=_GROUPS
    )
    """Requested partitions; None for all partitions with a committed offset."""
    require_stable: bool = field(since=7, ignorable=True, default=True)
    """True to get a retriable error while an open transaction contains offsets of the group (KIP-447)."""

    @property
    def newest_version(self) -> int | None:
        """Version 9 if the topic id of a partition is unknown, or if all partitions are requested; otherwise None.

        The response for all partitions has topic names only up to version 9.
        """
        return _LAST_BY_NAME if self.partitions is None else _newest_version(self.partitions)


# ---- removal ---------------------------------------------------------------------------------------------------


class OffsetToDelete(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")


class DeletedOffset(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int32 = field("partition_index")
    error_code: int16


class OffsetDeleteResponse(ApiMessage):
    error_code: int16
    """Error code for the whole group."""
    throttle_time_ms: int32 = field(default=0, kw_only=True)
    partitions: tuple[DeletedOffset, ...] = by_topic(default=())


class OffsetDeleteRequest(Request[OffsetDeleteResponse], key=47, versions=(0, 0)):
    group_id: str
    partitions: tuple[OffsetToDelete, ...] = by_topic()
