"""Group metrics of a member, under the names of Kafka's own consumer."""

from __future__ import annotations

import asyncio
import time

from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, SyncGroupRequest
from tests.support.consumer_group import until

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 6_000}


def of_group(consumer, prefix="consumer"):
    """Return the coordinator metrics by name."""
    return {
        one.name: value for one, value in consumer.metrics().items() if one.group == f"{prefix}-coordinator-metrics"
    }


async def test_heartbeats_are_measured(kafka, group):
    """The metrics have the rate of heartbeats, their longest response time, and the age of the last one."""
    topic = kafka.topic_with(1)

    async with kafka.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
        await consumer.getone()
        with kafka.proxy.delay_answer(HeartbeatRequest, 0.3, times=1) as fault:
            await fault.wait_applied()
            await until(lambda: of_group(consumer)["heartbeat-response-time-max"] >= 300)
        await until(lambda: of_group(consumer)["heartbeat-total"] >= 6)
        before, found, after = time.monotonic(), of_group(consumer), time.monotonic()
        asked = [one.at for one in kafka.proxy.requests(HeartbeatRequest, client_id=group)]

    # A response follows its request through the proxy, and precedes the next request.
    count = found["heartbeat-total"]
    assert count / (after - asked[0]) <= found["heartbeat-rate"] <= count / (before - asked[1])
    assert 0 <= found["last-heartbeat-seconds-ago"] <= after - asked[-2]


async def test_joins_and_syncs_are_measured(kafka, group):
    """The metrics count joins and syncs, and their longest times are at least those seen by the proxy."""
    topic, shares = kafka.topic(4), []
    options = {"group_id": group, "partition_assignment_strategy": "range", **QUICK}

    async with kafka.consumer(topic, client_id=group, **options) as one:
        await until(lambda: len(one.assignment()) == 4)
        shares.append(of_group(one)["assigned-partitions"])
        async with kafka.consumer(topic, **options) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 2)
            shares.append(of_group(one)["assigned-partitions"])
        await until(lambda: of_group(one)["rebalance-total"] == 3)
        shares.append(of_group(one)["assigned-partitions"])
        found = of_group(one)

    assert shares == [4, 2, 4]
    for name, kind in (("join", JoinGroupRequest), ("sync", SyncGroupRequest)):
        assert found[f"{name}-total"] == 3
        assert found[f"{name}-time-max"] >= longest_ms(kafka, kind, group) > 0
        assert found[f"{name}-time-max"] >= found[f"{name}-time-avg"] > 0
        assert found[f"{name}-rate"] > 0


def longest_ms(kafka, kind, client):
    """Return the longest time until a successful response that the proxy has seen, in milliseconds."""
    sent_at = {one.correlation_id: one.at for one in kafka.proxy.requests(kind, client_id=client)}
    answers = kafka.proxy.answers(kind, client_id=client)
    return max(one.at - sent_at[one.correlation_id] for one in answers if not one.message.error_code) * 1000


async def test_commits_are_measured(kafka, group):
    """The metrics count each commit, and their highest latency includes that of the network."""
    topic = kafka.topic_with(10)

    async with kafka.consumer(
        topic, group_id=group, client_id=group, auto_commit_interval_ms=None, **QUICK
    ) as consumer:
        await consumer.getone()
        await consumer.commit()
        with kafka.proxy.delay_answer(OffsetCommitRequest, 0.3, times=1):
            await consumer.getone()
            await consumer.commit()
        found = of_group(consumer)
        sent = len(kafka.proxy.requests(OffsetCommitRequest, client_id=group))

    assert found["commit-total"] == sent == 2
    assert found["commit-latency-max"] >= 300
    assert found["commit-latency-avg"] >= 150
    assert found["commit-rate"] > 0


async def test_metrics_have_groups_and_tags(kafka, group):
    """Each metric group has the configured prefix, and each metric has the tags of its client and group."""
    topic = kafka.topic_with(10)
    options = {"metric_group_prefix": "ours", "client_id": group, **QUICK}

    async with kafka.consumer(topic, group_id=group, **options) as consumer:
        await consumer.getone()
        await asyncio.sleep(0)
        names = list(consumer.metrics())
        lag = {one.name: value for one, value in consumer.metrics().items()}["records-lag"]

    assert {one.group for one in names} == {"ours-coordinator-metrics", "ours-fetch-manager-metrics"}
    assert all(("client-id", group) in one.tags for one in names)
    assert all(("group-id", group) in one.tags for one in names if one.group == "ours-coordinator-metrics")
    assert lag == 9
