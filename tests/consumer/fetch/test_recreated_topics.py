"""A topic that is deleted and recreated while it is read: all records of the new topic are delivered."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from tailrace import TopicPartition
from tailrace.observe.events import OffsetReset
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.metadata import MetadataRequest
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder

BY_HAND, ALONE, CLASSIC, KIP_848 = "by hand", "alone", "classic", "consumer"


@pytest.mark.parametrize("kind", [BY_HAND, ALONE, CLASSIC, KIP_848])
async def test_a_recreated_topic_is_read_from_its_first_record(quick, group, kind):
    """A consumer reads a recreated topic from its first record, even if the new topic is longer than the old one."""
    topic, events = quick.topic(), EventRecorder()
    quick.produce(topic, (b"old" for _ in range(3)))
    options = {"auto_offset_reset": "latest", "metadata_max_age_ms": 300, "hooks": [events]}
    if kind in {CLASSIC, KIP_848}:
        options |= {"group_id": group}
    options["group_protocol"] = "consumer" if kind == KIP_848 else "classic"

    async with quick.consumer(*() if kind == BY_HAND else (topic,), **options) as one:
        if kind == BY_HAND:
            await one.assign(TopicPartition(topic, 0))
        while not one.assignment():
            await one.getone(timeout_ms=50)
        await one.seek_to_beginning()
        assert {(await one.getone()).value for _ in range(3)} == {b"old"}
        coming = asyncio.create_task(one.getone())
        await asyncio.to_thread(remake, quick, topic)
        async with asyncio.timeout(40):
            got = [await coming, *[await one.getone() for _ in range(9)]]

    assert [(record.offset, record.value) for record in got] == [(n, b"%d" % n) for n in range(10)]
    if kind in {BY_HAND, ALONE}:
        assert [(event.before, event.after) for event in events.of(OffsetReset)] == [(3, 0)]


def remake(witness, topic):
    witness.server.delete_topic(topic)
    witness.server.create_topic(topic, 1)
    witness.produce(topic, (b"%d" % n for n in range(10)))


async def test_fetched_records_of_the_old_topic_are_delivered_first(quick):
    """Buffered records of a deleted topic are delivered before those of the recreated one."""
    topic, events = quick.topic(), EventRecorder()
    quick.produce(topic, (b"old" for _ in range(5)))

    async with quick.consumer(
        topic, auto_offset_reset="earliest", group_protocol="classic", metadata_max_age_ms=300, hooks=[events]
    ) as one:
        got = [await one.getone()]
        await asyncio.to_thread(remake, quick, topic)
        async with asyncio.timeout(40):
            got += [await one.getone() for _ in range(14)]

    assert [record.offset for record in got] == [*range(5), *range(10)]
    assert len(events.of(OffsetReset)) == 1


@pytest.mark.parametrize("subscription", ["name", "pattern"])
async def test_a_recreated_topic_is_read_only_by_members_to_which_it_is_assigned(quick, group, subscription):
    """Until the group assigns the new topic to a member (KIP-848), the member reads only records of the old one.

    The coordinator assigns the partitions of the new topic at once, whatever members own of the old topic.
    """
    topic = quick.topic(4)
    quick.produce(topic, (b"old" for _ in range(40)))

    def consumer(*topics, **options):
        if subscription == "pattern":
            topics, options = (), {"pattern": re.compile(f"{topic}.*"), **options}
        return quick.consumer(*topics, **options)

    def new_ids():
        answers = quick.proxy.answers(MetadataRequest, client_id=f"{group}-first")
        found = {one.topic_id for f in answers for one in f.message.topics if one.name == topic and not one.error_code}
        return len(answers) if len(found) > 1 else 0

    async with ConsumerGroup(consumer, topic, group_id=group, metadata_max_age_ms=300) as crew:
        first = await crew.join(client_id=f"{group}-first")
        second = await crew.join(client_id=f"{group}-second", bootstrap_servers=quick.direct)
        await crew.shares(2, 2)
        await crew.handle(40)
        with quick.proxy.hold_request(ConsumerGroupHeartbeatRequest, times=None) as heartbeats:
            async with asyncio.timeout(30):
                await heartbeats.wait_applied()
            first.records.clear()
            second.records.clear()
            await asyncio.to_thread(quick.server.delete_topic, topic)
            await asyncio.to_thread(quick.server.create_topic, topic, 4)
            for partition in range(4):
                quick.produce(topic, (b"new" for _ in range(10)), partition=partition)
            await until(new_ids)
            count = new_ids()
            # The member asks for metadata again while the new topic is not assigned to it.
            await until(lambda: first.records or new_ids() > count + 2)
            assert not first.records
            heartbeats.release()
        await until(lambda: len(first.records) + len(second.records) >= 40)
        await quick.wait_until_agreed(group, crew)

    got = Counter((one.partition, one.offset) for one in [*first.records, *second.records] if one.value == b"new")
    assert got == Counter((partition, offset) for partition in range(4) for offset in range(10))
