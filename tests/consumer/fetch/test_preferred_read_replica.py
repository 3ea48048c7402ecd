"""Fetching from the preferred read replica (KIP-392)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tailrace.error_codes import ErrorCode
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until
from tests.support.proxied_broker import ProxiedBroker, numbers

SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def not_here(answer):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return replace(answer, partitions=tuple(replace(one, error_code=code, records=None) for one in answer.partitions))


def from_nowhere(request):
    return replace(request, rack_id="")


@pytest.mark.slow
async def test_records_are_fetched_from_the_preferred_replica(kafka_cluster, group):
    """With client_rack, records are fetched from the replica in that rack, and from the leader if it refuses or dies.

    After metadata_max_age_ms the leader is fetched from again, even if its topic has no new records.
    """
    cluster = kafka_cluster(3, proxied=True, racks=["a", "b", "c"], config=SELECTOR)
    cluster.create_topic("near", 1, replication_factor=3)
    leader = cluster.leader_of("near").node_id
    follower = next(node for node in cluster.nodes if node.node_id != leader)
    of_leader, of_follower = cluster.proxies[leader], cluster.proxies[follower.node_id]
    witness = ProxiedBroker(cluster)
    witness.produce("near", (b"%d" % n for n in range(1_000)))
    options = {"group_id": group, "client_id": group, "client_rack": " abc"[follower.node_id]}

    def fetches(proxy) -> int:
        return len(proxy.requests(FetchRequest, client_id=group))

    def pictures() -> int:
        return sum(len(proxy.requests(MetadataRequest, client_id=group)) for proxy in cluster.proxies.values())

    async def fetched_from(proxy) -> None:
        before = fetches(proxy)
        await until(lambda: fetches(proxy) > before)

    async with witness.consumer("near", metadata_max_age_ms=3_000, **options) as consumer:
        got = [await consumer.getone() for _ in range(1_000)]
        consumer.ack(got[-1])
        fetched, seen = {proxy: fetches(proxy) for proxy in (of_leader, of_follower)}, pictures()
        await fetched_from(of_leader)
        more = pictures() - seen

    async with witness.consumer("near", **options) as consumer:
        await fetched_from(of_follower)
        with (
            of_follower.edit_answer(FetchRequest, not_here, times=None),
            of_leader.edit_request(FetchRequest, from_nowhere, times=None),
        ):
            witness.produce("near", [b"1000"])
            got.append(await consumer.getone(timeout_ms=15_000))
        await fetched_from(of_follower)
        await asyncio.to_thread(follower.kill)
        witness.produce("near", (b"%d" % n for n in range(1_001, 1_100)))
        got += [await consumer.getone() for _ in range(99)]

    assert list(range(1_100)) == numbers(got)
    assert fetched[of_follower] >= 1
    assert fetched[of_leader] <= 2
    assert more <= 1
