"""Progress compared with a model, a list of records with one state each, and proof that the model finds faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.offset_map import OffsetMap, decode_metadata, encode_metadata
from tailrace.core.progress import Lease, Progress
from tailrace.records import Record, TopicPartition
from tests.support.simulation.records import records_at

ONE = TopicPartition("t", 0)

WAITING, IN_FLIGHT, FINISHED, ABANDONED = "waiting", "in flight", "finished", "abandoned"


@dataclass(eq=False)
class Held:
    """Lease with the records that the model knows to be taken and in flight."""

    lease: Lease
    is_polled: bool
    waiting: list[int]
    in_flight: list[int] = field(default_factory=list)


class Model(RuleBasedStateMachine):
    """Partition whose records are delivered, started, finished, abandoned, given back and committed.

    An earlier owner may have finished any of them.
    """

    @initialize(gaps=st.lists(st.integers(0, 2), min_size=10, max_size=40))
    def begin_log(self, gaps):
        self.log = [3]
        for gap in gaps:
            self.log.append(self.log[-1] + 1 + gap)
        (self.position,) = AssignedPartitions().add([ONE])
        self.old: list[Held] = []
        self.begin(0)

    def begin(self, index, known=None):
        start = self.log[index] if index < len(self.log) else self.log[-1] + 1
        self.position.begin(start if known is None else known.base, known=known)
        self.known = known
        self.base = self.fetched = self.delivered = self.position.delivered
        self.held: list[Held] = []
        self.state: dict[int, str] = {}
        self.was_elsewhere = False

    @property
    def progress(self) -> Progress:
        assert self.position.progress is not None
        return self.position.progress

    def behind(self, offset):
        return [one for one in self.log if one >= offset]

    def is_known(self, offset):
        return self.known is not None and self.base <= offset and self.known.is_finished(offset)

    def deliverable(self):
        return [one for one in self.log if self.delivered <= one < self.fetched]

    # ---- delivery --------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.fetched <= self.log[-1])
    @rule(count=st.integers(1, 12))
    def fetch(self, count):
        self.fetched = self.behind(self.fetched)[:count][-1] + 1
        self.position.fetched = self.fetched

    @precondition(lambda self: self.deliverable())
    @rule(count=st.integers(1, 6), is_polled=st.booleans())
    def deliver(self, count, is_polled):
        offsets = self.deliverable()[:count]
        following = self.behind(offsets[-1] + 1)
        self.delivered = min(following[0] if following else offsets[-1] + 1, self.fetched)
        offsets = [one for one in offsets if not self.is_known(one)]
        if not offsets:
            self.position.skip(self.delivered, 0)
            return
        lease = self.position.deliver(records_at(offsets, ONE), self.delivered, 0)
        self.held.append(Held(lease, is_polled, offsets))
        self.state |= dict.fromkeys(offsets, WAITING)

    @precondition(lambda self: any(one.waiting for one in self.held))
    @rule(data=st.data(), count=st.integers(1, 4), suspends=st.booleans())
    def take(self, data, count, suspends):
        one = data.draw(st.sampled_from([one for one in self.held if one.waiting]))
        taken = one.waiting[:count]
        del one.waiting[:count]
        if one.is_polled:
            assert [record.offset for record in one.lease.take(count)] == taken
            one.in_flight += taken
            self.state |= dict.fromkeys(taken, IN_FLIGHT)
            return
        for offset in taken:
            record = next(one.lease.left)
            assert record.offset == offset
            assert one.lease.count_in_flight == 1
            if suspends:
                one.lease.start(record)
            self.state[offset] = IN_FLIGHT if suspends else FINISHED
        one.lease.finish()

    @precondition(lambda self: any(one.in_flight for one in self.held))
    @rule(data=st.data())
    def poll_again(self, data):
        one = data.draw(st.sampled_from([one for one in self.held if one.in_flight]))
        one.lease.finish()
        self.state |= dict.fromkeys(one.in_flight, FINISHED)
        one.in_flight.clear()

    @precondition(lambda self: any(one.in_flight for one in self.held))
    @rule(data=st.data())
    def acknowledge(self, data):
        one = data.draw(st.sampled_from([one for one in self.held if one.in_flight]))
        offset = data.draw(st.sampled_from(one.in_flight))
        (record,) = records_at([offset], ONE)
        assert one.lease.finish(record)
        assert not one.lease.finish(record)
        done = [other for other in one.in_flight if other <= offset]
        one.in_flight = [other for other in one.in_flight if other > offset]
        self.state |= dict.fromkeys(done, FINISHED)

    # ---- records by offset -----------------------------------------------------------------------------------------

    def started(self):
        in_flight = {offset for one in self.held for offset in one.in_flight}
        return sorted(offset for offset, is_ in self.state.items() if is_ is IN_FLIGHT and offset not in in_flight)

    @precondition(lambda self: self.started())
    @rule(data=st.data())
    def finish(self, data):
        offset = data.draw(st.sampled_from(self.started()))
        assert self.progress.finish(offset)
        self.state[offset] = FINISHED

    @precondition(lambda self: self.started())
    @rule(data=st.data())
    def abandon(self, data):
        offset = data.draw(st.sampled_from(self.started()))
        self.progress.abandon(offset)
        self.state[offset] = ABANDONED

    @precondition(lambda self: any(one.waiting for one in self.held))
    @rule(data=st.data())
    def abandon_left(self, data):
        one = data.draw(st.sampled_from([one for one in self.held if one.waiting]))
        one.lease.abandon()
        self.state |= dict.fromkeys(one.waiting, ABANDONED)
        one.waiting.clear()

    @precondition(lambda self: self.held and self.held[-1].waiting and self.held[-1].lease.end == self.delivered)
    @rule()
    def give_back(self):
        one = self.held[-1]
        rest = [record.offset for record in one.lease.give_back()]
        assert rest == one.waiting
        if rest:
            self.delivered = rest[0]
        for offset in rest:
            del self.state[offset]
        one.waiting.clear()

    @precondition(lambda self: not self.state and not self.was_elsewhere and self.deliverable())
    @rule(data=st.data(), counts=st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def another_process_has_some_and_gives_some_back(self, data, counts):
        self.was_elsewhere = True
        for count in counts:
            offsets = self.deliverable()[:count]
            if offsets:
                self.delivered = offsets[-1] + 1
                offsets = [one for one in offsets if not self.is_known(one)]
                if not offsets:
                    self.position.skip(self.delivered, 0)
                    continue
                self.progress.move_to_process(self.position.deliver(records_at(offsets, ONE), self.delivered))
                self.state |= dict.fromkeys(offsets, IN_FLIGHT)
        if not self.state:
            return
        handed, done = sorted(data.draw(st.tuples(*[st.sampled_from(sorted(self.state))] * 2)), reverse=True)
        self.progress.finish_through(done)
        assert self.progress.finished == done
        self.check_known()
        self.progress.cut(handed)
        self.progress.finish_through(handed)
        assert (self.progress.finished, self.progress.delivered) == (handed, handed)
        self.check_known()
        assert not self.progress.has_in_flight
        self.delivered = handed
        self.state.clear()

    # ---- epochs and commits ----------------------------------------------------------------------------------------

    def may_begin_again(self):
        """Return True if records were delivered, or none are left. Most steps would be seeks otherwise."""
        return len(self.state) > 5 or self.delivered > self.log[-1]

    @precondition(may_begin_again)
    @rule(index=st.integers(0, 12))
    def seek(self, index):
        self.old = self.held
        self.begin(index)

    @precondition(may_begin_again)
    @rule(data=st.data(), index=st.integers(0, 12), size=st.integers(1, 12))
    def take_over(self, data, index, size):
        """Begin at a commit with the offset map of an earlier owner."""
        base = self.log[min(index, len(self.log) - 1)]
        unfinished = data.draw(st.sets(st.integers(base, base + size - 1), max_size=size)) - {base + size - 1}
        self.old = self.held
        self.begin(index, OffsetMap(base, base + size, sorted(unfinished), leader_epoch=7))

    @precondition(lambda self: self.old)
    @rule(data=st.data(), what=st.sampled_from(["take", "finish", "poll", "abandon", "start"]))
    def an_old_lease_goes_on(self, data, what):
        one = data.draw(st.sampled_from(self.old))
        before = self.snapshot()
        match what:
            case "take":
                one.lease.take()
                one.lease.finish()
            case "finish":
                for record in one.lease.records:
                    one.lease.progress.finish(record.offset)
            case "poll":
                one.lease.finish()
            case "abandon":
                one.lease.abandon()
            case "start":
                one.lease.progress.start(self.log[0])
        assert one.lease.progress.is_over
        assert self.snapshot() == before, "a lease of an old epoch has changed the present one"

    def snapshot(self):
        at = self.position
        return at.fetched, at.delivered, at.finished, at.offset_map, at.has_in_flight, at.next_offset

    @precondition(lambda self: self.position.is_commit_due)
    @rule()
    def commit(self):
        self.position.note_committed(self.position.finished, "", self.position.offset_map)

    # ---- invariants ------------------------------------------------------------------------------------------------

    @invariant()
    def committed_finished_delivered_fetched(self):
        if not hasattr(self, "log"):
            return
        at = self.position
        assert at.finished <= at.delivered <= at.fetched
        assert at.has_stale_commit or at.committed <= at.finished
        assert (at.fetched, at.delivered) == (self.fetched, self.delivered)

    @invariant()
    def every_delivered_record_is_in_one_state(self):
        if not hasattr(self, "log"):
            return
        progress, found = self.progress, self.position.offset_map
        open_ = [offset for offset, is_ in self.state.items() if is_ is not FINISHED]
        assert progress.finished == min(open_, default=self.delivered)
        assert progress.has_in_flight == (IN_FLIGHT in self.state.values())
        assert progress.started == len(self.started())
        waiting = sum(len(one.waiting) for one in self.held)
        assert waiting == list(self.state.values()).count(WAITING)
        for offset, is_ in self.state.items():
            counts_as_finished = offset < progress.finished or (found is not None and found.is_finished(offset))
            assert not counts_as_finished or is_ is FINISHED, "an unfinished record counts as finished"
            if is_ is FINISHED:
                assert counts_as_finished, "a finished record does not count as finished"
        self.check_known()

    def check_known(self):
        """Check that the map begins at its commit, and contains the records that an earlier owner has finished."""
        found, finished = self.position.offset_map, self.progress.finished
        assert self.position.to_commit() == (finished, found)
        if found is not None:
            decoded = decode_metadata(encode_metadata(found, "", 4_096).text, finished)
            assert (decoded.offset_map, decoded.problem) == (found, ""), "the next owner ignores the map"
            assert found.limit <= self.delivered or found.leader_epoch == 7, "the map is bound to an older epoch"
        for offset in self.behind(finished):
            counts_as_finished = found is not None and found.is_finished(offset)
            if self.is_known(offset):
                assert counts_as_finished, "a record that an earlier owner has finished would be handled again"
            elif offset >= self.delivered:
                assert not counts_as_finished, "a record that was not delivered counts as finished"


TestModel = Model.TestCase
TestModel.__doc__ = "Progress agrees with the model after any steps, in any order."
TestModel.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


def _forget_the_abandoned(self: Progress, offset: int) -> None:
    self._offsets.in_flight.discard(offset)


def _forget_to_lower(_self: Progress, lease: Lease, _offset: int) -> int:
    return lease.end


def _deliver_too_far(self: Progress, records: list[Record], end: int) -> Lease:
    self.delivered = end + 1
    lease = Lease(self, records, end)
    self._leases[lease] = None
    return lease


def _begin_in_the_same_epoch(self: Partition, offset: int, *_: object, **_known: object) -> None:
    if self.progress is None:
        self.progress = Progress(self.topic_partition, offset)
    self.progress.delivered = self.fetched = self.progress._closed_to = offset
    self.has_stale_commit = True


_offset_map = Progress.offset_map


def _map_that_begins_at_the_last_slice(self: Progress, *log: Any) -> OffsetMap | None:
    found, end = _offset_map(self, *log), self._finished_to()
    if found is None or end >= found.base:
        return found
    return OffsetMap(end, found.limit, found.unfinished_from(end), leader_epoch=found.leader_epoch)


def _map_of_started_offsets(self: Progress, *log: Any) -> OffsetMap | None:
    found = _offset_map(self, *log)
    if found is None or self.known:
        return found
    unfinished = self._offsets.in_flight | self._offsets.abandoned
    return OffsetMap(found.base, found.limit, sorted(one for one in unfinished if found.base <= one < found.limit))


def _lowest_in_flight(self: Lease) -> int | None:
    return self.records[-self.count - self.count_in_flight].offset if self.count_in_flight else None


def _lowest_not_taken(self: Lease) -> int | None:
    return self.rest[0].offset if self.count else None


def _known_until_delivered(self: Progress) -> OffsetMap | None:
    if self._known is not None and self._known.limit <= self.next_offset:
        self._known = None
    return self._known


def _commit_more_than_is_finished(self: Partition, offset: int, *_: object) -> None:
    self.committed, self.has_stale_commit = offset + 1, False


FAULTS = {
    "a commit passes what is in flight": (Progress, "lowest", property(lambda self: self.delivered)),
    "a commit passes what has not started": (Lease, "lowest", property(_lowest_in_flight)),
    "a commit passes the record taken last": (Lease, "lowest", property(_lowest_not_taken)),
    "delivered is ahead of fetched": (Progress, "deliver", _deliver_too_far),
    "an abandoned record counts as finished": (Progress, "abandon", _forget_the_abandoned),
    "a record that was given back counts as delivered": (Progress, "give_back", _forget_to_lower),
    "a lease of an old epoch changes the present one": (Partition, "begin", _begin_in_the_same_epoch),
    "what is finished behind the commit is forgotten": (Progress, "offset_map", lambda _self, *_log: None),
    "a map begins before its commit": (Progress, "offset_map", _map_that_begins_at_the_last_slice),
    "the map of an earlier owner is forgotten too early": (Progress, "known", property(_known_until_delivered)),
    "a record that was not taken is in the map": (Progress, "offset_map", _map_of_started_offsets),
    "a commit is noted above what is finished": (Partition, "note_committed", _commit_more_than_is_finished),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_model_finds_planted_faults(monkeypatch, fault):
    """Each of these faults in the code breaks an invariant of the model."""
    owner, name, planted = FAULTS[fault]
    monkeypatch.setattr(owner, name, planted)

    with pytest.raises((AssertionError, BaseExceptionGroup)):
        run_state_machine_as_test(
            Model,
            settings=settings(
                # Hypothesis also tries constants of imported modules, so the search depends on which tests ran before.
                max_examples=20_000,
                stateful_step_count=30,
                deadline=None,
                derandomize=True,
                database=None,
                print_blob=False,
                # The example is not printed, so it need not be minimal.
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )
