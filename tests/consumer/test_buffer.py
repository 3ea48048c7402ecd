"""Fetch buffer: shares of partitions, turns, and counts of bytes."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.consumer.partition import FetchBuffer
from tailrace.records import TopicPartition
from tests.support.simulation.cpu_time import cpu_time

A, B, C = (TopicPartition(name, 0) for name in "abc")


@pytest.fixture
def buffer():
    """Empty buffer of ninety bytes."""
    return FetchBuffer(90)


def anything(_partition):
    return True


def test_chunks_of_a_partition_are_in_order(buffer):
    """Data of a partition is read in the order in which it arrived."""
    buffer.put(A, "one", 10)
    buffer.put(A, "two", 10)

    assert (buffer.head(A), buffer.last(A)) == ("one", "two")
    buffer.pop(A)
    assert (buffer.head(A), buffer.last(A)) == ("two", "two")
    buffer.pop(A)
    assert (buffer.head(A), buffer.last(A)) == (None, None)
    assert not buffer.holds(A)


def test_the_time_of_a_turn_does_not_depend_on_the_number_of_partitions():
    """Twenty thousand partitions are read one after another, and as many are removed, in a short time."""
    partitions = [TopicPartition("t", number) for number in range(20_000)]
    buffer: FetchBuffer[str] = FetchBuffer(1_000_000)
    with cpu_time() as used_s:
        for partition in partitions:
            buffer.put(partition, "chunk", 10)
        for _ in partitions:
            taken = buffer.next_partition(anything)
            assert taken is not None
            buffer.pop(taken)
        for partition in partitions:
            buffer.put(partition, "chunk", 10)
        for partition in reversed(partitions):
            buffer.drop(partition)

        assert used_s() < 2
    assert buffer.held_bytes == 0


def test_partitions_take_turns(buffer):
    """No partition is read twice while another readable one waits."""
    for partition in (A, B, C):
        buffer.put(partition, "chunk", 1)

    assert [buffer.next_partition(anything) for _ in range(5)] == [A, B, C, A, B]


def test_unreadable_partitions_are_skipped(buffer):
    """A paused partition is skipped; if no partition is readable, next_partition() returns None."""
    for partition in (A, B, C):
        buffer.put(partition, "chunk", 1)

    assert [buffer.next_partition(lambda one: one != B) for _ in range(4)] == [A, C, A, C]
    assert buffer.next_partition(lambda _: False) is None
    assert FetchBuffer(1).next_partition(anything) is None


def test_bytes_are_counted(buffer):
    """The buffer counts bytes in total, by partition, and taken so far."""
    buffer.put(A, "one", 10)
    buffer.put(B, "two", 20)

    assert (buffer.held_bytes, buffer.bytes_of(A), buffer.free_bytes, buffer.taken_bytes) == (30, 10, 60, 0)
    buffer.pop(B)
    assert (buffer.held_bytes, buffer.bytes_of(B), buffer.free_bytes, buffer.taken_bytes) == (10, 0, 80, 20)


def test_data_added_to_the_last_chunk_is_counted(buffer):
    """Bytes that are added to the newest chunk of a partition are counted, and freed with the chunk."""
    buffer.put(A, "one", 10)
    buffer.put(A, "two", 20)
    buffer.enlarge_last(A, 15)

    assert (buffer.held_bytes, buffer.bytes_of(A), buffer.largest_bytes) == (45, 45, 35)
    buffer.pop(A)
    buffer.pop(A)
    assert (buffer.held_bytes, buffer.bytes_of(A), buffer.taken_bytes) == (0, 0, 45)


def test_fetch_in_flight_has_reserved_space(buffer):
    """A fetch in flight reserves space, which is free again, or filled, when the fetch ends."""
    buffer.reserve("fetch", 50)
    assert (buffer.free_bytes, buffer.reserved_bytes) == (40, 50)

    buffer.put(A, "one", 30)
    buffer.unreserve("fetch")

    assert (buffer.free_bytes, buffer.reserved_bytes) == (60, 0)
    buffer.unreserve("fetch")
    assert buffer.free_bytes == 60


def test_second_reservation_replaces_the_first(buffer):
    """A second reservation of a fetch replaces the first."""
    buffer.reserve("fetch", 50)
    buffer.reserve("fetch", 20)

    assert buffer.reserved_bytes == 20


def test_overrun_leaves_no_free_space(buffer):
    """A response that is larger than requested, which Kafka permits, leaves zero bytes free."""
    buffer.put(A, "large", 200)

    assert buffer.free_bytes == 0


def test_partition_uses_only_its_share(buffer):
    """Each of three partitions may hold a third of the buffer, however much the others hold."""
    buffer.put(A, "slow", 30)

    assert (buffer.share_of(3), buffer.share_of(0)) == (30, 90)


def test_a_batch_that_is_put_back_comes_first(buffer):
    """A batch that is put back is read first, and its bytes are not counted again."""
    buffer.put(A, "two", 10)

    buffer.put_back(A, "one")

    assert (buffer.head(A), buffer.held_bytes) == ("one", 10)
    buffer.pop(A)
    assert (buffer.head(A), buffer.held_bytes) == ("two", 10)
    buffer.put_back(B, "alone")
    assert buffer.holds(B)
    assert buffer.next_partition(lambda one: one == B) == B


def test_data_of_a_removed_partition_is_discarded(buffer):
    """The data of a removed partition is discarded, and its bytes do not count as taken."""
    buffer.put(A, "one", 10)
    buffer.put(A, "two", 10)

    buffer.drop(A)
    buffer.drop(B)

    assert (buffer.held_bytes, buffer.bytes_of(A), buffer.taken_bytes) == (0, 0, 0)
    assert buffer.head(A) is None
    assert buffer.next_partition(anything) is None


def test_cut_keeps_at_least_the_given_number_of_bytes(buffer):
    """A cut leaves at least the given number of bytes, since the discarded bytes would otherwise be fetched again."""
    for chunk, size in (("one", 5), ("two", 60), ("three", 10), ("marker", 0)):
        buffer.put(A, chunk, size)

    assert buffer.cut(A, 40, 40) == "two"
    assert (buffer.held_bytes, buffer.bytes_of(A)) == (65, 65)
    buffer.put(A, "marker", 0)
    assert buffer.cut(A, 40, 40) is None
    assert list(buffer.all_buffered(A)) == ["one", "two", "marker"]
    assert buffer.cut(A, 40) == "one"


def test_newest_chunks_are_cut(buffer):
    """A cut discards the newest data and never the oldest, which may be partly read; discarded bytes are not taken."""
    for chunk, size in (("one", 40), ("two", 20), ("three", 10)):
        buffer.put(A, chunk, size)

    assert buffer.cut(A, 70) is None
    assert buffer.cut(A, 61) == "two"
    assert (buffer.held_bytes, buffer.bytes_of(A), buffer.taken_bytes) == (60, 60, 0)
    assert buffer.cut(A, 10) == "one"
    assert buffer.cut(A, 10) is None
    assert buffer.cut(B, 0) is None
    assert list(buffer.all_buffered(A)) == ["one"]
    assert buffer.held_bytes == buffer.bytes_of(A) == 40


PARTITIONS = st.sampled_from([A, B, C])


class Buffering(RuleBasedStateMachine):
    """Model of the buffer with plain lists."""

    @initialize()
    def begin(self):
        self.buffer = FetchBuffer(100)
        self.lists: dict[TopicPartition, deque[tuple[int, int]]] = {one: deque() for one in (A, B, C)}
        self.reserved: dict[str, int] = {}
        self.chunk = 0

    @rule(partition=PARTITIONS, size=st.integers(0, 40))
    def put(self, partition, size):
        self.chunk += 1
        self.buffer.put(partition, self.chunk, size)
        self.lists[partition].append((self.chunk, size))

    @rule(partition=PARTITIONS)
    def put_back(self, partition):
        self.chunk += 1
        self.buffer.put_back(partition, self.chunk)
        self.lists[partition].appendleft((self.chunk, 0))

    @rule(partition=PARTITIONS)
    def drop(self, partition):
        self.buffer.drop(partition)
        self.lists[partition].clear()

    @rule(partition=PARTITIONS, most=st.integers(0, 100))
    def cut(self, partition, most):
        chunks = self.lists[partition]
        before = len(chunks)
        while len(chunks) > 1 and sum(size for _, size in chunks) > most:
            chunks.pop()
        assert self.buffer.cut(partition, most) == (chunks[-1][0] if len(chunks) < before else None)

    @rule(fetch=st.sampled_from("xy"), size=st.integers(0, 60))
    def reserve(self, fetch, size):
        self.buffer.reserve(fetch, size)
        self.reserved[fetch] = size

    @rule(fetch=st.sampled_from("xy"))
    def unreserve(self, fetch):
        self.buffer.unreserve(fetch)
        self.reserved.pop(fetch, None)

    @precondition(lambda self: any(self.lists.values()))
    @rule(readable=st.frozensets(PARTITIONS))
    def take(self, readable):
        partition = self.buffer.next_partition(lambda one: one in readable)
        waiting = {one for one in readable if self.lists[one]}
        assert (partition in waiting) if waiting else (partition is None)
        if partition is not None:
            chunk, size = self.lists[partition].popleft()
            taken = self.buffer.taken_bytes
            assert self.buffer.head(partition) == chunk
            self.buffer.pop(partition)
            assert self.buffer.taken_bytes == taken + size

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "buffer"):
            return
        for partition, chunks in self.lists.items():
            assert self.buffer.bytes_of(partition) == sum(size for _, size in chunks)
            assert self.buffer.head(partition) == (chunks[0][0] if chunks else None)
            assert self.buffer.holds(partition) == bool(chunks)
        held = sum(size for chunks in self.lists.values() for _, size in chunks)
        assert self.buffer.held_bytes == held
        assert self.buffer.reserved_bytes == sum(self.reserved.values())
        assert self.buffer.free_bytes == max(0, 100 - held - sum(self.reserved.values()))

    @invariant()
    def everybody_has_a_turn(self):
        if not hasattr(self, "buffer"):
            return
        waiting = {one for one, chunks in self.lists.items() if chunks}
        assert {self.buffer.next_partition(lambda _: True) for _ in waiting} == waiting


TestBuffering = Buffering.TestCase
TestBuffering.__doc__ = "In any order of steps, the buffer loses no data, and its counts are right."
