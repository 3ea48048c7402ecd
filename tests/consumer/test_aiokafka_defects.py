"""Defects B0 to B18 of an earlier asyncio client, as its users reported them.

Bn in a test's name is its number in docs/explanation/design.md, "Defects of an earlier client".
"""

from __future__ import annotations

import asyncio
import time

import pytest
from msgspec.structs import replace

from tailrace import CorruptRecordError, RebalanceError, TopicPartition
from tailrace.error_codes import ErrorCode
from tailrace.observe.events import (
    ConnectionOpened,
    CorruptBatchFetched,
    FetchFailed,
    FetchInterrupted,
    GroupJoined,
    GroupLeft,
    OffsetReset,
)
from tailrace.protocol.groups import HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.protocol.records import FetchRequest, ListOffsetsRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder
from tests.support.proxied_broker import ProxiedBroker, numbers


async def commit_ten(witness, topic, group):
    """Read and commit ten records for a group."""
    async with witness.consumer(topic, group_id=group) as consumer:
        await read(consumer, 10)
        await consumer.commit()


async def read(consumer, count):
    records = []
    async with asyncio.timeout(30):
        while len(records) < count:
            records.append(await consumer.getone())
    return records


@pytest.mark.parametrize("code", [14, 15, 16])
@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_b0_a_group_level_error_is_not_a_missing_commit(witness_of, group, code, reset):
    """A request for committed offsets that fails as a whole is retried and causes no reset."""
    topic, events = witness_of.topic_with(20), EventRecorder()
    options = {"group_id": group, "auto_offset_reset": reset, "hooks": [events]}
    await commit_ten(witness_of, topic, group)

    refuse = witness_of.proxy.edit_answer(
        OffsetFetchRequest, lambda answer: replace(answer, error_code=code, partitions=()), times=2
    )
    with refuse:
        async with witness_of.consumer(topic, **options) as consumer:
            assert (await consumer.getone()).offset == 10

    assert refuse.count == 2
    assert not events.of(OffsetReset)


async def test_b0_a_partition_missing_from_the_response_is_requested_again(witness_of, group):
    """A partition that the response to an offset fetch omits is requested again."""
    topic = witness_of.topic_with(20)
    await commit_ten(witness_of, topic, group)

    with witness_of.proxy.edit_answer(OffsetFetchRequest, lambda answer: replace(answer, partitions=())):
        async with witness_of.consumer(topic, group_id=group) as consumer:
            assert (await consumer.getone()).offset == 10


async def test_b2_heartbeats_continue_and_nothing_is_fetched_during_a_callback(witness_of, group):
    """During a rebalance callback heartbeats continue, and the first fetch starts at its override."""
    topic, proxy = witness_of.topic_with(20), witness_of.proxy
    seen = {}

    async def callback(_consumer, _old, new):
        beats = len(proxy.requests(HeartbeatRequest, client_id=group))
        await until(lambda: len(proxy.requests(HeartbeatRequest, client_id=group)) >= beats + 4)
        seen["fetches"] = len(proxy.requests(FetchRequest, client_id=group))
        return dict.fromkeys(new, 7)

    options = {"group_id": group, "client_id": group, "heartbeat_interval_ms": 200}
    async with witness_of.consumer(topic, post_rebalance_callback=callback, **options) as consumer:
        assert (await consumer.getone()).offset == 7

    first_fetch = proxy.requests(FetchRequest, client_id=group)[0].message
    assert seen["fetches"] == 0
    assert first_fetch.partitions[0].fetch_offset == 7


async def test_b3_a_canceled_getone_loses_no_record(witness_of, group):
    """getone() that is canceled at any moment loses no record, and the next call succeeds."""
    topic, got = witness_of.topic_with(100), []

    async with witness_of.consumer(topic, group_id=group, max_queued_records=7) as consumer:
        await until(lambda: bool(consumer.statistics().buffered_bytes))
        for n in range(10_000):
            reading = asyncio.create_task(consumer.getone())
            for _ in range(n % 7):
                await asyncio.sleep(0)
            reading.cancel()
            (result,) = await asyncio.gather(reading, return_exceptions=True)
            if not isinstance(result, asyncio.CancelledError):
                got.append(result)
            if len(got) == 50:
                break
        got += await read(consumer, 100 - len(got))

    assert list(range(100)) == numbers(got)


async def test_b3_a_canceled_getone_does_not_switch_the_poll_check_off(witness_of, group):
    """After a canceled getone(), a consumer that is not polled leaves after max_poll_interval_ms."""
    topic, events = witness_of.topic(), EventRecorder()
    options = {"max_poll_interval_ms": 1_000, "heartbeat_interval_ms": 200, "hooks": [events]}

    async with witness_of.consumer(topic, group_id=group, **options) as consumer:
        await until(lambda: bool(consumer.assignment()))
        reading = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
        witness_of.produce(topic, [b"waits"])
        await events.wait_for(GroupLeft)
        with pytest.raises(RebalanceError, match="max_poll_interval_ms"):
            await consumer.getone()
        assert (await consumer.getone()).value == b"waits"


async def test_b5_a_join_may_take_longer_than_a_request(witness_of, group):
    """A join may take longer than request_timeout_ms and is not sent again."""
    topic, events = witness_of.topic_with(1), EventRecorder()
    options = {"request_timeout_ms": 1_000, "session_timeout_ms": 6_000, "max_poll_interval_ms": 10_000}

    # The first join only gets a member id.
    with witness_of.proxy.hold_answer(JoinGroupRequest, skip=1) as held:
        async with witness_of.consumer(topic, group_id=group, client_id=group, hooks=[events], **options) as consumer:
            await held.wait_applied()
            await asyncio.sleep(2.5)
            held.release()
            await consumer.getone()

    assert len(witness_of.proxy.requests(JoinGroupRequest, client_id=group)) == 2
    assert len(events.of(GroupJoined)) == 1


async def test_b5_a_heartbeat_times_out_well_within_the_session(witness_of, group):
    """A heartbeat without a response times out early enough to keep the membership."""
    topic, events = witness_of.topic_with(2), EventRecorder()
    options = {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 300, "hooks": [events]}

    async with witness_of.consumer(topic, group_id=group, client_id=group, **options) as consumer:
        await consumer.getone()
        with witness_of.proxy.drop_answer(HeartbeatRequest) as dropped:
            await dropped.wait_applied()
            beats = len(witness_of.proxy.answers(HeartbeatRequest, client_id=group))
            await until(lambda: len(witness_of.proxy.answers(HeartbeatRequest, client_id=group)) > beats + 3)
        assert len(await witness_of.members(group)) == 1

    assert len(events.of(GroupJoined)) == 1


@pytest.mark.slow
async def test_b6_a_frozen_broker_does_not_stall_the_others(kafka_cluster, group):
    """A broker that does not answer delays only its own partitions."""
    with_proxies = kafka_cluster(3, proxied=True)
    with_proxies.create_topic("spread", 6, replication_factor=1)
    witness = ProxiedBroker(with_proxies)
    for partition in range(6):
        witness.produce("spread", (b"%d" % n for n in range(100)), partition=partition)
    leaders = {p: with_proxies.leader_of("spread", p).node_id for p in range(6)}
    events = EventRecorder()

    async with witness.consumer("spread", group_id=group, hooks=[events]) as consumer:
        await consumer.getone()
        coordinator = consumer._started.parts.cluster.coordinator_id(group)
    victim = next(node for node in leaders.values() if node != coordinator)
    reachable = {p for p, node in leaders.items() if node != victim}
    with_proxies.proxies[victim].black_hole()

    live = ",".join(proxy.address for node, proxy in with_proxies.proxies.items() if node != victim)
    began = time.monotonic()
    # The same group, so that its coordinator is not the victim; from the beginning, since the first has committed.
    again = {"group_id": group, "post_rebalance_callback": lambda _consumer, _old, new: dict.fromkeys(new, 0)}
    async with witness.consumer("spread", bootstrap_servers=live, **again) as consumer:
        got = await read(consumer, 100 * len(reachable))
    took = time.monotonic() - began
    with_proxies.proxies[victim].restore()

    assert reachable == {record.partition for record in got}
    assert took < 25


async def test_b7_a_corrupt_batch_raises_until_a_seek_past_it(witness_of, group):
    """A corrupt batch raises CorruptRecordError until a seek past it, and other partitions continue.

    Before that it is fetched again, since the network may have changed it.
    """
    topic, events = witness_of.topic(2), EventRecorder()
    for n in range(3):
        witness_of.produce(topic, [b"%d" % n * 50], partition=0)
    witness_of.produce(topic, (b"%d" % n for n in range(20)), partition=1)
    partition = TopicPartition(topic, 0)

    def flip(answer):
        broken = [
            replace(one, records=broken_at(one.records, 1)) if one.partition == 0 and one.records else one
            for one in answer.partitions
        ]
        return replace(answer, partitions=tuple(broken))

    with witness_of.proxy.edit_answer(FetchRequest, flip, times=None) as flipping:
        async with witness_of.consumer(topic, group_id=group, hooks=[events]) as consumer:
            got, errors = [], []
            while len(got) < 21 or len(errors) < 2:
                try:
                    got.append(await consumer.getone())
                except CorruptRecordError as error:
                    errors.append(error)
            flipping.end()
            await consumer.seek(partition, 2)
            last = await consumer.getone()

    assert {(partition, 1)} == {(error.partition, error.offset) for error in errors}
    assert numbers(record for record in got if record.partition == 0) == [0]
    assert list(range(20)) == numbers(record for record in got if record.partition == 1)
    assert (partition, 2) == (last.topic_partition, last.offset)
    assert len(events.of(CorruptBatchFetched)) >= 3


def broken_at(records, offset):
    """Return the bytes with one of them flipped in the batch that starts at ``offset``."""
    data, at = bytearray(records), 0
    while at < len(data):
        if int.from_bytes(data[at : at + 8], "big") == offset:
            data[at + 70] ^= 0xFF
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return memoryview(data)


async def test_b7_a_batch_corrupted_by_the_network_is_fetched_again(witness_of, group):
    """A batch with a wrong checksum is fetched again, and no error is raised if it is intact then."""
    topic, events = witness_of.topic_with(10), EventRecorder()

    def flip(answer):
        changed = [
            replace(one, records=memoryview(bytes(one.records)[:-3] + b"\xff\xff\xff")) if one.records else one
            for one in answer.partitions
        ]
        return replace(answer, partitions=tuple(changed))

    with witness_of.proxy.edit_answer(FetchRequest, flip):
        async with witness_of.consumer(topic, group_id=group, hooks=[events]) as consumer:
            assert list(range(10)) == numbers(await read(consumer, 10))

    assert len(events.of(CorruptBatchFetched)) == 1


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
async def test_b8_a_refused_partition_is_fetched_with_backoff(witness_of, group, code):
    """While a broker refuses a partition, its fetches follow with increasing pauses."""
    topic, events = witness_of.topic_with(10), EventRecorder()

    def refuse(answer):
        return replace(
            answer, partitions=tuple(replace(one, error_code=code, records=None) for one in answer.partitions)
        )

    options = {"group_id": group, "client_id": group, "retry_backoff_ms": 100, "retry_backoff_max_ms": 1_000}
    with witness_of.proxy.edit_answer(FetchRequest, refuse, times=None) as refusing:
        async with witness_of.consumer(topic, hooks=[events], **options) as consumer:
            reading = asyncio.create_task(read(consumer, 10))
            await until(lambda: refusing.count >= 5)
            refusing.end()
            assert list(range(10)) == numbers(await reading)

    asked = [frame.at for frame in witness_of.proxy.requests(FetchRequest, client_id=group)]
    # 100, 200, 400, 800 ms, each with a fifth of jitter.
    assert asked[4] - asked[0] >= 0.8 * 1.5
    # The first two may be a leader change; further ones are warnings.
    assert len(events.of(FetchInterrupted)) == 2
    assert len(events.of(FetchFailed)) >= 2


async def test_b9_nothing_waits_behind_a_fetch_or_a_join(witness_of, group):
    """Fetches, joins, heartbeats and commits have their own connections, so that none waits for another."""
    topic, events = witness_of.topic_with(1), EventRecorder()

    options = {"fetch_max_wait_ms": 10_000, "heartbeat_interval_ms": 200, "hooks": [events], "client_id": group}
    async with witness_of.consumer(topic, group_id=group, **options) as consumer:
        await consumer.getone()
        with witness_of.proxy.hold_answer(FetchRequest) as held:
            witness_of.produce(topic, [b"held"])
            await held.wait_applied()
            began = time.monotonic()
            await consumer.commit()
            took = time.monotonic() - began
            beats = len(witness_of.proxy.answers(HeartbeatRequest, client_id=group))
            await until(lambda: len(witness_of.proxy.answers(HeartbeatRequest, client_id=group)) > beats + 2)

    proxy = witness_of.proxy
    lines = {
        kind: {frame.connection for frame in proxy.requests(kind, client_id=group)}
        for kind in (FetchRequest, JoinGroupRequest, HeartbeatRequest, OffsetCommitRequest, FindCoordinatorRequest)
    }
    assert took < 10
    assert sum(len(one) for one in lines.values()) == len(set.union(*lines.values()))
    assert {"main", "fetch", "offsets"} <= {event.channel for event in events.of(ConnectionOpened)}


async def test_b14_an_unfinished_record_is_never_committed(witness_of, group):
    """No automatic commit passes the record in flight."""
    topic = witness_of.topic_with(200)
    options = {"group_id": group, "client_id": group, "auto_commit_interval_ms": 20}
    proxy = witness_of.proxy

    async with witness_of.consumer(topic, **options) as consumer:
        in_flight = 0
        async for record in consumer:
            in_flight = record.offset
            if in_flight and in_flight % 20 == 0:
                # Progress: the record before this one is finished.
                await until(
                    lambda offset=in_flight: (
                        offset in map(offset_of, proxy.requests(OffsetCommitRequest, client_id=group))
                    )
                )
            commits = proxy.requests(OffsetCommitRequest, client_id=group)
            assert all(offset_of(frame) <= in_flight for frame in commits)
            if in_flight == 150:
                break

    assert await witness_of.committed(group, topic, 1) == {0: 150}


def offset_of(frame):
    return frame.message.partitions[0].offset


async def test_b18_reading_writes_no_log(witness_of, group, caplog):
    """At level DEBUG, thousands of records and dozens of fetches cause less than ten log lines."""
    topic = witness_of.topic(4)
    for partition in range(4):
        witness_of.produce(topic, (b"x" * 100 for _ in range(2_500)), partition=partition, batch_bytes=4_096)
    caplog.set_level("DEBUG", logger="tailrace")

    options = {"max_partition_fetch_bytes": 10_000, "heartbeat_interval_ms": 50, "auto_commit_interval_ms": 60_000}
    async with witness_of.consumer(topic, group_id=group, client_id=group, **options) as consumer:
        await consumer.getone()
        await asyncio.sleep(0)
        caplog.clear()
        await read(consumer, 9_999)
        lines = [record.message for record in caplog.records if record.name.startswith("tailrace")]

    assert len(witness_of.proxy.requests(FetchRequest, client_id=group)) > 20
    # Events of connections, and those that a stalled machine may cause.
    assert len(lines) < 10


async def test_a_connection_with_responses_out_of_order_is_replaced(witness_of):
    """After a missing response, the connection is replaced and its requests are sent again."""
    topic, proxy = witness_of.topic_with(3), witness_of.proxy
    options = {"auto_offset_reset": "earliest", "client_id": topic}

    with proxy.drop_answer(ListOffsetsRequest) as dropped:
        async with witness_of.consumer(topic, **options) as consumer:
            await dropped.wait_applied()
            ends = await consumer.end_offsets([TopicPartition(topic, 0)])
            records = await read(consumer, 3)

    assert ends == {TopicPartition(topic, 0): 3}
    assert numbers(records) == [0, 1, 2]
