"""Several consumers on one cluster: shared and separate state."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import Consumer, ConsumerStateError, SharedCluster
from tailrace.protocol.groups import JoinGroupRequest, OffsetCommitRequest
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest
from tests.support.event_recorder import EventRecorder

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100}


def connections(kafka, kind, client):
    return {frame.connection for frame in kafka.proxy.requests(kind, client_id=client)}


async def test_members_share_a_cluster(kafka, group):
    """Consumers of a SharedCluster share one connection for commits and have their own for fetches and joins."""
    topics = [kafka.topic_with(5), kafka.topic_with(5)]

    async with SharedCluster(bootstrap_servers=kafka.bootstrap_servers, client_id=group) as cluster:
        async with (
            Consumer(topics[0], cluster=cluster, group_id=f"{group}-1", **QUICK) as one,
            Consumer(topics[1], cluster=cluster, group_id=f"{group}-2", **QUICK) as other,
        ):
            for consumer in (one, other):
                got = [(await consumer.getone()).offset for _ in range(5)]
                assert got == list(range(5))
                await consumer.commit()
        committed = [await kafka.committed(f"{group}-{n + 1}", topics[n], 1) for n in range(2)]

    assert committed == [{0: 5}, {0: 5}]
    assert len(connections(kafka, OffsetCommitRequest, group)) == 1
    assert len(connections(kafka, FetchRequest, group)) == 2
    assert len(connections(kafka, JoinGroupRequest, group)) == 2
    # One connection to the bootstrap address, one for everything after it.
    assert len(connections(kafka, MetadataRequest, group)) <= 2


async def test_a_stopped_consumer_does_not_affect_the_others(kafka, group):
    """When a consumer stops, other consumers of its SharedCluster continue and new ones can start."""
    topic, events = kafka.topic_with(5), EventRecorder()
    options = {"auto_offset_reset": "earliest"}

    async with SharedCluster(bootstrap_servers=kafka.bootstrap_servers, client_id=group, hooks=[events]) as cluster:
        async with Consumer(topic, cluster=cluster, **options) as one:
            await one.getone()
            async with Consumer(topic, cluster=cluster, **options) as other:
                await other.getone()
            records = [await one.getone() for _ in range(4)]
        async with Consumer(topic, cluster=cluster, **options) as later:
            first = await later.getone()
        tasks = {task.get_name() for task in asyncio.all_tasks()}

    assert [record.offset for record in records] == [1, 2, 3, 4]
    assert first.offset == 0
    assert not [name for name in tasks if name.startswith("tailrace consumer")]


async def test_a_shared_cluster_must_be_started(kafka):
    """A consumer raises at start() before its SharedCluster is started and after it is stopped."""
    cluster = SharedCluster(bootstrap_servers=kafka.bootstrap_servers)
    with pytest.raises(ConsumerStateError, match="not started"):
        await Consumer("orders", cluster=cluster).start()
    async with cluster:
        with pytest.raises(ConsumerStateError, match="already started"):
            await cluster.start()
    with pytest.raises(ConsumerStateError, match="was stopped"):
        await Consumer("orders", cluster=cluster).start()
