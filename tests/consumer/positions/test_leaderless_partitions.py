"""Seeks and start offsets of several partitions, of which one has no leader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tailrace import App, BrokerError, Consumer, RequestTimedOutError, TopicPartition
from tailrace.observe.events import StartOffsetDelayed, StartOffsetFound
from tailrace.protocol.metadata import MetadataRequest
from tests.support.event_recorder import EventRecorder
from tests.support.witness import Witness


def without_leader(topic: str, partition: int):
    """Return a function that edits a metadata response so that one partition has no leader."""

    def edit(answer):
        topics = [
            replace(
                one,
                partitions=tuple(
                    replace(each, leader_id=-1) if each.partition == partition else each for each in one.partitions
                ),
            )
            if one.name == topic
            else one
            for one in answer.topics
        ]
        return replace(answer, topics=tuple(topics))

    return edit


@pytest.mark.parametrize("call", ["seek_to_beginning", "seek_to_end", "seek_to_time"])
async def test_a_seek_moves_each_partition_by_itself(kafka, group, call):
    """A seek moves the partitions that have a leader; an event and health() tell the other, which is moved later."""
    topic, events = kafka.topic_with(5, partitions=3), EventRecorder()
    lost, *others = (TopicPartition(topic, number) for number in (1, 0, 2))
    target = 5 if call == "seek_to_end" else 0
    async with kafka.consumer(group_id=group, hooks=[events], default_api_timeout_ms=5_000) as consumer:
        await consumer.assign(topic, at=2)
        with kafka.proxy.edit_answer(MetadataRequest, without_leader(topic, 1), times=None):
            await consumer._started.parts.cluster.refresh()
            async with asyncio.timeout(20):
                moved = await (consumer.seek_to_time(1) if call == "seek_to_time" else getattr(consumer, call)())
            delayed, health = events.of(StartOffsetDelayed), consumer.health()
            if target == 0:
                assert (await consumer.getone()).partition != 1
            with pytest.raises(RequestTimedOutError, match=r"no leader"):
                await consumer.seek(lost, 0, whence="earliest")
        found = await events.wait_for(StartOffsetFound)
        assert await consumer.position(lost) == 0
        assert consumer.health().status == "ok"

    assert moved == dict.fromkeys(others, target)
    assert [(one.partition, one.reason) for one in delayed] == [(lost, "the partition has no leader")]
    assert health.status == "degraded"
    assert str(lost) in health.detail
    assert (found.partition, found.offset) == (lost, 0)


async def test_the_first_assignment_resets_each_partition_by_itself(kafka, group):
    """With reset_offset_on_start, a partition without a leader does not hold up the others."""
    topic = kafka.topic_with(5, partitions=3)
    options = {"group_id": group, "reset_offset_on_start": True}
    with kafka.proxy.edit_answer(MetadataRequest, without_leader(topic, 1), times=None):
        async with kafka.consumer(topic, **options) as consumer, asyncio.timeout(30):
            assert (await consumer.getone()).partition != 1


async def test_an_app_tells_a_partition_without_a_start_offset(kafka, group):
    """An app handles the partitions that have a leader, and its health names the one that has none."""
    topic, seen, events = kafka.topic_with(1, partitions=3), asyncio.Queue(), EventRecorder()
    app = App(bootstrap_servers=kafka.bootstrap_servers, group_id=group, hooks=[events])

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        seen.put_nowait(value)

    with kafka.proxy.edit_answer(MetadataRequest, without_leader(topic, 1), times=None):
        async with app, asyncio.timeout(40):
            await seen.get()
            await seen.get()
            await events.wait_for(StartOffsetDelayed)
            health = app.health()

    assert health.status == "degraded"
    assert any(f"{topic}[1]" in check.detail for check in health.checks)


async def test_queries_name_all_partitions_without_a_leader(kafka):
    """The error of a query of several offsets names each partition that has no leader."""
    topic = kafka.topic_with(1, partitions=2)
    with kafka.proxy.edit_answer(MetadataRequest, without_leader(topic, 1), times=None):
        async with kafka.consumer(topic, auto_offset_reset="earliest", default_api_timeout_ms=3_000) as consumer:
            queries = (consumer.end_offsets(), consumer.beginning_offsets(), consumer.lag())
            for error in await asyncio.gather(*queries, return_exceptions=True):
                assert isinstance(error, BrokerError)
                assert f"{topic}[1]" in str(error)
            assert await consumer.end_offsets(TopicPartition(topic, 0)) == 1


@pytest.mark.slow
async def test_a_killed_leader_holds_up_only_its_own_partitions(kafka_cluster):
    """After a leader was killed, a seek and a start move the other partitions at once."""
    cluster, events = kafka_cluster(3), EventRecorder()
    cluster.create_topic("spread", 6, replication_factor=1)
    for number in range(6):
        Witness(cluster.bootstrap_servers).produce("spread", [b"%d" % n for n in range(3)], partition=number)
    options = {"bootstrap_servers": cluster.bootstrap_servers, "hooks": [events]}
    async with Consumer(**options) as consumer, asyncio.timeout(90):
        await consumer.assign("spread", at=2)
        leaders = {number: cluster.leader_of("spread", number) for number in range(6)}
        lost = {TopicPartition("spread", number) for number in range(6) if leaders[number] is leaders[0]}
        leaders[0].kill()
        moved = await consumer.seek_to_beginning()
        assert moved == dict.fromkeys(consumer.assignment() - lost, 0)
        await events.wait_for(StartOffsetDelayed, len(lost))
        assert consumer.health().status == "degraded"
        read = await consumer.getmany(max_records=3 * len(moved), min_records=3 * len(moved))
        assert {record.topic_partition for record in read} == moved.keys()
        async with Consumer("spread", auto_offset_reset="latest", start_timeout_ms=5_000, **options) as late:
            for partition in moved:
                Witness(cluster.bootstrap_servers).produce("spread", [b"late"], partition=partition.partition)
            got = await late.getmany(max_records=len(moved), min_records=len(moved))
            assert {record.topic_partition for record in got} == moved.keys()
