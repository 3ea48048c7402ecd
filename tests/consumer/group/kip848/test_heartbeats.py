"""Heartbeats of the consumer protocol (KIP-848): contents, interval, and session timeout."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tailrace.observe.events import GroupJoined, PartitionsLost
from tailrace.protocol.admin import DescribeConfigsRequest
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.kip848_broker import has_no_changes, is_full


async def test_heartbeats_contain_only_changes(quick, group):
    """The first heartbeat contains all fields, and the others only partitions that have changed."""
    topic = quick.topic(4)

    async with quick.consumer(topic, group_id=group, client_id=group) as first:
        await until(lambda: len(first.assignment()) == 4)
        async with quick.consumer(topic, group_id=group) as second:
            await until(lambda: len(second.assignment()) == 2)
            await until(lambda: any(map(has_no_changes, quick.heartbeats(group)[-2:])))
        await until(lambda: len(first.assignment()) == 4)
        await until(lambda: len(quick.heartbeats(group)) > 8 and has_no_changes(quick.heartbeats(group)[-1]))

    join, *others, leave = quick.heartbeats(group)
    owned = [beat.topic_partitions for beat in (join, *others) if beat.topic_partitions is not None]
    assert is_full(join)
    assert join.member_epoch == 0
    assert join.subscribed_topic_names == (topic,)
    assert all(has_no_changes(replace(beat, topic_partitions=None)) for beat in others)
    assert [sum(len(one.partitions) for one in topics) for topics in owned] == [0, 4, 2, 4]
    assert has_no_changes(leave)
    assert leave.member_epoch == -1


async def test_heartbeats_continue_during_a_long_callback(quick, group):
    """A callback may run for longer than the session, and the first fetch starts at its override."""
    topic, proxy, events, seen = quick.topic_with(20), quick.proxy, EventRecorder(), {}
    await quick.configure(group, consumer_heartbeat_interval_ms=100, consumer_session_timeout_ms=3_000)

    async def choose(_consumer, old, new):
        beats = len(quick.heartbeats(group))
        await asyncio.sleep(3.4)
        seen["beats"] = len(quick.heartbeats(group)) - beats
        seen["fetches"], seen["old"] = len(proxy.requests(FetchRequest, client_id=group)), dict(old)
        return dict.fromkeys(new, 7)

    options = {"group_id": group, "client_id": group, "post_rebalance_callback": choose, "hooks": [events]}
    async with quick.consumer(topic, **options) as consumer:
        record = await consumer.getone()
        assert len(await quick.members(group)) == 1

    assert record.offset == 7
    assert seen.pop("beats") > 5
    assert seen == {"fetches": 0, "old": {}}
    assert proxy.requests(FetchRequest, client_id=group)[0].message.partitions[0].fetch_offset == 7
    assert len(events.of(GroupJoined)) == 1
    assert not events.of(PartitionsLost)


async def test_heartbeats_follow_the_interval_that_the_broker_sends(quick, group):
    """Heartbeats follow the interval of the last response, also when the broker's configuration changes."""
    topic = quick.topic()
    pauses = {}

    async with quick.consumer(topic, group_id=group, client_id=group):
        await until(lambda: any(map(has_no_changes, quick.heartbeats(group))))
        for interval_ms in (500, 100):
            await quick.configure(group, consumer_heartbeat_interval_ms=interval_ms)
            await until(
                lambda ms=interval_ms: [a.heartbeat_interval_ms for a in quick.responses(group)[-5:]] == [ms] * 5
            )
            answers = quick.proxy.answers(ConsumerGroupHeartbeatRequest, client_id=group)
            beats = quick.proxy.requests(ConsumerGroupHeartbeatRequest, client_id=group)[: len(answers)]
            pauses[interval_ms] = [beat.at - before.at for before, beat in zip(answers[-5:], beats[-4:], strict=False)]

    # Any pause may be longer on a busy machine.
    assert all(pause >= ms / 1000 for ms in pauses for pause in pauses[ms]), pauses
    assert min(pauses[100]) < 0.5, pauses


async def test_the_session_timeout_is_the_groups_configuration(quick, group):
    """A heartbeat times out after a third of the session timeout that the group's configuration has."""
    topic, client = quick.topic(), {"group_id": group, "client_id": group}
    await quick.configure(group, consumer_session_timeout_ms=60_000)

    async with quick.consumer(topic, **client, metadata_max_age_ms=200) as consumer:
        await until(lambda: bool(consumer.assignment()))
        await quick.configure(group, consumer_session_timeout_ms=3_000)
        await until(lambda: "3000" in described_values(quick.proxy, group))
        with quick.proxy.drop_answer(ConsumerGroupHeartbeatRequest) as dropped:
            await dropped.wait_applied()
            beats = len(quick.heartbeats(group))
            await until(lambda: len(quick.heartbeats(group)) > beats)
        last, again = quick.proxy.requests(ConsumerGroupHeartbeatRequest, client_id=group)[beats - 1 : beats + 1]

    assert 0.9 <= again.at - last.at < 15
    assert is_full(again.message)


def described_values(proxy, client_id):
    answers = [frame.message for frame in proxy.answers(DescribeConfigsRequest, client_id=client_id)]
    return {config.value for answer in answers for result in answer.results for config in result.configs}
