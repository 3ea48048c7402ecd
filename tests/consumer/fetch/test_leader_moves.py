"""Fetches while partitions change their leaders."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from tailrace import Consumer, TopicPartition
from tailrace.observe.events import FetchInterrupted
from tests.support.event_recorder import EventRecorder
from tests.support.witness import Witness


@pytest.mark.slow
async def test_a_planned_leader_election_causes_no_warning(kafka_cluster):
    """After a planned leader election, fetches are repeated with new metadata, and no warning is emitted."""
    cluster = kafka_cluster(3)
    cluster.create_topic("moving", 12, replication_factor=3)
    node, events = cluster.leader_of("moving"), EventRecorder()
    await asyncio.to_thread(node.stop)
    await asyncio.to_thread(cluster.restart, node)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    await asyncio.to_thread(until_in_sync, admin, "moving", 3)

    reading = {"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest", "hooks": [events]}
    async with Consumer(**reading) as consumer:
        await consumer.assign([TopicPartition("moving", number) for number in range(12)])
        Witness(cluster.bootstrap_servers).produce("moving", [b"before"])
        await consumer.getone()
        began = len(events.events)
        await asyncio.to_thread(admin.elect_leaders(ElectionType.PREFERRED).result, 30)
        interrupted = await events.wait_for(FetchInterrupted)
        for number in range(12):
            Witness(cluster.bootstrap_servers).produce("moving", [b"after"], partition=number)
        got = [await consumer.getone() for _ in range(12)]

    assert {record.partition for record in got} == set(range(12))
    assert "LEADER" in interrupted.error
    assert not [event for event in events.events[began:] if event.level >= logging.WARNING]


def until_in_sync(admin, topic, replicas):
    """Wait until all replicas of each partition are in sync, so that an election moves its leader."""
    give_up_at = time.monotonic() + 30
    while any(len(one.isrs) < replicas for one in admin.list_topics(topic, 20).topics[topic].partitions.values()):
        assert time.monotonic() < give_up_at, f"waited in vain for all replicas of {topic}"
