"""Stream merged from several processes: order, finished records, and reports to the processes."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.app.processes.merged_stream import MergedStream, PartitionLease
from tailrace.records import Record, TopicPartition


def record(partition: int, offset: int) -> Record:
    return Record("t", partition, offset, None, b"", 0)


class Readers:
    """Merged stream with the reports to its processes."""

    def __init__(self) -> None:
        self.done: dict[tuple[int, int], int] = {}
        self.released: Counter[tuple[int, int]] = Counter()
        self.intake = MergedStream()
        self.intake.on_progress = self._tell

    def _tell(self, lease: PartitionLease) -> None:
        self.done[lease.key] = lease.finished
        self.released[lease.key] += lease.unreleased

    def put(self, partition: int, first: int, count: int, *, start: int = 0, behind: int | None = None) -> None:
        offsets = range(first, first + count)
        records = [record(partition, offset) for offset in offsets]
        self.intake.put(
            (start, partition), TopicPartition("t", partition), offsets.stop if behind is None else behind, records
        )

    def next(self) -> Record | None:
        """Take the next record, as a consumer does."""
        for one in self.intake.polled.remaining:
            return one
        self.intake.finish()
        if not self.intake.polled.count_left and not self.intake.next_slice():
            return None
        return self.next()


def test_record_is_finished_when_the_next_is_taken():
    """A record is finished when the next one is taken; after the last one, later offsets without records are, too."""
    readers = Readers()
    readers.put(0, 0, 3, behind=7)
    readers.next()
    readers.next()
    readers.intake.report_all()
    in_flight = readers.done[0, 0]
    readers.next()
    readers.next()

    assert in_flight == 1
    assert readers.done[0, 0] == 7
    assert readers.released[0, 0] == 3


def test_batch_is_finished_by_the_next_call():
    """A batch is finished as a whole by the next call."""
    readers = Readers()
    readers.put(0, 0, 3)
    readers.put(1, 0, 3)
    batch = readers.intake.take(5)
    readers.intake.report_all()
    before = dict(readers.done)
    readers.intake.take(5)

    assert [(one.partition, one.offset) for one in batch] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert before == {(0, 0): 0, (0, 1): 0}
    assert readers.done == {(0, 0): 3, (0, 1): 2}


def test_batch_is_finished_when_a_single_record_is_taken():
    """A batch is finished in all its partitions when a single record is taken."""
    readers = Readers()
    readers.put(0, 0, 3)
    readers.put(1, 0, 4)
    batch = readers.intake.take(5)
    readers.next()
    readers.intake.report_all()
    readers.intake.report_all()

    assert readers.done == {(0, 0): 3, (0, 1): 2}
    assert readers.intake.acknowledge(batch[0]) is False


def test_a_record_of_an_ended_process_is_not_in_flight():
    """acknowledge() returns False for a record whose process has ended."""
    readers = Readers()
    readers.put(0, 0, 3)
    record_in_flight = readers.next()
    readers.intake.end((0, 0))

    assert record_in_flight is not None
    assert readers.intake.acknowledge(record_in_flight) is False


def test_a_halted_partition_delivers_no_records():
    """A halted partition delivers no records, and the process gets the next offset to deliver."""
    readers = Readers()
    readers.put(0, 0, 3)
    readers.put(0, 3, 3)
    readers.put(1, 0, 1)
    readers.next()
    left = readers.intake.halt((0, 0))
    following = readers.next()

    assert left is not None
    assert left.next_offset == 1
    assert following == record(1, 0)
    assert readers.done[0, 0] == 1
    assert readers.released[0, 0] == 6


def test_reports_of_an_ended_process_are_ignored():
    """After its process has ended, a partition continues with the records of the next process."""
    readers = Readers()
    readers.put(0, 0, 3)
    readers.next()
    readers.intake.end((0, 0))
    readers.put(0, 0, 2, start=1)
    again = readers.next()

    assert again == record(0, 0)
    assert readers.intake.queued_records == 0
    assert (0, 0) not in readers.done


def test_acknowledge_finishes_a_record_in_flight_once():
    """acknowledge() finishes only the given record, only if it is in flight, and only once."""
    readers = Readers()
    readers.put(0, 0, 3)
    first = readers.next()
    results = readers.intake.acknowledge(record(0, 2)), readers.intake.acknowledge(first)
    readers.intake.report_all()

    assert results == (False, True)
    assert readers.done[0, 0] == 1
    assert not readers.intake.acknowledge(first)


class Stream(RuleBasedStateMachine):
    """Model of any sequence of arrivals and reads: records are in order, each once, none finished too early."""

    def __init__(self) -> None:
        super().__init__()
        self.readers = Readers()
        self.starts = [0, 0]
        self.ends = [0, 0]
        self.sent: Counter[tuple[int, int]] = Counter()
        self.handed = [-1, -1]

    @rule(partition=st.integers(0, 1), count=st.integers(1, 4), gap=st.integers(0, 2))
    def comes(self, partition, count, gap):
        first = self.ends[partition]
        self.ends[partition] = first + count + gap
        self.sent[self.starts[partition], partition] += count
        self.readers.put(partition, first, count, start=self.starts[partition], behind=self.ends[partition])

    @rule()
    def one(self):
        if (found := self.readers.next()) is not None:
            self._check([found])

    @rule(count=st.integers(1, 6))
    def many(self, count):
        self._check(self.readers.intake.take(count))

    def _check(self, records):
        for found in records:
            assert found.offset > self.handed[found.partition]
            self.handed[found.partition] = found.offset

    @precondition(lambda self: any(self.ends))
    @rule(partition=st.integers(0, 1))
    def given_back(self, partition):
        lease = self.readers.intake.halt((self.starts[partition], partition))
        if lease is not None:
            self.ends[partition] = lease.next_offset
            self.readers.intake.end(lease.key)
        self.starts[partition] += 1

    @invariant()
    def nothing_is_done_too_soon(self):
        self.readers.intake.report_all()
        for lease in self.readers.intake.leases():
            assert lease.finished <= lease.next_offset <= lease.received
            assert self.readers.released[lease.key] <= self.sent[lease.key]


TestStream = Stream.TestCase
