"""Topics: made, changed and deleted by tools and tests."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tailrace.protocol.messages.metadata import MetadataTopic
from tailrace.protocol.messages.request import NO_TOPIC_ID, Request

__all__ = [
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DeletedRecords",
    "NewPartitions",
    "NewTopic",
    "RecordsToDelete",
    "ReplicaAssignment",
    "TopicConfig",
    "TopicResult",
]


@dataclass(frozen=True, slots=True)
class TopicConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ReplicaAssignment:
    partition: int
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NewTopic:
    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[ReplicaAssignment, ...] = ()
    configs: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicResult:
    name: str | None
    error_code: int
    error_message: str | None = None
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class CreateTopicsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest(Request[CreateTopicsResponse]):
    topics: tuple[NewTopic, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopicsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest(Request[DeleteTopicsResponse]):
    topics: tuple[MetadataTopic, ...]
    timeout_ms: int = 60_000

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The same in the shape of the versions that know no topic ids."""
        return tuple(topic.name or "" for topic in self.topics)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    name: str
    count: int
    """How many the topic shall have in all."""
    assignments: None = None


@dataclass(frozen=True, slots=True)
class CreatePartitionsResponse:
    topics: tuple[TopicResult, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(Request[CreatePartitionsResponse]):
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class RecordsToDelete:
    topic: str
    partition: int
    offset: int
    """The first to keep; -1 deletes all there are."""


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    topic: str
    partition: int
    low_watermark: int
    error_code: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    partitions: tuple[DeletedRecords, ...]
    throttle_time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest(Request[DeleteRecordsResponse]):
    partitions: tuple[RecordsToDelete, ...]
    timeout_ms: int = 60_000
