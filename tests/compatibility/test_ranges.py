"""Versions of every request, compared with those of the oldest release and of services, from public sources."""

from __future__ import annotations

import pytest

from tailrace.protocol.admin import DeleteRecordsRequest, IncrementalAlterConfigsRequest
from tailrace.protocol.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, OffsetDeleteRequest
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import DescribeClusterRequest, DescribeQuorumRequest
from tailrace.protocol.records import OffsetForLeaderEpochRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tailrace.testing.faults import APIS
from tests.support.compatibility.services import SERVICES

NOT_NEEDED: set[type[Request]] = {
    ConsumerGroupHeartbeatRequest,  # group_protocol="consumer" is refused at the start
    ConsumerGroupDescribeRequest,  # only sent for groups of this protocol
    DescribeClusterRequest,  # the doctor goes on without fenced brokers and permissions
    DescribeQuorumRequest,  # the doctor skips controllers and clocks
}
TRANSACTIONS: set[type[Request]] = {
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
}
"""Requests without which delivery="exactly_once" is refused at the start."""

KAFKA_2_1: dict[int, tuple[int, int]] = {
    0: (0, 7),
    1: (0, 10),
    2: (0, 4),
    3: (0, 7),
    8: (0, 6),
    9: (0, 5),
    10: (0, 2),
    11: (0, 3),
    12: (0, 2),
    13: (0, 2),
    14: (0, 2),
    15: (0, 2),
    16: (0, 2),
    17: (0, 1),
    18: (0, 2),
    19: (0, 3),
    20: (0, 3),
    21: (0, 1),
    22: (0, 1),
    23: (0, 2),
    24: (0, 1),
    25: (0, 1),
    26: (0, 1),
    28: (0, 2),
    32: (0, 2),
    36: (0, 0),
    37: (0, 1),
    42: (0, 1),
}
"""Oldest and newest version by API key, as ``org.apache.kafka.common.protocol.Protocol`` of Kafka 2.1.1 prints them."""

MISSING: dict[str, set[type[Request]]] = {
    "Apache Kafka 2.1": {
        *NOT_NEEDED,
        TxnOffsetCommitRequest,  # delivery="exactly_once" is refused at the start
        OffsetDeleteRequest,  # `tailrace offsets` raises UnsupportedVersionError
        IncrementalAlterConfigsRequest,  # only sent to embedded brokers
    },
    "Redpanda": NOT_NEEDED,
    "Azure Event Hubs": {
        *NOT_NEEDED,
        *TRANSACTIONS,
        InitProducerIdRequest,  # records are published without idempotence
        OffsetForLeaderEpochRequest,  # Spark goes on without the check of truncated logs
        OffsetDeleteRequest,  # `tailrace offsets` raises UnsupportedVersionError
        DeleteRecordsRequest,  # only sent to embedded brokers
        IncrementalAlterConfigsRequest,  # only sent to embedded brokers
    },
}
"""Requests that have no version in common with a broker or service, each with what happens then."""


@pytest.mark.parametrize("name", MISSING)
def test_requests_have_a_version_in_common_with_a_broker_or_are_not_needed(name):
    """Each request has a version that the broker offers, except those whose absence is handled."""
    ranges = SERVICES[name].ranges if name in SERVICES else KAFKA_2_1
    without = {
        api.request_type
        for api in APIS
        if api.key not in ranges or ranges[api.key][1] < api.versions[0] or ranges[api.key][0] > api.versions[-1]
    }

    assert {one.__name__ for one in without} == {one.__name__ for one in MISSING[name]}
