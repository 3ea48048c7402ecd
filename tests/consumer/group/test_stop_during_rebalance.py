"""A consumer that is stopped during a rebalance commits its finished records, or emits an event.

The member under test connects through the proxy, which delays its requests; the other member does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest
from msgspec.structs import replace

from tailrace import App, Consumer, Record, TopicPartition
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    CommitFailed,
    DrainTimedOut,
    GroupJoined,
    LeaveGroupTimedOut,
    OffsetsCommitted,
    PartitionsAssigned,
)
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
)
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

COUNT = 10
SOON_S = 20.0
"""Limit of a stop; one that takes longer waits for something it should not wait for."""

IN_GENERAL = {"auto_commit_interval_ms": 600_000, "stop_timeout_ms": 120_000}
OPTIONS = {"heartbeat_interval_ms": 200, "group_protocol": "classic", **IN_GENERAL}
IMPATIENT = {"stop_timeout_ms": 10_000}


class Reading:
    """Consumer that has finished all records of a topic."""

    def __init__(self, topic: str, **options: object) -> None:
        self._consumer = Consumer(topic, **options)

    async def start(self) -> None:
        await self._consumer.start()
        records = [await self._consumer.getone() for _ in range(COUNT)]
        self._consumer.ack(records[-1])

    async def stop(self) -> None:
        await self._consumer.stop()


class Handling:
    """App that has finished all records of a topic."""

    def __init__(self, topic: str, **options: object) -> None:
        self._app = App(**options)
        self._handled = 0
        self._app.handler(topic)(self._handle)

    async def _handle(self, _record: Record) -> None:
        self._handled += 1

    async def start(self) -> None:
        await self._app.start()
        await until(lambda: self._handled == COUNT)

    async def stop(self) -> None:
        await self._app.stop()


KINDS = [Reading, Handling]
Kind = Callable[..., Reading | Handling]


@asynccontextmanager
async def started_in_a_rebalance(quick, group, kind: Kind, fault, **options):
    """Start a member with finished, uncommitted records, and delay its request in a rebalance."""
    topic = quick.topic(2)
    quick.produce(topic, (b"%d" % n for n in range(COUNT)), partition=0)
    events = EventRecorder()
    common = {"group_id": group, **OPTIONS, **options}
    one = kind(topic, bootstrap_servers=quick.bootstrap_servers, client_id=group, hooks=[events], **common)
    await one.start()
    await events.wait_for(PartitionsAssigned)
    other = Consumer(topic, bootstrap_servers=quick.direct, **common)
    try:
        with fault() as held:
            await other.start()
            await held.wait_applied()
            yield topic, one, events, held
    finally:
        await other.stop()
        await one.stop()


async def stopped_soon(stopping: Awaitable[None]) -> None:
    """Await ``stopping`` with a timeout."""
    async with asyncio.timeout(SOON_S):
        await stopping


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_kind", [JoinGroupRequest, SyncGroupRequest])
async def test_a_stop_during_a_rebalance_commits(quick, group, kind, request_kind):
    """stop() during a rebalance waits for its end and then commits all finished records."""
    hold = partial(quick.proxy.hold_request, request_kind)
    async with started_in_a_rebalance(quick, group, kind, hold) as (topic, one, events, held):
        before = len(quick.proxy.requests(HeartbeatRequest, client_id=group))
        stopping = asyncio.create_task(one.stop())
        await until(lambda: len(quick.proxy.requests(HeartbeatRequest, client_id=group)) >= before + 2)
        assert not stopping.done()
        held.release()
        await stopped_soon(stopping)

    assert await quick.committed(group, topic, 1) == {0: COUNT}
    assert not [*events.of(CommitFailed), *events.of(DrainTimedOut)]


async def both_stopped(quick, group, fault):
    """Stop one member of each kind, in their own groups, during a rebalance; return groups, topics and events."""
    async with AsyncExitStack() as stack:
        caught, found = [], []
        for kind in KINDS:
            name = f"{group}-{kind.__name__}"
            topic, one, events, _ = await stack.enter_async_context(
                started_in_a_rebalance(quick, name, kind, fault, **IMPATIENT)
            )
            caught.append(one)
            found.append((name, topic, events))
        await asyncio.gather(*(stopped_soon(one.stop()) for one in caught))
    return found


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_an_endless_rebalance(quick, group):
    """stop() during a rebalance that does not end returns in time, and an event names the uncommitted records."""
    found = await both_stopped(quick, group, partial(quick.proxy.hold_request, SyncGroupRequest))

    for name, topic, events in found:
        # An app reserves part of its time: if the machine stalls for that long, it reports the whole group.
        cut_short = name.endswith(Handling.__name__) and events.of(LeaveGroupTimedOut)
        failures = [("REBALANCE_IN_PROGRESS" in one.error, one.will_retry) for one in events.of(CommitFailed)]
        assert failures == [(True, False)] or cut_short
        assert await quick.committed(name, topic, 1) != {0: COUNT}


async def test_a_stop_commits_in_the_current_generation(quick, group):
    """If its join does not reach the coordinator, stop() commits in the current generation."""
    found = await both_stopped(quick, group, partial(quick.proxy.hold_request, JoinGroupRequest))

    for name, topic, events in found:
        assert await quick.committed(name, topic, 1) == {0: COUNT}
        assert not events.of(CommitFailed)


async def test_a_stop_with_everything_committed_is_immediate(quick, group):
    """stop() with all finished records committed does not wait for the end of a rebalance."""
    hold, options = partial(quick.proxy.hold_request, JoinGroupRequest), {"auto_commit_interval_ms": 100}
    async with started_in_a_rebalance(quick, group, Reading, hold, **options) as (topic, one, events, _):
        await events.wait_for(OffsetsCommitted, where=lambda event: COUNT in event.offsets.values())
        await stopped_soon(one.stop())

    assert await quick.committed(group, topic, 1) == {0: COUNT}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stop_with_a_stale_epoch_commits_with_the_new_one(quick, group, kind):
    """If the last commit is refused as STALE_MEMBER_EPOCH, stop() repeats it with the epoch of the next heartbeat."""
    topic, events = quick.topic_with(COUNT), EventRecorder()
    options = {"group_id": group, "group_protocol": "consumer", **IN_GENERAL}
    one = kind(topic, bootstrap_servers=quick.bootstrap_servers, client_id=group, hooks=[events], **options)
    await one.start()
    joined = EventRecorder()
    with quick.proxy.hold_request(ConsumerGroupHeartbeatRequest) as question:
        await question.wait_applied()
        # It gets no partition, so the group continues with the next epoch at once.
        async with Consumer(topic, bootstrap_servers=quick.direct, hooks=[joined], **options):
            await joined.wait_for(GroupJoined)
            with (
                quick.proxy.hold_answer(ConsumerGroupHeartbeatRequest) as answer,
                # Not every broker refuses the epoch before the current one.
                quick.proxy.edit_answer(OffsetCommitRequest, refused, times=None) as refusal,
            ):
                question.release()
                await answer.wait_applied()
                stopping = asyncio.create_task(one.stop())
                await until(lambda: len(quick.commits(group)) >= 2)
                answer.release()
                await until(lambda: quick.commits(group)[0].generation_id < quick.commits(group)[-1].generation_id)
                refusal.end()
                await stopped_soon(stopping)

    assert await quick.committed(group, topic, 1) == {0: COUNT}
    assert len(events.of(OffsetsCommitted)) == 1
    assert not events.of(CommitFailed)


def refused(answer: OffsetCommitResponse) -> OffsetCommitResponse:
    """Return the response with the error STALE_MEMBER_EPOCH."""
    code = ErrorCode.STALE_MEMBER_EPOCH
    return replace(answer, partitions=tuple(replace(one, error_code=code) for one in answer.partitions))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stop_does_not_wait_for_a_deleted_topic(quick, group, kind):
    """stop() does not wait for commits of a deleted topic, and an event names the reason."""
    topic, events = quick.topic_with(COUNT), EventRecorder()
    one = kind(topic, bootstrap_servers=quick.bootstrap_servers, group_id=group, hooks=[events], **OPTIONS)
    await one.start()
    quick.server.delete_topic(topic)
    await stopped_soon(one.stop())

    (failed,) = events.of(CommitFailed)
    assert "the topic or partition no longer exists" in failed.error


async def test_a_stop_before_the_member_id_is_known_delays_no_member(quick, group):
    """A member that gets its id only after stop() leaves the group, so that other members do not wait for it.

    The session timeout is the default, since a short one would expire in time in any case.
    """
    topic = quick.topic(2)
    common = {"group_id": group, **OPTIONS}
    async with Consumer(topic, bootstrap_servers=quick.direct, **common) as first:
        await until(lambda: len(first.assignment()) == 2)
        one = Consumer(topic, bootstrap_servers=quick.bootstrap_servers, client_id=group, **common)
        with quick.proxy.hold_answer(JoinGroupRequest) as held:
            await one.start()
            await held.wait_applied()
            stopping = asyncio.create_task(one.stop())
            for _ in range(20):
                await asyncio.sleep(0)  # turns of the event loop, in which the member receives the response
            held.release()
            await stopping

        async with Consumer(topic, bootstrap_servers=quick.direct, **common) as last:
            await until(lambda: len(first.assignment()) == len(last.assignment()) == 1, 25)
            shared = first.assignment() | last.assignment()

    assert shared == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
