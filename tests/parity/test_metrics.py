"""What a member measures of itself, under the names of Kafka's own consumer."""

from __future__ import annotations

import asyncio

from crew import until

from penstock.messages import HeartbeatRequest, OffsetCommitRequest

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 6_000}


def of_group(consumer, prefix="consumer"):
    """The coordinator's metrics, by name."""
    return {
        one.name: value for one, value in consumer.metrics().items() if one.group == f"{prefix}-coordinator-metrics"
    }


async def test_heartbeats_are_measured(kafka, group):
    """Their rate, the longest wait for an answer, and how long ago the last one was."""
    topic = kafka.topic_with(1)

    async with kafka.consumer(topic, group_id=group, client_id=group, **QUICK) as consumer:
        await consumer.getone()
        with kafka.proxy.delay_answer(HeartbeatRequest, 0.3, times=1) as fault:
            await fault.took_place()
            await until(lambda: of_group(consumer)["heartbeat-response-time-max"] >= 300)
        found = of_group(consumer)

    assert found["heartbeat-rate"] > 0
    assert found["heartbeat-total"] >= 1
    assert 0 <= found["last-heartbeat-seconds-ago"] < 5


async def test_joins_and_syncs_are_measured(kafka, group):
    """Each rebalance counts, with its time; the assigned partitions are those of the moment: four, then two."""
    topic = kafka.topic(4)

    async with kafka.consumer(topic, group_id=group, **QUICK) as one:
        await until(lambda: len(one.assignment()) == 4)
        before = of_group(one)
        async with kafka.consumer(topic, group_id=group, **QUICK) as other:
            await until(lambda: len(one.assignment()) == len(other.assignment()) == 2)
            after = of_group(one)

    assert (before["assigned-partitions"], after["assigned-partitions"]) == (4, 2)
    for name in ("join", "sync"):
        assert after[f"{name}-total"] > before[f"{name}-total"] >= 1
        assert after[f"{name}-time-max"] >= after[f"{name}-time-avg"] > 0
        assert after[f"{name}-rate"] > 0
    assert after["rebalance-total"] >= before["rebalance-total"]


async def test_commits_are_measured(kafka, group):
    """As many as were sent, and the slowest is as slow as the network made it."""
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
    """Each belongs to a group under the prefix that was asked for, and says of which client and group it is."""
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
