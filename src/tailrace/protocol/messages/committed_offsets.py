"""Committed offsets: kept by the group's coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tailrace.protocol.messages.request import NO_TOPIC_ID, Request

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
"""Newest version of OffsetCommit and OffsetFetch that names topics; newer ones have topic ids alone."""


class _TopicEntry(Protocol):
    @property
    def topic_id(self) -> UUID: ...


def _newest_version(entries: Iterable[_TopicEntry]) -> int | None:
    return _LAST_BY_NAME if any(entry.topic_id == NO_TOPIC_ID for entry in entries) else None


@dataclass(frozen=True, slots=True)
class CommitOffset:
    topic: str = ""
    partition: int = 0
    offset: int = -1
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class CommitResult:
    topic: str = ""
    partition: int = 0
    error_code: int = 0
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    partitions: tuple[CommitResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(Request[OffsetCommitResponse]):
    group_id: str
    partitions: tuple[CommitOffset, ...]
    generation_id: int = -1
    """Or the member's epoch under KIP-848; -1 outside of any membership."""
    member_id: str = ""
    group_instance_id: str | None = None

    @property
    def newest_version(self) -> int | None:
        """9 unless each partition has a topic id."""
        return _newest_version(self.partitions)


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    topic: str = ""
    partition: int = 0
    offset: int = -1
    """-1 when the group has none."""
    leader_epoch: int = -1
    metadata: str | None = ""
    error_code: int = 0
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    partitions: tuple[CommittedOffset, ...]
    error_code: int = 0
    """Of the whole group: from version 2 on the broker says here, with no partition, that it could not answer."""
    throttle_time_ms: int = 0
    group_id: str = ""

    @property
    def groups(self) -> tuple[OffsetFetchResponse]:
        """The same in the shape of the versions that answer for several."""
        return (self,)


@dataclass(frozen=True, slots=True)
class OffsetFetchPartition:
    topic: str = ""
    partition: int = 0
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request[OffsetFetchResponse]):
    group_id: str
    partitions: tuple[OffsetFetchPartition, ...] | None
    """None asks for all that the group has committed."""
    require_stable: bool = True
    member_id: str | None = None
    member_epoch: int = -1

    @property
    def newest_version(self) -> int | None:
        """9 unless each partition has a topic id: all that a group has committed is answered by name."""
        return _LAST_BY_NAME if self.partitions is None else _newest_version(self.partitions)

    @property
    def groups(self) -> tuple[OffsetFetchRequest]:
        """The same in the shape of the versions that take several."""
        return (self,)


@dataclass(frozen=True, slots=True)
class OffsetToDelete:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class DeletedOffset:
    topic: str
    partition: int
    error_code: int


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    error_code: int
    """Of the whole group."""
    partitions: tuple[DeletedOffset, ...] = ()
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(Request[OffsetDeleteResponse]):
    group_id: str
    partitions: tuple[OffsetToDelete, ...]
