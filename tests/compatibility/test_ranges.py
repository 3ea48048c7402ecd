"""Versions of every request, compared with those that services offer according to public sources."""

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

MISSING: dict[str, set[type[Request]]] = {
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
"""Requests that have no version in common with a service, each with what happens then."""


@pytest.mark.parametrize("name", sorted(set(SERVICES) & set(MISSING)))
def test_requests_have_a_version_in_common_with_a_service_or_are_not_needed(name):
    """Each request has a version that the service offers, except those whose absence is handled."""
    ranges = SERVICES[name].ranges
    without = {
        api.request_type
        for api in APIS
        if api.key not in ranges or ranges[api.key][1] < api.versions[0] or ranges[api.key][0] > api.versions[-1]
    }

    assert {one.__name__ for one in without} == {one.__name__ for one in MISSING[name]}
