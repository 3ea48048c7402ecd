"""Buffered batches of partitions: order, shares, turns, and counts of bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.records import TopicPartition
from tests.support.simulation.cpu_time import cpu_time

A, B, C = (TopicPartition(name, 0) for name in "abc")


@dataclass(eq=False)
class Batch:
    """Batch of ``size`` bytes before ``next_offset``."""

    name: object
    size: int
    next_offset: int = 0
    leader_epoch: int = -1
    has_error: bool = False

    def merge(self, _following: Batch) -> bool:
        return False


@pytest.fixture
def partitions():
    """Three partitions that share ninety bytes."""
    return assigned(90)


def assigned(max_bytes: int, *names: TopicPartition) -> AssignedPartitions:
    found = AssignedPartitions()
    found.space.max_bytes = max_bytes
    for partition in found.add(names or (A, B, C)):
        partition.begin(0)
    return found


def put(partition: Partition, name: object, size: int, **fields) -> Batch:
    batch = Batch(name, size, **fields)
    partition.put(batch)
    return batch


def names_of(partition: Partition) -> list[object]:
    return [batch.name for batch in partition.batches]


def turn_of(partitions: AssignedPartitions, is_readable=lambda _: True) -> TopicPartition | None:
    return next((one.topic_partition for one in partitions.space.in_turn() if is_readable(one.topic_partition)), None)


def test_batches_of_a_partition_are_in_order(partitions):
    """Data of a partition is read in the order in which it arrived."""
    (a,) = partitions.of([A])
    put(a, "one", 10)
    put(a, "two", 10)

    assert names_of(a) == ["one", "two"]
    a.remove_first()
    assert names_of(a) == ["two"]
    a.remove_first()
    assert names_of(a) == []
    assert turn_of(partitions) is None


def test_the_time_of_a_turn_does_not_depend_on_the_number_of_partitions():
    """Twenty thousand partitions are read one after another, and as many are removed, in a short time."""
    partitions = assigned(1_000_000, *(TopicPartition("t", number) for number in range(20_000)))
    with cpu_time() as used_s:
        for partition in partitions:
            put(partition, "batch", 10)
        for _ in range(len(partitions)):
            taken = partitions.get(turn_of(partitions))
            assert taken is not None
            taken.remove_first()
        for partition in partitions:
            put(partition, "batch", 10)
        for partition in reversed(list(partitions)):
            partition.drop_batches()

        assert used_s() < 2
    assert partitions.space.held_bytes == 0


def test_partitions_take_turns(partitions):
    """No partition is read twice while another readable one waits."""
    for partition in partitions:
        put(partition, "batch", 1)

    assert [turn_of(partitions) for _ in range(5)] == [A, B, C, A, B]


def test_unreadable_partitions_are_skipped(partitions):
    """A paused partition is skipped; if no partition is readable, none has its turn."""
    for partition in partitions:
        put(partition, "batch", 1)

    assert [turn_of(partitions, lambda one: one != B) for _ in range(4)] == [A, C, A, C]
    assert turn_of(partitions, lambda _: False) is None
    assert turn_of(AssignedPartitions()) is None


def test_bytes_are_counted(partitions):
    """Bytes are counted in total, by partition, and taken so far."""
    (a, b), space = partitions.of([A, B]), partitions.space
    put(a, "one", 10)
    put(b, "two", 20)

    assert (space.held_bytes, a.buffered_bytes, space.free_bytes, space.taken_bytes) == (30, 10, 60, 0)
    b.remove_first()
    assert (space.held_bytes, b.buffered_bytes, space.free_bytes, space.taken_bytes) == (10, 0, 80, 20)


def test_data_added_to_the_last_batch_is_counted(partitions):
    """Bytes that are added to the newest batch of a partition are counted, and freed with the batch."""
    (a,), space = partitions.of([A]), partitions.space
    put(a, "one", 10)
    newest = put(a, "two", 20, next_offset=5)
    newest.size, newest.next_offset = 35, 8
    a.enlarge_last(15)

    assert (space.held_bytes, a.buffered_bytes, space.largest_bytes, a.fetched) == (45, 45, 35, 8)
    a.remove_first()
    a.remove_first()
    assert (space.held_bytes, a.buffered_bytes, space.taken_bytes) == (0, 0, 45)


def test_the_offsets_after_a_batch_are_fetched_next(partitions):
    """After a batch, the next offsets are fetched; after an error, none are, until the partition is sought."""
    (a,) = partitions.of([A])
    put(a, "one", 10, next_offset=5, leader_epoch=2)
    assert (a.fetched, a.last_fetched_epoch) == (5, 2)

    put(a, "error", 0, has_error=True)
    assert a.fetched is None
    a.begin(9)
    assert a.fetched == 9


def test_overrun_leaves_no_free_space(partitions):
    """A response that is larger than requested, which Kafka permits, leaves zero bytes free."""
    put(partitions.get(A), "large", 200)

    assert partitions.space.free_bytes == 0


def test_a_fetch_in_flight_has_reserved_space(partitions):
    """Space that is reserved for a fetch is not free."""
    partitions.space.reserved_bytes += 50

    assert partitions.space.free_bytes == 40


def test_partition_uses_only_its_share(partitions):
    """Each of three partitions may hold a third of the space, however much the others hold."""
    put(partitions.get(A), "slow", 30)

    assert (partitions.space.share_of(3), partitions.space.share_of(0)) == (30, 90)


def test_a_batch_that_is_put_back_comes_first(partitions):
    """A batch that is put back is read first, and its bytes are not counted again."""
    (a, b), space = partitions.of([A, B]), partitions.space
    put(a, "two", 10)

    a.put_back(Batch("one", 0))

    assert (names_of(a), space.held_bytes) == (["one", "two"], 10)
    a.remove_first()
    assert (names_of(a), space.held_bytes) == (["two"], 10)
    b.put_back(Batch("alone", 0))
    assert turn_of(partitions, lambda one: one == B) == B


def test_data_of_a_removed_partition_is_discarded(partitions):
    """The data of a removed partition is discarded, and its bytes do not count as taken."""
    (a,), space = partitions.of([A]), partitions.space
    put(a, "one", 10)
    put(a, "two", 10)

    partitions.remove([A, B])

    assert (space.held_bytes, a.buffered_bytes, space.taken_bytes) == (0, 0, 0)
    assert names_of(a) == []
    assert turn_of(partitions) is None


def test_cut_keeps_at_least_the_given_number_of_bytes(partitions):
    """A cut leaves at least the given number of bytes, since the discarded bytes would otherwise be fetched again."""
    (a,), space = partitions.of([A]), partitions.space
    for name, size in (("one", 5), ("two", 60), ("three", 10), ("marker", 0)):
        put(a, name, size)

    assert a.cut(40, 40)
    assert (names_of(a), space.held_bytes, a.buffered_bytes) == (["one", "two"], 65, 65)
    put(a, "marker", 0)
    assert not a.cut(40, 40)
    assert names_of(a) == ["one", "two", "marker"]
    assert a.cut(40)
    assert names_of(a) == ["one"]


def test_newest_batches_are_cut(partitions):
    """A cut discards the newest data and never the oldest, which may be partly read; it is fetched again."""
    (a, b), space = partitions.of([A, B]), partitions.space
    for name, size, next_offset in (("one", 40, 4), ("two", 20, 6), ("three", 10, 7)):
        put(a, name, size, next_offset=next_offset, leader_epoch=next_offset)

    assert not a.cut(70)
    assert a.cut(61)
    assert (names_of(a), a.fetched, a.last_fetched_epoch) == (["one", "two"], 6, 6)
    assert (space.held_bytes, a.buffered_bytes, space.taken_bytes) == (60, 60, 0)
    assert a.cut(10)
    assert not a.cut(10)
    assert not b.cut(0)
    assert (names_of(a), a.fetched) == (["one"], 4)
    assert space.held_bytes == a.buffered_bytes == 40


PARTITIONS = st.sampled_from([A, B, C])


class Buffering(RuleBasedStateMachine):
    """Model of the buffered batches with plain lists."""

    @initialize()
    def begin(self):
        self.partitions = assigned(100)
        self.space = self.partitions.space
        self.lists: dict[TopicPartition, deque[tuple[int, int]]] = {one: deque() for one in (A, B, C)}
        self.batch = 0

    @rule(partition=PARTITIONS, size=st.integers(0, 40))
    def put(self, partition, size):
        self.batch += 1
        put(self.partitions.get(partition), self.batch, size, next_offset=self.batch)
        self.lists[partition].append((self.batch, size))

    @rule(partition=PARTITIONS)
    def put_back(self, partition):
        self.batch += 1
        self.partitions.get(partition).put_back(Batch(self.batch, 0))
        self.lists[partition].appendleft((self.batch, 0))

    @rule(partition=PARTITIONS)
    def drop(self, partition):
        self.partitions.get(partition).drop_batches()
        self.lists[partition].clear()

    @rule(partition=PARTITIONS, most=st.integers(0, 100))
    def cut(self, partition, most):
        batches = self.lists[partition]
        before = len(batches)
        while len(batches) > 1 and sum(size for _, size in batches) > most:
            batches.pop()
        assert self.partitions.get(partition).cut(most) == (len(batches) < before)

    @precondition(lambda self: any(self.lists.values()))
    @rule(readable=st.frozensets(PARTITIONS))
    def take(self, readable):
        partition = turn_of(self.partitions, lambda one: one in readable)
        waiting = {one for one in readable if self.lists[one]}
        assert (partition in waiting) if waiting else (partition is None)
        if partition is not None:
            name, size = self.lists[partition].popleft()
            taken, found = self.space.taken_bytes, self.partitions.get(partition)
            assert found.batches[0].name == name
            found.remove_first()
            assert self.space.taken_bytes == taken + size

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "partitions"):
            return
        for name, batches in self.lists.items():
            partition = self.partitions.get(name)
            assert partition.buffered_bytes == sum(size for _, size in batches)
            assert names_of(partition) == [batch for batch, _ in batches]
        held = sum(size for batches in self.lists.values() for _, size in batches)
        assert self.space.held_bytes == held
        assert self.space.free_bytes == max(0, 100 - held)

    @invariant()
    def everybody_has_a_turn(self):
        if not hasattr(self, "partitions"):
            return
        waiting = {one for one, batches in self.lists.items() if batches}
        assert {turn_of(self.partitions) for _ in waiting} == waiting


TestBuffering = Buffering.TestCase
TestBuffering.__doc__ = "In any order of steps, no data is lost, and the counts are right."
