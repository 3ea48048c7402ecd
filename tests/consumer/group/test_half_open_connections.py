"""Half-open connections under requests that the coordinator may answer only after minutes."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.observe.events import GroupJoined, GroupRequestFailed, PartitionsLost
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from tests.support.consumer_group import ConsumerGroup, until
from tests.support.event_recorder import EventRecorder

# A new member joins twice, first for its id; the third join is the one of the member that owns both partitions.
FAULTS = {
    "the join of a member that owns partitions": lambda proxy: proxy.hold_request(JoinGroupRequest, skip=2),
    "an answer to a join": lambda proxy: proxy.hold_answer(JoinGroupRequest, skip=1),
    "the sync of one of the two": lambda proxy: proxy.hold_request(SyncGroupRequest),
    "an answer to a sync": lambda proxy: proxy.hold_answer(SyncGroupRequest),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_join_on_a_half_open_connection_is_sent_again(witness_of, group, fault):
    """A join or sync without a response within the session is sent again on another connection.

    Otherwise the group would wait for max_poll_interval_ms, five minutes by default.
    """
    topic, events = witness_of.topic(2), EventRecorder()
    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 240_000}

    async with ConsumerGroup(witness_of.consumer, topic, group_id=group, hooks=[events], **options) as crew:
        await crew.join()
        await crew.shares(2)
        held = FAULTS[fault](witness_of.proxy)
        await crew.join()
        # A session, one more round of a cooperative rebalance, and the delay of a busy machine.
        await crew.shares(1, 1, timeout_s=40)
        lost = events.of(PartitionsLost)
        held.release()

    failed = events.of(GroupRequestFailed)
    assert any("another connection" in event.reaction for event in failed), failed
    assert not lost
    assert witness_of.proxy.requests(HeartbeatRequest)


class SlowListener:
    """Listener that takes long to return from a revocation."""

    def __init__(self) -> None:
        self.began, self.let_go = asyncio.Event(), asyncio.Event()

    async def on_partitions_revoked(self, _partitions) -> None:
        self.began.set()
        await self.let_go.wait()


@pytest.mark.slow
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
async def test_repeated_joins_do_not_disturb_a_long_rebalance(witness_of, group, is_static):
    """Joins that are repeated during a long rebalance start no further generation and lose no partition.

    One event is emitted for all of them.
    """
    topic, slow = witness_of.topic(2), SlowListener()
    older, newer = EventRecorder(), EventRecorder()
    options = {"session_timeout_ms": 3_000, "heartbeat_interval_ms": 200, "max_poll_interval_ms": 240_000}
    options["partition_assignment_strategy"] = "range"
    names = [{"group_instance_id": f"{group}-{n}"} if is_static else {} for n in range(2)]

    async with ConsumerGroup(witness_of.consumer, topic, group_id=group, **options) as crew:
        await crew.join(hooks=[older], rebalance_listener=slow, **names[0])
        await crew.shares(2)
        sent_before = len(witness_of.proxy.requests(JoinGroupRequest))
        await crew.join(hooks=[newer], **names[1])
        await slow.began.wait()
        await until(lambda: len(witness_of.proxy.requests(JoinGroupRequest)) >= sent_before + 4, 30)
        slow.let_go.set()
        await crew.shares(1, 1)
        joined = [event.generation for event in newer.of(GroupJoined)]

    assert joined == [older.of(GroupJoined)[-1].generation]
    assert len(older.of(GroupJoined)) == 2
    assert len([event for event in newer.of(GroupRequestFailed) if "another connection" in event.reaction]) == 1
    assert not older.of(PartitionsLost)
