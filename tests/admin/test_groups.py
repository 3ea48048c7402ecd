"""Listing, description and lag of groups, compared with librdkafka and Kafka's tool."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tailrace import (
    Consumer,
    GroupAuthorizationFailedError,
    NotAConsumerGroupError,
    RequestTimedOutError,
    TopicPartition,
    UnknownGroupError,
)
from tailrace.admin.groups import describe_group, describe_groups, list_groups
from tailrace.admin.offsets import LATEST, committed_offsets, delete_offsets, group_lag, list_offsets
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.errors import GroupNotEmptyError
from tailrace.net.cluster import Cluster
from tailrace.protocol.groups import (
    CommitOffset,
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from tailrace.protocol.records import ListOffsetsRequest
from tailrace.testing import KafkaServer
from tests.support.admin_tools import Reached, commit_to
from tests.support.commands import tailrace

PROTOCOLS = ["classic", "consumer"]
QUICK = {"heartbeat_interval_ms": 200}


@pytest.fixture
def members(kafka_server, witness):
    """Start live members of a group, and wait until the broker has their partitions."""

    @asynccontextmanager
    async def live(group: str, topic: str, partitions: int, *client_ids: str, **options: object):
        options = {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group, **options}
        async with AsyncExitStack() as stack:
            consumers = [Consumer(topic, client_id=client_id, **options) for client_id in client_ids]
            for consumer in consumers:
                await stack.enter_async_context(consumer)
            async with asyncio.timeout(60):
                while (
                    sum(len(one.assignment()) for one in consumers) < partitions
                    or not all(one.assignment() for one in consumers)
                    or await witness.state(group) != "STABLE"
                ):
                    for one in consumers:
                        await one.getmany(timeout_ms=20)
            yield consumers

    return live


@pytest.fixture(scope="module")
def counting_server():
    """Start a broker whose proxy counts requests; its tests share one xdist_group."""
    with KafkaServer(proxied=True) as server:
        yield server
        server.kill()  # a clean stop of so many logs takes seconds


@pytest.fixture
def counting(counting_server):
    """Provide the counting broker without recorded requests, and without faults after the test."""
    counting_server.proxy.frames.clear()
    yield counting_server
    counting_server.proxy.restore()


@asynccontextmanager
async def connect_group(cluster: Cluster, group: str):
    """Join a group of Kafka Connect's protocol type with one member."""
    with pytest.raises(UnknownGroupError):
        await describe_group(cluster, group)  # now the coordinator is known
    coordinator = await cluster.coordinator(group)
    offer = (JoinGroupProtocol("sessioned", b"\x00\x01whatever"),)
    first = await coordinator.send(JoinGroupRequest(group, 30_000, 30_000, "", "connect", offer))
    joined = await coordinator.send(JoinGroupRequest(group, 30_000, 30_000, first.member_id, "connect", offer))
    share = (SyncGroupAssignment(joined.member_id, b"\x00\x01its tasks"),)
    await coordinator.send(SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=share))
    yield joined.member_id


# ---- listing and describing ----------------------------------------------------------------------------------------


async def test_groups_are_listed_as_the_broker_has_them(  # noqa: PLR0917
    reached, admin, kafkas_tool, new_topic, commit, members, group
):
    """All groups are listed with state and type, as librdkafka and Kafka's tool list them."""
    topic = new_topic(2)
    commit(f"{group}-idle", topic, {0: 0})
    async with (
        reached() as cluster,
        members(f"{group}-new", topic, 2, "a", group_protocol="consumer"),
        members(f"{group}-old", topic, 2, "b"),
    ):
        ours = {one.group_id: one for one in await list_groups(cluster)}
        found = await asyncio.to_thread(lambda: admin.list_consumer_groups().result(20))
        output = await asyncio.to_thread(kafkas_tool.output, "--list")

    theirs = {one.group_id: one for one in found.valid}
    mine = {name: one for name, one in ours.items() if name.startswith(group)}
    assert set(theirs) <= set(ours)
    assert set(mine) <= set(output.split())
    assert {name.removeprefix(group): (one.group_type, one.state) for name, one in mine.items()} == {
        "-idle": ("classic", "Empty"),
        "-new": ("consumer", "Stable"),
        "-old": ("classic", "Stable"),
    }
    assert {one.state.upper() for one in mine.values()} == {theirs[name].state.name for name in mine}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_group_is_described_as_librdkafka_describes_it(  # noqa: PLR0917
    reached, witness, admin, new_topic, members, group, protocol
):
    """A description has members with client, host and partitions, the assignor and the coordinator."""
    topic = new_topic(4)
    names, options = (("north", "south"), QUICK) if protocol == "classic" else (("north",), {})
    async with members(group, topic, 4, *names, group_protocol=protocol, **options), reached() as cluster:
        ours = await describe_group(cluster, group)
        theirs = await asyncio.to_thread(admin.describe_consumer_groups([group])[group].result, 20)
        shares = await witness.members(group)

    assert {one.member_id: set(one.partitions) for one in ours.members} == shares
    assert [(one.client_id, one.host) for one in ours.members] == [(name, "127.0.0.1") for name in names]
    assert [one.topics for one in ours.members] == [(topic,) for _ in names]
    assert (ours.group_type, ours.state, ours.assignor) == (protocol, "Stable", theirs.partition_assignor)
    assert (ours.coordinator_id, ours.coordinator) == (
        theirs.coordinator.id,
        f"{theirs.coordinator.host}:{theirs.coordinator.port}",
    )
    assert {one: member.client_id for one, member in ours.owners.items()}.keys() == {
        TopicPartition(topic, number) for number in range(4)
    }


async def test_a_static_member_has_its_instance_id(reached, new_topic, members, group):
    """The description of a static member has its instance id."""
    topic = new_topic()
    async with members(group, topic, 1, "till", group_instance_id="till-1"), reached() as cluster:
        (member,) = (await describe_group(cluster, group)).members

        assert member.group_instance_id == "till-1"
        assert str(member) == "till (till-1) at 127.0.0.1"


@pytest.mark.xdist_group("admin-counting")
async def test_many_groups_are_described_in_one_request(counting, group):
    """Groups with the same coordinator are described in one request."""
    names = [f"{group}-{n:02}" for n in range(10)]
    counting.create_topic("any")
    for name in names:
        commit_to(counting.bootstrap_servers, name, "any", {0: 0})
    async with Reached(resolve({"bootstrap_servers": counting.bootstrap_servers}, {})) as cluster:
        listed = [one for one in await list_groups(cluster) if one.group_id.startswith(group)]
        described = await describe_groups(cluster, listed)

    assert [(one.group_id, one.state) for one in described] == [(name, "Empty") for name in names]
    assert len(counting.proxy.requests(DescribeGroupsRequest, client_id="tailrace")) == 1
    assert not counting.proxy.requests(ConsumerGroupDescribeRequest)


async def test_a_group_of_another_type_has_no_lag(reached, group):
    """A group of Kafka Connect has members without partitions, and its lag raises NotAConsumerGroupError."""
    async with reached() as cluster, connect_group(cluster, group) as member_id:
        described = await describe_group(cluster, group)

        assert (described.protocol_type, described.is_consumer_group) == ("connect", False)
        assert [(one.member_id, one.partitions) for one in described.members] == [(member_id, ())]
        with pytest.raises(NotAConsumerGroupError, match="protocol type 'connect'"):
            await group_lag(cluster, group)


async def test_an_unknown_group_raises_at_once(reached, group):
    """An unknown group raises an error that says how to list groups."""
    async with reached() as cluster:
        began = time.monotonic()
        for ask in (describe_group, group_lag):
            with pytest.raises(UnknownGroupError, match=rf"there is no group '{group}'.*tailrace groups list"):
                await ask(cluster, group)

        assert time.monotonic() - began < 20


async def test_missing_permissions_raise(group):
    """Without permissions, description, lag and offsets raise an error that names the missing one.

    With permission to list only, all groups are listed and none is described.
    """
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaServer(security="PLAIN", config=config) as server:
        server.create_topic("any")
        inside = f"127.0.0.1:{server.node.ports.internal}"
        commit_to(inside, group, "any", {0: 0})
        async with Reached(resolve(server.client_options, {})) as cluster:
            for ask in (describe_group, group_lag, committed_offsets):
                with pytest.raises(GroupAuthorizationFailedError, match="grant READ"):
                    await ask(cluster, group)
            nothing = await list_groups(cluster)
            listing = AclBinding(
                ResourceType.BROKER,
                "kafka-cluster",
                ResourcePatternType.LITERAL,
                "User:alice",
                "*",
                AclOperation.DESCRIBE,
                AclPermissionType.ALLOW,
            )
            superuser = AdminClient({"bootstrap.servers": inside})
            asked = superuser.create_acls([listing])
            await asyncio.to_thread(asked[listing].result, 20)
            listed = []
            async with asyncio.timeout(20):
                # The broker applies an ACL some time after storing it.
                while not listed:
                    listed = await list_groups(cluster)

            assert nothing == []
            assert [one.group_id for one in listed] == [group]
            assert await describe_groups(cluster, listed) == []


# ---- offsets and lag -----------------------------------------------------------------------------------------------


async def test_lag_equals_that_of_kafkas_tool(reached, kafkas_tool, new_topic, commit, group):
    """Committed offset, end, lag and total equal those of Kafka's tool, and there is no lag without a commit."""
    topic = new_topic(3, records=10)
    commit(group, topic, {0: 10, 1: 4})

    async with reached() as cluster:
        found = await group_lag(cluster, group)
    theirs = await asyncio.to_thread(kafkas_tool.rows, "--describe", "--group", group)

    ours = {(one.partition.topic, one.partition.partition): one for one in found.partitions}
    assert {
        (row["TOPIC"], int(row["PARTITION"])): tuple(
            map(int, (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]))
        )
        for row in theirs
    } == {where: (one.committed.offset, one.end, one.lag) for where, one in ours.items() if one.committed is not None}
    assert [one.lag for one in ours.values()] == [0, 6, None]
    assert (found.total, found.uncommitted) == (6, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_lag_has_the_owner_of_a_partition(reached, new_topic, members, group, protocol):
    """The lag of a partition has its owner, even before the first commit."""
    topic = new_topic(2)
    async with members(group, topic, 2, "north", group_protocol=protocol), reached() as cluster:
        found = await group_lag(cluster, group)

    assert [(one.partition, one.member.client_id) for one in found.partitions] == [
        (TopicPartition(topic, 0), "north"),
        (TopicPartition(topic, 1), "north"),
    ]


async def test_deleted_unread_records_are_counted(reached, kafka_server, new_topic, commit, group):
    """The lag includes unread records that were deleted, and their number is a separate field."""
    topic = new_topic(1, records=10)
    commit(group, topic, {0: 2})
    kafka_server.delete_records(topic, {0: 7})

    async with reached() as cluster:
        (found,) = (await group_lag(cluster, group)).partitions

    assert (found.begin, found.end, found.lag, found.lost) == (7, 10, 8, 5)


async def test_a_deleted_topic_has_no_end_offset(reached, kafka_server, new_topic, members, group):
    """If a subscribed topic was deleted, the lag of the other topics is known."""
    topic = new_topic()
    async with members(group, topic, 1, "north"), reached() as cluster:
        kafka_server.delete_topic(topic)
        found = await group_lag(cluster, group)

    assert all((one.end, one.lag) == (None, None) for one in found.partitions)


async def test_metadata_of_commits_is_decoded(reached, new_topic, commit, group):
    """Commit metadata are decoded to the user's text and the number of finished records."""
    topic = new_topic(3, records=10)
    ours = encode_metadata(OffsetMap(4, 9, (4, 6)), "the café's", 4096, writer="billing-1").text
    commit(group, topic, {2: 5})

    async with reached() as cluster:
        coordinator = await cluster.coordinator(group)
        texts = (CommitOffset(topic, 0, 3, metadata="by hand"), CommitOffset(topic, 1, 4, metadata=ours))
        await coordinator.send(OffsetCommitRequest(group, texts))
        first, second, third = (await committed_offsets(cluster, group)).values()

    assert (first.offset, first.decoded_metadata.user_text, first.finished_beyond) == (3, "by hand", 0)
    assert (second.decoded_metadata.user_text, second.decoded_metadata.writer) == ("the café's", "billing-1")
    assert second.finished_beyond == 3
    assert (third.metadata, third.finished_beyond) == ("", 0)


async def test_committed_offsets_of_chosen_partitions_are_returned(reached, new_topic, commit, group):
    """The result has the committed offsets of the chosen partitions, without those that have none."""
    topic = new_topic(3)
    commit(group, topic, {0: 0, 2: 0})

    async with reached() as cluster:
        asked = [TopicPartition(topic, 1), TopicPartition(topic, 2)]
        assert list(await committed_offsets(cluster, group, asked)) == [TopicPartition(topic, 2)]
        assert await committed_offsets(cluster, f"{group}-not-there") == {}


@pytest.mark.xdist_group("admin-counting")
async def test_many_partitions_need_one_request(counting):
    """Any number of partitions needs one OffsetFetch, and one ListOffsets for each broker and timestamp."""
    counting.create_topic("wide", 300)
    commit_to(counting.bootstrap_servers, "wide", "wide", dict.fromkeys(range(300), 0))
    async with Reached(resolve({"bootstrap_servers": counting.bootstrap_servers}, {})) as cluster:
        found = await group_lag(cluster, "wide")

    assert (len(found.partitions), found.total) == (300, 0)
    assert len(counting.proxy.requests(ListOffsetsRequest, client_id="tailrace")) == 2
    assert len(counting.proxy.requests(OffsetFetchRequest, client_id="tailrace")) == 1


@pytest.mark.slow
async def test_requests_go_to_leaders_and_coordinators(kafka_cluster):
    """After a broker has failed, requests go to the new leaders and coordinators.

    The lag of a partition without a leader is unknown, and that of the others is known.
    """
    brokers = kafka_cluster(3)
    brokers.create_topic("spread", 12)
    brokers.create_topic("thin", 3, replication_factor=1)
    orphan = next(number for number in range(3) if brokers.leader_of("thin", number) is brokers.nodes[0])
    partitions = [TopicPartition("spread", number) for number in range(12)]
    names = [f"g-{n}" for n in range(6)]
    for group in names:
        commit_to(brokers.bootstrap_servers, group, "spread", {0: 0})
    commit_to(brokers.bootstrap_servers, names[0], "thin", {orphan: 0})
    async with Reached(resolve({"bootstrap_servers": brokers.bootstrap_servers}, {})) as cluster:
        ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        listings = await list_groups(cluster)
        brokers.nodes[0].kill()
        described = again = []
        async with asyncio.timeout(60):
            # A new coordinator knows its groups once its followers have caught up.
            while [one.group_id for one in described] != names:
                again = await list_groups(cluster)
                described = await describe_groups(cluster, again)
        lag = await group_lag(cluster, names[0])
        done = await asyncio.to_thread(tailrace, "lag", names[0], "--bootstrap-servers", brokers.bootstrap_servers)

    assert sorted(ends) == partitions
    assert [one.group_id for one in listings] == [one.group_id for one in again] == names
    assert {one.coordinator_id for one in again} <= {2, 3}
    assert [one.end for one in lag.partitions if one.partition.topic == "spread"] == [0] * 12
    thin = [(one.end, one.lag, one.is_leaderless) for one in lag.partitions if one.partition.topic == "thin"]
    assert thin == [(None, None, True) if number == orphan else (0, None, False) for number in range(3)]
    words = " ".join(done.stdout.split())
    assert "lag 0 in 15 partitions, 13 of them without a committed offset, 1 of them without a leader" in words
    assert "leader 1 partition without a leader - check that all brokers run" in words


@pytest.mark.xdist_group("admin-counting")
async def test_the_wait_for_a_frozen_broker_is_bounded(counting, group):
    """A request to brokers that do not answer raises an error after the timeout."""
    async with Reached(resolve({"bootstrap_servers": counting.bootstrap_servers}, {})) as cluster:
        with pytest.raises(UnknownGroupError):
            await describe_group(cluster, group)
        counting.proxy.black_hole()
        with pytest.raises(RequestTimedOutError, match="describing group"):
            await describe_group(cluster, group, timeout_s=0.5)
        with pytest.raises(RequestTimedOutError, match="listing groups"):
            await list_groups(cluster, timeout_s=0.5)


# ---- deleted offsets -----------------------------------------------------------------------------------------------


async def test_committed_offsets_are_deleted(reached, witness, new_topic, commit, group):
    """Only the named offsets are deleted, and missing ones are no error."""
    topic = new_topic(3)
    commit(group, topic, {0: 0, 1: 0})

    async with reached() as cluster:
        await delete_offsets(cluster, group, [TopicPartition(topic, 1), TopicPartition(topic, 2)])

    assert await witness.committed(group, topic, 3) == {0: 0}


async def test_offsets_of_topics_with_live_readers_are_kept(reached, new_topic, members, witness, group):
    """Offsets of topics that live members read are not deleted, and the error names the members."""
    topic = new_topic()
    async with members(group, topic, 1, "north") as (consumer,), reached() as cluster:
        await consumer.commit({TopicPartition(topic, 0): 0})
        with pytest.raises(GroupNotEmptyError, match=r"1 live member: north at 127\.0\.0\.1") as raised:
            await delete_offsets(cluster, group, [TopicPartition(topic, 0)])

        assert raised.value.members == ("north at 127.0.0.1",)
        assert await witness.committed(group, topic, 1) == {0: 0}


async def test_deleting_offsets_of_an_unknown_group_raises(reached, new_topic, group):
    """Deleting offsets of an unknown group raises an error."""
    async with reached() as cluster:
        with pytest.raises(UnknownGroupError):
            await delete_offsets(cluster, group, [TopicPartition(new_topic(), 0)])
