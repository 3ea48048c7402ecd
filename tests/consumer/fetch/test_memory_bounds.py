"""Memory stays within max_queued_records and max_buffered_bytes, however slow the reader is."""

from __future__ import annotations

import asyncio

from tailrace import TopicPartition
from tailrace.consumer.fetch.plan import slot_of
from tailrace.observe.events import FetchCompleted, GroupJoined
from tailrace.protocol.groups import HeartbeatRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder


async def test_without_polls_memory_is_bounded(witness_of, group):
    """A consumer that is not polled stops fetching at its limits and continues its heartbeats.

    Once the consumer is polled, all 10,000 records are delivered in order.
    """
    server, events = witness_of.server, EventRecorder()
    topic = witness_of.topic(1)
    witness_of.produce(topic, (b"%d" % n + b"x" * 200 for n in range(10_000)), batch_bytes=16_384)
    bound = 200_000
    options = {
        "group_id": group,
        "max_queued_records": 50,
        "max_buffered_bytes": bound,
        "max_partition_fetch_bytes": 40_000,
        "heartbeat_interval_ms": 200,
        "hooks": [events],
        "client_id": group,
    }

    async with witness_of.consumer(topic, **options) as consumer:
        await consumer.getone()
        await until(lambda: (now := consumer.statistics()).reserved_bytes == 0 and now.buffered_bytes > bound / 2)
        fetches = len(server.proxy.requests(FetchRequest, client_id=group))
        beats = len(server.proxy.requests(HeartbeatRequest, client_id=group))
        seen = []
        while len(server.proxy.requests(HeartbeatRequest, client_id=group)) < beats + 8:
            seen.append(consumer.statistics())
            await asyncio.sleep(0.05)
        assert fetches == len(server.proxy.requests(FetchRequest, client_id=group))
        assert max(one.queued_records for one in seen) <= 50
        # The requested bytes within the bound, and one batch more, since a broker sends whole batches.
        assert max(one.buffered_bytes for one in seen) <= bound + 16_384
        rest = []
        while len(rest) < 9_999:
            rest += await consumer.getmany()
            statistics = consumer.statistics()
            assert statistics.queued_records <= 50
            assert statistics.buffered_bytes + statistics.reserved_bytes <= bound + 16_384

    assert list(range(1, 10_000)) == [record.offset for record in rest]
    assert len(events.of(GroupJoined)) == 1


async def test_a_paused_partition_leaves_buffer_space_to_the_others(witness_of, group):
    """While one partition is paused with its share of the buffer full, the other is read to its end."""
    topic = witness_of.topic(2)
    for partition in range(2):
        witness_of.produce(topic, (b"x" * 500 for _ in range(5_000)), partition=partition, batch_bytes=16_384)
    options = {"group_id": group, "max_buffered_bytes": 200_000, "max_partition_fetch_bytes": 50_000}

    async with witness_of.consumer(topic, **options) as consumer:
        first = await consumer.getone()
        consumer.pause(first.topic_partition)
        rest = []
        async with asyncio.timeout(40):
            while len(rest) < 5_000:
                rest += await consumer.getmany()

    assert {1 - first.partition} == {record.partition for record in rest}


async def test_an_idle_partition_does_not_slow_a_busy_one(witness_of, group):
    """While a fetch waits for records of an idle partition, a busy one of the same broker is read without delay.

    The busy partition's buffer fills up and empties again before the broker answers the waiting fetch. A reader that
    had to wait for this response each time would need many minutes here.
    """
    topic = witness_of.topic(2)
    witness_of.produce(topic, (b"x" * 1_000 for _ in range(20_000)), partition=0, batch_bytes=16_384)
    options = {
        "group_id": group,
        "max_buffered_bytes": 1_000_000,
        "max_partition_fetch_bytes": 100_000,
        "fetch_max_wait_ms": 60_000,
        "request_timeout_ms": 90_000,
    }

    async with witness_of.consumer(topic, **options) as consumer:
        got = 0
        async with asyncio.timeout(50):
            while got < 20_000:
                got += len(await consumer.getmany())

    assert got == 20_000


async def test_fetches_in_flight_count_towards_max_buffered_bytes(witness_of, group):
    """Buffered bytes and those reserved for fetches in flight together stay within max_buffered_bytes."""
    topic, bound = witness_of.topic(4), 400_000
    for partition in range(4):
        witness_of.produce(topic, (b"x" * 1_000 for _ in range(500)), partition=partition, batch_bytes=16_384)
    proxy = witness_of.server.proxy

    async with witness_of.consumer(
        topic, group_id=group, client_id=group, max_buffered_bytes=bound, max_partition_fetch_bytes=1_000_000
    ) as consumer:
        got = 0
        while got < 2_000:
            got += len(await consumer.getmany(max_records=10))
            statistics = consumer.statistics()
            assert statistics.buffered_bytes + statistics.reserved_bytes <= bound + 16_384

    asked = [frame.message.max_bytes for frame in proxy.requests(FetchRequest, client_id=group)]
    assert max(asked) <= bound


async def test_a_paused_partition_frees_its_buffer_for_a_new_partition(witness_of, group):
    """If a paused partition fills the buffer, another topic is still read, and the rest of the first after resume()."""
    first, second = witness_of.topic(), witness_of.topic()
    witness_of.produce(first, (b"x" * 1_000 for _ in range(1_000)), batch_bytes=16_384)
    witness_of.produce(second, (b"x" * 1_000 for _ in range(1_000)), batch_bytes=16_384)
    bound = 400_000

    async with witness_of.consumer(first, group_id=group, max_buffered_bytes=bound) as consumer:
        await consumer.getone()
        consumer.pause()
        await until(lambda: consumer.statistics().buffered_bytes > bound * 0.9)
        await consumer.subscribe(first, second)
        got = []
        async with asyncio.timeout(40):
            while len(got) < 1_000:
                got += await consumer.getmany()
                statistics = consumer.statistics()
                assert statistics.buffered_bytes + statistics.reserved_bytes <= bound + 16_384
        consumer.resume()
        rest = []
        async with asyncio.timeout(40):
            while len(rest) < 999:
                rest += await consumer.getmany()

    assert [(one.topic, one.offset) for one in got] == [(second, n) for n in range(1_000)]
    assert [(one.topic, one.offset) for one in rest] == [(first, n) for n in range(1, 1_000)]


async def test_paused_partitions_free_batches_larger_than_their_share(witness_of, group):
    """If batches of paused partitions fill the buffer, they are discarded for other partitions.

    Resumed partitions continue at their positions, without a gap or a repeated record.
    """
    first, second = witness_of.topic(2), witness_of.topic(2)
    for partition in range(2):
        witness_of.produce(first, (b"x" * 1_000 for _ in range(180)), partition=partition, batch_bytes=250_000)
        witness_of.produce(second, [b"x" * 90_000] * 2, partition=partition)
    bound = 400_000

    async with witness_of.consumer(first, group_id=group, max_buffered_bytes=bound) as consumer:
        begun = await consumer.getone()
        consumer.pause()
        await until(lambda: consumer.statistics().buffered_bytes > bound * 0.85)
        await consumer.subscribe(first, second)
        async with asyncio.timeout(30):
            got = [await consumer.getone() for _ in range(4)]
        consumer.resume()
        async with asyncio.timeout(30):
            rest = [await consumer.getone() for _ in range(359)]

    assert {(second, partition, n) for partition in range(2) for n in range(2)} == set(map(place, got))
    for partition in range(2):
        offsets = [one.offset for one in (begun, *rest) if one.partition == partition]
        assert offsets == list(range(180))


def place(record):
    return record.topic, record.partition, record.offset


async def test_a_finished_fetch_releases_its_reserved_space(witness_of, group):
    """When a fetch of an idle partition ends, its reserved space is available to another partition."""
    idle = witness_of.topic_with(1)
    lane = slot_of(TopicPartition(idle, 0), 2)
    later = next(one for one in iter(witness_of.topic, None) if slot_of(TopicPartition(one, 0), 2) != lane)
    witness_of.produce(later, [b"later"])
    options = {"max_buffered_bytes": 400_000, "num_fetchers": 2, "fetch_max_wait_ms": 1_000}

    async with witness_of.consumer(idle, group_id=group, **options) as consumer:
        await consumer.getone()
        await until(lambda: consumer.statistics().reserved_bytes == 400_000)
        await consumer.subscribe(idle, later)
        assert (await consumer.getone(timeout_ms=30_000)).value == b"later"


async def test_partitions_share_buffer_space_for_one_fetch(witness_of):
    """If the buffer has space for one fetch at a time, several idle partitions are still fetched in turn."""
    topic = witness_of.topic(3)
    witness_of.produce(topic, [b"x" * 980_000], partition=0)
    options = {"max_buffered_bytes": 1_500_000, "num_fetchers": 2, "auto_offset_reset": "earliest"}

    async with witness_of.consumer(topic, **options) as consumer, asyncio.timeout(40):
        streams, opened = aiter(consumer.streams()), {}
        while len(opened) < 3:
            partition, stream = await anext(streams)
            opened[partition.partition] = stream
        await until(lambda: consumer.statistics().buffered_bytes > 980_000)
        for number in (1, 2, 1, 2):
            witness_of.produce(topic, [b"small"], partition=number)
            assert (await anext(opened[number])).value == b"small"


async def test_a_pause_frees_buffer_space_for_waiting_fetches(witness_of):
    """When a partition whose half-read batch fills the buffer is paused, another one is fetched."""
    topic = witness_of.topic(2)
    witness_of.produce(topic, [b"x" * 10_000] * 2, partition=0)
    options = {"max_buffered_bytes": 21_000, "auto_offset_reset": "earliest"}

    async with witness_of.consumer(topic, **options) as consumer, asyncio.timeout(40):
        first = await consumer.getone()
        await until(lambda: consumer.statistics().reserved_bytes == 0)
        witness_of.produce(topic, [b"later"], partition=1)
        consumer.pause(first.topic_partition)
        later = await consumer.getone()
        consumer.resume()

        assert (later.value, (await consumer.getone()).offset) == (b"later", 1)


async def test_one_response_has_batches_of_several_partitions(witness_of, group):
    """One response has batches of several partitions, even if each exceeds its partition's share of the buffer."""
    events, topic = EventRecorder(), witness_of.topic(20)
    for partition in range(20):
        for batch in range(3):
            values = (b"%d" % (batch * 30 + n) + b"x" * 1_000 for n in range(30))
            witness_of.produce(topic, values, partition=partition, batch_bytes=100_000)

    options = {"group_id": group, "max_buffered_bytes": 400_000, "hooks": [events]}
    async with witness_of.consumer(topic, **options) as consumer, asyncio.timeout(60):
        seen = []
        while len(seen) < 1_800:
            seen += await consumer.getmany()

    assert len({(one.partition, one.offset) for one in seen}) == len(seen) == 1_800
    fetched = [one.records for one in events.of(FetchCompleted) if one.records]
    assert len(fetched) <= 30, "60 batches were fetched almost one by one"
