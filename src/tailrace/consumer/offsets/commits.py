"""Schedule of automatic commits, and content of commits: finished offsets, offset maps, the user's text.

Pure: no clock, IO or logging.

``Commits`` takes a snapshot of the partitions when a commit is sent. The response to a commit of finished offsets
changes the state of a partition (``Partition``) only if the partition is still in the epoch of the snapshot. The
response to a commit that the user has chosen does until the partition is sought or assigned again. The *finished
offset* of a partition is the offset to commit: all records below it are finished.

A commit contains the offset map (``core.offset_map``), which lists the records finished after the committed offset. A
commit is also due if only the map has changed, for example while one record takes long. The user's text belongs to the
offset with which it was committed: it is repeated in each later commit of the same offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

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

    Automatic commits, and manual commits that succeed, restart both the time and the count.
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
        self.next_at = None if self.interval_s is None else now + self.interval_s
        self.next_count = None if self.every is None else finished + self.every

    def is_due(self, now: float, finished: int = 0) -> bool:
        is_time = self.next_at is not None and now >= self.next_at
        return is_time or (self.next_count is not None and finished >= self.next_count)


# ---- content of commits: offsets of finished records, offset maps, and the user's text -------------------------------


class CommitNote(NamedTuple):
    """Content of the metadata that is committed with one offset, and the state of its partition at the snapshot."""

    user_text: str
    offset_map: OffsetMap | None
    """Offsets finished after the committed offset."""
    is_map_dropped: bool
    """True if the offset map does not fit and is left out."""
    epoch: int | None = None
    """Assignment epoch; each assignment, seek and reset begins another one. None if the partition is not assigned."""
    assignment: int | None = None
    """Number that identifies the assignment; seeks and resets do not change it. None if there is none."""
    moves: int = 0
    """Number of seeks and of replacements of the log."""
    finished: int | None = None
    """Finished offset."""


@dataclass(frozen=True, slots=True)
class CommitSnapshot:
    """Offsets of one commit."""

    offsets: Mapping[TopicPartition, CommitOffset]
    notes: Mapping[TopicPartition, CommitNote] = field(default_factory=dict)
    is_chosen: bool = False
    """True if the user has chosen the offsets."""

    def __bool__(self) -> bool:
        return bool(self.offsets)


class Commits:
    """Content of the commits of one consumer.

    Args:
        partitions: state of the assigned partitions.
        max_bytes: limit of the metadata of one offset; 0 to commit no offset maps.
        writer: name of this consumer, which is committed with its offset maps.
    """

    def __init__(self, partitions: AssignedPartitions, *, max_bytes: int = 4_096, writer: str = "") -> None:
        self.partitions = partitions
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
        among = self.partitions if partitions is None else self.partitions.of(partitions)
        offsets, notes = {}, {}
        for partition in among:
            is_due = partition.is_commit_due if is_automatic else partition.is_uncommitted
            if not is_due and not self._is_map_due(partition):
                continue
            assert partition.finished is not None
            offset, offset_map = partition.to_commit() if self._max_bytes else (partition.finished, None)
            user_text = partition.committed_metadata if offset == partition.committed else ""
            given = OffsetAndMetadata(offset, user_text, partition.delivered_epoch)
            topic_partition = partition.topic_partition
            offsets[topic_partition], notes[topic_partition] = self._entry(
                topic_partition, given, offset_map, partition
            )
        return CommitSnapshot(offsets, notes)

    def snapshot_of(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitSnapshot:
        """Return a commit of ``offsets``, which the user has chosen.

        An offset that equals the finished offset of its partition is committed with the offset map of the partition.
        """
        entries, notes = {}, {}
        for topic_partition, given in offsets.items():
            partition = self.partitions.get(topic_partition)
            offset_map = None
            if partition is not None and partition.finished == given.offset and self._max_bytes:
                offset_map = partition.offset_map
            entries[topic_partition], notes[topic_partition] = self._entry(
                topic_partition, given, offset_map, partition
            )
        return CommitSnapshot(entries, notes, is_chosen=True)

    def without_map(self, entry: CommitOffset, note: CommitNote) -> CommitOffset | None:
        """Return ``entry`` with only the user's text as metadata; None if ``entry`` has no other metadata."""
        text = encode_metadata(None, note.user_text, self._max_bytes).text
        return replace(entry, metadata=text) if text != entry.metadata else None

    def _entry(
        self,
        topic_partition: TopicPartition,
        given: OffsetAndMetadata,
        offset_map: OffsetMap | None,
        partition: Partition | None,
    ) -> tuple[CommitOffset, CommitNote]:
        """Return the commit of one partition, whose metadata contains the user's text and the offset map."""
        writer = "" if offset_map is None else self._writer
        encoded = encode_metadata(offset_map, given.metadata, self._max_bytes, writer=writer)
        epoch = -1 if given.leader_epoch is None else given.leader_epoch
        note = CommitNote(given.metadata, offset_map, encoded.is_map_dropped)
        topic_id = NO_TOPIC_ID
        if partition is not None:
            note = CommitNote(*note[:3], partition.epoch, partition.assignment, partition.moves, partition.finished)
            topic_id = partition.topic_id or NO_TOPIC_ID
            if partition.finished == given.offset:
                partition.map_fill.note_encoded(encoded)
        return CommitOffset(*topic_partition, given.offset, epoch, encoded.text, topic_id), note

    def _is_map_due(self, partition: Partition) -> bool:
        is_committed = partition.finished is not None and partition.finished == partition.committed
        return is_committed and (partition.offset_map if self._max_bytes else None) != partition.committed_map

    def released_since(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Return the partitions of ``snapshot`` that were revoked or lost since; other members may commit them now."""
        released = set()
        for topic_partition, note in snapshot.notes.items():
            partition = self.partitions.get(topic_partition)
            if note.assignment is not None and (partition is None or partition.assignment != note.assignment):
                released.add(topic_partition)
        return frozenset(released)

    def unchanged_since(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Return the partitions of ``snapshot`` that have the same epoch and are not about to be revoked."""
        now = {one.topic_partition: one.epoch for one in self.partitions.of(snapshot.notes) if not one.is_halted}
        return frozenset(one for one, epoch in now.items() if epoch == snapshot.notes[one].epoch)

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
        for partition in self.partitions.of(partitions):
            topic_partition = partition.topic_partition
            offset, note = snapshot.offsets[topic_partition].offset, snapshot.notes[topic_partition]
            user_text = "" if topic_partition in without_text else note.user_text
            is_current = note.epoch == partition.epoch
            if not snapshot.is_chosen:
                if is_current:
                    partition.note_committed(offset, user_text, note.offset_map)
            # Until the user moves the position, a chosen offset stays in force, even if the partition was assigned or
            # its start was found after the commit was sent.
            elif note.assignment is None or (note.assignment, note.moves) == (partition.assignment, partition.moves):
                partition.note_chosen(offset, user_text, note.offset_map, note.finished if is_current else None)
