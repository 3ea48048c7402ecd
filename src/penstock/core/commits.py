"""What to commit and when: the offsets of what is done, now and then, one commit at a time, never backwards.

``Commits`` takes a picture of the positions when a commit is sent and compares it with them when the answer comes:
an answer counts only for the epoch it was sent in, so an older commit that is late cannot take a newer one back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.core.positions import Position, Positions
from penstock.messages import CommitOffset
from penstock.records import TopicPartition

__all__ = ["CommitClock", "Commits", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one commit says, and of which epochs it is true."""

    offsets: Mapping[TopicPartition, CommitOffset]
    epochs: Mapping[TopicPartition, int]
    assignments: Mapping[TopicPartition, int]
    """Which assignment each was taken in; a partition that is not ours to begin with has none."""

    def __bool__(self) -> bool:
        return bool(self.offsets)


@dataclass
class CommitClock:
    """When the next automatic commit is due; a commit by hand begins the interval anew."""

    interval_s: float | None
    next_at: float | None = field(default=None, init=False)

    def restart(self, now: float) -> None:
        """A commit was made, or the first interval begins."""
        self.next_at = None if self.interval_s is None else now + self.interval_s

    def is_due(self, now: float) -> bool:
        """Whether it is time."""
        return self.next_at is not None and now >= self.next_at


class Commits:
    """What is committed of the positions."""

    def __init__(self, positions: Positions) -> None:
        self.positions = positions

    def snapshot(self, partitions: Iterable[TopicPartition] | None = None) -> Snapshot:
        """What is done and not committed yet, of all partitions or of some."""
        chosen = self.positions if partitions is None else self.positions.of(partitions)
        return self.picture(p for p in chosen if p.is_dirty)

    def picture(
        self, positions: Iterable[Position], offsets: Mapping[TopicPartition, CommitOffset] | None = None
    ) -> Snapshot:
        """What is done of ``positions``, or what ``offsets`` say instead, as of now."""
        taken = list(positions)
        return Snapshot(
            {position.partition: _entry(position) for position in taken} if offsets is None else offsets,
            {position.partition: position.epoch for position in taken},
            {position.partition: position.assignment for position in taken},
        )

    def gone(self, snapshot: Snapshot) -> frozenset[TopicPartition]:
        """Those of ``snapshot`` that were released since it was taken: they are others' to commit now."""
        now = {position.partition: position.assignment for position in self.positions.of(snapshot.assignments)}
        return frozenset(one for one, then in snapshot.assignments.items() if now.get(one) != then)

    def acknowledged(self, snapshot: Snapshot, partitions: Iterable[TopicPartition]) -> None:
        """The broker has stored what ``snapshot`` says of ``partitions``."""
        for position in self.positions.of(partitions):
            entry = snapshot.offsets[position.partition]
            if snapshot.epochs.get(position.partition) == position.epoch:
                position.committed = entry.offset


def _entry(position: Position) -> CommitOffset:
    assert position.done is not None
    return CommitOffset(position.partition.topic, position.partition.partition, position.done, position.delivered_epoch)
