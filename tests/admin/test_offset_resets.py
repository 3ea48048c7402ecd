"""Planned and executed offset resets, compared with librdkafka and Kafka's tool."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace import (
    ConfigurationError,
    Consumer,
    GroupNotEmptyError,
    InvalidTopicError,
    NotAConsumerGroupError,
    TopicPartition,
    TopicRecreatedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tailrace.admin import offset_resets as resets
from tailrace.admin.offset_resets import ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime, reset_offsets
from tailrace.admin.offsets import GroupOffset, commit_offsets, committed_offsets
from tailrace.protocol.groups import JoinGroupProtocol, JoinGroupRequest

NOON_MS = 1_760_000_000_000


def moves(plan) -> dict[int, tuple[int | None, int | None]]:
    return {one.partition.partition: (one.old, one.new) for one in plan.changes}


@pytest.mark.parametrize(
    ("target", "options", "new"),
    [
        (ToEarliest(), ["--to-earliest"], {0: 3, 1: 0}),
        (ToLatest(), ["--to-latest"], {0: 10, 1: 10}),
        (ToOffset(2), ["--to-offset", "2"], {0: 3, 1: 2}),
        (ShiftBy(-2), ["--shift-by", "-2"], {0: 3, 1: 5}),
        (ToTime(NOON_MS + 4_500), ["--to-datetime", "2025-10-09T08:53:24.500"], {0: 5, 1: 5}),
        (ToTime(4_000_000_000_000), ["--to-datetime", "2096-10-02T07:06:40.000"], {0: 10, 1: 10}),
    ],
    ids=["earliest", "latest", "offset", "back", "time", "the future"],
)
async def test_a_plan_equals_that_of_kafkas_tool(  # noqa: PLR0917
    reached, kafka_server, kafkas_tool, witness, new_topic, commit, group, target, options, new
):
    """A plan equals that of Kafka's tool, and changes offsets only with execute=True."""
    topic = new_topic(2, records=10, since_ms=NOON_MS)
    commit(group, topic, {0: 4, 1: 7})
    kafka_server.delete_records(topic, {0: 3})
    arguments = ("--reset-offsets", "--group", group, "--all-topics", *options, "--dry-run")
    theirs = await asyncio.to_thread(kafkas_tool.rows, *arguments)

    async with reached() as cluster:
        plan = await reset_offsets(cluster, group, target)
        before = await witness.committed(group, topic, 2)
        done = await reset_offsets(cluster, group, target, execute=True)

    assert moves(plan) == {0: (4, new[0]), 1: (7, new[1])}
    assert {int(row["PARTITION"]): int(row["NEW-OFFSET"]) for row in theirs} == new
    assert before == {0: 4, 1: 7}
    assert (plan.is_executed, done.is_executed, done.changes) == (False, True, plan.changes)
    assert await witness.committed(group, topic, 2) == new


async def test_only_chosen_partitions_are_reset(reached, witness, new_topic, commit, group):
    """Only the chosen partitions are reset, also those without a commit."""
    first, second = new_topic(3, records=5), new_topic(1, records=5)
    commit(group, first, {0: 2, 1: 2})
    commit(group, second, {0: 2})

    async with reached() as cluster:
        await reset_offsets(cluster, group, ToLatest(), partitions=[TopicPartition(first, 1)], execute=True)
        one = await witness.committed(group, first, 3)
        plan = await reset_offsets(cluster, group, ToEarliest(), topics=[first], execute=True)

    assert one == {0: 2, 1: 5}
    assert moves(plan) == {0: (2, 0), 1: (5, 0), 2: (None, 0)}
    assert await witness.committed(group, first, 3) == {0: 0, 1: 0, 2: 0}
    assert await witness.committed(group, second, 1) == {0: 2}


async def test_a_reset_creates_a_group(reached, witness, new_topic, group):
    """A reset of a new group creates it, and its first member starts at the offsets."""
    topic = new_topic(1, records=5)
    async with reached() as cluster:
        plan = await reset_offsets(cluster, group, ToOffset(3), topics=[topic], execute=True)

    assert plan.is_new
    async with Consumer(topic, bootstrap_servers=witness.bootstrap_servers, group_id=group) as consumer:
        assert (await consumer.getone()).offset == 3


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_with_live_members_is_not_reset(reached, witness, new_topic, group, protocol):
    """A reset of a group with live members raises an error that names them, and succeeds after they have left."""
    topic = new_topic(1, records=5)
    options = {"bootstrap_servers": witness.bootstrap_servers, "group_id": group, "group_protocol": protocol}
    async with reached() as cluster:
        async with Consumer(topic, client_id="north", **options) as consumer:
            consumer.ack(await consumer.getone())
            await consumer.commit()
            plan = await reset_offsets(cluster, group, ToLatest())
            with pytest.raises(GroupNotEmptyError, match=r"1 live member: north at 127\.0\.0\.1 - stop them") as raised:
                await reset_offsets(cluster, group, ToLatest(), execute=True)

            assert [str(one) for one in plan.members] == list(raised.value.members) == ["north at 127.0.0.1"]
            assert await witness.committed(group, topic, 1) == {0: 1}
        await reset_offsets(cluster, group, ToLatest(), execute=True)

    assert await witness.committed(group, topic, 1) == {0: 5}


async def test_a_member_that_joins_meanwhile_prevents_the_reset(  # noqa: PLR0917
    reached, witness, new_topic, commit, group, monkeypatch
):
    """If a member joins before the commit, the reset raises an error that names it."""
    topic = new_topic(1, records=5)
    commit(group, topic, {0: 1})
    joiner = Consumer(topic, bootstrap_servers=witness.bootstrap_servers, group_id=group, client_id="late")

    async def joined_meanwhile(cluster, group_id, entries, **options):
        await joiner.start()
        await joiner.getone()
        return await commit_offsets(cluster, group_id, entries, **options)

    monkeypatch.setattr(resets, "commit_offsets", joined_meanwhile)
    async with reached() as cluster:
        with pytest.raises(GroupNotEmptyError, match="late at"):
            await reset_offsets(cluster, group, ToLatest(), execute=True)

    assert await witness.committed(group, topic, 1) == {0: 1}
    await joiner.stop()


async def test_a_deleted_topic_is_left_out(  # noqa: PLR0917
    reached, witness, new_topic, commit, group, monkeypatch
):
    """A reset of all topics omits deleted partitions with a note."""
    topic = new_topic(2, records=3)
    commit(group, topic, {0: 3, 1: 3})
    vanished = GroupOffset(TopicPartition("a-vanished-topic", 0), 7)

    async def with_more(*arguments, **options):
        return {vanished.partition: vanished, **await committed_offsets(*arguments, **options)}

    monkeypatch.setattr(resets, "committed_offsets", with_more)
    async with reached() as cluster:
        plan = await reset_offsets(cluster, group, ToEarliest(), execute=True)

    assert [(one.partition, one.new) for one in plan.changes] == [
        (vanished.partition, None),
        (TopicPartition(topic, 0), 0),
        (TopicPartition(topic, 1), 0),
    ]
    assert (
        plan.changes[0].note == "left out: the partition no longer exists; `tailrace offsets delete` deletes its offset"
    )
    assert await witness.committed(group, topic, 2) == {0: 0, 1: 0}


async def test_unknown_topics_partitions_and_groups_raise(reached, new_topic, commit, group):
    """Unknown topics, partitions or groups, and groups of another type, raise and nothing is changed."""
    topic = new_topic(2)
    async with reached() as cluster:
        began = time.monotonic()
        with pytest.raises(UnknownTopicError, match=f"there is no topic '{topic}-not'"):
            await reset_offsets(cluster, group, ToLatest(), topics=[f"{topic}-not"])
        with pytest.raises(UnknownPartitionError, match=r"no partition 2 of .*partitions 0 to 1"):
            await reset_offsets(cluster, group, ToLatest(), partitions=[TopicPartition(topic, 2)])
        with pytest.raises(InvalidTopicError):
            await reset_offsets(cluster, group, ToLatest(), topics=["no/topic"])
        with pytest.raises(ConfigurationError, match="has no committed offsets"):
            await reset_offsets(cluster, group, ToLatest())
        with pytest.raises(ConfigurationError, match="group_id must not be empty"):
            await reset_offsets(cluster, "", ToLatest())
        coordinator = await cluster.coordinator(group)
        offer = (JoinGroupProtocol("sessioned", b""),)
        first = await coordinator.send(JoinGroupRequest(group, 30_000, 30_000, "", "connect", offer))
        await coordinator.send(JoinGroupRequest(group, 30_000, 30_000, first.member_id, "connect", offer))
        with pytest.raises(NotAConsumerGroupError, match="connect"):
            await reset_offsets(cluster, group, ToLatest(), topics=[topic], execute=True)

        assert time.monotonic() - began < 15


async def test_offsets_of_a_deleted_topic_are_not_set_for_the_new_one(
    reached, kafka_server, new_topic, group, monkeypatch
):
    """If a topic is recreated before the commit, the reset raises and commits nothing."""
    topic = new_topic(1, records=10)
    bounds = resets._bounds

    async def recreate_then(*arguments):
        found = await bounds(*arguments)
        await asyncio.to_thread(kafka_server.delete_topic, topic)
        await asyncio.to_thread(kafka_server.create_topic, topic, 1)
        return found

    monkeypatch.setattr(resets, "_bounds", recreate_then)
    async with reached() as cluster:
        with pytest.raises(TopicRecreatedError, match=topic):
            await reset_offsets(cluster, group, ToLatest(), topics=[topic], execute=True)
        found = await committed_offsets(cluster, group)

    assert found == {}
