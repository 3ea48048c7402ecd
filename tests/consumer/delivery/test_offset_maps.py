"""Offset maps: committed with the offset, read when a partition is assigned, and limited in size."""

from __future__ import annotations

import asyncio
import random

import pytest

from tailrace import OffsetAndMetadata, TopicPartition
from tailrace.consumer.delivery.reader import Reader
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.observe.events import (
    FinishedRecordsSkipped,
    ForeignMetadataFound,
    OffsetMapDropped,
    OffsetMapFound,
    OffsetMapFull,
    OffsetMapIgnored,
    OffsetMapRecovered,
    OffsetsCommitted,
    PartitionsAssigned,
)
from tests.support.consumer_group import commit_as_it_is, until
from tests.support.event_recorder import EventRecorder
from tests.support.proxied_broker import ProxiedBroker


@pytest.fixture
def events():
    return EventRecorder()


@pytest.fixture
def by_hand(new_consumer, group, events):
    """Return a function that creates consumers with ``ack="manual"`` and without automatic commits."""

    def make(*topics, on=new_consumer, **options):
        defaults = {"group_id": group, "ack": "manual", "enable_auto_commit": False, "hooks": [events]}
        return on(*topics, **{**defaults, **options})

    return make


@pytest.fixture
def topic(new_topic, witness):
    """Create a topic with one partition and a hundred records."""
    made = new_topic()
    witness.produce(made, (b"%d" % n for n in range(100)), partition=0)
    return made


async def read(consumer, count):
    """Read ``count`` records, in any number of batches."""
    records = []
    while len(records) < count:
        records += await consumer.getmany(max_records=count - len(records))
    return records


async def finish_all_but(stuck, consumer, count):
    """Read ``count`` records, acknowledge all except those at the offsets ``stuck``, and commit."""
    for record in await read(consumer, count):
        if record.offset not in stuck:
            assert consumer.ack(record)
    await consumer.commit()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_finished_records_are_not_delivered_again(quick, by_hand, events, group, protocol, ack):  # noqa: PLR0917
    """The next owner of a partition skips the records listed in the offset map, and emits their number."""
    topic, stuck = quick.topic_with(100), {3, 50, 77}
    options = {"on": quick.consumer, "group_protocol": protocol}
    async with by_hand(topic, **options) as first:
        await finish_all_but(stuck, first, 90)
    assert await quick.committed(group, topic, 1) == {0: 3}

    async with by_hand(topic, ack=ack, client_id="next", **options) as second:
        left = await read(second, 13)
        for record in left:
            assert second.ack(record) or ack == "auto"
        await second.commit()

    place = TopicPartition(topic, 0)
    assert [record.offset for record in left] == [*sorted(stuck), *range(90, 100)]
    assert events.of(OffsetMapFound) == [OffsetMapFound(place, 3, 84, "tailrace")]
    assert events.of(FinishedRecordsSkipped) == [FinishedRecordsSkipped(place, 84)]
    assert (await quick.committed(group, topic, 1), await quick.metadata(group, topic)) == ({0: 100}, "")


async def test_a_changed_offset_map_is_committed(topic, by_hand, events, witness, group):
    """While the lowest record is unfinished, automatic commits are sent only if the offset map has changed."""
    async with by_hand(topic, enable_auto_commit=True, auto_commit_interval_ms=30) as consumer:
        records = await read(consumer, 20)
        await events.wait_for(OffsetsCommitted)
        for record in records[5:8]:
            assert consumer.ack(record)
        await events.wait_for(OffsetsCommitted, 2)
        metadata = decode_metadata(await witness.metadata(group, topic), 0)
        unfinished = list(metadata.offset_map.unfinished_from(0))
        assert (metadata.offset_map.limit, unfinished, metadata.writer) == (8, [0, 1, 2, 3, 4], "tailrace")
        assert consumer.ack(records[1])
        await events.wait_for(OffsetsCommitted, 3)
        await read(consumer, 80)
        assert await consumer.getone(timeout_ms=300) is None
        assert len(events.of(OffsetsCommitted)) == 3

    assert await witness.committed(group, topic, 1) == {0: 0}


async def test_an_owner_commits_the_undelivered_rest_of_the_offset_map(topic, by_hand, group, witness):
    """An owner that leaves early commits its own offset map together with the rest of the one that it found."""
    async with by_hand(topic) as first:
        await finish_all_but({3, 50, 77}, first, 90)
    async with by_hand(topic, max_queued_records=1) as second:
        records = [await second.getone(), await second.getone()]
        assert second.ack(records[1])
        await second.commit()
    async with by_hand(topic) as third:
        left = await read(third, 12)

    assert [record.offset for record in records] == [3, 50]
    assert [record.offset for record in left] == [3, 77, *range(90, 100)]


@pytest.mark.parametrize("way", ["override", "seek"])
async def test_an_override_or_seek_discards_the_offset_map(topic, by_hand, witness, group, way):
    """After an override in a callback or a seek, all records from the new offset on are delivered."""
    place = TopicPartition(topic, 0)
    async with by_hand(topic) as first:
        await finish_all_but({3}, first, 90)

    async def choose(*_):
        return {place: 3}

    async with by_hand(topic, post_rebalance_callback=choose if way == "override" else None) as second:
        if way == "seek":
            assert (await second.getone()).offset == 3
            await second.seek(place, 3)
        records = await read(second, 97)
        await second.commit()

    assert [record.offset for record in records] == list(range(3, 100))
    assert (await witness.committed(group, topic, 1), await witness.metadata(group, topic)) == ({0: 3}, "")


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ("omap:1:00000000:somebody:gigRQ:", OffsetMapIgnored),
        ("omap:2:whatever a later version writes", OffsetMapIgnored),
        ("omap:", OffsetMapIgnored),
        ("the text of a Java client", ForeignMetadataFound),
        ("\u00fcber", ForeignMetadataFound),
    ],
)
async def test_foreign_metadata_is_ignored_and_counted(topic, by_hand, events, *, witness, group, metadata, kind):
    """If the commit metadata are another client's or damaged, all records are delivered and an event is emitted."""
    await witness.commit(group, topic, 40, metadata)

    async with by_hand(topic) as consumer:
        records = await read(consumer, 60)
        place = TopicPartition(topic, 0)
        assert consumer.statistics().ignored_maps == 1
        own = (await consumer.committed([place]))[place]

    assert [record.offset for record in records] == list(range(40, 100))
    assert [event.offset for event in events.of(kind)] == [40]
    # librdkafka terminates metadata with a NUL.
    assert (own.offset, own.metadata) == (40, f"{metadata}\0" if kind is ForeignMetadataFound else "")


async def test_an_offset_map_beyond_the_log_skips_no_record(topic, by_hand, events, *, witness, group, kafka_server):
    """An offset map that exceeds the end of the log is ignored with an event, and not committed again."""
    forged = encode_metadata(OffsetMap(40, 1 << 62, (40,)), "", 4_096).text
    await commit_as_it_is(kafka_server.bootstrap_servers, group, topic, 40, forged)

    async with by_hand(topic, ack="auto") as consumer:
        records = await read(consumer, 60)
        witness.produce(topic, (b"%d" % n for n in range(5)), partition=0)
        records += await read(consumer, 5)
        await consumer.commit()
        assert consumer.statistics().ignored_maps == 1

    assert [record.offset for record in records] == list(range(40, 105))
    (ignored,) = events.of(OffsetMapIgnored)
    assert (ignored.partition, ignored.offset) == (TopicPartition(topic, 0), 40)
    assert f"covers offsets below {1 << 62}, but the log ends at 100" in ignored.reason
    assert (await witness.committed(group, topic, 1), await witness.metadata(group, topic)) == ({0: 105}, "")


async def test_an_offset_map_later_than_the_leader_skips_no_record(topic, by_hand, events, *, group, kafka_server):
    """An offset map whose leader epoch the leader has not reached describes another log, and is ignored."""
    foreign = encode_metadata(OffsetMap(40, 90, (40,), leader_epoch=99), "", 4_096).text
    await commit_as_it_is(kafka_server.bootstrap_servers, group, topic, 40, foreign)

    async with by_hand(topic) as consumer:
        records = await read(consumer, 60)

    assert [record.offset for record in records] == list(range(40, 100))
    (ignored,) = events.of(OffsetMapIgnored)
    assert "leader epoch 99, but the leader has epoch 0" in ignored.reason


async def test_the_offset_map_is_kept_while_its_records_are_in_flight(topic, by_hand, witness, group):
    """An owner that has read past the map, and has finished nothing, commits the whole map."""
    async with by_hand(topic) as first:
        await finish_all_but({3, 50, 77}, first, 100)
    async with by_hand(topic, ack="auto") as second:
        records = await second.getmany(max_records=4, min_records=3)
        await second.commit({TopicPartition(topic, 0): 3})
        metadata = decode_metadata(await witness.metadata(group, topic), 3)

    assert [record.offset for record in records] == [3, 50, 77]
    assert metadata.offset_map is not None
    assert (metadata.offset_map.limit, list(metadata.offset_map.unfinished_from(3))) == (100, [3, 50, 77])


async def test_an_offset_map_of_a_deleted_topic_skips_no_record(
    topic, by_hand, events, *, witness, group, kafka_server
):
    """An offset map with another topic id is ignored, since a recreated topic has other records at its offsets."""
    async with by_hand(topic) as first:
        await finish_all_but({3}, first, 90)
    committed = decode_metadata(await witness.metadata(group, topic), 3)
    text = await witness.metadata(group, topic)
    assert committed.offset_map is not None
    assert (committed.offset_map.topic_id is None, committed.offset_map.leader_epoch) == (False, 0)
    kafka_server.delete_topic(topic)
    kafka_server.create_topic(topic, 1)
    witness.produce(topic, (b"new %d" % n for n in range(100)), partition=0)
    await commit_as_it_is(kafka_server.bootstrap_servers, group, topic, 3, text)

    async with by_hand(topic) as second:
        records = await read(second, 97)

    assert [record.offset for record in records] == list(range(3, 100))
    assert "topic id" in events.of(OffsetMapIgnored)[0].reason


@pytest.mark.xdist_group("killed broker")
async def test_an_offset_map_older_than_the_records_skips_no_record(by_hand, events, *, own_server, group):
    """Records written in a later leader epoch than the offset map's are delivered, even at offsets that it lists."""
    topic, witness = f"rewritten-{group}", ProxiedBroker(own_server)
    own_server.create_topic(topic, 1)
    witness.produce(topic, (b"%d" % n for n in range(10)), partition=0)
    own_server.restart()
    witness.produce(topic, (b"%d" % n for n in range(90)), partition=0)
    stale = OffsetMap(3, 50, (3, 40), leader_epoch=0)
    await commit_as_it_is(own_server.bootstrap_servers, group, topic, 3, encode_metadata(stale, "", 4_096).text)

    async with by_hand(topic, bootstrap_servers=own_server.bootstrap_servers) as consumer:
        offsets = []
        while 99 not in offsets:
            offsets += [record.offset for record in await consumer.getmany()]

    assert [offset for offset in offsets if offset >= 10] == list(range(10, 100))
    assert "was written again under epoch" in events.of(OffsetMapIgnored)[0].reason


async def test_the_users_metadata_belongs_to_its_offset(topic, by_hand, witness, group):
    """The user's metadata are stored beside the offset map, until another offset is committed."""
    place, text = TopicPartition(topic, 0), 'ledger 7:ü "x"'
    async with by_hand(topic) as consumer:
        records = await read(consumer, 10)
        await consumer.commit({place: OffsetAndMetadata(0, text)})
        assert (await consumer.committed([place]))[place].metadata == await witness.metadata(group, topic) == text
        assert consumer.ack(records[3])
        await consumer.commit()
        assert decode_metadata(await witness.metadata(group, topic), 0).offset_map is not None
        assert (await consumer.committed([place]))[place].metadata == text
        assert consumer.ack(records[0])
        await consumer.commit()
        assert (await consumer.committed([place]))[place] == OffsetAndMetadata(1, "", 0)
        await consumer.commit({place: OffsetAndMetadata(1, text)})
        await consumer.commit({place: OffsetAndMetadata(70, "omap:1:mine")})
        assert (await consumer.committed([place]))[place].metadata == "omap:1:mine"
        assert decode_metadata(await witness.metadata(group, topic), 70).offset_map is None


async def test_a_full_offset_map_delays_only_its_partition(new_topic, by_hand, events, witness, group):
    """While an unfinished record fills the offset map of a partition, other partitions are delivered."""
    topic, chance = new_topic(2), random.Random(5)
    for partition in range(2):
        witness.produce(topic, (b"%d" % n for n in range(20_000)), partition=partition)
    stuck, taken = TopicPartition(topic, 0), {0: [], 1: []}

    async with by_hand(topic, offset_metadata_max_bytes=256, max_queued_records=100) as consumer:

        async def read():
            async for record in consumer:
                taken[record.partition].append(record)
                if record.partition == 1 or (record.offset and chance.random() < 0.5):
                    assert consumer.ack(record)

        reading = asyncio.create_task(read())
        high = await events.wait_for(OffsetMapFull)
        begun = len(taken[0])
        await until(lambda: len(taken[1]) == 20_000)
        assert len(taken[0]) <= begun + 100
        await consumer.commit()
        text = await witness.metadata(group, topic, 0)
        assert not events.of(OffsetMapDropped)
        for record in taken[0]:
            consumer.ack(record)
        await events.wait_for(OffsetMapRecovered)
        await until(lambda: len(taken[0]) > begun + 500)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert (high.partition, high.offset) == (stuck, 0)
    assert 0.75 < high.fill < 1
    assert 0.7 * 256 < len(text) <= 256
    assert decode_metadata(text, 0).offset_map is not None


async def test_a_wait_for_many_records_rarely_checks_a_full_map(new_topic, by_hand, events, *, witness, monkeypatch):
    """While a full offset map delays its partition, a waiting getmany() does not check the buffer in a busy loop."""
    topic, chance, left, looks = new_topic(), random.Random(5), [], []
    witness.produce(topic, (b"%d" % n for n in range(20_000)))

    def look(amounts, *arguments, **options):
        looks.append(amounts)
        return are_available(amounts, *arguments, **options)

    async with by_hand(topic, offset_metadata_max_bytes=256, max_queued_records=100) as consumer:
        while not events.of(OffsetMapFull):
            some = await consumer.getmany(timeout_ms=100)
            left += [one for one in some if not one.offset or chance.random() < 0.5 or not consumer.ack(one)]
        are_available = Reader._are_available
        monkeypatch.setattr(Reader, "_are_available", look)
        waiting = asyncio.create_task(consumer.getmany(min_records=50))
        await until(lambda: bool(looks))
        for record in left[-3:]:
            # Sooner than the next estimate of the map.
            consumer.ack(record)
            before = len(looks)
            await until(lambda before=before: len(looks) > before)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert len(looks) < 50


@pytest.mark.parametrize("room", [10, 100])
async def test_a_map_that_does_not_fit_is_left_out_of_the_commit(new_topic, by_hand, events, *, witness, group, room):
    """An offset map that exceeds offset_metadata_max_bytes is left out of the commit, and one event is emitted."""
    topic, chance = new_topic(), random.Random(5)
    witness.produce(topic, (b"%d" % n for n in range(4_000)), partition=0)

    async with by_hand(topic, offset_metadata_max_bytes=room) as consumer:
        records = await read(consumer, 2_000)
        for record in records[:500]:
            assert consumer.ack(record)
        for record in records[501:]:
            if chance.random() < 0.5:
                assert consumer.ack(record)
        await consumer.commit()
        assert any(consumer.ack(record) for record in records[501:])
        await consumer.commit()

    metadata = decode_metadata(await witness.metadata(group, topic), 500)
    assert (await witness.committed(group, topic, 1), metadata.offset_map, metadata.user_text) == ({0: 500}, None, "")
    assert [event.offset for event in events.of(OffsetMapDropped)] == [500]


async def test_metadata_above_the_brokers_limit_is_committed_without_the_map(
    new_topic, by_hand, events, witness, group
):
    """If the broker refuses the offset map as too large, the offset is committed without it and an event is emitted."""
    topic, chance = new_topic(), random.Random(5)
    witness.produce(topic, (b"%d" % n for n in range(40_000)), partition=0)

    async with by_hand(topic, offset_metadata_max_bytes=100_000, max_unacknowledged_records=40_001) as consumer:
        for record in await read(consumer, 40_000):
            if record.offset < 10 or chance.random() < 0.5:
                consumer.ack(record)
        await consumer.commit()

    assert (await witness.committed(group, topic, 1))[0] >= 10
    assert await witness.metadata(group, topic) == ""
    assert "offset.metadata.max.bytes" in events.of(OffsetMapDropped)[0].reason


async def test_offset_maps_can_be_switched_off(topic, by_hand, events, witness, group):
    """With offset_metadata_max_bytes=0, a consumer commits no offset map, but applies one that it finds."""
    async with by_hand(topic) as first:
        await finish_all_but({3}, first, 90)
    async with by_hand(topic, offset_metadata_max_bytes=0) as second:
        await finish_all_but({3, 95}, second, 11)
        await events.wait_for(PartitionsAssigned, 2)

    assert (await witness.committed(group, topic, 1), await witness.metadata(group, topic)) == ({0: 3}, "")
    assert not events.of(OffsetMapDropped)
