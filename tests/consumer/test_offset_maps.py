"""What is finished behind a commit: written with it, read at a takeover, held within its room."""

from __future__ import annotations

import asyncio
import random

import pytest
from crew import until
from recorder import Recorder

from penstock import OffsetAndMetadata, TopicPartition
from penstock.consumer.amounts import Amounts
from penstock.core.offset_map import decode
from penstock.observe.events import (
    FinishedSkipped,
    ForeignMetadataFound,
    OffsetMapDropped,
    OffsetMapFound,
    OffsetMapHigh,
    OffsetMapIgnored,
    OffsetMapLow,
    OffsetsCommitted,
    PartitionsAssigned,
)


@pytest.fixture
def events():
    return Recorder()


@pytest.fixture
def by_hand(new_consumer, group, events):
    """Makes a consumer whose records are acknowledged by hand; it commits when it is told to."""

    def make(*topics, on=new_consumer, **options):
        defaults = {"group_id": group, "ack": "manual", "enable_auto_commit": False, "hooks": [events]}
        return on(*topics, **{**defaults, **options})

    return make


@pytest.fixture
def topic(new_topic, witness):
    """Of one partition and a hundred records."""
    made = new_topic()
    witness.produce(made, (b"%d" % n for n in range(100)), partition=0)
    return made


async def take(consumer, count):
    """So many records, whatever the batches are."""
    records = []
    while len(records) < count:
        records += await consumer.getmany(max_records=count - len(records))
    return records


async def finish_all_but(stuck, consumer, count):
    """Take ``count`` records, acknowledge them but for some, and commit."""
    for record in await take(consumer, count):
        if record.offset not in stuck:
            assert consumer.ack(record)
    await consumer.commit()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("ack", ["auto", "manual"])
async def test_what_is_finished_is_not_handed_out_again(quick, by_hand, events, group, protocol, ack):  # noqa: PLR0917
    """The next owner skips what the map says is finished, in either way of acknowledging, and tells how many."""
    topic, stuck = quick.topic_with(100), {3, 50, 77}
    options = {"on": quick.consumer, "group_protocol": protocol}
    async with by_hand(topic, **options) as first:
        await finish_all_but(stuck, first, 90)
    assert await quick.committed(group, topic, 1) == {0: 3}

    async with by_hand(topic, ack=ack, client_id="next", **options) as second:
        left = await take(second, 13)
        for record in left:
            assert second.ack(record) or ack == "auto"
        await second.commit()

    place = TopicPartition(topic, 0)
    assert [record.offset for record in left] == [*sorted(stuck), *range(90, 100)]
    assert events.of(OffsetMapFound) == [OffsetMapFound(place, 3, 84, "penstock")]
    assert events.of(FinishedSkipped) == [FinishedSkipped(place, 84)]
    assert (await quick.committed(group, topic, 1), await quick.metadata(group, topic)) == ({0: 100}, "")


async def test_a_map_is_worth_a_commit_of_its_own(topic, by_hand, events, witness, group):
    """Behind a record that is stuck nothing but the map changes: it is committed all the same, and only then."""
    async with by_hand(topic, enable_auto_commit=True, auto_commit_interval_ms=30) as consumer:
        records = await take(consumer, 20)
        await events.wait_for(OffsetsCommitted)
        for record in records[5:8]:
            assert consumer.ack(record)
        await events.wait_for(OffsetsCommitted, 2)
        said = decode(await witness.metadata(group, topic), 0)
        assert (said.offset_map.limit, said.offset_map.unfinished, said.writer) == (8, (0, 1, 2, 3, 4), "penstock")
        assert consumer.ack(records[1])
        await events.wait_for(OffsetsCommitted, 3)
        await take(consumer, 80)
        assert await consumer.getone(timeout_ms=300) is None
        assert len(events.of(OffsetsCommitted)) == 3

    assert await witness.committed(group, topic, 1) == {0: 0}


async def test_a_map_is_handed_on_until_it_is_passed(topic, by_hand, group, witness):
    """An owner that goes before it comes to all of it leaves the rest of it to the next one, beside its own."""
    async with by_hand(topic) as first:
        await finish_all_but({3, 50, 77}, first, 90)
    async with by_hand(topic, max_queued_records=1) as second:
        records = [await second.getone(), await second.getone()]
        assert second.ack(records[1])
        await second.commit()
    async with by_hand(topic) as third:
        left = await take(third, 12)

    assert [record.offset for record in records] == [3, 50]
    assert [record.offset for record in left] == [3, 77, *range(90, 100)]


@pytest.mark.parametrize("way", ["override", "seek"])
async def test_who_says_where_to_begin_begins_without_a_map(topic, by_hand, witness, group, way):
    """After an override or a seek all records come from there on, whatever was finished; the map is not kept."""
    place = TopicPartition(topic, 0)
    async with by_hand(topic) as first:
        await finish_all_but({3}, first, 90)

    async def choose(*_):
        return {place: 3}

    async with by_hand(topic, post_rebalance_callback=choose if way == "override" else None) as second:
        if way == "seek":
            assert (await second.getone()).offset == 3
            await second.seek(place, 3)
        records = await take(second, 97)
        await second.commit()

    assert [record.offset for record in records] == list(range(3, 100))
    assert (await witness.committed(group, topic, 1), await witness.metadata(group, topic)) == ({0: 3}, "")


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ("penstock:1:00000000:somebody:gigRQ:", OffsetMapIgnored),
        ("penstock:2:whatever a later version writes", OffsetMapIgnored),
        ("penstock:", OffsetMapIgnored),
        ("the text of a Java client", ForeignMetadataFound),
        ("\u00fcber", ForeignMetadataFound),
    ],
)
async def test_metadata_of_others_are_ignored_with_a_count(topic, by_hand, events, *, witness, group, metadata, kind):
    """What another client wrote, or what is damaged, holds nobody up: all records come, and it is told and counted."""
    await witness.commit(group, topic, 40, metadata)

    async with by_hand(topic) as consumer:
        records = await take(consumer, 60)
        place = TopicPartition(topic, 0)
        assert consumer.statistics().ignored_maps == 1
        own = (await consumer.committed([place]))[place]

    assert [record.offset for record in records] == list(range(40, 100))
    assert [event.offset for event in events.of(kind)] == [40]
    # librdkafka ends what it writes with a NUL.
    assert (own.offset, own.metadata) == (40, f"{metadata}\0" if kind is ForeignMetadataFound else "")


async def test_a_users_text_goes_with_its_offset(topic, by_hand, witness, group):
    """It comes back as it was given, beside a map and without one, and leaves with the offset it was committed with."""
    place, text = TopicPartition(topic, 0), 'ledger 7:ü "x"'
    async with by_hand(topic) as consumer:
        records = await take(consumer, 10)
        await consumer.commit({place: OffsetAndMetadata(0, text)})
        assert (await consumer.committed([place]))[place].metadata == await witness.metadata(group, topic) == text
        assert consumer.ack(records[3])
        await consumer.commit()
        assert decode(await witness.metadata(group, topic), 0).offset_map is not None
        assert (await consumer.committed([place]))[place].metadata == text
        assert consumer.ack(records[0])
        await consumer.commit()
        assert (await consumer.committed([place]))[place] == OffsetAndMetadata(1, "", 0)
        await consumer.commit({place: OffsetAndMetadata(1, text)})
        await consumer.commit({place: OffsetAndMetadata(70, "penstock:1:mine")})
        assert (await consumer.committed([place]))[place].metadata == "penstock:1:mine"
        assert decode(await witness.metadata(group, topic), 70).offset_map is None


async def test_no_more_is_begun_than_the_map_has_room_for(new_topic, by_hand, events, witness, group):
    """While the lowest is stuck and the map is three quarters full, its partition waits; others and the group go on."""
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
        high = await events.wait_for(OffsetMapHigh)
        begun = len(taken[0])
        await until(lambda: len(taken[1]) == 20_000)
        assert len(taken[0]) <= begun + 100
        await consumer.commit()
        text = await witness.metadata(group, topic, 0)
        assert not events.of(OffsetMapDropped)
        for record in taken[0]:
            consumer.ack(record)
        await events.wait_for(OffsetMapLow)
        await until(lambda: len(taken[0]) > begun + 1_000)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    assert (high.partition, high.offset) == (stuck, 0)
    assert 0.75 < high.fill < 1
    assert 0.7 * 256 < len(text) <= 256
    assert decode(text, 0).offset_map is not None


async def test_who_waits_for_many_records_looks_at_a_full_map_now_and_then(
    new_topic, by_hand, events, *, witness, monkeypatch
):
    """A partition that waits for its lowest record costs nothing, however its reader waits."""
    topic, chance, left, looks = new_topic(), random.Random(5), [], []
    witness.produce(topic, (b"%d" % n for n in range(20_000)))

    def look(amounts, *arguments, **options):
        looks.append(amounts)
        return are_there(amounts, *arguments, **options)

    async with by_hand(topic, offset_metadata_max_bytes=256, max_queued_records=100) as consumer:
        while not events.of(OffsetMapHigh):
            some = await consumer.getmany(timeout_ms=100)
            left += [one for one in some if not one.offset or chance.random() < 0.5 or not consumer.ack(one)]
        are_there = Amounts.are_there
        monkeypatch.setattr(Amounts, "are_there", look)
        waiting = asyncio.create_task(consumer.getmany(min_records=50))
        await until(lambda: bool(looks))
        for record in left[-3:]:
            # Sooner than the map is looked at again.
            consumer.ack(record)
            before = len(looks)
            await until(lambda before=before: len(looks) > before)
        await asyncio.sleep(0.3)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert len(looks) < 50


@pytest.mark.parametrize("room", [10, 100])
async def test_a_map_that_does_not_fit_is_dropped_and_the_commit_is_not(
    new_topic, by_hand, events, *, witness, group, room
):
    """Somebody who is far ahead when the lowest gets stuck commits all the same, and is told once."""
    topic, chance = new_topic(), random.Random(5)
    witness.produce(topic, (b"%d" % n for n in range(4_000)), partition=0)

    async with by_hand(topic, offset_metadata_max_bytes=room) as consumer:
        records = await take(consumer, 2_000)
        for record in records[:500]:
            assert consumer.ack(record)
        for record in records[501:]:
            if chance.random() < 0.5:
                assert consumer.ack(record)
        await consumer.commit()
        assert any(consumer.ack(record) for record in records[501:])
        await consumer.commit()

    said = decode(await witness.metadata(group, topic), 500)
    assert (await witness.committed(group, topic, 1), said.offset_map, said.user_text) == ({0: 500}, None, "")
    assert [event.offset for event in events.of(OffsetMapDropped)] == [500]


async def test_a_broker_that_takes_less_metadata_gets_the_commit_without_the_map(
    new_topic, by_hand, events, witness, group
):
    """Where ``offset_metadata_max_bytes`` is above the broker's limit, the commit is made, and it is told."""
    topic, chance = new_topic(), random.Random(5)
    witness.produce(topic, (b"%d" % n for n in range(40_000)), partition=0)

    async with by_hand(topic, offset_metadata_max_bytes=100_000) as consumer:
        for record in await take(consumer, 40_000):
            if record.offset < 10 or chance.random() < 0.5:
                consumer.ack(record)
        await consumer.commit()

    assert (await witness.committed(group, topic, 1))[0] >= 10
    assert await witness.metadata(group, topic) == ""
    assert "offset.metadata.max.bytes" in events.of(OffsetMapDropped)[0].reason


async def test_maps_can_be_left_out(topic, by_hand, events, witness, group):
    """With no room at all nothing is written and nothing held back; what is found is skipped all the same."""
    async with by_hand(topic) as first:
        await finish_all_but({3}, first, 90)
    async with by_hand(topic, offset_metadata_max_bytes=0) as second:
        await finish_all_but({3, 95}, second, 11)
        await events.wait_for(PartitionsAssigned, 2)

    assert (await witness.committed(group, topic, 1), await witness.metadata(group, topic)) == ({0: 3}, "")
    assert not events.of(OffsetMapDropped)
