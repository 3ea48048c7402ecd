"""The compatibility suite notices a broker that lacks a capability without saying so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace.error_codes import ErrorCode
from tailrace.protocol.admin import CreateTopicsRequest
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest, ListOffsetsRequest, ProduceRequest
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tailrace.testing import FaultProxy, KafkaServer
from tailrace.testing.faults import Fault
from tests.support.compatibility.capabilities import CAPABILITIES, Cluster, examine


def each(field: str, **changes: object) -> Callable[[Any], Any]:
    """Return a function that changes each entry of a field of a message."""
    return lambda message: replace(
        message, **{field: tuple(replace(one, **changes) for one in getattr(message, field))}
    )


def lower_offsets(message: Any) -> Any:
    """Return a commit whose offsets are lower by one."""
    return replace(message, partitions=tuple(replace(one, offset=one.offset - 1) for one in message.partitions))


BREAKS: dict[str, Callable[[FaultProxy], Fault]] = {
    "consume": lambda proxy: proxy.edit_answer(FetchRequest, each("partitions", records=None), times=None),
    "classic group": lambda proxy: proxy.edit_answer(
        SyncGroupRequest, lambda answer: replace(answer, assignment=b""), times=None
    ),
    "KIP-848": lambda proxy: proxy.edit_answer(
        ConsumerGroupHeartbeatRequest, lambda answer: replace(answer, assignment=None), times=None
    ),
    "offset map": lambda proxy: proxy.edit_request(OffsetCommitRequest, each("partitions", metadata=""), times=None),
    "publish": lambda proxy: proxy.edit_answer(
        ProduceRequest, each("partitions", error_code=ErrorCode.INVALID_RECORD), times=None
    ),
    "retry topics, dead letters": lambda proxy: proxy.edit_answer(
        CreateTopicsRequest, each("topics", error_code=ErrorCode.POLICY_VIOLATION), times=None
    ),
    "exactly once": lambda proxy: proxy.edit_request(TxnOffsetCommitRequest, lower_offsets, times=None),
    "doctor": lambda proxy: proxy.edit_answer(MetadataRequest, each("brokers", port=1), times=None),
    "commands": lambda proxy: proxy.edit_request(OffsetCommitRequest, lower_offsets, times=None),
    "dead-letter commands": lambda proxy: proxy.edit_answer(
        ListOffsetsRequest, each("partitions", offset=0), times=None
    ),
    "deleting commands": lambda proxy: proxy.edit_request(
        OffsetDeleteRequest, lambda request: replace(request, partitions=()), times=None
    ),
}
"""Fault by capability: most responses to it look correct, so that only its effect is missing."""


@pytest.fixture(scope="module")
def server():
    with KafkaServer(proxied=True) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPABILITIES)
async def test_a_broken_capability_fails(server, name):
    """A capability whose effect is missing fails."""
    direct = f"127.0.0.1:{server.nodes[0].ports.internal}"
    with BREAKS[name](server.proxy):
        outcomes = await examine(Cluster(server.bootstrap_servers, direct, timeout_s=4), [name])

    assert outcomes[name].result == "fails", outcomes
