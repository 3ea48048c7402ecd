"""Table of the APIs whose requests and responses tailrace can both encode and decode; used by FaultProxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from tailrace.protocol.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
)
from tailrace.protocol.handshake import CONSUMING, ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.message import Api
from tailrace.protocol.metadata import DescribeClusterRequest, DescribeQuorumRequest
from tailrace.protocol.records import OffsetForLeaderEpochRequest, ProduceRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["APIS", "api_by_key"]

APIS: tuple[Api[Any], ...] = (
    ApiVersionsRequest.api,
    SaslHandshakeRequest.api,
    SaslAuthenticateRequest.api,
    *CONSUMING,
    ConsumerGroupHeartbeatRequest.api,
    OffsetForLeaderEpochRequest.api,
    CreateTopicsRequest.api,
    DeleteTopicsRequest.api,
    CreatePartitionsRequest.api,
    DeleteRecordsRequest.api,
    DescribeConfigsRequest.api,
    IncrementalAlterConfigsRequest.api,
    DescribeClusterRequest.api,
    DescribeQuorumRequest.api,
    ListGroupsRequest.api,
    DescribeGroupsRequest.api,
    ConsumerGroupDescribeRequest.api,
    DeleteGroupsRequest.api,
    OffsetDeleteRequest.api,
    ProduceRequest.api,
    InitProducerIdRequest.api,
    AddPartitionsToTxnRequest.api,
    AddOffsetsToTxnRequest.api,
    TxnOffsetCommitRequest.api,
    EndTxnRequest.api,
)

_BY_KEY: Mapping[int, Api[Any]] = {api.key: api for api in APIS}


def api_by_key(key: int) -> Api[Any] | None:
    """Return the API with this key; None if tailrace does not support it."""
    return _BY_KEY.get(key)
