"""How far a commit may go while records finish in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.offset_map import OffsetMap
from tests.support.simulation.cpu_time import cpu_time


@pytest.fixture
def tracker():
    """Of a partition that is read from 10 on."""
    return OffsetTracker(10)


def test_at_the_beginning_all_is_done(tracker):
    """What lies before the first record is what may be committed."""
    assert (tracker.done, tracker.next_offset, tracker.unfinished, tracker.lowest) == (10, 10, 0, None)
    assert tracker.offset_map() is None


def test_in_order_nothing_is_kept(tracker):
    """Records that are finished before the next is begun need one word now and then; it is never taken back."""
    tracker.advance(1_000)
    tracker.advance(500)

    assert (tracker.done, tracker.unfinished) == (1_000, 0)


def test_a_commit_waits_for_the_lowest(tracker):
    """Whatever is finished behind it, and however that came."""
    for offset in (10, 11, 12):
        tracker.begin(offset)
    tracker.advance(13)

    assert tracker.finish(12)
    assert tracker.finish(11)
    assert (tracker.done, tracker.unfinished) == (10, 1)
    assert tracker.finish(10)
    assert (tracker.done, tracker.unfinished) == (13, 0)


def test_one_may_be_ahead_of_the_others(tracker):
    """What is begun moves no commit past what somebody else has not begun yet, finished or not."""
    tracker.advance(12)
    tracker.begin(15)

    assert (tracker.done, tracker.lowest, tracker.offset_map()) == (12, 15, None)
    tracker.finish(15)
    assert (tracker.done, tracker.lowest, tracker.offset_map()) == (12, None, None)


def test_what_is_not_handed_out_after_all_is_begun_again(tracker):
    """Nothing is left of it: not in the count, and a commit waits before it."""
    tracker.begin_all([10, 11, 14])
    tracker.advance(20)
    tracker.take_back([11, 14])

    assert (tracker.done, tracker.next_offset, tracker.unfinished) == (10, 11, 1)
    tracker.finish(10)
    assert tracker.done == 11
    tracker.begin_all([11, 14])
    tracker.finish(11)
    assert (tracker.done, tracker.unfinished) == (14, 1)


def test_no_commit_passes_what_is_abandoned(tracker):
    """It is in nobody's hand here, its next owner runs it; what is finished behind it is said in the map."""
    tracker.begin_all([10, 11, 12])
    tracker.abandon(11)
    tracker.abandon(13)

    assert tracker.unfinished == 2
    assert not tracker.finish(11)
    tracker.finish(10)
    tracker.finish(12)
    assert (tracker.done, tracker.lowest, tracker.unfinished) == (11, 11, 0)
    assert tracker.offset_map() == OffsetMap(11, 13, (11,))


def test_what_is_left_to_others_is_known_whether_it_was_begun_or_not(tracker):
    """No commit passes it, and what is finished between and behind is said in the map."""
    tracker.begin_all([10, 11])
    tracker.leave([12, 11, 14])
    tracker.advance(16)
    tracker.finish(10)

    assert (tracker.done, tracker.unfinished) == (11, 0)
    assert tracker.offset_map() == OffsetMap(11, 16, (11, 12, 14))


def test_gaps_are_free(tracker):
    """Offsets that have no record (compaction, markers, aborts) are not waited for, before a record or behind it."""
    tracker.begin(14)
    tracker.begin(20)
    tracker.advance(30)

    assert tracker.done == 14
    tracker.finish(14)
    assert tracker.done == 20
    tracker.finish(20)
    assert tracker.done == 30


def test_what_was_passed_was_finished(tracker):
    """A record that suspends leaves those before it, which did not, finished, once that is said."""
    tracker.begin(15)
    tracker.advance(16)

    assert (tracker.done, tracker.next_offset) == (15, 16)
    assert not tracker.finish(14)


def test_only_what_is_in_hand_is_acknowledged(tracker):
    """A record that is done already, was never handed out or is of another time is no news."""
    tracker.begin_all([10, 11])

    assert tracker.finish(11)
    assert not tracker.finish(11)
    assert not tracker.finish(12)
    assert not tracker.finish(9)
    assert tracker.done == 10


def test_a_batch_is_begun_at_once(tracker):
    """Also one behind others, one before them, and none at all."""
    tracker.begin_all([15])
    tracker.begin_all([16, 18])
    tracker.begin_all([11, 13])
    tracker.begin_all([])

    assert (tracker.done, tracker.next_offset, tracker.unfinished) == (11, 19, 5)
    for offset, done in ((13, 11), (11, 15), (16, 15), (15, 18), (18, 19)):
        tracker.finish(offset)
        assert tracker.done == done


def test_the_map_says_what_is_finished_behind_the_commit(tracker):
    """Up to the highest finished record and not further; None where there is nothing to say."""
    tracker.begin_all([10, 11, 12, 13, 14])
    assert tracker.offset_map() is None

    tracker.finish(11)
    tracker.finish(13)

    assert tracker.offset_map() == OffsetMap(10, 14, (10, 12))
    tracker.finish(10)
    assert tracker.offset_map() == OffsetMap(12, 14, (12,))
    tracker.finish(12)
    assert (tracker.done, tracker.offset_map()) == (14, None)


def test_what_the_last_owner_had_finished_is_not_forgotten():
    """A partition that changes hands again soon takes with it what it brought."""
    tracker = OffsetTracker(10, OffsetMap(10, 20, (10, 12, 15)))
    assert tracker.offset_map() == OffsetMap(10, 20, (10, 12, 15))

    tracker.begin(10)
    tracker.begin(12)
    tracker.advance(13)
    tracker.finish(10)
    assert tracker.offset_map() == OffsetMap(12, 20, (12, 15))

    tracker.finish(12)
    assert (tracker.done, tracker.offset_map()) == (13, OffsetMap(13, 20, (15,)))
    assert tracker.known is not None
    tracker.begin(20)
    tracker.advance(21)
    assert tracker.known is None
    assert (tracker.done, tracker.offset_map()) == (20, None)


def test_it_tells_how_it_stands(tracker):
    """For logs and debuggers."""
    tracker.begin_all([12])

    assert repr(tracker) == "<OffsetTracker done=12 next_offset=13 unfinished=1>"


@pytest.mark.parametrize("order", ["first to last", "last to first", "any"])
def test_ten_thousand_unfinished_are_no_burden(order):
    """To ask what is done after each record that finishes costs the same, in whichever order they do."""
    offsets = list(range(10_000))
    tracker = OffsetTracker(0)
    tracker.begin_all(offsets)
    if order == "any":
        random.Random(5).shuffle(offsets)

    with cpu_time() as so_far:
        for offset in offsets if order != "last to first" else reversed(offsets):
            tracker.finish(offset)
            assert tracker.done <= 10_000
        took_s = so_far()

    assert tracker.done == 10_000
    assert took_s < 1


def test_those_that_are_stuck_let_any_number_pass(tracker):
    """Memory is for what is unfinished, not for what went by."""
    stuck = [10**9 + 1_009 * number for number in range(20)]
    tracker.advance(stuck[0])
    for offset in range(stuck[0], stuck[-1] + 1):
        tracker.begin(offset)
        if offset not in stuck:
            tracker.finish(offset)
    tracker.advance(stuck[-1] + 1)

    assert tracker.unfinished == 20
    assert len(tracker._heap) < 3_000
    for offset in stuck:
        assert tracker.done == offset
        tracker.finish(offset)
    assert tracker.done == stuck[-1] + 1


class Tracking(RuleBasedStateMachine):
    """The same said of a list of records, each begun or not, finished or not."""

    @initialize(
        gaps=st.lists(st.integers(0, 3), max_size=60),
        known=st.none() | st.tuples(st.sets(st.integers(6, 60)), st.integers(1, 30)),
    )
    def begin_partition(self, gaps, known):
        self.records = [5]
        for gap in gaps:
            self.records.append(self.records[-1] + 1 + gap)
        self.known = None
        if known is not None:
            unfinished = sorted({5} | known[0])
            self.known = OffsetMap(5, unfinished[-1] + 1 + known[1], tuple(unfinished))
        self.tracker = OffsetTracker(5, self.known)
        self.at = 0
        """How many records were handed out."""
        self.next_offset = 5
        self.unfinished: set[int] = set()
        self.finished: set[int] = set()

    def hand_out(self):
        offset = self.records[self.at]
        self.at, self.next_offset = self.at + 1, offset + 1
        return offset

    @precondition(lambda self: self.at < len(self.records))
    @rule(count=st.integers(1, 5))
    def begin(self, count):
        offsets = [self.hand_out() for _ in self.records[self.at : self.at + count]]
        self.unfinished.update(offsets)
        if len(offsets) == 1:
            self.tracker.begin(offsets[0])
            self.tracker.advance(self.next_offset)
        else:
            self.tracker.begin_all(offsets)

    @precondition(lambda self: self.at < len(self.records))
    @rule(says=st.booleans())
    def run_at_once(self, says):
        self.finished.add(offset := self.hand_out())
        if says or self.at == len(self.records):
            self.tracker.advance(offset + 1)
        else:
            self.tracker.begin(following := self.hand_out())
            self.tracker.advance(self.next_offset)
            self.unfinished.add(following)

    @rule(offset=st.integers(4, 70))
    def finish_any(self, offset):
        assert self.tracker.finish(offset) == (offset in self.unfinished)
        if offset in self.unfinished:
            self.unfinished.remove(offset)
            self.finished.add(offset)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def finish_one(self, data):
        self.finish_any(data.draw(st.sampled_from(sorted(self.unfinished))))

    @invariant()
    def it_says_so(self):
        if not hasattr(self, "tracker"):
            return
        tracker = self.tracker
        assert tracker.done == min(self.unfinished, default=self.next_offset)
        assert tracker.unfinished == len(self.unfinished)
        assert tracker.next_offset == self.next_offset

    @invariant()
    def the_map_says_so_too(self):
        if not hasattr(self, "tracker"):
            return
        found, done = self.tracker.offset_map(), self.tracker.done
        before = self.known if self.known is not None and self.known.limit > self.next_offset else None
        assert self.tracker.known == before
        if found is not None:
            assert found.base == done < found.limit
        for offset in self.records:
            is_finished = found is not None and found.is_finished(offset)
            if offset >= self.next_offset:
                assert is_finished == (before is not None and before.is_finished(offset))
            elif offset >= done:
                assert is_finished == (offset in self.finished)


TestTracking = Tracking.TestCase
TestTracking.__doc__ = "Whatever is begun and finished in whichever order: done is the lowest unfinished."


@given(st.lists(st.integers(0, 40), min_size=1, unique=True))
def test_records_may_be_begun_in_any_order(offsets):
    """When several share the records of a partition, one may be behind the other."""
    tracker = OffsetTracker(0)
    for offset in offsets:
        tracker.begin(offset)
    tracker.advance(max(offsets) + 1)
    for done in sorted(offsets):
        assert tracker.done == done
        tracker.finish(done)

    assert tracker.done == tracker.next_offset == max(offsets) + 1
