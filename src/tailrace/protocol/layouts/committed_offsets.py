"""Offsets that a group has committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tailrace.protocol.encoding.api import ApiLayout, api
from tailrace.protocol.encoding.primitives import BOOL, INT16, INT32, INT64, STRING, UUIDS
from tailrace.protocol.encoding.schema import Array, ByTopic, Struct, field, only
from tailrace.protocol.messages import (
    CommitOffset,
    CommitResult,
    CommittedOffset,
    DeletedOffset,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToDelete,
)

__all__ = ["OFFSET_COMMIT", "OFFSET_DELETE", "OFFSET_FETCH"]

_TOPIC = (field("name", STRING, attribute="topic"),)
_TOPIC_OR_ID = (
    field("name", STRING, 0, 9, attribute="topic", ignorable=True),
    field("topic_id", UUIDS, 10, ignorable=True),
)
_PARTITION = field("partition_index", INT32, attribute="partition")

OFFSET_COMMIT = api(
    8,
    "OffsetCommit",
    versions=(2, 10),
    flexible=8,
    message=OffsetCommitRequest,
    request=Struct(
        OffsetCommitRequest,
        field("group_id", STRING),
        field("generation_id_or_member_epoch", INT32, 1, attribute="generation_id"),
        field("member_id", STRING, 1),
        field("group_instance_id", STRING, 7, nullable=7),
        field("retention_time_ms", INT64, 2, 4, unused=-1),
        field(
            "topics",
            ByTopic(
                _TOPIC_OR_ID,
                "partitions",
                Struct(
                    CommitOffset,
                    _PARTITION,
                    field("committed_offset", INT64, attribute="offset"),
                    field("committed_leader_epoch", INT32, 6, ignorable=True, attribute="leader_epoch"),
                    field("committed_metadata", STRING, nullable=0, attribute="metadata"),
                ),
            ),
            attribute="partitions",
        ),
    ),
    response=Struct(
        OffsetCommitResponse,
        field("throttle_time_ms", INT32, 3),
        field(
            "topics",
            ByTopic(_TOPIC_OR_ID, "partitions", Struct(CommitResult, _PARTITION, field("error_code", INT16))),
            attribute="partitions",
        ),
    ),
)

_ASKED_FOR = ByTopic(
    _TOPIC_OR_ID,
    "partition_indexes",
    Struct(OffsetFetchPartition, field("partition_indexes", INT32, attribute="partition")),
    bare=True,
)


def _found(epoch_since: int) -> ByTopic:
    return ByTopic(
        _TOPIC_OR_ID,
        "partitions",
        Struct(
            CommittedOffset,
            _PARTITION,
            field("committed_offset", INT64, attribute="offset"),
            field("committed_leader_epoch", INT32, epoch_since, attribute="leader_epoch"),
            field("metadata", STRING, nullable=0),
            field("error_code", INT16),
        ),
    )


def _only_group(groups: Sequence[OffsetFetchResponse], throttle_time_ms: int) -> OffsetFetchResponse:
    return replace(only(groups), throttle_time_ms=throttle_time_ms)


def _only_request(groups: Sequence[OffsetFetchRequest], require_stable: bool) -> OffsetFetchRequest:  # noqa: FBT001
    return replace(only(groups), require_stable=require_stable)


OFFSET_FETCH = api(
    9,
    "OffsetFetch",
    # Version 1 cannot ask for all partitions and has no error of the whole group; every broker since 0.10.2 has 2.
    versions=(2, 10),
    flexible=6,
    message=OffsetFetchRequest,
    request=(
        ApiLayout(
            2,
            Struct(
                OffsetFetchRequest,
                field("group_id", STRING, 0, 7),
                field("topics", _ASKED_FOR, 0, 7, nullable=2, attribute="partitions"),
                # Older brokers have no pending transactional offsets to wait for (KIP-447).
                field("require_stable", BOOL, 7, ignorable=True),
            ),
        ),
        ApiLayout(
            8,
            Struct(
                _only_request,
                field(
                    "groups",
                    Array.of(
                        OffsetFetchRequest,
                        field("group_id", STRING),
                        field("member_id", STRING, 9, nullable=9, ignorable=True),
                        field("member_epoch", INT32, 9, ignorable=True),
                        field("topics", _ASKED_FOR, nullable=8, attribute="partitions"),
                    ),
                ),
                field("require_stable", BOOL),
            ),
        ),
    ),
    response=(
        ApiLayout(
            2,
            Struct(
                OffsetFetchResponse,
                field("throttle_time_ms", INT32, 3),
                field("topics", _found(5), attribute="partitions"),
                field("error_code", INT16, 2),
            ),
        ),
        ApiLayout(
            8,
            Struct(
                _only_group,
                field("throttle_time_ms", INT32, 3),
                field(
                    "groups",
                    Array.of(
                        OffsetFetchResponse,
                        field("group_id", STRING),
                        field("topics", _found(8), attribute="partitions"),
                        field("error_code", INT16),
                    ),
                ),
            ),
        ),
    ),
)

OFFSET_DELETE = api(
    47,
    "OffsetDelete",
    versions=(0, 0),
    message=OffsetDeleteRequest,
    request=Struct(
        OffsetDeleteRequest,
        field("group_id", STRING),
        field("topics", ByTopic(_TOPIC, "partitions", Struct(OffsetToDelete, _PARTITION)), attribute="partitions"),
    ),
    response=Struct(
        OffsetDeleteResponse,
        field("error_code", INT16),
        field("throttle_time_ms", INT32),
        field(
            "topics",
            ByTopic(_TOPIC, "partitions", Struct(DeletedOffset, _PARTITION, field("error_code", INT16))),
            attribute="partitions",
        ),
    ),
)
