"""Assembly of batches: full and due batches, room for more records, and order."""

from __future__ import annotations

from collections import defaultdict
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import Record, TopicPartition
from tailrace.app.dispatch.batching import BatchAssembler, size_of
from tailrace.app.policies import Batch
from tests.support.simulation.leases import Leases

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def leases():
    """Return the deliveries of partitions."""
    return Leases()


def record(partition, offset, key=None, value=b"v", headers=()):
    return Record(*partition, offset, key, value, 0, headers)


def some(partition, count, start=0, **parts):
    return [record(partition, offset, **parts) for offset in range(start, start + count)]


def batching(order_by="partition", *, window=100, ahead=100, on_full=lambda _record, _stuck: None, **limits):
    most = Batch(**{"max_records": 10, "max_wait_ms": 1_000, **limits})
    return BatchAssembler(order_by, most, window=window, ahead=ahead, on_full=on_full)


def places(batch):
    return None if batch is None else [(one.partition, one.offset) for one in batch.records]


def test_batch_is_due_when_full(leases):
    """A batch starts when it has max_records; later records wait for the next one."""
    pool = batching()
    pool.add(leases.of(some(A, 9)), 0.0)
    early = pool.take(0.0)
    pool.add(leases.of(some(A, 4, 9)), 0.0)
    batch = pool.take(0.0)

    assert early is None
    assert places(batch) == [(0, n) for n in range(10)]
    assert [(one.partition, one.lowest) for one in batch.leases] == [(A, 0), (A, 9)]
    assert (pool.waiting, next(leases.unstarted(A))) == (3, 10)


def test_batch_is_due_when_its_first_record_has_waited(leases):
    """A batch starts when its first record has waited for max_wait_ms, although later records were added."""
    pool = batching()
    pool.add(leases.of(some(A, 1)), 5.0)
    pool.add(leases.of(some(A, 1, 1)), 5.9)

    assert pool.due_at == 6.0
    assert pool.take(5.99) is None
    assert places(pool.take(6.0)) == [(0, 0), (0, 1)]
    assert pool.due_at is None


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
def test_hurried_records_wait_only_for_running_batches(order_by, leases):
    """Hurried records start after the running batch before them; later records wait as usual."""
    pool = batching(order_by)
    pool.add(leases.of([record(A, 0, b"a")]), 0.0)
    pool.hurry()
    first = pool.take(0.0)
    pool.add(leases.of([record(A, 1, b"a")]), 0.0)
    pool.hurry()
    if order_by != "none":
        assert pool.take(0.0) is None
    pool.finish(first)
    second = pool.take(0.0)
    pool.finish(second)
    pool.add(leases.of([record(A, 2, b"a")]), 0.0)

    assert [places(first), places(second)] == [[(0, 0)], [(0, 1)]]
    assert pool.take(0.0) is None


def test_batch_is_full_by_bytes(leases):
    """Keys, values and headers count toward max_bytes, which only a batch of a single record may exceed."""
    pool = batching(max_bytes=10)
    big = record(A, 3, key=b"k", value=b"12345678", headers=(("name", b"value"), ("none", None)))
    pool.add(leases.of([*some(A, 3, value=b"1234"), big, *some(A, 1, 4)]), 0.0)
    taken = []
    while (batch := pool.take(0.0)) is not None:
        taken.append(places(batch))
        pool.finish(batch)

    assert size_of(big) == 1 + 8 + 4 + 5 + 4
    assert taken == [[(0, 0), (0, 1)], [(0, 2)], [(0, 3)]]
    assert places(pool.take(1.0)) == [(0, 4)]


def test_by_partition_batches_run_one_at_a_time(leases):
    """By partition, batches of one partition run one at a time, and those of others meanwhile."""
    pool = batching()
    pool.add(leases.of(some(A, 10)), 0.0)
    pool.add(leases.of(some(B, 10)), 0.0)
    first, beside = pool.take(0.0), pool.take(0.0)
    pool.add(leases.of(some(A, 10, 10)), 0.0)
    meanwhile, due_at = pool.take(99.0), pool.due_at
    pool.finish(first)

    assert (places(first)[0], places(beside)[0]) == ((0, 0), (1, 0))
    assert (meanwhile, due_at) == (None, None)
    assert places(pool.take(0.0))[0] == (0, 10)


def test_without_order_batches_mix_partitions_and_overlap(leases):
    """Without order, a batch has records of any partition and waits for no other batch."""
    pool = batching("none")
    pool.add(leases.of(some(A, 6)), 0.0)
    pool.add(leases.of(some(B, 6)), 0.0)
    pool.add(leases.of(some(A, 8, 6)), 0.0)
    first, second = pool.take(0.0), pool.take(0.0)

    assert places(first) == [*((0, n) for n in range(6)), *((1, n) for n in range(4))]
    assert places(second) == [(1, 4), (1, 5), *((0, n) for n in range(6, 14))]
    assert [(one.partition, one.lowest) for one in first.leases] == [(A, 0), (B, 0)]
    assert [(one.partition, one.lowest) for one in second.leases] == [(B, 4), (A, 6)]


def test_by_key_running_batches_share_no_key(leases):
    """By key, records with a key of a running batch wait in order, and other records do not."""
    pool = batching("key", max_records=2, max_wait_ms=0)
    keys = [b"a", b"b", b"a", b"c", b"b", b"d"]
    pool.add(leases.of([record(A, n, key=key) for n, key in enumerate(keys)]), 0.0)
    first, second, third = (pool.take(0.0) for _ in range(3))
    pool.finish(first)

    assert (places(first), places(second), third) == ([(0, 0), (0, 1)], [(0, 3), (0, 5)], None)
    assert places(pool.take(0.0)) == [(0, 2), (0, 4)]


def test_by_key_finished_records_free_their_keys(leases):
    """By key, a running batch of which one record remains to be retried blocks only the key of this record."""
    pool = batching("key", max_records=2, max_wait_ms=0)
    pool.add(leases.of([record(A, 0, key=b"a"), record(A, 1, key=b"b")]), 0.0)
    batch = pool.take(0.0)
    pool.add(leases.of([record(A, 2, key=b"a"), record(A, 3, key=b"b")]), 0.0)
    before = pool.take(0.0)
    pool.shrink(batch, batch.records[:1])

    assert before is None
    assert places(pool.take(0.0)) == [(0, 3)]
    assert leases.progress(A).finished == 0


def test_records_without_a_key_are_batched_in_order(leases):
    """By key, records without a key stay in order as if they shared one."""
    pool = batching("key", max_records=1)
    pool.add(leases.of(some(A, 2)), 0.0)

    assert places(pool.take(0.0)) == [(0, 0)]
    assert pool.take(9.0) is None


def test_room_is_for_one_batch_per_partition(leases):
    """There is room for the next batch of a partition, also while a batch of it runs."""
    pool = batching()
    free = pool.room_of(A)
    pool.add(leases.of(some(A, 4)), 0.0)
    partly = pool.room_of(A)
    pool.add(leases.of(some(A, 6, 4)), 0.0)
    full = pool.room_of(A)
    pool.take(0.0)

    assert (free, partly, full, pool.room_of(A)) == (10, 6, 0, 10)


def test_oldest_batch_starts_when_there_is_no_room(leases):
    """When waiting records leave no room, the oldest batch starts before it is full, so that no partition stalls."""
    pool = batching(window=12)
    for number, partition in enumerate((A, B, C)):
        pool.add(leases.of(some(partition, pool.room_of(partition) // 2 or 1)), float(number))
    crowded = batching(window=12)
    crowded.add(leases.of(some(A, 6)), 0.0)
    crowded.add(leases.of(some(B, 6)), 0.1)

    assert (crowded.room_of(A), crowded.room_of(C)) == (0, 0)
    assert places(crowded.take(0.2)) == [(0, n) for n in range(6)]
    assert crowded.take(0.2) is None
    assert crowded.room_of(C) == 6


def test_busy_partitions_take_no_room_from_others(leases):
    """Records that wait for running batches have a limit of their own, and take no room from other partitions."""
    pool = batching(window=20, ahead=15)
    for partition in (A, B):
        pool.add(leases.of(some(partition, 10)), 0.0)
        pool.take(0.0)
        pool.add(leases.of(some(partition, pool.room_of(partition), 10)), 0.0)

    assert (pool.waiting, pool.room_of(A), pool.room_of(B), pool.room_of(C)) == (15, 0, 0, 10)


def test_room_is_for_a_batch_larger_than_max_queued_records():
    """A partition has room for max_records even if they exceed max_queued_records."""
    pool = batching(window=5, max_records=10)

    assert pool.room_of(A) == 10


def read_on(pool, partition, leases, *, key=None):
    """Add records and start batches while there is room; return the batches."""
    offset, begun = 0, []
    while room := pool.room_of(partition):
        pool.add(leases.of([record(partition, offset + n, key) for n in range(room)]), 0.0)
        offset += room
        while (batch := pool.take(9.0)) is not None:
            begun.append(batch)
    return begun


def test_hot_keys_do_not_stop_other_partitions(leases):
    """Each partition of a hot key may hold twice the remaining room; then others continue with one record at a time."""
    pool = batching("key", window=40)
    rooms, waiting = [], []
    for partition in (A, B, *(TopicPartition("t", number) for number in range(3, 7))):
        rooms.append(pool.room_of(partition))
        assert len(read_on(pool, partition, leases, key=b"hot")) == 1
        waiting.append(pool.waiting)

    assert rooms == [10, 9, 3, 1, 1, 1]
    assert waiting == [27, 36, 39, 40, 41, 42]
    run_one_by_one(pool, C, leases)


def run_one_by_one(pool, partition, leases):
    """Check that there is room for one record at a time, and run some."""
    for offset in range(9):
        assert pool.room_of(partition) == 1
        pool.add(leases.of(some(partition, 1, offset)), 0.0)
        pool.finish(pool.take(0.0))


@pytest.mark.parametrize("order_by", ["key", "none"])
def test_failed_records_take_room_until_finished(order_by, leases):
    """If all records of a partition fail, it stops at twice the remaining room, and a healthy partition continues."""
    full = []
    pool = batching(order_by, window=30, on_full=lambda record, stuck: full.append((record.topic_partition, stuck)))
    failing = []

    def outage(partition):
        for offset in count():
            if not (room := pool.room_of(partition)):
                return
            keys = (b"%d.%d" % (offset, n) for n in range(room))
            pool.add(leases.of([record(partition, 10 * offset + n, key) for n, key in enumerate(keys)]), 0.0)
            failing.append(pool.take(9.0))
            pool.failed(failing[-1])
            pool.failed(failing[-1])

    outage(A)
    of_a = pool.failing
    outage(B)

    assert (of_a, pool.failing, pool.waiting) == (20, 27, 0)
    assert full == [(A, 20), (A, 20), (B, 7), (B, 7)]
    outage(TopicPartition("t", 3))
    run_one_by_one(pool, C, leases)
    pool.shrink(failing[0], failing[0].records[:4])
    assert pool.room_of(C) == 5
    for batch in failing:
        pool.finish(batch)
    assert (pool.failing, pool.room_of(A)) == (0, 10)


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
def test_records_of_a_lost_partition_are_removed(order_by, leases):
    """The waiting records of a partition that is lost are removed; running batches and other partitions continue."""
    pool = batching(order_by, max_records=2)
    pool.add(leases.of(some(A, 2, key=b"a")), 0.0)
    pool.add(leases.of(some(B, 1, key=b"b")), 0.0)
    running = pool.take(0.0)
    pool.add(leases.of(some(A, 1, 2, key=b"c")), 0.0)
    pool.drop(A)
    leases.begin(A)
    pool.add(leases.of(some(A, 1, 50, key=b"a")), 5.0)
    pool.finish(running)
    rest = [pool.take(9.0), pool.take(9.0)]

    assert sorted(place for one in rest if one is not None for place in places(one)) == [(0, 50), (1, 0)]
    assert not any(lease.progress.is_over for one in rest if one is not None for lease in one.leases)
    assert pool.waiting == 0


class World:
    """Batch assembler with a model of its records."""

    def __init__(self, order_by, max_bytes):
        self.order_by, self.max_bytes = order_by, max_bytes
        self.pool = batching(order_by, window=20, ahead=10, max_records=4, max_bytes=max_bytes)
        self.now, self.running, self.leases = 0.0, [], Leases()
        self.following, self.waiting, self.last = defaultdict(int), {one: [] for one in (A, B, C)}, {}

    def lane_of(self, one):
        return {"partition": one.topic_partition, "key": (one.partition, one.key), "none": one}[self.order_by]

    def add(self, partition, amount):
        first, count = self.following[partition], min(amount, self.pool.room_of(partition))
        keys = [b"%d" % (n % 3) if n % 3 else None for n in range(count)]
        records = [record(partition, first + n, key=key) for n, key in enumerate(keys)]
        self.following[partition] += count
        self.waiting[partition] += records
        if records:
            self.pool.add(self.leases.of(records), self.now)

    def take(self, _partition, _amount):
        batch = self.pool.take(self.now)
        if batch is None:
            return
        assert 0 < len(batch.records) <= 4
        assert self.max_bytes is None or len(batch.records) == 1 or sum(map(size_of, batch.records)) <= self.max_bytes
        assert self.order_by == "none" or len({one.partition for one in batch.leases}) == 1
        lanes = set(map(self.lane_of, batch.records))
        assert not any(self.lane_of(one) in lanes for other in self.running for one in other.records)
        for one in batch.records:
            self.waiting[one.topic_partition].remove(one)
            assert self.last.get(self.lane_of(one), -1) < one.offset
            self.last[self.lane_of(one)] = one.offset
        self.running.append(batch)

    def finish(self, _partition, amount):
        if self.running:
            self.pool.finish(self.running.pop(amount % len(self.running)))

    def fail(self, _partition, amount):
        if self.running:
            self.pool.failed(self.running[amount % len(self.running)])

    def shrink(self, _partition, amount):
        if self.running:
            batch = self.running[-1]
            self.pool.shrink(batch, batch.records[: amount + 1])

    def wait(self, _partition, amount):
        self.now += amount / 5

    def drop(self, partition, _amount):
        self.pool.drop(partition)
        self.leases.begin(partition, self.following[partition])
        self.waiting[partition].clear()

    @property
    def gathered(self):
        return sum(map(len, self.waiting.values()))

    def check(self):
        assert self.pool.waiting == self.gathered <= 20 + 10 + 4
        failing = sum(len(batch.records) for batch in self.running if batch.failing)
        assert self.pool.failing == (0 if self.order_by == "partition" else failing)
        for partition, records in self.waiting.items():
            assert sorted(self.leases.unstarted(partition)) == [one.offset for one in records]
            of_batches = (
                one
                for batch in self.running
                for lease in batch.leases
                if not lease.progress.is_over
                for one in lease.records
            )
            open_ = [one.offset for one in (*records, *of_batches) if one.topic_partition == partition]
            assert self.leases.progress(partition).finished == min(open_, default=self.following[partition])


@settings(max_examples=60, deadline=None)
@given(
    order_by=st.sampled_from(["partition", "key", "none"]),
    max_bytes=st.sampled_from([None, 12]),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "take", "fail", "finish", "shrink", "wait", "drop"]),
            st.sampled_from([A, B, C]),
            st.integers(0, 7),
        ),
        max_size=60,
    ),
)
def test_records_are_batched_once_and_in_order(order_by, max_bytes, steps):
    """In any order of steps, each record is batched once and in order, within the limits."""
    world = World(order_by, max_bytes)
    for name, partition, amount in steps:
        getattr(world, name)(partition, amount)
        world.check()
    while world.running or world.gathered:
        before = world.gathered + len(world.running)
        while world.running:
            world.finish(A, 0)
            world.check()
        world.wait(A, 50)
        world.take(A, 0)
        world.check()

        assert world.gathered + len(world.running) < before or world.running, "waiting records are never due"
