"""Limit on the decompressed batches of all partitions."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.consumer.partition import DecompressedBatches, FetchBuffer
from tailrace.records import TopicPartition

LIMIT = 100


@dataclass
class Batch:
    """Batch that takes ``plain_bytes`` when decompressed."""

    plain_bytes: int
    is_decompressing: bool = False
    has_error: bool = False

    def pack(self) -> None:
        self.plain_bytes = 0


def place(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def held(*batches: Batch):
    """Return a buffer with one decompressed batch per partition."""
    buffer: FetchBuffer[Batch] = FetchBuffer(LIMIT)
    decompressed = DecompressedBatches(buffer)
    for number, batch in enumerate(batches):
        buffer.put(place(number), batch, 1)
        decompressed.add(place(number), batch)
    return buffer, decompressed


def everyone(_: TopicPartition) -> bool:
    return True


def nobody(_: TopicPartition) -> bool:
    return False


def test_batches_may_be_decompressed_below_the_limit():
    """A batch of any size may be decompressed while the others take less than the limit."""
    assert held(Batch(60), Batch(39))[1].has_room(everyone)
    assert not held(Batch(60), Batch(40))[1].has_room(everyone)


def test_consumed_batch_makes_room():
    """A batch makes room when it is consumed and when its partition is revoked."""
    buffer, decompressed = held(Batch(60), Batch(60))
    assert not decompressed.has_room(everyone)
    buffer.put(place(0), Batch(0), 1)
    buffer.pop(place(0))
    assert decompressed.has_room(everyone)
    buffer, decompressed = held(Batch(100))
    buffer.drop(place(0))
    assert decompressed.has_room(everyone)


def test_batch_after_records_that_were_put_back_is_counted():
    """A batch of which records were put back still takes its bytes."""
    buffer, decompressed = held(Batch(100))
    buffer.put_back(place(0), Batch(0))
    assert not decompressed.has_room(everyone)


def test_unread_batches_are_compressed_again():
    """Unread batches are compressed again, the oldest first, only as many as necessary and if none is being read."""
    first, second = Batch(60), Batch(60)
    _, decompressed = held(first, second)
    assert not decompressed.has_room(lambda partition: partition == place(1))
    assert (first.plain_bytes, second.plain_bytes) == (60, 60)
    assert decompressed.has_room(nobody)
    assert (first.plain_bytes, second.plain_bytes) == (0, 60)


def test_batch_with_an_error_makes_room():
    """A batch with an error makes room, as no more records are read from it."""
    broken = Batch(200, has_error=True)
    _, decompressed = held(broken)
    assert decompressed.has_room(everyone)
    assert broken.plain_bytes == 0


def test_threads_decompress_two_batches_at_a_time():
    """At most two batches are decompressed at a time; one whose partition was revoked counts until its end."""
    under_way = Batch(0, is_decompressing=True)
    buffer, decompressed = held(under_way, Batch(0, is_decompressing=True))
    assert not decompressed.has_room(everyone)
    buffer.drop(place(0))
    assert not decompressed.has_room(nobody)
    under_way.is_decompressing = False
    decompressed.note_decompressed(under_way)
    assert decompressed.has_room(everyone)
