"""Faulty assignors, callbacks and listeners of the user, and options that the group refuses."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest
from msgspec.structs import replace

from tailrace import (
    ConsumerStateError,
    InvalidSessionTimeoutError,
    NoCommonAssignorError,
    OffsetOutOfRangeError,
    RebalanceError,
    TopicPartition,
)
from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    ConsumerFailed,
    GroupJoined,
    GroupLeft,
    OffsetOverrideRejected,
    OffsetReset,
    PartitionsAssigned,
)
from tailrace.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    MemberAssignment,
    OwnedPartitions,
    encode_assignment,
)
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.manual_member import ManualMember

PATIENT = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 200}
"""Long: the group would wait for a missing member longer than any of these tests takes."""


async def read(consumer, count):
    async with asyncio.timeout(20):
        return [(await consumer.getone()).offset for _ in range(count)]


# ---- assignments of other clients ---------------------------------------------------------------------------------


def shares(*entries: tuple[str, tuple[int, ...]]) -> bytes:
    """Return an encoded assignment."""
    return encode_assignment(MemberAssignment(tuple(OwnedPartitions(*entry) for entry in entries)))


FAULTY = {
    "unsubscribed topic": (lambda topic, other: shares((topic, (0,)), (other, (0,))), "without a subscription"),
    "unknown topic": (lambda topic, _: shares((topic, (0,)), ("nowhere", (0,))), "without a subscription"),
    "partition beyond the count": (lambda topic, _: shares((topic, (0, 7))), "which do not exist"),
    "negative partition": (lambda topic, _: shares((topic, (-1, 0))), "which do not exist"),
    "malformed bytes": (lambda topic, _: shares((topic, (0,)))[:-6], "cannot be read"),
    "no version": (lambda *_: b"\xff\xfe garbage", "cannot be read"),
    "only garbage": (lambda _, other: shares((other, (0, 1))), "without a subscription"),
}
"""Faulty assignments of a leader, and the faults that they cause."""


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("fault", FAULTY)
async def test_a_faulty_assignment_of_another_client_is_refused(witness_of, group, fault, strategy):
    """Partitions that the member cannot read are not taken over; it reports them and joins again."""
    topic, other, events = witness_of.topic_with(5, 2), witness_of.topic_with(5, 2), EventRecorder()
    assignment, reason = FAULTY[fault]
    options = {"group_id": group, "partition_assignment_strategy": strategy, "hooks": [events], **PATIENT}

    async with ManualMember(witness_of.bootstrap_servers, group) as leader:
        await leader.join(topic, protocol=strategy)
        async with witness_of.consumer(topic, **options) as consumer:
            async with asyncio.timeout(20):
                while len((await witness_of.described(group)).members) < 2:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.05)
            await leader.join(topic, protocol=strategy, assigns=assignment(topic, other))
            found = await events.wait_for(AssignmentFaultFound)
            assert reason in found.reason
            assert consumer.health().detail == found.reason
            assert consumer.assignment() <= {TopicPartition(topic, 0), TopicPartition(topic, 1)}

            await leader.join(topic, protocol=strategy, assigns=shares((topic, (0,)), (topic, (0, 1))))
            await events.wait_for(AssignmentFaultResolved)
            await until(lambda: consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)})
            async with asyncio.timeout(20):
                records = [await consumer.getone() for _ in range(5)]
            assert {record.topic for record in records} == {topic}
            await until(lambda: consumer.health().status == "ok")


# ---- assignors ----------------------------------------------------------------------------------------------------


async def test_a_users_assignor_assigns(witness_of, group):
    """A function as assignor is called with subscriptions and partition counts, and its result is assigned."""
    topic, other, calls = witness_of.topic(4), witness_of.topic(2), []

    def all_but_one(members, partitions):
        calls.append((sorted(members, key=lambda one: one.instance_id), dict(partitions)))
        first, *rest = calls[-1][0]
        everything = [TopicPartition(name, n) for name in partitions for n in range(partitions[name])]
        theirs = {TopicPartition(topic, 3)} if rest else set()
        return {first.member_id: [one for one in everything if one not in theirs]} | {
            one.member_id: theirs for one in rest
        }

    options = {"group_id": group, "partition_assignment_strategy": all_but_one, **PATIENT}
    async with (
        witness_of.consumer(topic, other, group_instance_id="a", client_id=group, **options) as one,
        witness_of.consumer(topic, group_instance_id="b", **options) as two,
    ):
        await until(lambda: (len(one.assignment()), len(two.assignment())) == (5, 1))
        seen = await witness_of.members(group)
        assert {one.assignment(), two.assignment()} == set(seen.values())

    members, partitions = next(call for call in calls if len(call[0]) == 2)
    assert partitions == {topic: 4, other: 2}
    assert [(member.instance_id, member.topics) for member in members] == [("a", {topic, other}), ("b", {topic})]
    assert {member.member_id for member in members} == set(seen)
    joins = [frame.message for frame in witness_of.proxy.requests(JoinGroupRequest, client_id=group)]
    assert {offer.name for join in joins for offer in join.protocols} == {"all_but_one"}


def leaves_out(shares, _topic):
    shares[min(shares)].pop()


def gives_twice(shares, topic):
    shares[max(shares)].append(TopicPartition(topic, 0))
    shares[min(shares)].append(TopicPartition(topic, 0))


def names_an_unknown_member(shares, topic):
    shares["nobody"] = [TopicPartition(topic, 0)]


def invents_a_partition(shares, topic):
    shares[min(shares)].append(TopicPartition(topic, 99))


def raises(_shares, _topic):
    raise ValueError("out of luck")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (leaves_out, r"'mine' leaves .*\[\d\] unassigned"),
        (gives_twice, r"'mine' assigns .*\[0\] twice"),
        (names_an_unknown_member, r"'mine' names 'nobody', which is not a member of the group"),
        (invents_a_partition, r"'mine' assigns .*\[99\], which does not exist"),
        (raises, r"'mine' raised ValueError: out of luck"),
    ],
)
async def test_an_invalid_assignment_fails_the_leader_alone(witness_of, group, fault, words):
    """An invalid assignment raises in the leader, which leaves, so that the other members get all partitions."""
    topic = witness_of.topic(4)

    def dealing(what_else):
        def mine(members, partitions):
            shares = {one.member_id: [] for one in members}
            for n in range(partitions[topic]):
                shares[sorted(shares)[n % len(shares)]].append(TopicPartition(topic, n))
            if len(members) > 1:
                what_else(shares, topic)
            return shares

        return mine

    options = {"group_id": group, **PATIENT}
    wrong, right = dealing(fault), dealing(lambda *_: None)
    async with witness_of.consumer(topic, partition_assignment_strategy=wrong, **options) as leader:
        await until(lambda: len(leader.assignment()) == 4)
        began = time.monotonic()
        async with witness_of.consumer(topic, partition_assignment_strategy=right, **options) as other:
            with pytest.raises(RebalanceError, match=words):
                await read(leader, 1)
            await until(lambda: len(other.assignment()) == 4)
            took = time.monotonic() - began
            assert len(await witness_of.members(group)) == 1

    assert took < 20


# ---- refusals by the group ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("session_ms", [500, 2_000_000])
async def test_a_session_timeout_out_of_the_brokers_bounds_raises(witness_of, group, session_ms):
    """A session timeout outside the broker's bounds raises an error with the option and the broker's settings."""
    topic = witness_of.topic_with(1)
    options = {"session_timeout_ms": session_ms, "heartbeat_interval_ms": 100}

    async with witness_of.consumer(topic, group_id=group, **options) as consumer:
        with pytest.raises(InvalidSessionTimeoutError, match=r"session_timeout_ms between .*group\.min.*group\.max"):
            await read(consumer, 1)


@pytest.mark.parametrize(
    ("protocol_type", "protocol", "strategy"),
    [
        ("consumer", "range", "roundrobin"),
        ("consumer", "range", "cooperative-sticky"),
        ("consumer", "somebody-elses", lambda _members, _partitions: {}),
        ("connect", "sessioned", "range"),
        ("connect", "range", "range"),
    ],
)
async def test_a_group_without_a_common_protocol_raises(witness_of, group, protocol_type, protocol, strategy):
    """A member without a common assignor, or of another protocol type, raises an error that names the option to set."""
    topic = witness_of.topic_with(1)

    async with ManualMember(witness_of.bootstrap_servers, group) as stranger:
        await stranger.join(topic, protocol_type=protocol_type, protocol=protocol)
        async with witness_of.consumer(topic, group_id=group, partition_assignment_strategy=strategy) as consumer:
            with pytest.raises(NoCommonAssignorError, match=r"not a consumer group.*set partition_assignment_strategy"):
                await read(consumer, 1)
        await stranger.leave()


# ---- results of callbacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10), ("none", None)])
async def test_an_override_past_the_end_is_out_of_range(witness_of, group, reset, first):
    """An override past the end of the log is reset by auto_offset_reset, and an event has both offsets."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    options = {"group_id": group, "auto_offset_reset": reset, "hooks": [events]}
    callback = {"post_rebalance_callback": lambda _consumer, _old, new: dict.fromkeys(new, 5_000)}

    async with witness_of.consumer(topic, **options, **callback) as consumer:
        if first is None:
            with pytest.raises(OffsetOutOfRangeError, match="offset 5000 is outside the log"):
                await read(consumer, 1)
        else:
            event = await events.wait_for(OffsetReset)
            assert (event.before, event.after, event.policy) == (5_000, first, reset)
            witness_of.produce(topic, [b"new"])
            assert await read(consumer, 1) == [first]


@pytest.mark.parametrize("offset", [-1, -2, 2**63, 1.5, "3", None, True])
async def test_an_invalid_override_is_rejected_alone(witness_of, group, offset):
    """An invalid override is ignored with an event, and valid ones of other partitions apply."""
    topic, events = witness_of.topic(2), EventRecorder()
    witness_of.fill(topic, 2, 10)

    async def choose(_consumer, _old, _new):
        return {TopicPartition(topic, 0): offset, TopicPartition(topic, 1): 7, TopicPartition("theirs", 0): 1}

    async with witness_of.consumer(topic, group_id=group, post_rebalance_callback=choose, hooks=[events]) as consumer:
        got = [await consumer.getone() for _ in range(13)]

    assert [r.offset for r in got if r.partition == 0] == list(range(10))
    assert [r.offset for r in got if r.partition == 1] == [7, 8, 9]
    assert [(one.partition, one.offset) for one in events.of(OffsetOverrideRejected)] == [
        (TopicPartition(topic, 0), offset),
        (TopicPartition("theirs", 0), 1),
    ]


@pytest.mark.parametrize("returned", [7, [("t", 0, 7)], "earliest", True])
async def test_a_callback_that_returns_no_mapping_raises(witness_of, group, returned):
    """A callback that returns neither None nor a mapping raises at the next poll, and the member leaves."""
    topic, events = witness_of.topic_with(1), EventRecorder()
    options = {"group_id": group, "hooks": [events], **PATIENT}

    async with witness_of.consumer(topic, post_rebalance_callback=lambda *_: returned, **options) as consumer:
        with pytest.raises(RebalanceError, match=r"post_rebalance_callback returned .* None or a mapping"):
            await read(consumer, 1)
        await events.wait_for(GroupLeft)
        assert await witness_of.members(group) == {}


# ---- callbacks and listeners that raise ---------------------------------------------------------------------------


class Broken:
    """Listener with one method that raises."""

    def __init__(self, method: str, error: Exception) -> None:
        async def broken(*_):
            raise error

        setattr(self, method, broken)


ERRORS = [ValueError("the store is down"), ConsumerStateError("no"), asyncio.CancelledError("a task it waited for")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["post_rebalance_callback", "on_partitions_assigned"])
async def test_an_error_on_assignment_ends_the_member(witness_of, group, where, error):
    """An error of a callback on assignment raises at the next poll, and the member leaves without a commit."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    broken = Broken(where, error)
    callback = getattr(broken, "post_rebalance_callback", None)
    options = {"rebalance_listener": broken} if callback is None else {"post_rebalance_callback": callback}

    async with witness_of.consumer(topic, group_id=group, hooks=[events], **options, **PATIENT) as consumer:
        with pytest.raises(RebalanceError, match=f"{where} raised {type(error).__name__}: {error}") as caught:
            await read(consumer, 1)
        await events.wait_for(GroupLeft)
        assert await witness_of.members(group) == {}
        async with witness_of.consumer(topic, group_id=group) as other:
            assert await read(other, 10) == list(range(10))

    assert caught.value.__cause__ is error
    assert len(events.of(ConsumerFailed)) == 1


async def read_into(records, consumer):
    while True:
        records.append(await consumer.getone())


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_an_error_on_revocation_ends_the_member(witness_of, group, strategy):
    """If on_partitions_revoked raises, finished records are committed and other members get all partitions."""
    topic = witness_of.topic(2)
    witness_of.fill(topic, 2, 10)
    options = {"group_id": group, "partition_assignment_strategy": strategy, **PATIENT}
    broken = Broken("on_partitions_revoked", ValueError("the store is down"))

    async with witness_of.consumer(topic, rebalance_listener=broken, **options) as first:
        got = [await first.getone() for _ in range(5)]
        async with witness_of.consumer(topic, **options) as second:
            with pytest.raises(RebalanceError, match="on_partitions_revoked raised ValueError: the store is down"):
                await read_into(got, first)
            await until(lambda: len(second.assignment()) == 2)
            mine = Counter(record.partition for record in got)
            committed = await witness_of.committed(group, topic, 2)
            async with asyncio.timeout(30):
                got += [await second.getone() for _ in range(20 - sum(committed.values()))]

    assert committed
    assert all(mine[partition] - 1 <= offset <= mine[partition] for partition, offset in committed.items())
    assert {(record.partition, record.offset) for record in got} == {(p, n) for p in range(2) for n in range(10)}


async def test_an_error_on_loss_ends_the_member(witness_of, group):
    """If on_partitions_lost raises, the next poll raises the error and the member does not join again."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    broken = Broken("on_partitions_lost", ValueError("the store is down"))

    async with witness_of.consumer(
        topic, group_id=group, rebalance_listener=broken, hooks=[events], **PATIENT
    ) as consumer:
        assert await read(consumer, 1) == [0]
        with (
            witness_of.proxy.edit_answer(HeartbeatRequest, lambda answer: replace(answer, error_code=25)),
            pytest.raises(RebalanceError, match="on_partitions_lost raised ValueError: the store is down"),
        ):
            await read(consumer, 100)

    assert len(events.of(GroupJoined)) == 1


async def test_an_error_on_revocation_at_stop_is_an_event(witness_of, group):
    """If on_partitions_revoked raises during stop(), an event has the error, and the member commits and leaves."""
    topic, events = witness_of.topic_with(10), EventRecorder()
    broken = Broken("on_partitions_revoked", ValueError("the store is down"))

    async with witness_of.consumer(
        topic, group_id=group, rebalance_listener=broken, hooks=[events], **PATIENT
    ) as consumer:
        assert await read(consumer, 6) == [0, 1, 2, 3, 4, 5]

    assert "on_partitions_revoked raised ValueError" in events.of(ConsumerFailed)[0].error
    assert await witness_of.members(group) == {}
    assert await witness_of.committed(group, topic, 1) == {0: 5}


async def test_an_override_applies_to_a_kept_partition(witness_of, group):
    """In a cooperative rebalance, an override of a kept partition applies once."""
    topic, events, says = witness_of.topic(2), EventRecorder(), {}
    witness_of.fill(topic, 2, 10)

    async def choose(_consumer, _old, new):
        return {one: says[one] for one in new if one in says}

    options = {"group_id": group, **PATIENT}
    async with witness_of.consumer(topic, post_rebalance_callback=choose, hooks=[events], **options) as first:
        await read(first, 20)
        says |= {TopicPartition(topic, n): 4 for n in range(2)}
        reading = asyncio.create_task(read(first, 6))
        async with witness_of.consumer(topic, **options) as second:
            await until(lambda: len(second.assignment()) == 1)
            got = await reading
            assert await first.getone(timeout_ms=200) is None

    assert got == [4, 5, 6, 7, 8, 9]
    assert len(events.of(PartitionsAssigned)) >= 2
