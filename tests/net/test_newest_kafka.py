"""Requests in the newest versions, to a broker of Kafka 4.4."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace import BrokerError, OffsetAndMetadata, TopicPartition, TopicRecreatedError
from tailrace.admin.groups import delete_group
from tailrace.core.group_requests import Identity
from tailrace.error_codes import ErrorCode
from tailrace.net.offsets import LATEST, list_offsets
from tailrace.producer.publisher import OutgoingRecord
from tailrace.protocol.groups import DeleteGroupsRequest
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.message import Request
from tailrace.protocol.records import ListOffsetsRequest
from tailrace.protocol.transactions import TxnOffsetCommitRequest
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.admin_tools import Reached
from tests.support.committed_records import CommittedRecords
from tests.support.net.open_connections import configured
from tests.support.witness import Witness

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    with KafkaServer(proxied=True, version="4.4.0") as started:
        yield started


@pytest.fixture
def topic(server, name) -> str:
    server.proxy.frames.clear()
    server.create_topic(name)
    return name


def last(proxy: FaultProxy, kind: type[Request[Any]]) -> tuple[int, Any]:
    """Return the version of the last request of a kind, and the request."""
    frame = proxy.requests(kind)[-1]
    return frame.version, frame.message


async def test_connections_name_the_broker_that_they_mean(server, topic):
    """ApiVersions contains the ids of cluster and node as soon as they are known, so no metadata is requested."""
    async with Reached(configured(server.bootstrap_servers)) as cluster:
        before = len(server.proxy.frames)
        await list_offsets(cluster, {TopicPartition(topic, 0): LATEST})
        version, request = last(server.proxy, ApiVersionsRequest)

        assert (version, request.cluster_id, request.node_id) == (5, cluster.topology.cluster_id, server.node.node_id)
        assert len(server.proxy.frames) > before


async def test_list_offsets_limits_the_time_for_remote_storage(server, topic):
    """ListOffsets contains nine tenths of the request's time limit, so that the broker answers before it."""
    Witness(server.bootstrap_servers).produce(topic, [b"1", b"2"])
    async with Reached(configured(server.bootstrap_servers, request_timeout_ms=4_000)) as cluster:
        partition = TopicPartition(topic, 0)
        found = await list_offsets(cluster, {partition: LATEST})

    version, request = last(server.proxy, ListOffsetsRequest)
    assert (version, request.timeout_ms) == (11, 3_600)
    assert found[partition].offset == 2


async def test_the_reason_of_a_failed_deletion_is_in_the_error(server, group):
    """The broker's message is part of the error if it does not delete a group."""

    def failed(answer: Any) -> Any:
        code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return replace(
            answer, groups=tuple(replace(one, error_code=code, error_message="disk full") for one in answer.groups)
        )

    async with Reached(configured(server.bootstrap_servers)) as cluster:
        with (
            server.proxy.edit_answer(DeleteGroupsRequest, failed),
            pytest.raises(BrokerError, match=f"group '{group}' was not deleted: disk full"),
        ):
            await delete_group(cluster, group)


async def test_a_transaction_commits_offsets_by_topic_id(server, topic, group):
    """TxnOffsetCommit names topics by id, and a transaction with offsets of a recreated topic is aborted."""
    ledger = CommittedRecords(server)
    out, place = ledger.topic(), TopicPartition(topic, 0)
    async with Reached(configured(server.bootstrap_servers)) as cluster, ledger.producer() as producer:

        async def commit(number: int, topic_id: Any) -> None:
            await producer.begin()
            await producer.send(OutgoingRecord(out, b"%d" % number, partition=0))
            await producer.commit({place: OffsetAndMetadata(number)}, Identity(), group, {place: topic_id})

        with cluster.watching([topic]):
            await cluster.refresh()
        first = cluster.topology.topic_id(topic)
        await commit(1, first)
        version, request = last(server.proxy, TxnOffsetCommitRequest)
        server.delete_topic(topic)
        server.create_topic(topic)
        with pytest.raises(TopicRecreatedError):
            await commit(2, first)

    assert (version, request.partitions[0].topic_id) == (6, first)
    assert await ledger.values(out) == [b"1"]
