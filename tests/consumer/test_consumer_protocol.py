"""The consumer protocol (KIP-848), where the broker deals: partitions shared, moved in order, and kept untouched."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from crew import Crew, until
from reconciled import is_full, says_nothing
from recorder import Recorder

from penstock import TopicPartition
from penstock.messages import ConsumerGroupHeartbeatRequest, DescribeConfigsRequest, FetchRequest, OffsetCommitRequest
from penstock.observe.events import (
    GroupJoined,
    PartitionsLost,
    PartitionsRevoked,
)


async def produce_until(done, quick, topic):
    """Keep records coming; gives how many there were."""
    count = 0
    while not done.is_set():
        count += await asyncio.to_thread(quick.produce, topic, [b"%d" % n for n in range(200)])
    return count


async def agrees(quick, group, crew):
    """Whether the broker says the same of every member's partitions as the members do."""
    ours = {member.consumer.assignment() for member in crew.members}
    return ours == set((await quick.members(group)).values())


async def test_members_come_and_go_and_every_record_comes_once(quick, group):
    """Two share six partitions, a third joins, one leaves: the broker agrees at every step, each record comes once."""
    topic, done = quick.topic(6), asyncio.Event()

    async with Crew(quick.consumer, topic, group_id=group) as crew:
        first = await crew.join()
        await crew.join()
        await crew.shares(3, 3)
        assert await agrees(quick, group, crew)
        producing = asyncio.create_task(produce_until(done, quick, topic))
        await crew.handle(1_000)
        await crew.join()
        await crew.shares(2, 2, 2)
        assert await agrees(quick, group, crew)
        await crew.handle(2_000)
        await crew.leave(first)
        await crew.shares(3, 3)
        assert await agrees(quick, group, crew)
        done.set()
        await crew.handle(await producing)
        assert len(await quick.members(group)) == 2

    assert {1} == set(crew.handled.values())
    assert sum((await quick.committed(group, topic, 6)).values()) == len(crew.handled)


async def test_commits_carry_the_epoch_of_the_member(quick, group):
    """Each commit names the member and an epoch that the broker has given it, in a version made for that (9)."""
    topic = quick.topic(4)
    quick.produce(topic, (b"%d" % n for n in range(200)))
    options = {"group_id": group, "auto_commit_interval_ms": 50}

    async with Crew(quick.consumer, topic, **options) as crew:
        await crew.join(client_id=f"{group}-1")
        await crew.handle(200)
        await crew.join(client_id=f"{group}-2")
        await crew.shares(2, 2)
        quick.produce(topic, (b"%d" % n for n in range(200)))
        await crew.handle(400)

    epochs = set()
    for client in (f"{group}-1", f"{group}-2"):
        given = {answer.member_epoch for answer in quick.heard(client) if answer.member_epoch > 0}
        (member_id,) = {beat.member_id for beat in quick.said(client)}
        frames = quick.proxy.requests(OffsetCommitRequest, client_id=client)
        assert {9} == {frame.version for frame in frames}
        assert {member_id} == {frame.message.member_id for frame in frames}
        assert {frame.message.generation_id for frame in frames} <= given
        epochs |= {frame.message.generation_id for frame in frames}
    assert len(epochs) > 1


class Diary:
    """A listener that writes down what comes and goes; ``gate`` keeps a release from ending."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, object]] = []
        self.releasing, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    def of(self, kind):
        return [entry for name, entry in self.entries if name == kind]

    async def on_partitions_revoked(self, partitions):
        self.entries.append(("revoked", partitions))
        self.releasing.set()
        await self.gate.wait()

    def on_partitions_assigned(self, partitions):
        self.entries.append(("assigned", partitions))

    def on_partitions_lost(self, partitions):
        self.entries.append(("lost", partitions))


async def write_down(consumer, diary):
    async for record in consumer:
        diary.entries.append(("record", record))
        await asyncio.sleep(0)


def owned_by(beat):
    return sum(len(one.partitions) for one in beat.topic_partitions)


async def test_partitions_are_given_back_in_order(quick, group):
    """No record comes after on_partitions_revoked; what is done is committed before the broker hears that they go."""
    topic, done, diary = quick.topic(4), asyncio.Event(), Diary()
    options = {"group_id": group, "auto_commit_interval_ms": 60_000}
    producing = asyncio.create_task(produce_until(done, quick, topic))

    async with quick.consumer(topic, client_id=group, rebalance_listener=diary, **options) as first:
        reading = asyncio.create_task(write_down(first, diary))
        await until(lambda: len(diary.of("record")) > 500)
        async with quick.consumer(topic, **options) as second:
            await until(lambda: len(second.assignment()) == 2)
            before = len(diary.of("record"))
            await until(lambda: len(diary.of("record")) > before + 500)
            done.set()
            await producing
            (revoked,) = diary.of("revoked")
            assert second.assignment() == revoked
    await reading

    at = [name for name, _ in diary.entries].index("revoked")
    handled = [entry for name, entry in diary.entries[:at] if name == "record"]
    late = {entry.topic_partition for name, entry in diary.entries[at:] if name == "record"}
    ends = {tp: max(r.offset + 1 for r in handled if r.topic_partition == tp) for tp in revoked}
    frames = quick.proxy.frames
    says_less = next(
        n
        for n, frame in enumerate(frames)
        if frame.client_id == group
        and frame.direction == "request"
        and isinstance(frame.message, ConsumerGroupHeartbeatRequest)
        and frame.message.topic_partitions
        and owned_by(frame.message) == 2
    )
    (commit,) = [
        (n, frame.message)
        for n, frame in enumerate(frames[:says_less])
        if frame.client_id == group and frame.direction == "request" and isinstance(frame.message, OffsetCommitRequest)
    ]
    assert late
    assert not late & revoked
    assert ends == {TopicPartition(one.topic, one.partition): one.offset for one in commit[1].partitions}


async def test_heartbeats_say_only_what_has_changed(quick, group):
    """The join says everything; after that each field is null, but for the partitions when they are others."""
    topic = quick.topic(4)

    async with quick.consumer(topic, group_id=group, client_id=group) as first:
        await until(lambda: len(first.assignment()) == 4)
        async with quick.consumer(topic, group_id=group) as second:
            await until(lambda: len(second.assignment()) == 2)
            await until(lambda: any(map(says_nothing, quick.said(group)[-2:])))
        await until(lambda: len(first.assignment()) == 4)
        await until(lambda: len(quick.said(group)) > 8 and says_nothing(quick.said(group)[-1]))

    join, *others, farewell = quick.said(group)
    owned = [owned_by(beat) for beat in (join, *others) if beat.topic_partitions is not None]
    assert is_full(join)
    assert join.member_epoch == 0
    assert join.subscribed_topic_names == (topic,)
    assert all(says_nothing(replace(beat, topic_partitions=None)) for beat in others)
    assert owned == [0, 4, 2, 4]
    assert says_nothing(farewell)
    assert farewell.member_epoch == -1


async def test_kept_partitions_never_stop(quick, group):
    """While others are given back, what is kept is read on from where it was and what was fetched, or stays paused."""
    topic, diary, events = quick.topic(4), Diary(), Recorder()
    for partition in range(4):
        quick.produce(topic, (b"%d" % n for n in range(100)), partition=partition)
    options = {"group_id": group, "client_id": group, "rebalance_listener": diary, "hooks": [events]}
    diary.gate.clear()

    async with quick.consumer(topic, max_queued_records=10, **options) as first:
        read = Counter([(await first.getone()).topic_partition for _ in range(50)])
        await until(lambda: all(first.highwater(TopicPartition(topic, p)) == 100 for p in range(4)))
        first.pause(*first.assignment())
        held = first.statistics().buffered_bytes
        async with quick.consumer(topic, group_id=group) as second:
            waiting = asyncio.create_task(first.getone(timeout_ms=20_000))
            await asyncio.wait_for(diary.releasing.wait(), 20)
            kept = first.assignment() - diary.of("revoked")[0]
            fetches = len(quick.proxy.requests(FetchRequest, client_id=group))
            assert kept == first.paused() & kept
            assert 0 < first.statistics().buffered_bytes <= held
            first.resume(*kept)
            rest = [await waiting]
            while len(rest) < 200 - sum(read[one] for one in kept):
                rest.append(await first.getone())
            assert first.assignment() > kept
            diary.gate.set()
            await until(lambda: len(second.assignment()) == 2)
            assert first.assignment() == kept

    fetched_again = {
        (one.partition, one.fetch_offset)
        for frame in quick.proxy.requests(FetchRequest, client_id=group)[fetches:]
        for one in frame.message.partitions
        if one.fetch_offset < 100
    }
    assert [(one, list(range(read[one], 100))) for one in sorted(kept)] == [
        (one, [r.offset for r in rest if r.topic_partition == one]) for one in sorted(kept)
    ]
    assert not fetched_again
    assert len(events.of(PartitionsRevoked)) == 2


async def test_the_override_decides_while_heartbeats_go_on(quick, group):
    """A callback longer than the session keeps the membership; nothing is fetched before it, and then where it says."""
    topic, proxy, events, seen = quick.topic_with(20), quick.proxy, Recorder(), {}
    await quick.configure(group, consumer_heartbeat_interval_ms=100, consumer_session_timeout_ms=500)

    async def choose(_consumer, old, new):
        beats = len(quick.said(group))
        await until(lambda: len(quick.said(group)) >= beats + 8)
        seen["fetches"], seen["old"] = len(proxy.requests(FetchRequest, client_id=group)), dict(old)
        return dict.fromkeys(new, 7)

    options = {"group_id": group, "client_id": group, "post_rebalance_callback": choose, "hooks": [events]}
    async with quick.consumer(topic, **options) as consumer:
        record = await consumer.getone()
        assert len(await quick.members(group)) == 1

    assert record.offset == 7
    assert seen == {"fetches": 0, "old": {}}
    assert proxy.requests(FetchRequest, client_id=group)[0].message.partitions[0].fetch_offset == 7
    assert len(events.of(GroupJoined)) == 1
    assert not events.of(PartitionsLost)


async def test_heartbeats_follow_the_interval_that_the_broker_sends(quick, group):
    """The pause before each heartbeat is what the answer before said, also when that is set anew."""
    topic = quick.topic()
    pauses = {}

    async with quick.consumer(topic, group_id=group, client_id=group):
        for interval_ms in (150, 500):
            await quick.configure(group, consumer_heartbeat_interval_ms=interval_ms)
            await until(lambda ms=interval_ms: [a.heartbeat_interval_ms for a in quick.heard(group)[-3:]] == [ms] * 3)
            answers = quick.proxy.answers(ConsumerGroupHeartbeatRequest, client_id=group)
            beats = quick.proxy.requests(ConsumerGroupHeartbeatRequest, client_id=group)
            pauses[interval_ms] = beats[len(answers) - 1].at - answers[-2].at

    assert all(ms / 1000 <= pause < ms / 1000 + 0.2 for ms, pause in pauses.items()), pauses


async def test_the_session_is_what_the_group_is_configured_to(quick, group):
    """A heartbeat without an answer is given up after a third of the group's session, also when that is set anew."""
    topic, client = quick.topic(), {"group_id": group, "client_id": group}
    await quick.configure(group, consumer_session_timeout_ms=6_000)

    async with quick.consumer(topic, **client, metadata_max_age_ms=200) as consumer:
        await until(lambda: bool(consumer.assignment()))
        await quick.configure(group, consumer_session_timeout_ms=1_500)
        await until(lambda: "1500" in sessions_told(quick.proxy, group))
        with quick.proxy.drop_answer(ConsumerGroupHeartbeatRequest) as dropped:
            await dropped.took_place()
            beats = len(quick.said(group))
            await until(lambda: len(quick.said(group)) > beats)
        last, again = quick.proxy.requests(ConsumerGroupHeartbeatRequest, client_id=group)[beats - 1 : beats + 1]

    assert 0.5 <= again.at - last.at < 1.2
    assert is_full(again.message)


def sessions_told(proxy, client_id):
    answers = [frame.message for frame in proxy.answers(DescribeConfigsRequest, client_id=client_id)]
    return {config.value for answer in answers for result in answer.results for config in result.configs}
