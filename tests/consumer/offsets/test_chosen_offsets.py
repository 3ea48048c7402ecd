"""Offsets that the user commits stay, whatever automatic commits follow."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import App, OffsetAndMetadata, TopicPartition
from tailrace.observe.events import OffsetReset, OffsetsCommitted, PartitionsAssigned
from tailrace.protocol.groups import OffsetCommitRequest
from tailrace.protocol.records import ListOffsetsRequest
from tests.consumer.positions.test_seek_and_reset import cut
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])
both_ends = pytest.mark.parametrize("reset", ["earliest", "latest"])
# Automatic commits are due again and again while a test waits.
OFTEN = {"auto_commit_interval_ms": 50}


class Committing:
    """Rebalance listener that commits offset 4 in one of its methods, in a plain method as a task."""

    def __init__(self, where: str, *, is_async: bool = True) -> None:
        self.consumer, self.commits = None, []

        async def commit(partitions) -> None:
            await self.consumer.commit(dict.fromkeys(partitions, 4))

        def start_commit(partitions) -> None:
            self.commits.append(asyncio.create_task(commit(partitions)))

        setattr(self, where, commit if is_async else start_commit)


@both_ends
async def test_a_commit_right_after_assign_stays(new_topic, new_consumer, witness, group, reset):
    """An offset that is committed before the start offset is known stays, at the interval and at the end."""
    topic = new_topic()
    witness.fill(topic, 1, 10)
    for number in range(4):
        options = {"group_id": f"{group}-{number}", "auto_offset_reset": reset}
        async with new_consumer(**options, **OFTEN) as consumer:
            await consumer.assign(topic)
            await consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(4, "mine")})
            if number % 2:
                await consumer.position()
                await asyncio.sleep(0.2)
        async with new_consumer(**options, enable_auto_commit=False) as consumer:
            assert await consumer.committed(TopicPartition(topic, 0)) == OffsetAndMetadata(4, "mine", None)


async def test_a_commit_sent_while_the_start_is_looked_up_stays(kafka, group):
    """A commit stays if the start offset becomes known before or after it is acknowledged."""
    topic = kafka.topic_with(10)
    for held in (ListOffsetsRequest, OffsetCommitRequest):
        events, options = EventRecorder(), {"group_id": f"{group}-{held.__name__}", "auto_offset_reset": "latest"}
        async with kafka.consumer(**options, **OFTEN, hooks=[events]) as consumer:
            with kafka.proxy.hold_answer(held) as answer:
                assigning = asyncio.create_task(consumer.assign(topic))
                await until(lambda consumer=consumer: bool(consumer.assignment()))
                committing = asyncio.create_task(consumer.commit({TopicPartition(topic, 0): 4}))
                await answer.wait_applied()
                await asyncio.wait([committing if held is ListOffsetsRequest else assigning], timeout=20)
            await asyncio.gather(assigning, committing)
            assert await consumer.position(TopicPartition(topic, 0)) == 10
        assert await kafka.committed(options["group_id"], topic, 1) == {0: 4}


@both_protocols
@both_ends
async def test_a_commit_right_after_the_first_assignment_stays(kafka, group, protocol, reset):
    """A member's commit right after assigned(), or as soon as it has a partition, stays."""
    topic = kafka.topic_with(10)
    for number in range(4):
        options = {"group_id": f"{group}-{number}", "group_protocol": protocol, "auto_offset_reset": reset}
        async with kafka.consumer(topic, **options, **OFTEN) as consumer:
            if number % 2:
                await consumer.assigned()
            else:
                await until(lambda consumer=consumer: bool(consumer.assignment()))
            await consumer.commit({TopicPartition(topic, 0): 4})
        assert await kafka.committed(options["group_id"], topic, 1) == {0: 4}


@both_protocols
@pytest.mark.parametrize(
    ("where", "is_async"),
    [("on_partitions_assigned", True), ("on_partitions_assigned", False), ("on_partitions_revoked", True)],
)
async def test_a_commit_in_a_listener_stays(kafka, group, protocol, where, is_async):
    """A commit in a rebalance listener stays, through automatic commits and the stop."""
    topic, listener, events = kafka.topic_with(10), Committing(where, is_async=is_async), EventRecorder()
    options = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "latest", "hooks": [events]}

    async with kafka.consumer(topic, **options, **OFTEN, rebalance_listener=listener) as listener.consumer:
        await events.wait_for(PartitionsAssigned)
        await listener.consumer.position()
        if where == "on_partitions_assigned":
            await events.wait_for(OffsetsCommitted, where=lambda event: event.offsets == {TopicPartition(topic, 0): 4})
            await asyncio.sleep(0.2)
    await asyncio.gather(*listener.commits)

    assert await kafka.committed(group, topic, 1) == {0: 4}


@both_protocols
async def test_a_commit_in_post_rebalance_callback_stays(kafka, group, protocol):
    """A commit in post_rebalance_callback stays if the callback returns no offsets."""
    topic = kafka.topic_with(10)

    async def commit(consumer, _old, new):
        await consumer.commit(dict.fromkeys(new, 4))

    options = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "latest"}
    async with kafka.consumer(topic, **options, **OFTEN, post_rebalance_callback=commit) as consumer:
        await consumer.assigned()
        await consumer.position()
        await asyncio.sleep(0.2)

    assert await kafka.committed(group, topic, 1) == {0: 4}


async def test_a_commit_below_the_position_stays_until_a_record_is_finished(new_topic, new_consumer, witness, group):
    """An offset below the position stays at the interval and at the end; records finished later are committed."""
    topic, events = new_topic(2), EventRecorder()
    low, high = TopicPartition(topic, 0), TopicPartition(topic, 1)
    witness.fill(topic, 2, 10)

    async with new_consumer(topic, group_id=group, hooks=[events], **OFTEN) as consumer:
        read = await consumer.getmany(max_records=20, min_records=20)
        await consumer.commit()
        await consumer.commit({low: 4, high: 17})
        await asyncio.sleep(0.2)
        assert await witness.committed(group, topic, 2) == {0: 4, 1: 17}
        witness.produce(topic, [b"one more"], partition=0)
        consumer.ack((await consumer.getmany(max_records=1))[0])
        await events.wait_for(OffsetsCommitted, where=lambda event: event.offsets == {low: 11})
        await consumer.commit({low: 4})
    assert len(read) == 20
    assert await witness.committed(group, topic, 2) == {0: 4, 1: 17}


async def test_commit_without_arguments_replaces_a_chosen_offset(new_topic, new_consumer, witness, group):
    """commit() commits the position, although the user has committed a lower offset before."""
    topic = new_topic()
    witness.fill(topic, 1, 10)

    async with new_consumer(topic, group_id=group, ack="manual", **OFTEN) as consumer:
        for record in await consumer.getmany(max_records=10, min_records=10):
            consumer.ack(record)
        await consumer.commit({TopicPartition(topic, 0): 4})
        await consumer.commit()

    assert await witness.committed(group, topic, 1) == {0: 10}


async def test_a_commit_stays_through_an_offset_reset(new_topic, kafka_server, new_consumer, witness, group):
    """A commit stays if the records at the position were deleted, so that the position is reset."""
    topic, events = new_topic(), EventRecorder()
    witness.fill(topic, 1, 10)
    place = TopicPartition(topic, 0)
    cut(kafka_server, topic, 1, 6)

    for reset in ("latest", "earliest"):
        options = {"group_id": f"{group}-{reset}", "auto_offset_reset": reset, "hooks": [events]}
        async with new_consumer(**options, **OFTEN) as consumer:
            await consumer.assign((topic, 0, 2))
            await consumer.commit({place: 8})
            await events.wait_for(OffsetReset, where=lambda event, reset=reset: event.policy == reset)
            await asyncio.sleep(0.2)
        assert await witness.committed(options["group_id"], topic, 1) == {0: 8}


@both_protocols
async def test_a_commit_stays_when_its_partition_is_revoked(kafka, group, protocol):
    """The commit that precedes a revocation does not replace an offset that the user has committed."""
    topic, events = kafka.topic_with(0, partitions=2), EventRecorder()
    options = {"group_id": group, "group_protocol": protocol, "auto_offset_reset": "latest"}

    async with kafka.consumer(topic, **options, hooks=[events]) as first:
        await first.assigned()
        await first.commit({TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0})
        for number in range(2):
            kafka.produce(topic, [b"%d" % n for n in range(5)], partition=number)
        await first.seek_to_end()
        await first.commit({TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 3})
        async with kafka.consumer(topic, **options, rebalance_listener=None) as second:
            await until(lambda: len(second.assignment()) == 1, 40)
            assert list((await second.position()).values()) == [3]

    assert await kafka.committed(group, topic, 2) == {0: 3, 1: 3}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_commit_in_an_app_callback_stays(new_topic, kafka_server, witness, group, delivery):
    """In an app, a commit in post_rebalance_callback stays until a record is handled."""
    topic = new_topic()
    witness.fill(topic, 1, 10)

    async def commit(consumer, _old, new):
        await consumer.commit(dict.fromkeys(new, 4))

    app = App(
        bootstrap_servers=kafka_server.bootstrap_servers,
        group_id=group,
        auto_offset_reset="latest",
        delivery=delivery,
        post_rebalance_callback=commit,
        **OFTEN,
    )

    @app.handler(topic)
    async def handle(_value: bytes) -> None:
        """Handle every record without an effect."""

    async with app:
        await app.wait_ready()
        await asyncio.sleep(0.5)
        assert await witness.committed(group, topic, 1) == {0: 4}
        witness.produce(topic, [b"more"])
        async with asyncio.timeout(20):
            # Offsets of a transaction become visible some time after its end.
            while await witness.committed(group, topic, 1) != {0: 11}:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
