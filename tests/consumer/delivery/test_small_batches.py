"""Small batches: they share entries of the fetch buffer and slices, and are otherwise read like large ones."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st

from tailrace import CorruptRecordError, TopicPartition
from tailrace.batches.record_batch import split
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.partition import AssignedPartitions, Partition
from tests.support.protocol.built_batches import GZIP, SentRecord, batch, resealed

HERE = TopicPartition("t", 0)


def position():
    (made,) = AssignedPartitions().add([HERE])
    made.begin(0)
    return made


def read(data):
    """Return the batch in ``data``."""
    (only,) = split(memoryview(data))
    return only


def small(offset, count=1, **options):
    """Return a small batch of ``count`` records from ``offset`` on."""
    sent = [SentRecord(b"k", b"%d" % number) for number in range(offset, offset + count)]
    return read(batch(*sent, base_offset=offset, **options))


def entry_of(*batches):
    """Return an entry of the buffer with these batches, of which the first may be any."""
    first, *others = batches
    entry = BufferedBatch(first.next_offset, batch=first)
    assert all(entry.add(one) for one in others)
    return entry


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.lists(st.integers(1, 9), min_size=1, max_size=80))
def test_the_records_of_an_entry_are_in_order_whatever_is_requested(counts, requests):
    """The records of small batches are taken in order, however many at a time, and records given back come first."""
    batches, offset = [], 0
    for count in counts:
        batches.append(small(offset, count))
        offset += count
    entry, here = entry_of(*batches), position()

    taken: list = []
    for number, request in enumerate([*requests, offset + 1]):
        records = entry.take(here, request)
        assert len(records) == min(request, offset - len(taken))
        kept = records[: len(records) - number % 2]
        entry.give_back(records[len(kept) :])
        taken += kept
    taken += entry.take(here, 1)

    assert [one.offset for one in taken] == list(range(offset))
    assert [one.value for one in taken] == [b"%d" % number for number in range(offset)]
    assert (entry.next_offset, entry.size) == (offset, sum(one.size for one in batches))


def test_batches_that_differ_have_entries_of_their_own():
    """A batch of another leader epoch, a compressed batch, and one that makes the entry large are not added."""
    entry = entry_of(small(0))

    assert not entry.add(small(1, leader_epoch=7))
    assert not entry.add(small(1, codec=GZIP))
    assert not entry.add(read(batch(SentRecord(b"k", bytes(20_000)), base_offset=1)))
    assert not BufferedBatch(1).add(small(1))
    assert entry.next_offset == 1


def test_an_unreadable_batch_ends_the_entry_with_its_own_offsets():
    """Records before an unreadable batch are delivered; then each take raises an error with the batch's offsets."""
    garbled = bytearray(batch(SentRecord(b"k", b"v"), base_offset=2))
    garbled[61] = 0x7E  # the length of the record
    entry = entry_of(small(0), small(1), read(resealed(garbled)), small(3))
    here = position()

    assert [one.offset for one in entry.take(here, 10)] == [0, 1]
    for _ in range(2):
        with pytest.raises(CorruptRecordError) as raised:
            entry.take(here, 10)
        assert (raised.value.offset, raised.value.next_offset) == (2, 3)


def test_records_that_were_given_back_are_delivered_before_an_unreadable_batch():
    """Records that were given back, for example at a pause, are not lost when the next batch cannot be read."""
    garbled = bytearray(batch(SentRecord(b"k", b"v"), base_offset=2))
    garbled[61] = 0x7E  # the length of the record
    entry, here = entry_of(small(0, 2), read(resealed(garbled))), position()
    entry.give_back(entry.take(here, 2)[1:])

    assert [one.offset for one in entry.take(here, 10)] == [1]
    with pytest.raises(CorruptRecordError):
        entry.take(here, 10)


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_batches_of_one_record_are_delivered_in_few_slices(kafka, group, monkeypatch, codec):
    """Hundreds of batches of one record take few slices; records, positions and commits are as with other batches."""
    topic, count = kafka.topic(), 400
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "batch.num.messages": 1, "compression.type": codec}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    producer.flush()
    sizes: list[int] = []
    deliver = Partition.deliver

    def counted(self, records, *arguments):
        sizes.append(len(records))
        return deliver(self, records, *arguments)

    monkeypatch.setattr(Partition, "deliver", counted)
    async with kafka.consumer(topic, group_id=group, auto_offset_reset="earliest") as consumer:
        first = [await consumer.getone() for _ in range(150)]
        await consumer.commit()
        rest: list = []
        while len(first) + len(rest) < count:
            rest += await consumer.getmany(max_records=count)
        committed = await consumer.committed(TopicPartition(topic, 0))
        await consumer.seek(TopicPartition(topic, 0), 390)
        again = await consumer.getmany(min_records=10)

    assert [one.value for one in first + rest] == [b"%d" % number for number in range(count)]
    assert [one.offset for one in again] == list(range(390, 400))
    assert committed.offset == 150
    assert len(sizes) < count / 4
