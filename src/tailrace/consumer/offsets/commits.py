"""Schedule of automatic commits, and content of commits: finished offsets, offset maps, the user's text.

Pure: no clock, IO or logging.

``Commits`` takes a snapshot of the partitions when a commit is sent. The response changes the state of a partition
(``Partition``) only if the partition is still in the assignment epoch of the snapshot. The *finished offset* of a
partition is the offset to commit: all records below it are finished.

A commit contains the offset map (``core.offset_map``), which lists the records finished after the committed offset. A
commit is also due if only the map has changed, for example while one record takes long. The user's text belongs to the
offset with which it was committed: it is repeated in each later commit of the same offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.protocol.groups import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["CommitClock", "CommitNote", "CommitSnapshot", "Commits"]

# ---- schedule of automatic commits -----------------------------------------------------------------------------------


@dataclass
class CommitClock:
    """Schedule of automatic commits: after a time, after a number of finished records, or after whichever comes first.

    Every commit, including manual commits, restarts both the time and the count.
    """

    interval_s: float | None
    """Time in seconds after which a commit is due; None if commits do not depend on the time."""
    every: int | None = None
    """Number of finished records after which a commit is due; None if commits do not depend on the number."""
    next_at: float | None = field(default=None, init=False)
    """Time of the next commit; None if commits do not depend on the time."""
    next_count: int | None = field(default=None, init=False)
    """Total number of finished records at which the next commit is due; None if commits do not depend on it."""

    def restart(self, now: float, finished: int = 0) -> None:
        """Start the next interval at ``now``, when ``finished`` records are finished in total."""
        self.next_at = None if self.interval_s is None else now + self.interval_s
        self.next_count = None if self.every is None else finished + self.every

    def is_due(self, now: float, finished: int = 0) -> bool:
        """Return True if a commit is due when ``finished`` records are finished in total."""
        is_time = self.next_at is not None and now >= self.next_at
        return is_time or (self.next_count is not None and finished >= self.next_count)


# ---- content of commits: offsets of finished records, offset maps, and the user's text -------------------------------


class CommitNote(NamedTuple):
    """Content of the metadata that is committed with one offset."""

    user_text: str
    offset_map: OffsetMap | None
    """Offsets finished after the committed offset."""
    fill: float
    """Size of the offset map, divided by the space for it."""
    is_map_dropped: bool
    """True if the offset map does not fit and is left out."""


@dataclass(frozen=True, slots=True)
class CommitSnapshot:
    """Offsets of one commit, and the state of their partitions when the snapshot was taken."""

    offsets: Mapping[TopicPartition, CommitOffset]
    epochs: Mapping[TopicPartition, int]
    """Assignment epoch of each assigned partition; each assignment, seek and reset begins another epoch."""
    assignments: Mapping[TopicPartition, int]
    """Number that identifies the assignment of each assigned partition; seeks and resets do not change it."""
    notes: Mapping[TopicPartition, CommitNote] = field(default_factory=dict)
    chosen_at: Mapping[TopicPartition, tuple[int, int | None]] | None = None
    """``moves`` and finished offset of each assigned partition, if the user has chosen ``offsets``; otherwise None."""

    def __bool__(self) -> bool:
        return bool(self.offsets)


class Commits:
    """Content of the commits of one consumer.

    Args:
        positions: state of the assigned partitions.
        max_bytes: limit of the metadata of one offset; 0 to commit no offset maps.
        writer: name of this consumer, which is committed with its offset maps.
    """

    def __init__(self, positions: AssignedPartitions, *, max_bytes: int = 4_096, writer: str = "") -> None:
        self.positions = positions
        self._max_bytes, self._writer = max_bytes, writer

    def snapshot(
        self, partitions: Iterable[TopicPartition] | None = None, *, is_automatic: bool = True
    ) -> CommitSnapshot:
        """Return the finished offsets and offset maps that are not committed yet.

        Args:
            partitions: partitions to commit; None for all partitions.
            is_automatic: True to leave out partitions in which no record was finished since the user committed another
                offset.
        """
        among = self.positions if partitions is None else self.positions.of(partitions)
        due = [
            one for one in among if (one.is_commit_due if is_automatic else one.is_uncommitted) or self._is_map_due(one)
        ]
        entries = {one.topic_partition: self._entry(one) for one in due}
        return self._snapshot(due, entries)

    def snapshot_of(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitSnapshot:
        """Return a commit of ``offsets``, which the user has chosen.

        An offset that equals the finished offset of its partition is committed with the offset map of the partition.
        """
        assigned = self.positions.of(offsets)
        entries = {}
        for partition, one in offsets.items():
            position = self.positions.get(partition)
            offset_map = self._map_of(position) if position is not None and position.finished == one.offset else None
            epoch = -1 if one.leader_epoch is None else one.leader_epoch
            entries[partition] = self._with_map(
                CommitOffset(*partition, one.offset, epoch, one.metadata, _topic_id(position)), offset_map, position
            )
        chosen_at = {position.topic_partition: (position.moves, position.finished) for position in assigned}
        return self._snapshot(assigned, entries, chosen_at)

    def without_map(self, entry: CommitOffset, note: CommitNote) -> CommitOffset | None:
        """Return ``entry`` with only the user's text as metadata; None if ``entry`` has no other metadata."""
        text = encode_metadata(None, note.user_text, self._max_bytes).text
        return replace(entry, metadata=text) if text != entry.metadata else None

    def _snapshot(
        self,
        positions: Iterable[Partition],
        entries: Mapping[TopicPartition, tuple[CommitOffset, CommitNote]],
        chosen_at: Mapping[TopicPartition, tuple[int, int | None]] | None = None,
    ) -> CommitSnapshot:
        assigned = list(positions)
        return CommitSnapshot(
            {partition: entry for partition, (entry, _) in entries.items()},
            {position.topic_partition: position.epoch for position in assigned},
            {position.topic_partition: position.assignment for position in assigned},
            {partition: note for partition, (_, note) in entries.items()},
            chosen_at,
        )

    def _entry(self, position: Partition) -> tuple[CommitOffset, CommitNote]:
        assert position.finished is not None
        offset, offset_map = position.to_commit() if self._max_bytes else (position.finished, None)
        user_text = position.committed_metadata if offset == position.committed else ""
        entry = CommitOffset(
            *position.topic_partition, offset, position.delivered_epoch, user_text, _topic_id(position)
        )
        return self._with_map(entry, offset_map, position)

    def _with_map(
        self, entry: CommitOffset, offset_map: OffsetMap | None, position: Partition | None
    ) -> tuple[CommitOffset, CommitNote]:
        user_text = entry.metadata or ""
        writer = "" if offset_map is None else self._writer
        envelope = encode_metadata(offset_map, user_text, self._max_bytes, writer=writer)
        if position is not None and position.finished == entry.offset:
            position.map_fill.note_encoded(envelope)
        note = CommitNote(user_text, offset_map, envelope.fill, envelope.is_map_dropped)
        return replace(entry, metadata=envelope.text), note

    def _map_of(self, position: Partition) -> OffsetMap | None:
        return position.offset_map if self._max_bytes else None

    def _is_map_due(self, position: Partition) -> bool:
        is_committed = position.finished is not None and position.finished == position.committed
        return is_committed and self._map_of(position) != position.committed_map

    def released_since(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Return the partitions of ``snapshot`` that were revoked or lost since; other members may commit them now."""
        now = {position.topic_partition: position.assignment for position in self.positions.of(snapshot.assignments)}
        return frozenset(one for one, then in snapshot.assignments.items() if now.get(one) != then)

    def unchanged_since(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Return the partitions of ``snapshot`` that have the same epoch and are not about to be revoked."""
        now = (one for one in self.positions.of(snapshot.epochs) if not one.is_halted)
        return frozenset(one.topic_partition for one in now if one.epoch == snapshot.epochs[one.topic_partition])

    def note_stored(
        self,
        snapshot: CommitSnapshot,
        partitions: Iterable[TopicPartition],
        without_text: AbstractSet[TopicPartition] = frozenset(),
    ) -> None:
        """Note that the broker has stored the offsets of ``partitions``.

        For partitions in ``without_text``, it has stored only the offset, because the metadata was too large. Their
        offset maps count as committed nevertheless, so that they are not committed again and again.
        """
        for position in self.positions.of(partitions):
            partition = position.topic_partition
            offset, note = snapshot.offsets[partition].offset, snapshot.notes[partition]
            user_text = "" if partition in without_text else note.user_text
            is_current = snapshot.epochs.get(partition) == position.epoch
            if snapshot.chosen_at is None:
                if is_current:
                    position.note_committed(offset, user_text, note.offset_map)
                continue
            # Until the user moves the position, a chosen offset stays in force, even if the partition was assigned or
            # its start was found after the commit was sent.
            moves, finished = snapshot.chosen_at.get(partition, (position.moves, None))
            assignment = snapshot.assignments.get(partition, position.assignment)
            if (assignment, moves) == (position.assignment, position.moves):
                position.note_chosen(offset, user_text, note.offset_map, finished if is_current else None)


def _topic_id(position: Partition | None) -> UUID:
    """Return the id of the topic to which the offsets of ``position`` belong; all zeros if the id is unknown."""
    return NO_TOPIC_ID if position is None or position.topic_id is None else position.topic_id
