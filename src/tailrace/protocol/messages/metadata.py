"""The cluster: brokers, topics with their leaders, and coordinators."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tailrace.protocol.messages.request import NO_TOPIC_ID, Request

__all__ = [
    "BrokerMetadata",
    "CoordinatorAddress",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "MetadataRequest",
    "MetadataResponse",
    "MetadataTopic",
    "PartitionMetadata",
    "TopicMetadata",
]


@dataclass(frozen=True, slots=True)
class BrokerMetadata:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    error_code: int
    name: str | None
    topic_id: UUID = NO_TOPIC_ID
    is_internal: bool = False
    partitions: tuple[PartitionMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataResponse:
    brokers: tuple[BrokerMetadata, ...]
    topics: tuple[TopicMetadata, ...]
    cluster_id: str | None = None
    controller_id: int = -1
    throttle_time_ms: int = 0
    error_code: int = 0


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    name: str | None
    """None asks by the id alone, which brokers answer from version 12 on."""
    topic_id: UUID = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class MetadataRequest(Request[MetadataResponse]):
    topics: tuple[MetadataTopic, ...] | None
    """None asks for all topics, an empty tuple for none."""
    allow_auto_topic_creation: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    key: str | None
    """The group; None from a broker that answers one key at a time and does not repeat it."""
    node_id: int
    host: str
    port: int
    error_code: int = 0
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class FindCoordinatorResponse:
    coordinators: tuple[CoordinatorAddress, ...]
    throttle_time_ms: int = 0

    @property
    def only(self) -> CoordinatorAddress:
        """The one answer to the one key that was asked for."""
        return self.coordinators[0]


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest(Request[FindCoordinatorResponse]):
    key: str
    key_type: int = 0
    """0 a group, 1 a transactional id."""

    @property
    def keys(self) -> tuple[str]:
        """The same in the shape of the versions that take several."""
        return (self.key,)
