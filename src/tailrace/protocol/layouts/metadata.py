"""Which brokers and partitions there are, and who coordinates a group."""

from __future__ import annotations

from tailrace.protocol.encoding.api import ApiLayout, api
from tailrace.protocol.encoding.primitives import BOOL, INT8, INT16, INT32, NOT_ASKED_FOR, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, Struct, field, only
from tailrace.protocol.messages import (
    BrokerMetadata,
    CoordinatorAddress,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    PartitionMetadata,
    TopicMetadata,
)

__all__ = ["FIND_COORDINATOR", "METADATA"]

METADATA = api(
    3,
    "Metadata",
    # Below 4 a look at a topic creates it, which only the one who asks may want.
    versions=(4, 13),
    flexible=9,
    message=MetadataRequest,
    request=Struct(
        MetadataRequest,
        field(
            "topics",
            Array.of(MetadataTopic, field("topic_id", UUIDS, 10), field("name", STRING, nullable=10)),
            nullable=1,
        ),
        field("allow_auto_topic_creation", BOOL, 4),
        field("include_cluster_authorized_operations", BOOL, 8, 10, unused=False),
        field("include_topic_authorized_operations", BOOL, 8, unused=False),
    ),
    response=Struct(
        MetadataResponse,
        field("throttle_time_ms", INT32, 3),
        field(
            "brokers",
            Array.of(
                BrokerMetadata,
                field("node_id", INT32),
                field("host", STRING),
                field("port", INT32),
                field("rack", STRING, 1, nullable=1),
            ),
        ),
        field("cluster_id", STRING, 2, nullable=2),
        field("controller_id", INT32, 1),
        field(
            "topics",
            Array.of(
                TopicMetadata,
                field("error_code", INT16),
                field("name", STRING, nullable=12),
                field("topic_id", UUIDS, 10),
                field("is_internal", BOOL, 1),
                field(
                    "partitions",
                    Array.of(
                        PartitionMetadata,
                        field("error_code", INT16),
                        field("partition_index", INT32, attribute="partition"),
                        field("leader_id", INT32),
                        field("leader_epoch", INT32, 7),
                        field("replica_nodes", Array(INT32), attribute="replicas"),
                        field("isr_nodes", Array(INT32), attribute="isr"),
                        field("offline_replicas", Array(INT32), 5),
                    ),
                ),
                field("topic_authorized_operations", INT32, 8, unused=NOT_ASKED_FOR),
            ),
        ),
        field("cluster_authorized_operations", INT32, 8, 10, unused=NOT_ASKED_FOR),
        field("error_code", INT16, 13),
    ),
)


def _one_coordinator(  # noqa: PLR0913 - the fields of the old answer
    *, error_code: int, node_id: int, host: str, port: int, error_message: str | None = None, throttle_time_ms: int = 0
) -> FindCoordinatorResponse:
    one = CoordinatorAddress(None, node_id, host, port, error_code, error_message)
    return FindCoordinatorResponse((one,), throttle_time_ms)


def _one_key(keys: tuple[str, ...], key_type: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(only(keys), key_type)


def _of_one_key(coordinators: tuple[CoordinatorAddress, ...], throttle_time_ms: int) -> FindCoordinatorResponse:
    return FindCoordinatorResponse((only(coordinators),), throttle_time_ms)


FIND_COORDINATOR = api(
    10,
    "FindCoordinator",
    versions=(0, 6),
    flexible=3,
    message=FindCoordinatorRequest,
    request=(
        ApiLayout(0, Struct(FindCoordinatorRequest, field("key", STRING, 0, 3), field("key_type", INT8, 1))),
        ApiLayout(
            4,
            Struct(
                _one_key,
                field("key_type", INT8, 1),
                field("coordinator_keys", Array(STRING), 4, attribute="keys"),
            ),
        ),
    ),
    response=(
        ApiLayout(
            0,
            Struct(
                _one_coordinator,
                field("throttle_time_ms", INT32, 1),
                field("error_code", INT16, path="only.error_code"),
                field("error_message", STRING, 1, nullable=1, path="only.error_message"),
                field("node_id", INT32, path="only.node_id"),
                field("host", STRING, path="only.host"),
                field("port", INT32, path="only.port"),
            ),
        ),
        ApiLayout(
            4,
            Struct(
                _of_one_key,
                field("throttle_time_ms", INT32, 1),
                field(
                    "coordinators",
                    Array.of(
                        CoordinatorAddress,
                        field("key", STRING),
                        field("node_id", INT32),
                        field("host", STRING),
                        field("port", INT32),
                        field("error_code", INT16),
                        field("error_message", STRING, nullable=4),
                    ),
                ),
            ),
        ),
    ),
)
