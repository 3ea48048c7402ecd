"""Successive owners of a partition: the commits of each one decide which records the next one handles."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.consumer.offsets.commits import Commits
from tailrace.consumer.partition import AssignedPartitions
from tailrace.core.offset_map import decode_metadata
from tailrace.protocol.groups import CommitOffset
from tailrace.records import OffsetAndMetadata, TopicPartition
from tests.support.simulation.records import records_at

ONE = TopicPartition("t", 0)


class Owners(RuleBasedStateMachine):
    """Model of a log with gaps, a broker that keeps the last commit, and owners that die at any moment."""

    @initialize(gaps=st.lists(st.integers(0, 2), min_size=1, max_size=40), room=st.sampled_from([0, 60, 90, 4_096]))
    def begin_log(self, gaps, room):
        self.log = [0]
        for gap in gaps:
            self.log.append(self.log[-1] + 1 + gap)
        self.room = room
        self.stored: CommitOffset | None = None
        self.finished: set[int] = set()
        self.take_over()

    def take_over(self):
        self.positions = AssignedPartitions()
        (self.position,) = self.positions.add([ONE])
        self.commits = Commits(self.positions, max_bytes=self.room, writer="me")
        self.promised = set()
        if self.stored is None:
            self.position.begin(0)
        else:
            metadata = decode_metadata(self.stored.metadata, self.stored.offset)
            assert not metadata.problem
            self.position.begin(self.stored.offset, known=metadata.offset_map)
            self.position.note_committed(self.stored.offset, metadata.user_text, metadata.offset_map)
            self.promised = {
                one
                for one in self.log
                if one < self.stored.offset
                or (metadata.offset_map is not None and metadata.offset_map.is_finished(one))
            }
        self.has_in_flight: set[int] = set()

    def behind(self):
        return [one for one in self.log if one >= self.position.delivered]

    @precondition(lambda self: self.behind())
    @rule(count=st.integers(1, 8))
    def deliver(self, count):
        position = self.position
        taken = self.behind()[:count]
        known = position.progress.known
        offsets = [one for one in taken if known is None or not known.is_finished(one)]
        assert not self.promised & set(offsets)
        if offsets:
            lease = position.deliver(records_at(offsets), taken[-1] + 1)
            lease.take()
            lease.start()
        else:
            position.skip(taken[-1] + 1, -1)
        self.has_in_flight.update(offsets)

    @precondition(lambda self: self.has_in_flight)
    @rule(data=st.data())
    def finish(self, data):
        offset = data.draw(st.sampled_from(sorted(self.has_in_flight)))
        self.has_in_flight.remove(offset)
        assert self.position.progress.finish(offset)
        self.finished.add(offset)

    @precondition(lambda self: self.has_in_flight)
    @rule(data=st.data())
    def abandon(self, data):
        offset = data.draw(st.sampled_from(sorted(self.has_in_flight)))
        self.has_in_flight.remove(offset)
        self.position.progress.abandon(offset)

    @rule(is_stored=st.booleans())
    def commit(self, is_stored):
        snapshot = self.commits.snapshot()
        if snapshot and is_stored:
            self.stored = snapshot.offsets[ONE]
            self.commits.note_stored(snapshot, [ONE])
            assert not self.commits.snapshot()

    @rule(text=st.text(max_size=5))
    def commit_a_text(self, text):
        snapshot = self.commits.snapshot_of({ONE: OffsetAndMetadata(self.position.finished, text)})
        self.stored = snapshot.offsets[ONE]
        self.commits.note_stored(snapshot, [ONE])
        assert decode_metadata(self.stored.metadata, self.stored.offset).user_text == text

    @rule()
    def die(self):
        self.take_over()

    @invariant()
    def no_unfinished_offset_is_committed_as_finished(self):
        if getattr(self, "stored", None) is None:
            return
        found = decode_metadata(self.stored.metadata, self.stored.offset).offset_map
        for offset in self.log:
            if offset < self.stored.offset or (found is not None and found.is_finished(offset)):
                assert offset in self.finished
        assert found is None or len(self.stored.metadata) <= self.room

    @invariant()
    def no_commit_goes_back(self):
        if getattr(self, "stored", None) is None or self.position.committed is None:
            return
        assert self.position.committed <= self.position.finished <= self.position.delivered


TestOwners = Owners.TestCase
TestOwners.__doc__ = "Records committed as finished are not handled again, and no other record is skipped."
