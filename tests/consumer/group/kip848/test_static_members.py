"""Static members in the consumer protocol (KIP-345): an instance id belongs to one member and survives a restart."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tailrace import FencedMemberError, TopicPartition
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    ConsumerFailed,
    GroupRequestFailed,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest
from tests.support.consumer_group import ConsumerGroup, kill, until
from tests.support.event_recorder import EventRecorder

STAYS = (PartitionsAssigned, PartitionsRevoked, PartitionsLost)


def refusals(events: EventRecorder) -> list[GroupRequestFailed]:
    """Return the events of joins that were refused because of the instance id."""
    return [one for one in events.of(GroupRequestFailed) if "UNRELEASED_INSTANCE_ID" in one.error]


async def test_a_restart_within_the_session_moves_no_partition(quick, group):
    """A static member restarted within its session keeps its partitions, and the other does not rebalance."""
    topic, other_events = quick.topic(4), EventRecorder()
    options = {"group_id": group, "group_instance_id": "one"}

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join(group_instance_id="two", hooks=[other_events])
        first = await crew.join(**options, client_id=f"{group}-first")
        await crew.shares(2, 2)
        quick.produce(topic, (b"%d" % n for n in range(400)))
        await crew.handle(400)
        before, seen = first.consumer.assignment(), sum(len(other_events.of(kind)) for kind in STAYS)
        await crew.leave(first)
        while_away = await quick.members(group)
        quick.produce(topic, (b"%d" % n for n in range(400)))
        second = await crew.join(**options, client_id=f"{group}-second")
        await crew.shares(2, 2)
        await crew.handle(800)
        assert second.consumer.assignment() == before
        assert sum(len(other_events.of(kind)) for kind in STAYS) == seen

    assert {1} == set(crew.handled.values())
    assert before in while_away.values()
    assert quick.heartbeats(f"{group}-first")[-1].member_epoch == -2
    assert {beat.instance_id for beat in quick.heartbeats(f"{group}-first")} == {"one"}
    assert quick.heartbeats(f"{group}-second")[0].member_id != quick.heartbeats(f"{group}-first")[0].member_id


async def test_a_second_member_with_an_instance_id_is_refused(quick, group):
    """A second member with a live member's instance id fails after a session; the first one is not affected."""
    topic, events, newer_events = quick.topic(2), EventRecorder(), EventRecorder()
    options = {"group_id": group, "group_instance_id": "one"}
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=5_000)

    async with ConsumerGroup(quick.consumer, topic, **options) as crew:
        member = await crew.join(hooks=[events], client_id=f"{group}-first")
        await crew.shares(2)
        (member_id,) = await quick.members(group)
        newcomer = quick.consumer(topic, **options, client_id=f"{group}-second", hooks=[newer_events])
        async with newcomer:
            with pytest.raises(FencedMemberError, match=r"another live member .* code 111"):
                await newcomer.getone(timeout_ms=30_000)
            with pytest.raises(FencedMemberError):
                await newcomer.commit({TopicPartition(topic, 0): 1})
            assert not newcomer.assignment()
        beats = len(quick.heartbeats(f"{group}-first"))
        await until(lambda: len(quick.heartbeats(f"{group}-first")) > beats + 1)
        quick.produce(topic, (b"%d" % n for n in range(100)))
        await crew.handle(100)
        assert await quick.members(group) == {member_id: member.consumer.assignment()}

    assert {111} == {answer.error_code for answer in quick.responses(f"{group}-second")}
    assert {0} == {beat.member_epoch for beat in quick.heartbeats(f"{group}-second")}
    assert len(refusals(newer_events)) == 1
    assert not quick.commits(f"{group}-second")
    assert len(events.of(PartitionsAssigned)) <= 2
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]


async def test_a_join_whose_response_is_lost_is_repeated(quick, group):
    """A join whose response is lost is repeated after the instance id was released with epoch -2."""
    topic = quick.topic_with(10)

    with quick.proxy.reset_on_answer(ConsumerGroupHeartbeatRequest):
        async with quick.consumer(topic, group_id=group, group_instance_id="one", client_id=group) as consumer:
            got = [await consumer.getone(timeout_ms=10_000) for _ in range(10)]
            assert set((await quick.members(group)).values()) == {consumer.assignment()}

    assert [record.offset for record in got] == list(range(10))
    assert [beat.member_epoch for beat in quick.heartbeats(group)][:3] == [0, -2, 0]
    assert {0} == {answer.error_code for answer in quick.responses(group)}


async def test_a_second_member_is_refused_again_if_the_refusal_is_lost(quick, group):
    """If the refusal of a second member is lost, its repeated join is refused, and the first one is not affected."""
    topic, events = quick.topic(2), EventRecorder()
    options = {"group_id": group, "group_instance_id": "one"}
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=5_000)

    async with ConsumerGroup(quick.consumer, topic, **options) as crew:
        member = await crew.join(hooks=[events], bootstrap_servers=quick.direct)
        await crew.shares(2)
        before = await quick.members(group)
        with quick.proxy.reset_on_answer(ConsumerGroupHeartbeatRequest):
            async with quick.consumer(topic, **options, client_id=group) as newcomer:
                with pytest.raises(FencedMemberError, match=r"another live member .* code 111"):
                    await newcomer.getone(timeout_ms=30_000)
        quick.produce(topic, (b"%d" % n for n in range(100)))
        await crew.handle(100)
        assert await quick.members(group) == before == dict.fromkeys(before, member.consumer.assignment())

    assert [beat.member_epoch for beat in quick.heartbeats(group)][:3] == [0, -2, 0]
    assert not [*events.of(PartitionsLost), *events.of(ConsumerFailed)]


async def test_a_fenced_member_gets_its_partitions_back(quick, group):
    """A fenced static member loses its partitions and gets the same back, and no others move."""
    topic, events, other_events = quick.topic(2), EventRecorder(), EventRecorder()

    def fenced(answer):
        return replace(answer, error_code=ErrorCode.FENCED_MEMBER_EPOCH, assignment=None)

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join(group_instance_id="two", bootstrap_servers=quick.direct, hooks=[other_events])
        member = await crew.join(group_instance_id="one", client_id=group, hooks=[events])
        await crew.shares(1, 1)
        before, seen = member.consumer.assignment(), sum(len(other_events.of(kind)) for kind in STAYS)
        with quick.proxy.edit_answer(ConsumerGroupHeartbeatRequest, fenced):
            await events.wait_for(PartitionsLost)
        await crew.shares(1, 1)
        assert member.consumer.assignment() == before
        assert sum(len(other_events.of(kind)) for kind in STAYS) == seen

    assert not events.of(ConsumerFailed)
    assert [beat.member_epoch for beat in quick.heartbeats(group)].count(0) == 2


async def test_leave_on_stop_releases_the_instance_id(quick, group):
    """With leave_on_stop=True, a static member leaves with epoch -1, and others get its partitions at once."""
    topic = quick.topic(4)

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join(group_instance_id="two")
        leaver = await crew.join(group_instance_id="one", leave_on_stop=True, client_id=group)
        await crew.shares(2, 2)
        await crew.leave(leaver)
        await crew.shares(4)
        assert len(await quick.members(group)) == 1

    assert quick.heartbeats(group)[-1].member_epoch == -1


async def test_an_absent_static_member_is_removed_after_the_session(quick, group):
    """An absent static member is removed after the session timeout, and others get its partitions."""
    topic = quick.topic(4)
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=3_500)

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join(group_instance_id="two")
        leaver = await crew.join(group_instance_id="one")
        await crew.shares(2, 2)
        await crew.leave(leaver)
        assert len(await quick.members(group)) == 2
        await crew.shares(4)
        assert len(await quick.members(group)) == 1


async def test_a_killed_static_member_comes_back_after_its_session(quick, group):
    """The successor of a killed static member waits until the session is over, reports it once, and then reads on."""
    topic, events = quick.topic_with(10), EventRecorder()
    options = {"group_id": group, "group_instance_id": "one"}
    await quick.configure(group, consumer_heartbeat_interval_ms=200, consumer_session_timeout_ms=5_000)

    killed = quick.consumer(topic, **options)
    await killed.start()
    await killed.getone()
    await kill(topic)
    async with quick.consumer(topic, **options, client_id=group, hooks=[events]) as successor:
        got = [await successor.getone(timeout_ms=30_000) for _ in range(10)]
    await killed.stop()

    assert [record.offset for record in got] == list(range(10))
    (waiting,) = refusals(events)
    assert waiting.reaction == "waiting until the session of the other member has ended"
    assert not events.of(ConsumerFailed)


async def test_a_member_that_waits_for_its_instance_id_can_be_stopped(quick, group):
    """A member that waits for its instance id stops at once, and does not remove the holder of the id."""
    topic, events = quick.topic(1), EventRecorder()
    options = {"group_id": group, "group_instance_id": "one"}

    async with ConsumerGroup(quick.consumer, topic, **options) as crew:
        await crew.join()
        await crew.shares(1)
        before = await quick.members(group)
        async with quick.consumer(topic, **options, client_id=group, hooks=[events], leave_on_stop=True):
            await events.wait_for(GroupRequestFailed)
        assert await quick.members(group) == before

    assert {0} == {beat.member_epoch for beat in quick.heartbeats(group)}
