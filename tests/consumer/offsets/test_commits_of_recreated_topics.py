"""Commits of records that were read before their topic was deleted and recreated."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from tailrace import CommitFailedError, TopicPartition
from tailrace.observe.events import PartitionsRevoked, TopicRecreated
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.handshake import ApiVersionsRequest
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until

OFFSET_COMMIT = 8

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def recreate(broker, topic, count=100):
    broker.server.delete_topic(topic)
    broker.server.create_topic(topic, 1)
    broker.produce(topic, (b"new %d" % n for n in range(count)))


async def recreate_unseen(consumer, broker, topic):
    """Recreate the topic while it is paused, so that the member does not see it missing and release its partitions."""
    consumer.pause()
    await asyncio.sleep(1.5)  # the fetch in flight ends after fetch_max_wait_ms
    await until(lambda: len(broker.proxy.requests(FetchRequest)) <= len(broker.proxy.answers(FetchRequest)))
    await asyncio.to_thread(recreate, broker, topic)
    consumer.resume()


def topic_of_old_records(broker, count=100):
    topic = broker.topic()
    broker.produce(topic, (b"old %d" % n for n in range(count)))
    return topic


async def first_of_next_member(broker, topic, group, protocol):
    """Return the first record that another member of the group reads."""
    async with broker.consumer(topic, group_id=group, group_protocol=protocol) as second:
        async with asyncio.timeout(60):
            return await second.getone()


@both_protocols
async def test_an_automatic_commit_of_old_records_skips_no_record_of_the_new_topic(kafka, group, protocol, recorder):
    """Finished records of a deleted topic are not committed for the recreated one."""
    topic = topic_of_old_records(kafka)

    async with kafka.consumer(
        topic, group_id=group, group_protocol=protocol, auto_commit_interval_ms=1000, hooks=[recorder]
    ) as first:
        for _ in range(10):
            await first.getone()
        await first.commit()
        await recreate_unseen(first, kafka, topic)
        got = [await first.getone() for _ in range(40)]
        await until(lambda: recorder.of(TopicRecreated) or recorder.of(PartitionsRevoked), 60)

    new = sum(record.value.startswith(b"new") for record in got)
    second = await first_of_next_member(kafka, topic, group, protocol)
    assert second.offset <= max(0, new - 1)
    assert second.value == b"new %d" % second.offset


async def test_a_commit_of_old_records_raises(kafka, group):
    """commit() of records of a deleted topic raises, and the recreated topic is read from its first record."""
    topic = topic_of_old_records(kafka)

    options = {"enable_auto_commit": False, "auto_offset_reset": "latest"}
    async with kafka.consumer(topic, group_id=group, **options) as first:
        while not first.assignment():
            await first.getone(timeout_ms=50)
        await first.seek_to_beginning()
        for _ in range(10):
            await first.getone()
        await recreate_unseen(first, kafka, topic)
        with pytest.raises(CommitFailedError, match="deleted and recreated"):
            await first.commit()
        async with asyncio.timeout(60):
            new = [await first.getone() for _ in range(100)]
        await first.commit()
        assert (await first.committed(first.assignment()))[TopicPartition(topic, 0)].offset == 100

    assert [record.value for record in new] == [b"new %d" % n for n in range(100)]


async def test_topic_ids_are_compared_before_a_commit_by_name(kafka, group, recorder):
    """If a broker accepts only topic names in commits, no offset of a deleted topic is committed for the new one."""
    topic = topic_of_old_records(kafka)

    with kafka.proxy.edit_answer(ApiVersionsRequest, without_ids_in_commits, times=None):
        async with kafka.consumer(topic, group_id=group, auto_commit_interval_ms=1000, hooks=[recorder]) as first:
            for _ in range(10):
                await first.getone()
            await first.commit()
            await recreate_unseen(first, kafka, topic)
            got = [await first.getone() for _ in range(40)]
            await until(lambda: recorder.of(TopicRecreated) or recorder.of(PartitionsRevoked), 60)

    new = sum(record.value.startswith(b"new") for record in got)
    second = await first_of_next_member(kafka, topic, group, "classic")
    assert second.offset <= max(0, new - 1)
    assert second.value == b"new %d" % second.offset


def without_ids_in_commits(answer):
    return replace(
        answer,
        api_keys=tuple(replace(one, max_version=9) if one.api_key == OFFSET_COMMIT else one for one in answer.api_keys),
    )


async def test_a_commit_before_the_new_topic_is_assigned_is_refused(quick, group):
    """Until the group assigns a recreated topic (KIP-848), a commit belongs to the old topic, even if nothing was read.

    Another member may own the new topic, and its commits would be replaced.
    """
    topic = quick.topic()
    options = {"group_id": group, "enable_auto_commit": False, "metadata_max_age_ms": 300, "client_id": group}

    def ids():
        answers = quick.proxy.answers(MetadataRequest, client_id=group)
        return {one.topic_id for f in answers for one in f.message.topics if one.name == topic and not one.error_code}

    async with quick.consumer(topic, **options) as consumer:
        await consumer.assigned()
        consumer.pause()
        await consumer.seek(TopicPartition(topic, 0), 0)
        with quick.proxy.hold_request(ConsumerGroupHeartbeatRequest, times=None) as heartbeats:
            async with asyncio.timeout(30):
                await heartbeats.wait_applied()
            await asyncio.to_thread(recreate, quick, topic)
            await until(lambda: len(ids()) > 1)
            with pytest.raises(CommitFailedError, match=topic):
                await consumer.commit({TopicPartition(topic, 0): 7})
            heartbeats.release()

    assert await quick.committed(group, topic, 1) == {}
