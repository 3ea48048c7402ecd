"""Limit on the decompressed batches of all partitions."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.records import TopicPartition

LIMIT = 100


@dataclass(eq=False)
class Batch:
    """Batch that takes ``plain_bytes`` when decompressed."""

    plain_bytes: int
    is_decompressing: bool = False
    has_error: bool = False
    size: int = 1
    next_offset: int = 0
    leader_epoch: int = -1

    def pack(self) -> None:
        self.plain_bytes = 0

    def merge(self, _following: Batch) -> bool:
        return False


def held(*batches: Batch) -> tuple[list[Partition], AssignedPartitions]:
    """Return partitions with one decompressed batch each."""
    partitions = AssignedPartitions()
    partitions.space.max_bytes = LIMIT
    added = partitions.add(TopicPartition("t", number) for number in range(len(batches)))
    for partition, batch in zip(added, batches, strict=True):
        partition.put(batch)
        partition.decompressed = batch
        partitions.space.plain_bytes += batch.plain_bytes
        partitions.space.decompressing += batch.is_decompressing
    return added, partitions


def every_partition(_: Partition) -> bool:
    return True


def no_partition(_: Partition) -> bool:
    return False


def test_batches_may_be_decompressed_below_the_limit():
    """A batch of any size may be decompressed while the others take less than the limit."""
    assert held(Batch(60), Batch(39))[1].has_room_to_decompress(every_partition)
    assert not held(Batch(60), Batch(40))[1].has_room_to_decompress(every_partition)


def test_consumed_batch_makes_room():
    """A batch makes room when it is consumed and when its partition is revoked."""
    (first, _), partitions = held(Batch(60), Batch(60))
    assert not partitions.has_room_to_decompress(every_partition)
    first.put(Batch(0))
    first.remove_first()
    assert partitions.has_room_to_decompress(every_partition)
    (first,), partitions = held(Batch(100))
    partitions.remove([first.topic_partition])
    assert partitions.has_room_to_decompress(every_partition)


def test_batch_after_records_that_were_put_back_is_counted():
    """A batch of which records were put back still takes its bytes."""
    (first,), partitions = held(Batch(100))
    first.put_back(Batch(0))
    assert not partitions.has_room_to_decompress(every_partition)


def test_unread_batches_are_compressed_again():
    """Unread batches are compressed again, the oldest first, only as many as necessary and if none is being read."""
    first, second = Batch(60), Batch(60)
    _, partitions = held(first, second)
    assert not partitions.has_room_to_decompress(lambda partition: partition.topic_partition.partition == 1)
    assert (first.plain_bytes, second.plain_bytes) == (60, 60)
    assert partitions.has_room_to_decompress(no_partition)
    assert (first.plain_bytes, second.plain_bytes) == (0, 60)


def test_batch_with_an_error_makes_room():
    """A batch with an error makes room, as no more records are read from it."""
    broken = Batch(200, has_error=True)
    _, partitions = held(broken)
    assert partitions.has_room_to_decompress(every_partition)
    assert broken.plain_bytes == 0


def test_threads_decompress_two_batches_at_a_time():
    """At most two batches are decompressed at a time; one whose partition was revoked counts until its end."""
    under_way = Batch(0, is_decompressing=True)
    (first, _), partitions = held(under_way, Batch(0, is_decompressing=True))
    assert not partitions.has_room_to_decompress(every_partition)
    partitions.remove([first.topic_partition])
    assert not partitions.has_room_to_decompress(no_partition)
    under_way.is_decompressing = False
    partitions.space.decompressing -= 1
    assert partitions.has_room_to_decompress(every_partition)
