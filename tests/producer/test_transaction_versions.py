"""Versions of transactions (KIP-890): chosen by the finalized feature, with the requests that each of them needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tailrace import OffsetAndMetadata, PublishError, TopicPartition
from tailrace.config import resolve
from tailrace.core.group_requests import Identity
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.record_producer import RecordProducer
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.protocol.handshake import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.records import ProduceRequest
from tailrace.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.committed_records import CommittedRecords
from tests.support.pipelines import QUICK_BROKER
from tests.support.transactional_broker import finalize

OF_TRANSACTIONS = (
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    ProduceRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)
NAMES = {one.api.key: one.api.name for one in OF_TRANSACTIONS}


@pytest.fixture
def ledger(own_server) -> CommittedRecords:
    """Provide a ledger whose producers connect through the proxy."""
    return CommittedRecords(own_server)


def finalized_at(level: int) -> Callable[[ApiVersionsResponse], ApiVersionsResponse]:
    """Return an edit after which the broker has finalized this version, and otherwise offers what it did."""

    def edit(answer: ApiVersionsResponse) -> ApiVersionsResponse:
        features = [one for one in answer.finalized_features if one.name != "transaction.version"]
        if level and (found := [one for one in answer.finalized_features if one not in features]):
            features.append(replace(found[0], max_version_level=level, min_version_level=level))
        return replace(answer, finalized_features=tuple(features))

    return edit


def sent(proxy: FaultProxy) -> list[str]:
    """Return the requests of transactions that the proxy has received, with their versions."""
    requests = [one for one in proxy.frames if one.direction == "request" and one.api_key in NAMES]
    return [f"{NAMES[one.api_key]} v{one.version}" for one in requests]


async def commit_one(producer: TransactionalProducer, topic: str, number: int, group: str) -> None:
    """Commit a record in one partition, and an offset."""
    await producer.begin()
    await producer.send(OutgoingRecord(topic, b"%d" % number, partition=0))
    await producer.commit({TopicPartition(topic, 0): OffsetAndMetadata(number)}, Identity(), group)


async def test_version_2_saves_two_requests_of_each_transaction(ledger, proxy, group, transaction_version):
    """A transaction with a record and an offset takes five requests in version 1, and three in version 2."""
    topic = ledger.topic()

    async with ledger.producer() as producer:
        await commit_one(producer, topic, 1, group)
        proxy.frames.clear()
        await commit_one(producer, topic, 2, group)
        requests = list(dict.fromkeys(sent(proxy)))

    assert (
        requests
        == {
            1: ["AddPartitionsToTxn v3", "Produce v11", "AddOffsetsToTxn v4", "TxnOffsetCommit v4", "EndTxn v4"],
            2: ["Produce v12", "TxnOffsetCommit v5", "EndTxn v5"],
        }[transaction_version]
    )
    assert await ledger.values(topic) == [b"1", b"2"]
    assert await ledger.group_offsets(group, topic) == {0: 2}


@pytest.mark.parametrize("level", [0, 1])
async def test_the_range_of_versions_chooses_nothing(ledger, proxy, group, level):
    """A broker that offers all requests of version 2, and has not finalized it, receives none of them."""
    topic = ledger.topic()

    with proxy.edit_answer(ApiVersionsRequest, finalized_at(level), times=None):
        async with ledger.producer() as producer:
            await commit_one(producer, topic, 1, group)

    assert {"Produce v11", "TxnOffsetCommit v4", "EndTxn v4"} < set(sent(proxy))
    assert await ledger.values(topic) == [b"1"]


async def test_records_outside_of_transactions_are_sent_in_version_11(own_server, ledger, proxy):
    """A producer without transactions never uses Produce version 12, which some services offer and refuse."""
    topic = ledger.topic()

    async with RecordProducer(resolve({**own_server.client_options}, {})) as producer:
        await producer.publish(OutgoingRecord(topic, b"1"))

    assert [one for one in sent(proxy) if one.startswith("Produce")] == ["Produce v11"]


async def test_the_version_is_chosen_when_a_transaction_begins(ledger, proxy, group, transaction_version):
    """A version that is finalized while the producer runs is used from the next transaction on that has connected."""
    if transaction_version == 1:
        pytest.skip("the broker must have finalized version 2")
    topic = ledger.topic()
    first = proxy.edit_answer(ApiVersionsRequest, finalized_at(1), times=None)

    async with ledger.producer() as producer:
        await commit_one(producer, topic, 1, group)
        before = producer._machine.producer
        first.end()
        await producer.begin()
        await producer.send(OutgoingRecord(topic, b"2", partition=0))
        await ledger.flush(producer)
        # The connections are opened again, and report version 2.
        proxy.reset()
        await producer.commit()
        assert "EndTxn v5" not in sent(proxy)
        await commit_one(producer, topic, 3, group)
        assert "EndTxn v5" in sent(proxy)
        assert producer._machine.producer.epoch > before.epoch
        with proxy.edit_answer(ApiVersionsRequest, older(finalized_at(1)), times=None):
            proxy.frames.clear()
            proxy.reset()
            await commit_one(producer, topic, 4, group)
            await commit_one(producer, topic, 5, group)
            assert "EndTxn v4" in sent(proxy)

    assert await ledger.values(topic) == [b"%d" % number for number in range(1, 6)]
    assert await ledger.group_offsets(group, topic) == {0: 5}


def older(edit: Callable[[ApiVersionsResponse], ApiVersionsResponse]) -> Callable[[Any], Any]:
    """Return ``edit`` with a higher epoch of the features, as after a downgrade."""

    def edited(answer: ApiVersionsResponse) -> ApiVersionsResponse:
        return replace(edit(answer), finalized_features_epoch=answer.finalized_features_epoch + 1)

    return edited


async def test_a_leader_without_version_12_ends_the_producer(ledger, proxy, group, transaction_version):
    """If a leader lacks Produce version 12 in a transaction of version 2, the error names it; nothing is stored."""
    if transaction_version == 1:
        pytest.skip("version 1 does not need it")
    topic = ledger.topic()

    async with ledger.producer() as producer:
        await producer.begin()
        producer._running.sender._connections.clear()

        def limited(answer: ApiVersionsResponse) -> ApiVersionsResponse:
            ranges = (
                replace(one, max_version=11) if one.api_key == ProduceRequest.api.key else one
                for one in answer.api_keys
            )
            return replace(answer, api_keys=tuple(ranges))

        with proxy.edit_answer(ApiVersionsRequest, limited, times=None):
            await producer.send(OutgoingRecord(topic, b"1", partition=0))
            with pytest.raises(PublishError, match=r"Produce: required is version 12, the broker supports \d to 11"):
                await producer.commit()

    assert await ledger.values(topic) == []


@pytest.mark.slow
async def test_a_running_producer_follows_an_upgrade_and_a_downgrade_of_the_cluster(group):
    """Transactions are exactly once while an administrator finalizes version 2, and version 1 again."""
    with KafkaServer(proxied=True, config=QUICK_BROKER) as server:
        await asyncio.to_thread(finalize, server, 1)
        ledger = CommittedRecords(server)
        topic, kinds = ledger.topic(), []
        async with ledger.producer() as producer:
            for number, version in enumerate((1, 2, 1, 2), 1):
                if number > 1:
                    await asyncio.to_thread(finalize, server, version)
                    server.proxy.reset()
                await commit_one(producer, topic, number * 10, group)
                server.proxy.frames.clear()
                await commit_one(producer, topic, number * 10 + 1, group)
                kinds.append([one for one in sent(server.proxy) if one.startswith("EndTxn")])

        assert kinds == [["EndTxn v4"], ["EndTxn v5"], ["EndTxn v4"], ["EndTxn v5"]]
        assert await ledger.values(topic) == [b"%d" % (n * 10 + one) for n in range(1, 5) for one in (0, 1)]
        assert await ledger.group_offsets(group, topic) == {0: 41}
