"""Table of the APIs whose requests and responses tailrace can both encode and decode; used by FaultProxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.protocol.api_versions import CONSUMING
from tailrace.protocol.committed_offsets import OffsetDeleteRequest
from tailrace.protocol.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from tailrace.protocol.consumer_group import ConsumerGroupHeartbeatRequest
from tailrace.protocol.encoding.api import Api
from tailrace.protocol.group_descriptions import (
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from tailrace.protocol.handshake import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.list_offsets import OffsetForLeaderEpochRequest
from tailrace.protocol.metadata import DescribeClusterRequest, DescribeQuorumRequest
from tailrace.protocol.produce import ProduceRequest
from tailrace.protocol.topics import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
)
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
