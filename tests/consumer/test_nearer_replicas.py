"""A replica that is nearer than the leader: read while it does, left when it does not (KIP-392)."""

from __future__ import annotations

import dataclasses

import pytest
from crew import until
from proxied import ProxiedWitness, numbers

from penstock.error_codes import ErrorCode
from penstock.messages import FetchRequest


@pytest.mark.slow
async def test_a_nearer_replica_is_left_when_it_refuses_and_named_anew(kafka_cluster, group):
    """A leader's word is good for metadata_max_age_ms and not longer, and ends when the replica refuses."""
    selector = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    cluster = kafka_cluster(2, proxied=True, racks=["a", "b"], config=selector)
    cluster.create_topic("near", 1, replication_factor=2)
    leader = cluster.leader_of("near").node_id
    of_leader, of_follower = cluster.proxies[leader], cluster.proxies[3 - leader]
    witness = ProxiedWitness(cluster)
    witness.produce("near", (b"%d" % n for n in range(100)))
    options = {"group_id": group, "client_id": group, "client_rack": " ab"[3 - leader], "fetch_max_wait_ms": 200}

    def fetches(proxy) -> int:
        return len(proxy.requests(FetchRequest, client_id=group))

    async with witness.consumer("near", metadata_max_age_ms=4_000, **options) as consumer:
        got = [await consumer.getone() for _ in range(100)]
        consumer.ack(got[-1])
        asked = fetches(of_leader)
        # Nothing else wakes the fetches of a quiet topic but the next picture, which comes twice as late.
        await until(lambda: fetches(of_leader) > asked, 6.5)

    def not_here(answer):
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        partitions = tuple(dataclasses.replace(one, error_code=code, records=None) for one in answer.partitions)
        return dataclasses.replace(answer, partitions=partitions)

    def from_nowhere(request):
        return dataclasses.replace(request, rack_id="")

    async with witness.consumer("near", **options) as consumer:
        before = fetches(of_follower)
        await until(lambda: fetches(of_follower) > before)
        with (
            of_follower.edit_answer(FetchRequest, not_here, times=None),
            of_leader.edit_request(FetchRequest, from_nowhere, times=None),
        ):
            witness.produce("near", [b"100"])
            got.append(await consumer.getone(timeout_ms=15_000))

    assert list(range(101)) == numbers(got)
