"""The consumer protocol (KIP-848), in which the broker assigns: partitions are shared, moved in order, and kept."""

from __future__ import annotations

import asyncio
from collections import Counter

from tailrace import TopicPartition
from tailrace.observe.events import PartitionsRevoked
from tailrace.protocol.groups import ConsumerGroupHeartbeatRequest, OffsetCommitRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder


async def produce_until(done, quick, topic):
    """Produce records until ``done`` is set, and return their number."""
    count = 0
    while not done.is_set():
        count += await asyncio.to_thread(quick.produce, topic, [b"%d" % n for n in range(200)])
    return count


async def test_members_join_and_leave_and_every_record_is_handled_once(quick, group):
    """While members join and leave, each record is handled once and all are committed."""
    topic, done = quick.topic(6), asyncio.Event()

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        first = await crew.join()
        await crew.join()
        await crew.shares(3, 3)
        await quick.wait_until_agreed(group, crew)
        producing = asyncio.create_task(produce_until(done, quick, topic))
        await crew.handle(1_000)
        await crew.join()
        await crew.shares(2, 2, 2)
        await quick.wait_until_agreed(group, crew)
        await crew.handle(2_000)
        await crew.leave(first)
        await crew.shares(3, 3)
        await quick.wait_until_agreed(group, crew)
        done.set()
        await crew.handle(await producing)
        assert len(await quick.members(group)) == 2

    assert {1} == set(crew.handled.values())
    assert sum((await quick.committed(group, topic, 6)).values()) == len(crew.handled)


async def test_commits_carry_the_epoch_of_the_member(quick, group):
    """Each commit contains the member's id and one of the epochs that the broker sent to it."""
    topic = quick.topic(4)
    quick.produce(topic, (b"%d" % n for n in range(200)))
    options = {"group_id": group, "auto_commit_interval_ms": 50}

    async with ConsumerGroup(quick.consumer, topic, **options) as crew:
        await crew.join(client_id=f"{group}-1")
        await crew.handle(200)
        await crew.join(client_id=f"{group}-2")
        await crew.shares(2, 2)
        quick.fill(topic, 4, 50)
        await crew.handle(400)

    epochs = set()
    for client in (f"{group}-1", f"{group}-2"):
        given = {answer.member_epoch for answer in quick.responses(client) if answer.member_epoch > 0}
        (member_id,) = {beat.member_id for beat in quick.heartbeats(client)}
        frames = quick.proxy.requests(OffsetCommitRequest, client_id=client)
        assert {10} == {frame.version for frame in frames}
        assert {member_id} == {frame.message.member_id for frame in frames}
        assert {frame.message.generation_id for frame in frames} <= given
        epochs |= {frame.message.generation_id for frame in frames}
    assert len(epochs) > 1


class Diary:
    """Listener that records assignments and revocations; a revocation returns when ``gate`` is set."""

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


async def test_partitions_are_revoked_in_order(quick, group):
    """No record of a partition follows on_partitions_revoked, and its finished records are committed.

    The broker receives the commit before the heartbeat that releases the partition.
    """
    topic, done, diary = quick.topic(4), asyncio.Event(), Diary()
    options = {"group_id": group, "auto_commit_interval_ms": 60_000}
    producing = asyncio.create_task(produce_until(done, quick, topic))
    diary.gate.clear()

    async with quick.consumer(topic, client_id=group, rebalance_listener=diary, **options) as first:
        reading = asyncio.create_task(write_down(first, diary))
        await until(lambda: len(diary.of("record")) > 500)
        async with quick.consumer(topic, **options) as second:
            await until(diary.releasing.is_set)
            before = len(diary.of("record"))
            await until(lambda: len(diary.of("record")) > before + 500)
            diary.gate.set()
            await until(lambda: len(second.assignment()) == 2)
            await until(lambda: len(diary.of("record")) > before + 1_000)
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
    assert ends == {TopicPartition(topic, one.partition): one.offset for one in commit[1].partitions}


async def test_kept_partitions_are_read_during_a_rebalance(quick, group):
    """While others are revoked, kept partitions are read from the buffer without another fetch, or stay paused."""
    topic, diary, events = quick.topic(4), Diary(), EventRecorder()
    quick.fill(topic, 4, 100)
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
            rest = [await waiting, *[await first.getone() for _ in range(50)]]
            assert first.assignment() > kept
            diary.gate.set()
            await until(lambda: len(second.assignment()) == 2)
            assert first.assignment() == kept
            while len(rest) < 200 - sum(read[one] for one in kept):
                rest.append(await first.getone())

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


async def test_the_callback_gets_old_and_new_positions(quick, group):
    """post_rebalance_callback is called with the positions before and after the rebalance."""
    topic, calls = quick.topic(6), []
    quick.fill(topic, 6, 10)

    async def note(_consumer, old, new):
        calls.append((dict(old), dict(new)))

    async with ConsumerGroup(quick.consumer, topic, group_id=group) as crew:
        await crew.join(post_rebalance_callback=note)
        await crew.handle(60)
        before = len(calls)
        await crew.join()
        await crew.shares(3, 3)
        await until(lambda: len(calls) > before)

    old, new = calls[before]
    assert {TopicPartition(topic, p): 10 for p in range(6)} == old
    assert len(new) == 3
    assert set(new.items()) <= set(old.items())
