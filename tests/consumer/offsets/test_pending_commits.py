"""Content of commits, and the effect of their responses."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.consumer.offsets.commits import CommitClock, Commits, CommitSnapshot
from tailrace.consumer.partition import AssignedPartitions
from tailrace.core.offset_map import OffsetMap, decode_metadata
from tailrace.protocol.groups import CommitOffset
from tailrace.records import OffsetAndMetadata, TopicPartition
from tests.support.simulation.records import records_at

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def finish_polled(position):
    """Finish the records in flight, as the next poll does."""
    for lease in position.progress._leases.copy():
        lease.finish()


def finish(position, to):
    """Deliver records up to ``to`` and finish them."""
    lease = position.deliver(records_at(range(position.delivered, to)), to)
    lease.take()
    lease.finish()


def start(position, *offsets):
    """Deliver records that stay in flight."""
    lease = position.deliver(records_at(offsets), offsets[-1] + 1)
    lease.take()
    lease.start()


@pytest.fixture
def positions():
    """Return two partitions, of which the first has three finished records and one in flight."""
    made = AssignedPartitions()
    one, two = made.add([ONE, TWO])
    one.begin(10, leader_epoch=4)
    lease = one.deliver(records_at([10, 11, 12, 13]), 14, 5)
    list(lease.left)
    two.begin(0)
    two.note_committed(0)
    return made


def test_finished_offsets_are_committed(positions):
    """A commit has the offset after the last finished record and its leader epoch, and no record in flight."""
    snapshot = Commits(positions).snapshot()

    assert snapshot.offsets == {ONE: CommitOffset("t", 0, 13, leader_epoch=5)}
    assert snapshot


def test_a_snapshot_without_changes_is_empty(positions):
    """A snapshot without changes is empty, so that no request is sent."""
    assert not Commits(positions).snapshot([TWO])
    assert not CommitSnapshot({})


def test_some_partitions_may_be_committed(positions):
    """A commit may be limited to some partitions, and ignores those that are not assigned."""
    finish(positions.get(TWO), 5)

    assert Commits(positions).snapshot([TWO, TopicPartition("gone", 0)]).offsets.keys() == {TWO}


def test_answer_sets_the_committed_offset(positions):
    """A response sets the committed offset, after which nothing is to be committed until more is finished."""
    commits = Commits(positions)

    commits.note_stored(commits.snapshot(), [ONE])

    assert positions.get(ONE).committed == 13
    assert not commits.snapshot()
    finish_polled(positions.get(ONE))
    assert commits.snapshot().offsets[ONE].offset == 14


def test_refused_partition_is_committed_again(positions):
    """Only partitions that the broker stored count as committed."""
    finish(positions.get(TWO), 5)
    commits = Commits(positions)

    commits.note_stored(commits.snapshot(), [TWO])

    assert commits.snapshot().offsets.keys() == {ONE}


@pytest.mark.parametrize("change", ["seek", "reset", "rebalance"])
def test_answer_of_an_older_epoch_is_ignored(positions, change):
    """A response is ignored after a seek, a reset or another assignment."""
    commits = Commits(positions)
    snapshot = commits.snapshot()

    match change:
        case "seek":
            positions.get(ONE).begin(3)
        case "reset":
            positions.get(ONE).reset("earliest", 14)
        case "rebalance":
            positions.remove([ONE])
            positions.add([ONE])
    commits.note_stored(snapshot, [ONE])

    assert positions.get(ONE).committed is None


def test_answer_for_a_revoked_partition_is_ignored(positions):
    """A response for a revoked partition, which may have another owner, is ignored, also if it was assigned again."""
    commits = Commits(positions)
    snapshot = commits.snapshot()

    positions.remove([ONE])
    commits.note_stored(snapshot, [ONE])
    (again,) = positions.add([ONE])
    again.begin(10)
    commits.note_stored(snapshot, [ONE])

    assert again.committed is None


def test_seek_backwards_is_committed(positions):
    """After a seek backwards the lower offset is committed."""
    commits = Commits(positions)
    commits.note_stored(commits.snapshot(), [ONE])

    positions.get(ONE).begin(3)

    assert commits.snapshot().offsets[ONE].offset == 3


def test_no_commit_goes_below_an_offset_chosen_by_the_user(positions):
    """No offset below the one that the user committed is committed, also if the record before it is in flight."""
    commits, one = Commits(positions), positions.get(ONE)
    one.begin(13)
    start(one, 13, 14, 15)
    one.progress.finish(15)

    commits.note_stored(commits.snapshot_of({ONE: OffsetAndMetadata(14, "mine")}), [ONE])

    assert one.offset_map is not None
    assert not commits.snapshot()
    one.progress.finish(13)
    one.progress.finish(14)
    assert commits.snapshot().offsets[ONE].offset == 16


@pytest.mark.parametrize("is_under_way", [False, True])
def test_seek_to_the_committed_offset_is_committed_again(positions, is_under_way):
    """A seek to the committed offset is committed again with the user's text, as an older commit may be in flight."""
    commits, one = Commits(positions), positions.get(ONE)
    commits.note_stored(commits.snapshot_of({ONE: OffsetAndMetadata(13, "mine")}), [ONE])
    finish_polled(one)
    finish(one, 20)
    snapshot = commits.snapshot()

    one.begin(13)
    if is_under_way:
        commits.note_stored(snapshot, [ONE])

    again = commits.snapshot()
    assert (again.offsets[ONE].offset, again.offsets[ONE].metadata) == (13, "mine")
    assert one.committed == 13
    commits.note_stored(again, [ONE])
    assert not commits.snapshot()


def test_map_after_a_stuck_record_is_committed(positions):
    """An offset map that changes while the offset does not is committed once, with the writer."""
    commits, two = Commits(positions, writer="me"), positions.get(TWO)
    start(two, 0, 1, 2)
    assert not commits.snapshot([TWO])

    two.progress.finish(1)
    snapshot = commits.snapshot([TWO])

    metadata = decode_metadata(snapshot.offsets[TWO].metadata, 0)
    assert (snapshot.offsets[TWO].offset, metadata.offset_map, metadata.writer) == (0, OffsetMap(0, 2, (0,)), "me")
    commits.note_stored(snapshot, [TWO])
    assert not commits.snapshot([TWO])


def test_offset_map_that_does_not_fit_is_omitted(positions):
    """A commit omits an offset map that does not fit, notes this, and is not repeated until the map changes."""
    commits, two = Commits(positions, max_bytes=20), positions.get(TWO)
    start(two, 0, 1, 2)
    two.progress.finish(1)
    snapshot = commits.snapshot([TWO])

    assert (snapshot.offsets[TWO].metadata, snapshot.notes[TWO].is_map_dropped) == ("", True)
    assert two.map_fill.is_high
    commits.note_stored(snapshot, [TWO])
    assert not commits.snapshot([TWO])
    assert commits.without_map(snapshot.offsets[TWO], snapshot.notes[TWO]) is None


def test_commit_without_the_map_keeps_the_users_text(positions):
    """A commit that is repeated without the offset map, as the broker refused its size, keeps the user's text."""
    commits, two = Commits(positions), positions.get(TWO)
    start(two, 0, 1)
    two.progress.finish(1)
    snapshot = commits.snapshot_of({TWO: OffsetAndMetadata(0, "mine")})

    shorter = commits.without_map(snapshot.offsets[TWO], snapshot.notes[TWO])

    assert shorter == CommitOffset("t", 1, 0, metadata="mine")


def test_chosen_offset_has_a_map_if_it_is_the_finished_one(positions):
    """An offset that the user commits has no offset map if it is not the finished one."""
    commits, two, gone = Commits(positions), positions.get(TWO), TopicPartition("gone", 0)
    start(two, 0, 1)
    two.progress.finish(1)

    snapshot = commits.snapshot_of({TWO: OffsetAndMetadata(1, "x", 7), gone: OffsetAndMetadata(5)})

    assert snapshot.offsets == {TWO: CommitOffset("t", 1, 1, 7, "x"), gone: CommitOffset("gone", 0, 5)}
    assert [one for one, note in snapshot.notes.items() if note.epoch is not None] == [TWO]


class Committing(RuleBasedStateMachine):
    """Model of a partition, a reader, and a broker that stores commits in order and may not respond."""

    @initialize()
    def begin(self):
        self.positions = AssignedPartitions()
        self.commits = Commits(self.positions)
        self.positions.add([ONE])
        self.position.begin(0)
        self.stored: list[tuple[int, int]] = []
        self.sent = None

    @property
    def position(self):
        return self.positions.get(ONE)

    @rule(count=st.integers(1, 5))
    def deliver(self, count):
        self.finish()
        offsets = range(self.position.delivered, self.position.delivered + count)
        self.position.deliver(records_at(offsets), offsets.stop).take()

    @rule()
    def finish(self):
        finish_polled(self.position)

    @rule(offset=st.integers(0, 50))
    def seek(self, offset):
        self.position.move()
        self.position.begin(offset)

    @rule(offset=st.integers(0, 50))
    def rebalance(self, offset):
        self.positions.remove([ONE])
        self.positions.add([ONE])
        self.position.begin(offset)
        self.position.note_committed(offset)
        self.stored.append((self.position.epoch, offset))

    @precondition(lambda self: self.sent is None)
    @rule(is_stored=st.booleans(), is_chosen=st.booleans())
    def commit(self, is_stored, is_chosen):
        what = {ONE: OffsetAndMetadata(self.position.delivered)}
        snapshot = self.commits.snapshot_of(what) if is_chosen else self.commits.snapshot()
        if not snapshot:
            return
        self.sent = snapshot, is_stored
        if is_stored:
            self.stored.append((snapshot.notes[ONE].epoch, snapshot.offsets[ONE].offset))

    @precondition(lambda self: self.sent is not None)
    @rule()
    def answer(self):
        snapshot, is_stored = self.sent
        self.commits.note_stored(snapshot, [ONE] if is_stored else [])
        self.sent = None

    @invariant()
    def never_above_what_has_delivered(self):
        for epoch, offset in self.stored[-1:]:
            assert epoch != self.position.epoch or offset <= self.position.delivered

    @invariant()
    def never_backwards_within_an_epoch(self):
        for (epoch, offset), (later, further) in zip(self.stored, self.stored[1:], strict=False):
            assert epoch <= later
            assert epoch != later or offset <= further

    @invariant()
    def what_is_not_committed_is_still_to_be(self):
        if not self.position.is_commit_due and self.sent is None:
            assert self.stored[-1] == (self.position.epoch, self.position.committed)
            assert self.position.committed >= self.position.finished


TestCommitting = Committing.TestCase
TestCommitting.__doc__ = "Finished records are committed in the end, and no commit goes back within an epoch."


# ---- schedule --------------------------------------------------------------------------------------------------


def test_commit_is_due_after_each_interval():
    """A commit is due an interval after the last one."""
    clock = CommitClock(5.0)
    assert not clock.is_due(1_000)

    clock.restart(100)

    assert (clock.next_at, clock.is_due(104.9), clock.is_due(105)) == (105, False, True)
    clock.restart(104)
    assert not clock.is_due(105)


def test_no_commit_is_due_without_an_interval():
    """Without an interval, automatic commits are off."""
    clock = CommitClock(None)
    clock.restart(100)

    assert clock.next_at is None
    assert not clock.is_due(1e9)


def test_a_commit_is_due_after_a_number_of_records():
    """A commit is due after a number of records or an interval, whichever is first."""
    by_number, both = CommitClock(None, 100), CommitClock(5.0, 100)
    for clock in (by_number, both):
        clock.restart(10.0, finished=40)

    assert [by_number.is_due(99.0, finished) for finished in (139, 140)] == [False, True]
    assert (by_number.next_at, both.next_at, both.next_count) == (None, 15.0, 140)
    assert [both.is_due(14.0, 139), both.is_due(15.0, 41), both.is_due(11.0, 140)] == [False, True, True]


def test_text_that_was_left_out_is_not_remembered():
    """A text that was omitted from a stored commit is not kept as its metadata."""
    positions = AssignedPartitions()
    commits = Commits(positions)
    (position,) = positions.add([TopicPartition("t", 0)])
    position.begin(0)
    snapshot = commits.snapshot_of({position.topic_partition: OffsetAndMetadata(3, "a note")})
    commits.note_stored(snapshot, [position.topic_partition], [position.topic_partition])

    assert (position.committed, position.committed_metadata) == (3, "")
