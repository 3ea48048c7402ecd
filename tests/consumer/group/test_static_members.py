"""Static members (KIP-345) keep their partitions in a restart, and the older of two with one instance id is fenced."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections import Counter

import pytest

from tailrace import ConfigurationError, FencedMemberError, TopicPartition
from tailrace.observe.events import ConsumerFailed, GroupJoined, PartitionsAssigned, PartitionsLost, RebalanceStarted
from tailrace.protocol.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

QUICK = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 100, "retry_backoff_ms": 20}
FENCED = r"group_instance_id.*FENCED_INSTANCE_ID, code 82"
SILENT = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 30_000}
"""Options without heartbeats in time: the member learns of the group only by other requests."""


async def instances(witness, group):
    """Return the broker's member id and partitions for each instance id."""
    found = await witness.described(group)
    return {
        member.group_instance_id: (
            member.member_id,
            frozenset(TopicPartition(one.topic, one.partition) for one in member.assignment.topic_partitions),
        )
        for member in found.members
    }


async def read(consumer, count):
    async with asyncio.timeout(20):
        return [(await consumer.getone()).offset for _ in range(count)]


# ---- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", ["leader", "follower"])
async def test_a_restart_within_the_session_moves_no_partition(witness_of, group, restarted):
    """A static member restarted within its session keeps its partitions, and the other does not rebalance."""
    topic, events, again_events, proxy = witness_of.topic(4), EventRecorder(), EventRecorder(), witness_of.proxy
    options = {"group_id": group, "partition_assignment_strategy": "range", **QUICK}
    other = "follower" if restarted == "leader" else "leader"

    def member(name, **more):
        return witness_of.consumer(topic, group_instance_id=name, client_id=f"{group}-{name}", **options, **more)

    async with contextlib.AsyncExitStack() as stack:
        members = {"leader": member("leader", hooks=[events] if other == "leader" else [])}
        await stack.enter_async_context(members["leader"])
        await until(lambda: len(members["leader"].assignment()) == 4)
        members["follower"] = member("follower", hooks=[events] if other == "follower" else [])
        await stack.enter_async_context(members["follower"])
        await until(lambda: [len(one.assignment()) for one in members.values()] == [2, 2])
        before, had = await instances(witness_of, group), members[restarted].assignment()
        rebalances, generation = len(events.of(RebalanceStarted)), events.of(GroupJoined)[-1].generation
        await members[restarted].stop()
        async with member(restarted, hooks=[again_events]) as again:
            await until(lambda: len(again.assignment()) == 2)
            beats = len(proxy.answers(HeartbeatRequest, client_id=f"{group}-{other}"))
            await until(lambda: len(proxy.answers(HeartbeatRequest, client_id=f"{group}-{other}")) > beats + 2)
            after = await instances(witness_of, group)
            assert again.assignment() == had

    joined = proxy.answers(JoinGroupRequest, client_id=f"{group}-{restarted}")[-1].message
    assert {name: has for name, (_, has) in after.items()} == {name: has for name, (_, has) in before.items()}
    assert after[other] == before[other]
    assert [event.generation for event in again_events.of(GroupJoined)] == [generation]
    assert joined.skip_assignment is (restarted == "leader")
    assert len(events.of(RebalanceStarted)) == rebalances


async def test_a_restart_continues_after_the_last_commit(witness_of, group):
    """stop() of a static member commits finished records, and the next member with its id continues there."""
    topic = witness_of.topic_with(20)
    options = {"group_id": group, "group_instance_id": "one", "auto_commit_interval_ms": 60_000, **QUICK}

    async with witness_of.consumer(topic, **options) as consumer:
        got = await read(consumer, 11)
    async with witness_of.consumer(topic, **options) as consumer:
        got += await read(consumer, 10)

    # The eleventh record was in flight when the consumer was stopped.
    assert [*range(11), *range(10, 20)] == got


@pytest.mark.parametrize("grows", ["while it is away", "later"])
async def test_a_restarted_static_leader_still_assigns(witness_of, group, grows):
    """A restarted static leader skips the first assignment (KIP-814), and assigns partitions that are added."""
    topic = witness_of.topic(2)
    options = {"group_id": group, "metadata_max_age_ms": 200, **QUICK}

    def member(name):
        return witness_of.consumer(topic, group_instance_id=name, client_id=f"{group}-{name}", **options)

    async with contextlib.AsyncExitStack() as stack:
        leader = await stack.enter_async_context(member("leader"))
        await until(lambda: len(leader.assignment()) == 2)
        follower = await stack.enter_async_context(member("follower"))
        await until(lambda: len(leader.assignment()) == len(follower.assignment()) == 1)
        await leader.stop()
        joins = len(witness_of.proxy.answers(JoinGroupRequest, client_id=f"{group}-leader"))
        syncs = len(witness_of.proxy.requests(SyncGroupRequest, client_id=f"{group}-leader"))
        if grows == "while it is away":
            witness_of.server.add_partitions(topic, 6)
        async with member("leader") as again:
            await until(lambda: len(again.assignment()) >= 1)
            joined = witness_of.proxy.answers(JoinGroupRequest, client_id=f"{group}-leader")[joins].message
            if grows == "later":
                witness_of.server.add_partitions(topic, 6)
            await until(lambda: len(again.assignment()) == len(follower.assignment()) == 3)

    asked = witness_of.proxy.requests(SyncGroupRequest, client_id=f"{group}-leader")[syncs:]
    assert joined.skip_assignment
    assert asked[0].message.assignments == ()


async def test_an_absent_static_member_is_replaced_after_its_session(witness_of, group):
    """When the session of an absent static member has expired, another member gets its partitions."""
    topic = witness_of.topic(2)
    options = {"group_id": group, **QUICK}
    shortly = {"group_instance_id": "goes", "client_id": group, "session_timeout_ms": 1_500}

    async with witness_of.consumer(topic, group_instance_id="stays", **options) as stays:
        async with witness_of.consumer(topic, **{**options, **shortly}) as goes:
            await until(lambda: len(stays.assignment()) == len(goes.assignment()) == 1)
        await until(lambda: len(stays.assignment()) == 2)
        assert set(await instances(witness_of, group)) == {"stays"}

    assert not witness_of.proxy.requests(LeaveGroupRequest, client_id=group)


# ---- restarts that the stored assignment does not fit ----------------------------------------------------------------

STAYS = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 200, "retry_backoff_ms": 20}
"""Options with a session so long that no test ends it, after which the group would rebalance."""


async def owners(witness, group, *topics):
    """Return the number of owners of each partition of ``topics``, as the broker sees them."""
    found = await instances(witness, group)
    return Counter(one for _, has in found.values() for one in has if one.topic in topics)


async def wait_for_owners(witness, group, *topics, partitions):
    """Wait until each partition of ``topics`` has one owner."""
    expected = Counter(TopicPartition(topic, n) for topic in topics for n in range(partitions))
    async with asyncio.timeout(30):
        while await owners(witness, group, *topics) != expected:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize("drains", ["leader", "follower"])
async def test_a_restart_during_a_drain_leaves_no_partition_without_owner(witness_of, group, drains, ends):
    """A static member that restarts while it drains revoked partitions joins again, so that they get an owner."""
    topic, other, events = witness_of.topic_with(8, 4), witness_of.topic(), EventRecorder()

    def member(name, *topics, **more):
        return witness_of.consumer(*topics, group_id=group, group_instance_id=name, **STAYS, **more)

    async with contextlib.AsyncExitStack() as stack:
        if drains == "follower":
            leader = await stack.enter_async_context(member("leader", other))
            await until(lambda: len(leader.assignment()) == 1)
        owner = member("owner", topic)
        await owner.start()
        await until(lambda: len(owner.assignment()) == 4)
        # Until these records are finished, their partitions are not released. Another call would finish them.
        held = await owner.getmany(max_records=32, min_records=32, timeout_ms=60_000)
        assert {record.partition for record in held} == {0, 1, 2, 3}
        (process,) = (task for task in asyncio.all_tasks() if task.get_name() == f"tailrace consumer {topic}")
        added = await stack.enter_async_context(member("added", topic, hooks=[events]))
        await events.wait_for(PartitionsAssigned)
        assert (len(owner.assignment()), len(added.assignment())) == (4, 0)
        if ends == "stop":
            await owner.stop()
        else:
            # The member sends no further request, as after SIGKILL.
            process.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await owner.stop()

        again = await stack.enter_async_context(member("owner", topic))
        await wait_for_owners(witness_of, group, topic, partitions=4)
        await until(lambda: (len(again.assignment()), len(added.assignment())) == (2, 2))
        await until(lambda: again.health().status == added.health().status == "ok")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("restarted", ["leader", "follower"])
@pytest.mark.parametrize("change", ["removed", "added", "replaced"])
async def test_a_restart_with_other_topics_changes_the_assignment(witness_of, group, restarted, strategy, change):
    """A static member that restarts with other topics is assigned these, and reads no record of the former ones."""
    old, new = witness_of.topic_with(4, 2), witness_of.topic_with(4, 2)
    before, after = {"removed": ([old, new], [new]), "added": ([old], [old, new]), "replaced": ([old], [new])}[change]
    other = "follower" if restarted == "leader" else "leader"

    def member(name, topics):
        options = {"group_instance_id": name, "partition_assignment_strategy": strategy, **STAYS}
        return witness_of.consumer(*topics, group_id=group, **options)

    async with contextlib.AsyncExitStack() as stack:
        members = {}
        for name in ("leader", "follower"):
            members[name] = await stack.enter_async_context(member(name, before))
            await until(lambda: all(members[one].assignment() for one in members))
        await wait_for_owners(witness_of, group, *before, partitions=2)
        await members[restarted].stop()

        again = await stack.enter_async_context(member(restarted, after))
        await wait_for_owners(witness_of, group, *{*before, *after}, partitions=2)
        assert {one.topic for one in members[other].assignment()} <= set(before)
        async with asyncio.timeout(20):
            read_topics = {(await again.getone()).topic}
        assert read_topics <= set(after)
        await until(lambda: again.health().status == members[other].health().status == "ok")


# ---- two members with one instance id -----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["Heartbeat", "OffsetCommit", "JoinGroup", "SyncGroup"])
async def test_the_older_member_with_an_instance_id_is_fenced(witness_of, group, by):
    """The next request of the older member fails, and then its polls and commits raise FencedMemberError."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    both = {"group_id": group, "group_instance_id": "one", "auto_commit_interval_ms": 60_000}
    listens = QUICK if by == "Heartbeat" else {**SILENT, "metadata_max_age_ms": 200}
    older = witness_of.consumer(topic, client_id=f"{group}-older", hooks=[events], **both, **listens)
    newer = witness_of.consumer(topic, client_id=f"{group}-newer", **both, **QUICK)

    async with contextlib.AsyncExitStack() as stack:
        hold = contextlib.nullcontext() if by != "SyncGroup" else proxy.hold_request(SyncGroupRequest)
        with hold as held:
            await stack.enter_async_context(older)
            if held is not None:
                await held.wait_applied()
            else:
                assert await read(older, 5) == [0, 1, 2, 3, 4]
            await stack.enter_async_context(newer)
            await until(lambda: len(newer.assignment()) == 1)
        commits = len(proxy.requests(OffsetCommitRequest, client_id=f"{group}-older"))
        if by == "OffsetCommit":
            with pytest.raises(FencedMemberError, match=FENCED):
                await older.commit()
        elif by == "JoinGroup":
            witness_of.server.add_partitions(topic, 2)
        await events.wait_for(ConsumerFailed)
        for _ in range(2):
            with pytest.raises(FencedMemberError, match=FENCED):
                await read(older, 10)
        with pytest.raises(FencedMemberError, match=FENCED):
            await older.commit()
        await older.stop()
        assert await read(newer, 10) == list(range(10))

    assert fenced(proxy, f"{group}-older") == [by]
    assert len(proxy.requests(OffsetCommitRequest, client_id=f"{group}-older")) == commits + (by == "OffsetCommit")
    assert await witness_of.committed(group, topic, 1) == {0: 9}


WITH_ITS_NAME = [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest, OffsetCommitRequest, LeaveGroupRequest]


def fenced(proxy, client):
    """Return the names of a client's requests that were refused with FENCED_INSTANCE_ID."""
    frames = [frame for kind in WITH_ITS_NAME for frame in proxy.answers(kind, client_id=client)]
    return [f.name for f in frames if 82 in {getattr(one, "error_code", 0) for one in (f.message, *results(f))}]


def results(frame):
    return getattr(frame.message, "partitions", ())


async def test_a_fenced_member_does_not_remove_its_successor(witness_of, group):
    """A fenced member with leave_on_stop sends no LeaveGroup, which would remove its successor."""
    topic, events, proxy = witness_of.topic_with(10), EventRecorder(), witness_of.proxy
    both = {"group_id": group, "group_instance_id": "one", "leave_on_stop": True, **QUICK}

    older = witness_of.consumer(topic, client_id=f"{group}-older", hooks=[events], **both)
    newer = witness_of.consumer(topic, client_id=f"{group}-newer", **both)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(older)
        await until(lambda: len(older.assignment()) == 1)
        await stack.enter_async_context(newer)
        await events.wait_for(ConsumerFailed)
        await older.stop()
        assert await read(newer, 10) == list(range(10))
        assert len(await instances(witness_of, group)) == 1

    assert not proxy.requests(LeaveGroupRequest, client_id=f"{group}-older")
    assert await instances(witness_of, group) == {}


async def test_a_fenced_member_loses_its_partitions(witness_of, group):
    """on_partitions_lost, not on_partitions_revoked, is called when a member is fenced."""
    topic, events, calls = witness_of.topic_with(10), EventRecorder(), []

    class Listener:
        def on_partitions_lost(self, partitions):
            calls.append(("lost", partitions))

        def on_partitions_revoked(self, partitions):
            calls.append(("revoked", partitions))

    both = {"group_id": group, "group_instance_id": "one", **QUICK}
    async with witness_of.consumer(topic, hooks=[events], rebalance_listener=Listener(), **both) as older:
        await read(older, 1)
        async with witness_of.consumer(topic, **both):
            await events.wait_for(PartitionsLost)
            await events.wait_for(ConsumerFailed)
            assert older.assignment() == frozenset()

    assert calls == [("lost", frozenset({TopicPartition(topic, 0)}))]


# ---- leaving ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance", "leave_on_stop", "leaves"),
    [(None, None, True), (None, True, True), (None, False, False), ("one", None, False), ("one", True, True)],
)
async def test_leave_on_stop_overrides_the_default_of_stop(witness_of, group, instance, leave_on_stop, leaves):
    """A dynamic member leaves at stop() and a static one does not, unless leave_on_stop is set."""
    topic, proxy = witness_of.topic(), witness_of.proxy
    options = {"group_instance_id": instance, "leave_on_stop": leave_on_stop, **QUICK}

    async with witness_of.consumer(topic, group_id=group, client_id=group, **options) as consumer:
        await until(lambda: len(consumer.assignment()) == 1)

    left = [frame.message.group_instance_id for frame in proxy.requests(LeaveGroupRequest, client_id=group)]
    assert left == ([instance] if leaves else [])
    assert len(await witness_of.members(group)) == (0 if leaves else 1)


# ---- the instance id ----------------------------------------------------------------------------------------------


async def test_every_request_contains_the_instance_id(witness_of, group, monkeypatch):
    """Joins, syncs, heartbeats, commits and leaves contain the instance id that results from the template."""
    monkeypatch.setenv("TAILRACE_WORKER", "3")
    topic, proxy = witness_of.topic_with(1), witness_of.proxy
    options = {"group_instance_id": "{hostname}-{worker}", "leave_on_stop": True, **QUICK}

    async with witness_of.consumer(topic, group_id=group, client_id=group, **options) as consumer:
        await consumer.getone()
        await consumer.commit()
        await until(lambda: bool(proxy.requests(HeartbeatRequest, client_id=group)))
        (seen,) = await instances(witness_of, group)

    requests = {kind: {frame.message for frame in proxy.requests(kind, client_id=group)} for kind in WITH_ITS_NAME}
    name = f"{platform.node()}-3"
    assert seen == name
    assert {kind: {one.group_instance_id for one in asked} for kind, asked in requests.items()} == {
        kind: {name} for kind in WITH_ITS_NAME
    }


async def test_a_static_member_joins_with_one_request(witness_of, group):
    """A static member joins with one request, without a member id."""
    topic = witness_of.topic_with(1)

    async with witness_of.consumer(topic, group_id=group, client_id=group, group_instance_id="one") as consumer:
        await consumer.getone()

    joins = [frame.message for frame in witness_of.proxy.requests(JoinGroupRequest, client_id=group)]
    assert [join.member_id for join in joins] == [""]


@pytest.mark.parametrize(
    "template", ["{host}", "{", "{}", "{0}", "a b", "", "{hostname.upper}", "{worker!r}", "x" * 250, "..", "größe"]
)
def test_an_invalid_instance_id_raises(template):
    """An instance id with unknown fields or invalid characters raises in the constructor."""
    from tailrace import Consumer  # noqa: PLC0415 - the one use

    with pytest.raises(ConfigurationError, match="group_instance_id"):
        Consumer("t", group_id="g", group_instance_id=template)
