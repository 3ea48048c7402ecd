"""How much of the batches of all partitions may be decompressed at a time."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.core.fetch.buffer import FetchBuffer
from tailrace.core.fetch.decompressed_batches import DecompressedBatches
from tailrace.records import TopicPartition

LIMIT = 100


@dataclass
class Batch:
    """A batch that takes so many bytes when it is decompressed."""

    plain_bytes: int
    is_decompressing: bool = False
    has_error: bool = False

    def pack(self) -> None:
        self.plain_bytes = 0


def place(number: int) -> TopicPartition:
    return TopicPartition("t", number)


def held(*batches: Batch):
    """A buffer with these batches, one a partition, all of them decompressed."""
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


def test_there_is_room_until_they_take_the_limit():
    """A batch of any size may begin while the others take less."""
    assert held(Batch(60), Batch(39))[1].has_room(everyone)
    assert not held(Batch(60), Batch(40))[1].has_room(everyone)


def test_what_is_used_up_makes_room():
    """Whether its partition has other batches then or is gone."""
    buffer, decompressed = held(Batch(60), Batch(60))
    assert not decompressed.has_room(everyone)
    buffer.put(place(0), Batch(0), 1)
    buffer.pop(place(0))
    assert decompressed.has_room(everyone)
    buffer, decompressed = held(Batch(100))
    buffer.drop(place(0))
    assert decompressed.has_room(everyone)


def test_records_that_were_put_back_before_a_batch_do_not_hide_it():
    """It takes its bytes still."""
    buffer, decompressed = held(Batch(100))
    buffer.put_back(place(0), Batch(0))
    assert not decompressed.has_room(everyone)


def test_what_nobody_reads_is_compressed_again():
    """The oldest first and no more than makes room; never while somebody reads one of them, which makes room, too."""
    first, second = Batch(60), Batch(60)
    _, decompressed = held(first, second)
    assert not decompressed.has_room(lambda partition: partition == place(1))
    assert (first.plain_bytes, second.plain_bytes) == (60, 60)
    assert decompressed.has_room(nobody)
    assert (first.plain_bytes, second.plain_bytes) == (0, 60)


def test_what_has_an_error_makes_room():
    """Nothing is read from it any more, however often its error is raised."""
    broken = Batch(200, has_error=True)
    _, decompressed = held(broken)
    assert decompressed.has_room(everyone)
    assert broken.plain_bytes == 0


def test_two_are_decompressed_by_threads_at_a_time():
    """Their sizes are not known before; a third one begins when one of them has ended, dropped or not."""
    under_way = Batch(0, is_decompressing=True)
    buffer, decompressed = held(under_way, Batch(0, is_decompressing=True))
    assert not decompressed.has_room(everyone)
    buffer.drop(place(0))
    assert not decompressed.has_room(nobody)
    under_way.is_decompressing = False
    decompressed.decompressed(under_way)
    assert decompressed.has_room(everyone)
