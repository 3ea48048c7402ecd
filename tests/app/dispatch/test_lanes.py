"""Lanes: records of one lane run one at a time, in order, and others whenever a worker is free."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.app.dispatch.lanes import FEW_RECORDS, Lanes
from tailrace.records import Record, TopicPartition
from tests.support.simulation.leases import Leases

P, Q, R = TopicPartition("p", 0), TopicPartition("p", 1), TopicPartition("r", 0)
PARTITIONS = (P, Q, R)


def records(partition: TopicPartition, keys: str, first: int = 0) -> list[Record]:
    """Return a record for each character; ``-`` has no key, ``.`` an empty one."""
    key_of = {"-": None, ".": b""}
    return [
        Record(*partition, first + place, key_of.get(letter, letter.encode()), None, 0)
        for place, letter in enumerate(keys)
    ]


def start(lanes):
    """Start a record whose handler suspends, and return its position and its work."""
    work = lanes.take()
    lanes.suspended(work)
    return where(work), work


def where(work):
    return None if work is None else (work.record.topic_partition, work.record.offset)


@pytest.fixture
def leases():
    """Return the deliveries of partitions."""
    return Leases()


@pytest.fixture
def by_key():
    """Lanes by key for at most eight waiting records."""
    return Lanes("key", 8)


@pytest.fixture
def by_partition():
    """Lanes by partition for at most eight waiting records."""
    return Lanes("partition", 8)


# ---- by key ----------------------------------------------------------------------------------------------------


def test_records_that_never_suspend_run_in_order(by_key, leases):
    """Records whose handlers never suspend run in order of their delivery."""
    by_key.add(leases.of(records(P, "aba")))
    by_key.add(leases.of(records(Q, "a")))

    assert [where(by_key.take()) for _ in range(5)] == [(P, 0), (P, 1), (P, 2), (Q, 0), None]
    assert by_key.waiting == 0


def test_partitions_take_turns(by_key, leases):
    """Partitions take turns, also if one of them was delivered several times."""
    by_key.add(leases.of(records(P, "a")))
    by_key.add(leases.of(records(P, "a", 1)))
    by_key.add(leases.of(records(Q, "a")))

    assert [where(by_key.take()) for _ in range(3)] == [(P, 0), (Q, 0), (P, 1)]


def test_record_waits_for_the_last_of_its_lane(by_key, leases):
    """A record waits for the last one of its lane, while others run; when its turn comes, it runs first."""
    by_key.add(leases.of(records(P, "abacb")))
    first, a = start(by_key)
    second, b = start(by_key)

    assert (first, second) == ((P, 0), (P, 1))
    assert where(by_key.take()) == (P, 3)
    assert by_key.take() is None
    assert by_key.parked == 2
    by_key.add(leases.of(records(P, "d", 5)))
    by_key.finished(b)
    assert [where(by_key.take()) for _ in range(3)] == [(P, 4), (P, 5), None]
    by_key.finished(a)
    assert where(by_key.take()) == (P, 2)


def test_waiting_records_of_a_lane_run_one_at_a_time(by_key, leases):
    """Records that wait for their lane run one at a time, whether their handlers suspend or not."""
    by_key.add(leases.of(records(P, "aaaa")))
    _, work = start(by_key)

    for offset in (1, 2, 3):
        assert by_key.take() is None
        by_key.finished(work)
        work = by_key.take()
        assert where(work) == (P, offset)
        assert work.is_started
    by_key.finished(work)
    assert by_key.take() is None
    assert by_key.parked == 0


def test_lanes_of_partitions_do_not_mix(by_key, leases):
    """The same key in two partitions or topics has two lanes."""
    for partition in PARTITIONS:
        by_key.add(leases.of(records(partition, "a")))

    assert [start(by_key)[0] for _ in PARTITIONS] == [(one, 0) for one in PARTITIONS]


def test_records_without_a_key_share_a_lane(by_key, leases):
    """The records of a partition without a key share one lane; an empty key is a key."""
    by_key.add(leases.of(records(P, "-.-")))
    by_key.add(leases.of(records(Q, "-")))

    assert [start(by_key)[0] for _ in range(3)] == [(P, 0), (P, 1), (Q, 0)]
    assert by_key.take() is None
    assert by_key.parked == 1


def test_records_that_wait_for_their_lane_are_in_flight(by_key, leases):
    """The finished offset does not pass records that wait for their lane."""
    by_key.add(leases.of(records(P, "aab")))
    start(by_key)
    while by_key.take() is not None:
        pass

    assert leases.progress(P).started == 2
    assert leases.progress(P).finished == 0


def test_record_taken_last_is_in_flight(by_key, leases):
    """The record that a worker has taken last is in flight until the worker takes the next one or rests."""
    by_key.add(leases.of(records(P, "abc")))
    by_key.take()
    assert leases.progress(P).finished == 0
    assert next(by_key.free).offset == 1
    assert leases.progress(P).finished == 1
    by_key.finish_last()
    assert leases.progress(P).finished == 2


def test_work_has_the_lease_of_its_delivery(by_key, leases):
    """Work refers to the lease of its delivery, also if it has waited for its lane."""
    one, two = leases.of(records(P, "abab")), leases.of(records(P, "a", 4))
    by_key.add(one)
    by_key.add(two)
    _, a = start(by_key)
    by_key.take()
    by_key.finished(a)

    assert (a.lease, by_key.take().lease) == (one, one)
    assert [where(work := by_key.take()), work.lease] == [(P, 3), one]
    assert [where(work := by_key.take()), work.lease] == [(P, 4), two]


# ---- limits of one lane ----------------------------------------------------------------------------------------


def test_poisoned_key_blocks_its_partition_at_half_the_limit(by_key, leases):
    """A partition is read until half of the limit waits after one record; other partitions are read all the time."""
    by_key.add(leases.of(records(P, "aaaa")))
    _, poisoned = start(by_key)
    assert by_key.take() is None

    assert by_key.room_of(P) == 3
    by_key.add(leases.of(records(P, "ba", 4)))
    assert where(by_key.take()) == (P, 4)
    assert by_key.take() is None
    assert by_key.parked == 4
    assert (by_key.room_of(P), by_key.room_of(Q)) == (0, 3)
    by_key.finished(poisoned)
    assert by_key.room_of(P) == 2


@pytest.mark.parametrize("order_by", ["key", "none"])
def test_failed_records_take_room_until_finished(order_by, leases):
    """If all records of a partition fail, it stops at twice the remaining room, and a healthy partition continues."""
    full = []
    lanes = Lanes(order_by, 30, on_full=lambda record, stuck: full.append((record.topic_partition, stuck)))
    begun = {one: [] for one in PARTITIONS}

    def outage(partition):
        while room := lanes.room_of(partition):
            keys = "".join(chr(33 + len(begun[partition]) + n) for n in range(room)).replace("-", "~").replace(".", "}")
            lanes.add(leases.of(records(partition, keys, len(begun[partition]))))
            while (work := lanes.take()) is not None:
                lanes.suspended(work)
                lanes.failed(work)
                lanes.failed(work)
                begun[partition].append(work)

    outage(P)
    outage(Q)

    assert {one: len(begun[one]) for one in (P, Q)} == {P: 20, Q: 7}
    assert full == [(P, 20), (Q, 7)]
    assert (lanes.failing, lanes.waiting) == (27, 0)
    outage(R)
    well = TopicPartition("r", 1)
    for offset in range(9):
        assert lanes.room_of(well) == 1
        lanes.add(leases.of(records(well, "a", offset)))
        lanes.take()
    for work in begun[P] + begun[Q] + begun[R]:
        lanes.recovered(work)
        lanes.finished(work)
    assert (lanes.failing, lanes.room_of(P), lanes.room_of(well)) == (0, 20, 20)


def test_by_partition_failed_records_take_no_room(leases):
    """By partition, a failed record blocks its own partition only, and takes no room from others."""
    lanes = Lanes("partition", 1)
    for partition in PARTITIONS:
        lanes.add(leases.of(records(partition, "a")))
        lanes.failed(start(lanes)[1])

    assert lanes.failing == 0
    assert lanes.room_of(TopicPartition("r", 1)) == 1


def test_lane_may_exceed_its_limit(by_key, leases):
    """A lane accepts a delivery as a whole, and the next one when the lane is below its limit again."""
    by_key.add(leases.of(records(P, "aaaa")))
    _, work = start(by_key)
    assert by_key.take() is None
    by_key.add(leases.of(records(P, "aaa", 4)))
    assert by_key.take() is None

    wanted = {}
    for _ in range(6):
        wanted[by_key.parked] = by_key.room_of(P) > 0
        by_key.finished(work)
        work = by_key.take()

    assert wanted == {6: False, 5: False, 4: False, 3: True, 2: True, 1: True}


def test_room_is_shared_by_partitions(by_key, leases):
    """Each partition may hold twice the remaining room; after that, empty partitions get one record each."""
    partitions = (*PARTITIONS, TopicPartition("r", 1))
    for partition in partitions:
        by_key.add(leases.of(records(partition, "a")))
        start(by_key)

    sizes = []
    for partition in partitions:
        sizes.append(by_key.room_of(partition))
        by_key.add(leases.of(records(partition, "a" * sizes[-1], 1)))
        assert by_key.take() is None

    assert sizes == [6, 2, 1, 1]
    assert (by_key.parked, by_key.waiting) == (10, 10)
    assert not any(map(by_key.room_of, partitions))


def test_partitions_read_at_one_rate_get_equal_shares(leases):
    """Partitions read at the same rate end up with equal shares, whichever was first."""
    lanes, most = Lanes("key", 90), 0
    names = [TopicPartition("t", number) for number in range(3)]
    offsets, held = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for _ in range(40):
        for name in names:
            room = lanes.room_of(name)
            if room:
                lanes.add(leases.of(records(name, "a" * room, offsets[name])))
            offsets[name] += room
            held[name] += room
        for _ in range(15):
            if (work := lanes.take()) is not None:
                held[work.record.topic_partition] -= 1
        most = max(most, lanes.waiting)

    assert most <= 90
    assert sum(held.values()) == lanes.waiting
    assert max(held.values()) - min(held.values()) <= 15


def test_waiting_partition_has_no_room(by_partition, leases):
    """A partition has no room while one of its records is suspended; an empty one has room for one record."""
    assert by_partition.room_of(P) == 4
    by_partition.add(leases.of(records(P, "cab")))
    assert by_partition.room_of(P) == 0
    _, first = start(by_partition)
    assert by_partition.room_of(P) == 0
    by_partition.finished(first)
    _, second = start(by_partition)
    by_partition.finished(second)
    _, second = start(by_partition)
    assert by_partition.room_of(P) == 0
    by_partition.finished(second)
    assert by_partition.room_of(P) == 4

    for number in range(20):
        partition = TopicPartition("many", number)
        by_partition.add(leases.of(records(partition, "a" * by_partition.room_of(partition))))
        start(by_partition)
    assert by_partition.waiting == 6
    assert by_partition.room_of(P) == 1


def test_partition_has_no_room_while_records_of_another_may_run(by_partition, leases):
    """A partition has no room while records of another one may start, as reading ahead would make deliveries small."""
    by_partition.add(leases.of(records(P, "abc")))
    assert by_partition.room_of(Q) == 0
    by_partition.take()
    by_partition.take()

    by_partition.suspended(work := by_partition.take())
    assert by_partition.room_of(Q) == 4
    by_partition.finished(work)
    assert by_partition.room_of(Q) == 4


def test_few_records_leave_room_for_more(leases):
    """Small deliveries leave room for more records, which then run without an iteration of the event loop each."""
    lanes = Lanes("partition", 1_000)
    for partition in (P, Q, P, P):
        lanes.add(leases.of(records(partition, "a")))
        assert lanes.room_of(P) > 400
        assert lanes.room_of(Q) > 400

    lanes.add(leases.of(records(Q, "a" * FEW_RECORDS)))

    assert (lanes.room_of(P), lanes.room_of(Q)) == (0, 0)
    assert len([lanes.take() for _ in range(FEW_RECORDS + 4)]) == FEW_RECORDS + 4
    assert lanes.take() is None


def test_shared_partition_does_not_wait_as_a_whole(leases):
    """If several handlers share a partition, it accepts more records until the lane is full, as others may run."""
    full = []

    def note(record: Record, waiting: int) -> None:
        full.append(((record.topic_partition, record.offset), waiting))

    lanes = Lanes("partition", 8, is_shared=True, on_full=note)
    lanes.add(leases.of(records(P, "a")))
    _, first = start(lanes)

    added = 1
    while room := lanes.room_of(P):
        lanes.add(leases.of(records(P, "b" * room, added)))
        added += room
        assert lanes.take() is None

    assert added > 4
    assert lanes.parked == added - 1
    assert full == [((P, 4), 4)]
    assert (list(leases.unstarted(P)), lanes.room_of(Q)) == ([], 2)
    lanes.finished(first)
    ran = [where(work := lanes.take())]
    while work is not None:
        lanes.finished(work)
        ran.append(where(work := lanes.take()))
    assert ran == [*((P, offset) for offset in range(1, added)), None]
    assert lanes.room_of(P) == 6


# ---- by partition, and without order ---------------------------------------------------------------------------


def test_partition_waits_as_a_whole(by_partition, leases):
    """By partition, records wait while an earlier one is suspended, and continue afterwards."""
    by_partition.add(leases.of(records(P, "abc")))
    by_partition.add(leases.of(records(P, "d", 3)))
    by_partition.add(leases.of(records(Q, "a")))
    where_p, p = start(by_partition)
    where_q, q = start(by_partition)

    assert (where_p, where_q) == ((P, 0), (Q, 0))
    assert by_partition.take() is None
    assert (by_partition.waiting, by_partition.parked) == (3, 0)
    by_partition.finished(p)
    by_partition.finished(q)
    assert [where(by_partition.take()) for _ in range(4)] == [(P, 1), (P, 2), (P, 3), None]


def test_partition_continues_before_others_start(by_partition, leases):
    """A worker that finishes a record continues with the next record of its partition."""
    for partition in PARTITIONS:
        by_partition.add(leases.of(records(partition, "ab")))
    _, work = start(by_partition)

    by_partition.finished(work)

    assert where(by_partition.take()) == (P, 1)


def test_without_order_no_record_waits(leases):
    """Without order, any free worker takes the next record."""
    lanes = Lanes("none", 8)
    lanes.add(leases.of(records(P, "aaa")))

    started = [start(lanes) for _ in range(3)]

    assert [one for one, _ in started] == [(P, 0), (P, 1), (P, 2)]
    assert lanes.room_of(P) == 6
    for _, work in started:
        lanes.finished(work)
    assert lanes.take() is None


# ---- free records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
def test_records_may_start_at_once_while_none_suspends(order_by, leases):
    """The remaining records of a delivery may start directly as long as no handler suspends."""
    lanes = Lanes(order_by, 8)
    lanes.add(leases.of(records(P, "aba")))

    assert list(lanes.free) == []
    lanes.take()
    assert [record.offset for record in lanes.free] == [1, 2]
    assert lanes.take() is None


def test_no_record_starts_directly_after_a_suspension(by_key, leases):
    """After a suspension no record starts directly, since its lane may be busy, until started records have finished."""
    by_key.add(leases.of(records(P, "aabca")))
    by_key.take()
    for record in by_key.free:
        by_key.suspended(work := by_key.last_taken(record))
        break

    assert where(work) == (P, 1)
    assert list(by_key.free) == []
    assert where(by_key.take()) == (P, 2)
    by_key.finished(work)
    assert [record.offset for record in by_key.free] == [3, 4]


def test_records_whose_turn_has_come_run_first(by_key, leases):
    """A record that has waited for its lane runs before the remaining records of a delivery."""
    by_key.add(leases.of(records(P, "aa")))
    by_key.add(leases.of(records(Q, "abc")))
    _, work = start(by_key)
    assert where(by_key.take()) == (Q, 0)

    by_key.finished(work)

    assert list(by_key.free) == []
    assert where(by_key.take()) == (P, 1)


# ---- lost partitions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order_by", ["partition", "key", "none"])
def test_waiting_records_of_a_lost_partition_are_removed(order_by, leases):
    """All waiting records of a lost partition are removed; running ones finish, and other partitions continue."""
    lanes = Lanes(order_by, 30)
    for partition in (P, Q):
        lanes.add(leases.of(records(partition, "aab")))
    _, p = start(lanes)
    lanes.add(leases.of(records(P, "c", 3)))
    seen = set()

    lanes.drop(P)
    lanes.drop(R)
    while (work := lanes.take()) is not None:
        seen.add(where(work))

    assert seen == {(Q, 0), (Q, 1), (Q, 2)}
    assert (lanes.waiting, lanes.parked) == (0, 0)
    lanes.finished(p)
    assert lanes.take() is None


def test_records_whose_turn_has_come_are_removed_with_their_partition(by_key, leases):
    """A record whose turn has come does not run after its partition was lost, and its lane is free."""
    by_key.add(leases.of(records(P, "aaa")))
    _, work = start(by_key)
    assert by_key.take() is None
    by_key.finished(work)

    by_key.drop(P)

    assert (by_key.take(), by_key.parked, by_key.waiting) == (None, 0, 0)
    by_key.add(leases.of(records(P, "a")))
    assert where(by_key.take()) == (P, 0)


@pytest.mark.parametrize("order_by", ["partition", "key"])
def test_a_running_record_blocks_its_lane_after_a_seek(order_by, leases):
    """A record that still runs after a seek blocks its lane."""
    lanes = Lanes(order_by, 8)
    lanes.add(leases.of(records(P, "a")))
    _, work = start(lanes)
    lanes.drop(P)

    lanes.add(leases.of(records(P, "a")))

    assert lanes.take() is None
    lanes.finished(work)
    assert where(lanes.take()) == (P, 0)


def test_a_handler_may_unsubscribe_from_its_own_partition(by_key, leases):
    """A record whose handler unsubscribes before it suspends is started, and its lane is busy."""
    by_key.add(leases.of(records(P, "abc")))
    by_key.take()
    record = next(by_key.free)

    by_key.drop(P)
    by_key.suspended(work := by_key.last_taken(record))

    by_key.add(leases.of(records(P, "b")))
    assert by_key.take() is None
    by_key.finished(work)
    assert where(by_key.take()) == (P, 0)


def test_finishing_a_record_without_a_lane_is_harmless(by_key, leases):
    """Finishing a record that never suspended, or finishing one twice, frees no lane of another record."""
    by_key.add(leases.of(records(P, "aaa")))
    by_key.finished(by_key.take())
    _, work = start(by_key)
    assert by_key.take() is None
    by_key.finished(work)
    assert where(by_key.take()) == (P, 2)

    by_key.finished(work)

    by_key.add(leases.of(records(P, "a", 3)))
    assert by_key.take() is None


def test_lane_of_a_suspended_record_cannot_be_taken(by_key, leases):
    """Suspending two records of one lane at the same time raises AssertionError."""
    by_key.add(leases.of(records(P, "aa")))
    first, second = by_key.take(), by_key.take()
    by_key.suspended(first)

    with pytest.raises(AssertionError, match="two records of one lane"):
        by_key.suspended(second)


# ---- the model -------------------------------------------------------------------------------------------------


class Running(RuleBasedStateMachine):
    """Model with plain lists of waiting and running records, compared with the lanes and the progress."""

    @initialize(
        order_by=st.sampled_from(["partition", "key", "none"]), window=st.integers(1, 9), is_shared=st.booleans()
    )
    def begin(self, order_by, window, is_shared):
        self.lanes = Lanes(order_by, window, is_shared=is_shared)
        self.parks = order_by == "key" or (order_by == "partition" and is_shared)
        self.waiting: list[Record] = []
        self.running: list = []
        self.were_parked: set[tuple[TopicPartition, int]] = set()
        self.offsets = dict.fromkeys(PARTITIONS, 0)
        self.leases = Leases()

    def lane_of(self, record):
        lanes = {"partition": (), "key": (record.key,), "none": (record.offset, self)}
        return record.topic_partition, lanes[self.lanes.order_by]

    def is_runnable(self, record):
        """Return True if no earlier record of its lane is unfinished."""
        lane = self.lane_of(record)
        first = next(one for one in self.waiting if self.lane_of(one) == lane)
        return first is record and not any(self.lane_of(work.record) == lane for work in self.running)

    def was_parked(self, record):
        return (record.topic_partition, record.offset) in self.were_parked

    def took(self, record, lease):
        assert self.is_runnable(record)
        assert not lease.progress.is_over
        self.waiting.remove(record)

    def suspend(self, work):
        self.lanes.suspended(work)
        self.running.append(work)

    def note_parked(self):
        """Note waiting records in flight, which are parked behind another of their lane."""
        for record in self.waiting:
            if record.offset in self.leases.progress(record.topic_partition)._offsets.in_flight:
                self.were_parked.add((record.topic_partition, record.offset))
                assert self.parks

    @rule(partition=st.sampled_from(PARTITIONS), keys=st.text("ab-", max_size=8), gap=st.integers(0, 2))
    def add(self, partition, keys, gap):
        room = self.lanes.room_of(partition)
        added = records(partition, keys[:room], self.offsets[partition] + gap)
        self.offsets[partition] += gap + len(added)
        self.leases.progress(partition).skip(self.offsets[partition])
        if added:
            self.lanes.add(self.leases.of(added))
        self.waiting += added

    @precondition(lambda self: self.waiting)
    @rule(times=st.integers(1, 4), suspends=st.booleans())
    def take(self, times, suspends):
        for _ in range(times):
            work = self.lanes.take()
            self.note_parked()
            if work is None:
                assert not any(map(self.is_runnable, self.waiting))
                return
            self.took(work.record, work.lease)
            assert work.is_started == (where(work) in self.were_parked)
            if suspends:
                self.suspend(work)
            elif work.is_started:
                self.lanes.finished(work)
        self.lanes.finish_last()

    @rule(most=st.integers(1, 4), suspends=st.booleans())
    def run_freely(self, most, suspends):
        for place, record in enumerate(self.lanes.free, 1):
            self.took(record, self.lanes.last_taken(record).lease)
            if place == most:
                if suspends:
                    self.suspend(self.lanes.last_taken(record))
                break
        self.lanes.finish_last()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fail(self, data):
        self.lanes.failed(self.running[data.draw(st.integers(0, len(self.running) - 1))])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        work = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.lanes.recovered(work)
        self.lanes.finished(work)

    @rule(partition=st.sampled_from(PARTITIONS))
    def drop(self, partition):
        gone = [one.offset for one in self.waiting if one.topic_partition == partition]
        leases, parked = self.lanes.drop(partition)
        dropped = [one.offset for lease in leases for one in lease.rest] + [work.record.offset for work in parked]
        assert sorted(dropped) == sorted(gone)
        self.waiting = [one for one in self.waiting if one.topic_partition != partition]
        self.leases.begin(partition, self.offsets[partition])

    @invariant()
    def the_books_are_right(self):
        if not hasattr(self, "lanes"):
            return
        lanes = self.lanes
        parked = [one for one in self.waiting if self.was_parked(one)]
        assert (lanes.waiting, lanes.parked) == (len(self.waiting), len(parked))
        assert lanes.waiting <= lanes.window + len(PARTITIONS)
        assert lanes.failing == sum(work.is_failing for work in self.running)

    @invariant()
    def a_lane_holds_up_its_own_partition_alone(self):
        if not hasattr(self, "lanes") or not self.parks:
            return
        lanes = self.lanes
        for partition in PARTITIONS:
            parked = Counter(
                self.lane_of(one)
                for one in self.waiting
                if one.topic_partition == partition and self.was_parked(one) and not self.is_runnable(one)
            )
            full = [number >= lanes.lane_limit for number in parked.values()]
            failing = [work.record for work in self.running if work.is_failing]
            held = sum(one.topic_partition == partition for one in self.waiting + failing)
            left = lanes.window - lanes.waiting - len(failing)
            assert (lanes.room_of(partition) > 0) == (not held or (not any(full) and held < 2 * left))

    @invariant()
    def nothing_unfinished_is_committed(self):
        if not hasattr(self, "lanes"):
            return
        for partition in PARTITIONS:
            unfinished = [one.offset for one in self.waiting if one.topic_partition == partition]
            unfinished += [
                work.record.offset
                for work in self.running
                if work.record.topic_partition == partition and not work.lease.progress.is_over
            ]
            assert self.leases.progress(partition).finished == min(unfinished, default=self.offsets[partition])

    def teardown(self):
        """Run everything to the end, in the order of each lane."""
        if not hasattr(self, "lanes"):
            return
        while self.waiting or self.running:
            for work in self.running:
                self.lanes.recovered(work)
                self.lanes.finished(work)
            self.running.clear()
            while (work := self.lanes.take()) is not None:
                self.took(work.record, work.lease)
                self.suspend(work)
        assert (self.lanes.waiting, self.lanes.failing) == (0, 0)


TestRunning = Running.TestCase
TestRunning.__doc__ = (
    "In any sequence of steps, lanes keep their records in order, and no worker idles while a record may run."
)
