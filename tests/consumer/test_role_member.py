"""Members of groups of other protocol types than consumers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tailrace import (
    ConfigurationError,
    Consumer,
    ConsumerStateError,
    Generation,
    GroupMember,
    NoCommonAssignorError,
    RebalanceError,
)
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.support.consumer_group import until

QUICK = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 100}


class Election:
    """Role of a primary and standbys: the member with the largest weight becomes the primary."""

    protocol_type = "election"

    def __init__(self, weight=b"1", protocols=("plain",)):
        self.weight, self.names = weight, protocols
        self.joined: list[Generation] = []
        self.left: list[Generation] = []
        self.dealt: list[tuple] = []

    def protocols(self):
        return [(name, self.weight) for name in self.names]

    def assign(self, leader_id, protocol, members):
        self.dealt.append((leader_id, protocol, dict(members)))
        primary = max(members, key=lambda one: members[one])
        return {one: "primary" if one == primary else "standby" for one in members}

    async def on_joined(self, generation):
        self.joined.append(generation)

    def on_rebalance(self, generation):
        self.left.append(generation)


def member(kafka, group, role, **options):
    return GroupMember(role, **{"bootstrap_servers": kafka.bootstrap_servers, "group_id": group, **QUICK, **options})


async def agree(members, count):
    """Wait until ``count`` members are in one generation."""

    def have_agreed():
        found = [one.generation for one in members]
        return None not in found and len({one.number for one in found}) == 1 and len(found) == count

    await until(have_agreed)
    return [one.generation for one in members]


async def test_a_group_member_role_can_elect_a_leader(kafka, group):
    """Each member joins with its data, the leader assigns a state to each, and each member gets its state."""
    first, second = Election(b"1"), Election(b"2")

    async with member(kafka, group, first, client_id=group) as one:
        alone = await one.joined()
        async with member(kafka, group, second) as other:
            both = await agree([one, other], 2)
            described = await as_the_broker_has_it(kafka, group)
        after = await wait_for_next(one, both[0].number)
    afterwards = await as_the_broker_has_it(kafka, group)

    assert (alone.state, alone.is_leader, alone.protocol) == (b"primary", True, "plain")
    assert [generation.state for generation in both] == [b"standby", b"primary"]
    assert sorted(generation.is_leader for generation in both) == [False, True]
    assert described == ("Stable", "election", "plain", {generation.member_id for generation in both})
    assert afterwards[0] == "Empty"
    assert (after.state, one.generation) == (b"primary", None)
    assert alone in first.left
    assert first.joined[0] == alone
    syncs = [frame.message for frame in kafka.proxy.requests(SyncGroupRequest, client_id=group)]
    assert {sync.protocol_type for sync in syncs} == {"election"}
    assert len(syncs[0].assignments) == 1


async def as_the_broker_has_it(kafka, group):
    """Return state, protocol type, protocol and members, as aiokafka's admin client reads them."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        ((_, _, state, kind, protocol, members, *_),) = (await admin.describe_consumer_groups([group]))[0].groups
    finally:
        await admin.close()
    return state, kind, protocol, {one[0] for one in members}


async def wait_for_next(one, number):
    await until(lambda: one.generation is not None and one.generation.number > number)
    return one.generation


async def test_the_leader_assigns_from_all_members_data(kafka, group):
    """The leader's assign() is called with the protocol and the bytes of all members."""
    first, second = Election(b"heavy"), Election("light")

    async with member(kafka, group, first) as one, member(kafka, group, second) as other:
        generations = await agree([one, other], 2)
        leader, protocol, weights = next(role for role in (first, second) if role.dealt).dealt[-1]

    assert weights == {generations[0].member_id: b"heavy", generations[1].member_id: b"light"}
    assert (leader in weights, protocol) == (True, "plain")


async def test_the_chosen_protocol_is_offered_by_all_members(kafka, group):
    """The group uses the first protocol that all members offer, and a member without a common one raises."""
    both, latter, neither = Election(protocols=("a", "b")), Election(protocols=("b",)), Election(protocols=("c",))

    async with member(kafka, group, both) as one:
        alone = await one.joined()
        async with member(kafka, group, latter) as other:
            together = await agree([one, other], 2)
            async with member(kafka, group, neither) as third:
                with pytest.raises(NoCommonAssignorError, match=r"'c'.*'election'"):
                    await third.joined()
            assert one.generation is not None

    assert (alone.protocol, {generation.protocol for generation in together}) == ("a", {"b"})


async def test_another_protocol_type_is_refused(kafka, group):
    """A consumer that joins a group of another protocol type raises NoCommonAssignorError."""
    topic = kafka.topic_with(1)

    async with member(kafka, group, Election()) as one:
        await one.joined()
        async with Consumer(topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group) as consumer:
            with pytest.raises(NoCommonAssignorError, match="not a consumer group"):
                await consumer.getone()


async def test_many_tasks_may_wait_for_one_join(kafka, group):
    """Ten tasks that wait in joined() share one join, and rejoin() sends the role's current data."""
    role = Election(b"1")

    async with member(kafka, group, role, client_id=group) as one:
        generations = await asyncio.gather(*(one.joined() for _ in range(10)))
        joins = len(kafka.proxy.requests(JoinGroupRequest, client_id=group))
        role.weight = b"2"
        one.rejoin()
        await wait_for_next(one, generations[0].number)

    assert (len(set(generations)), joins) == (1, 2)
    assert list(role.dealt[-1][2].values()) == [b"2"]


async def test_stop_ends_heartbeats_and_leaves(kafka, group):
    """After stop(), which leaves the group once, a member sends no heartbeats."""
    async with member(kafka, group, Election(), client_id=group) as one:
        await one.joined()
        await until(lambda: len(kafka.proxy.requests(HeartbeatRequest, client_id=group)) >= 3)
        await one.stop()
        count = len(kafka.proxy.requests(HeartbeatRequest, client_id=group))
        with pytest.raises(ConsumerStateError, match="stopped"):
            await one.joined()
        await asyncio.sleep(0.3)

    assert len(kafka.proxy.requests(LeaveGroupRequest, client_id=group)) == 1
    assert len(kafka.proxy.requests(HeartbeatRequest, client_id=group)) == count


async def test_an_error_of_the_role_ends_the_membership(kafka, group):
    """If assign() or on_joined() raises or returns an invalid result, joined() raises and the member leaves."""

    class Raises(Election):
        def assign(self, *_):
            raise KeyError("oops")

    class NamesStrangers(Election):
        def assign(self, *_):
            return {"nobody": b""}

    class GivesNumbers(Election):
        def assign(self, _leader, _protocol, members):
            return dict.fromkeys(members, 5)

    class DoesNotTakeIt(Election):
        async def on_joined(self, _generation):
            raise KeyError("oops")

    wrong = (
        (Raises(), RebalanceError, "KeyError: 'oops'"),
        (NamesStrangers(), RebalanceError, "'nobody'"),
        (GivesNumbers(), ConfigurationError, "must return bytes"),
        (DoesNotTakeIt(), RebalanceError, r"on_joined.*oops"),
    )
    for role, error, words in wrong:
        async with member(kafka, group, role, client_id=group) as one:
            with pytest.raises(error, match=words):
                await asyncio.wait_for(one.joined(), 20)

    assert len(kafka.proxy.requests(LeaveGroupRequest, client_id=group)) == len(wrong)
    assert (await as_the_broker_has_it(kafka, group))[3] == set()


async def test_a_role_cannot_stop_its_member(kafka, group):
    """stop() raises inside a method of the role, and succeeds in another task."""
    stopped = []

    class Leaves(Election):
        async def on_joined(self, _generation):
            with pytest.raises(ConsumerStateError, match="another task"):
                await one.stop()
            stopped.append(asyncio.create_task(one.stop()))

    async with member(kafka, group, Leaves()) as one, asyncio.timeout(30):
        await until(lambda: bool(stopped))
        await stopped[0]


def test_an_invalid_role_raises():
    """The constructor raises if a role lacks methods or protocols, and for group_protocol="consumer"."""

    class Half:
        protocol_type = "half"

        def protocols(self):
            return []

    with pytest.raises(ConfigurationError, match="must have assign, on_joined"):
        GroupMember(Half())
    with pytest.raises(ConfigurationError, match="at least one protocol"):
        GroupMember(Election(protocols=()))
    with pytest.raises(ConfigurationError, match="group_protocol"):
        GroupMember(Election(), group_protocol="consumer")


async def test_a_member_without_a_group_id_joins_the_default_group(kafka):
    """A member without a group_id joins the group tailrace-default-group, and joined() raises before start()."""
    one = GroupMember(Election(), bootstrap_servers=kafka.bootstrap_servers, **QUICK)
    with pytest.raises(ConsumerStateError, match="not started"):
        await one.joined()
    async with one:
        generation = await one.joined()
        described = await as_the_broker_has_it(kafka, "tailrace-default-group")

    assert described[3] == {generation.member_id}


async def test_role_data_must_be_bytes(kafka, group):
    """If a role returns data that are neither bytes nor text, joined() raises."""
    async with member(kafka, group, role := Election()) as one:
        await one.joined()
        role.weight = 5
        one.rejoin()
        await until(lambda: one.generation is None)
        with pytest.raises(ConfigurationError, match="must return bytes"):
            await asyncio.wait_for(one.joined(), 20)
