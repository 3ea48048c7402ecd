"""Members of tailrace and librdkafka in one group: one owner for each partition, whichever library leads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from confluent_kafka import Consumer as Confluent

from tailrace import TopicPartition
from tests.support.consumer_group import ConsumerGroup, until

PARTITIONS = 12


class TheirMember:
    """Consumer of confluent-kafka, polled by a thread of its own until it is stopped."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str, strategy: str, handled: Counter) -> None:
        self._consumer = Confluent(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "partition.assignment.strategy": strategy,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 10_000,
            }
        )
        self._consumer.subscribe([topic])
        self._handled, self._is_over = handled, threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._is_over.is_set():
            for message in self._consumer.consume(500, 0.05):
                assert message.error() is None
                self._handled[message.partition(), message.offset()] += 1
        self._consumer.close()

    async def stop(self) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join, 30)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range", "roundrobin"])
@pytest.mark.slow
async def test_ten_changes_of_membership_lose_no_record(  # noqa: PLR0917 - fixtures
    new_topic, new_consumer, kafka_server, witness, group, strategy
):
    """While members of both libraries join and leave, each partition has one owner and each record is handled."""
    topic = new_topic(PARTITIONS)
    theirs: list[TheirMember] = []
    options = {"group_id": group, "partition_assignment_strategy": strategy, "heartbeat_interval_ms": 300}

    async with ConsumerGroup(new_consumer, topic, **options) as crew:

        async def ours_join() -> None:
            await crew.join()

        async def theirs_join() -> None:
            theirs.append(TheirMember(kafka_server.bootstrap_servers, topic, group, strategy, crew.handled))

        async def ours_leave() -> None:
            await crew.leave(crew.members[0])

        async def theirs_leave() -> None:
            await theirs.pop(0).stop()

        async def stable() -> None:
            """Wait until every partition has exactly one owner."""
            async with asyncio.timeout(40):
                while True:
                    seen = await witness.members(group)
                    dealt = Counter(one for share in seen.values() for one in share)
                    assert not dealt or set(dealt.values()) == {1}
                    ours = {member.consumer.assignment() for member in crew.members}
                    count = len(crew.members) + len(theirs)
                    if len(dealt) == PARTITIONS and len(seen) == count and ours <= set(seen.values()):
                        break
            witness.produce(topic, (b"%d" % n for n in range(200)))

        changes = [ours_join, theirs_join, ours_join, theirs_join, theirs_leave]
        changes += [ours_leave, theirs_join, ours_join, ours_leave, theirs_leave]
        try:
            for change in changes:
                await change()
                await stable()
            # A record may repeat if librdkafka releases a partition before its commit; none is missing.
            ends = await witness.ends(topic, PARTITIONS)
            everything = {(partition, offset) for partition, end in ends.items() for offset in range(end)}
            await until(lambda: everything <= crew.handled.keys(), 30)
        finally:
            for one in theirs:
                await one.stop()

    assert len(everything) == 200 * len(changes)


@pytest.mark.parametrize("leader", ["ours", "theirs"])
async def test_owned_partitions_are_understood_by_both_libraries(  # noqa: PLR0917 - fixtures
    new_topic, new_consumer, kafka_server, witness, group, leader
):
    """When a member joins a cooperative group, the others keep their partitions except one each, whichever leads."""
    topic, handled = new_topic(6), Counter()
    arguments = (kafka_server.bootstrap_servers, topic, group, "cooperative-sticky", handled)
    options = {"group_id": group, "heartbeat_interval_ms": 300}

    async with ConsumerGroup(new_consumer, topic, **options) as crew:
        their = None
        try:
            if leader == "ours":
                await crew.join()
                await crew.shares(6)
                their = TheirMember(*arguments)
            else:
                their = TheirMember(*arguments)
                await until_members(witness, group, {6})
                await crew.join()
            await crew.shares(3)
            await until_members(witness, group, {3})
            before = await witness.members(group)
            await crew.join()
            await crew.shares(2, 2)
            await until_members(witness, group, {2})
            after = await witness.members(group)
        finally:
            if their is not None:
                await their.stop()

    # Each member kept two of its partitions and released one.
    assert all(after[member] <= share for member, share in before.items())
    assert frozenset().union(*after.values()) == {TopicPartition(topic, number) for number in range(6)}


async def until_members(witness, group, sizes):
    async with asyncio.timeout(40):
        while {len(share) for share in (await witness.members(group)).values()} != sizes:
            pass
