"""What to commit and when: the offsets of what is done, now and then, one commit at a time, never backwards.

``Commits`` takes a picture of the positions when a commit is sent and compares it with them when the answer comes:
an answer counts only for the epoch it was sent in, so an older commit that is late cannot take a newer one back.

With an offset goes the map of what is finished behind it (``core.offset_map``). When nothing but the map has changed,
as behind a record that is stuck, that is worth a commit, too. The user's text belongs to the offset it was committed
with: it stays while the offset does.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.offset_map import OffsetMap, encode_metadata
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["CommitNote", "CommitSnapshot", "Commits"]


class CommitNote(NamedTuple):
    """What the metadata of one entry say."""

    user_text: str
    offset_map: OffsetMap | None
    """What is finished behind the offset."""
    fill: float
    is_map_dropped: bool
    """It does not fit, and is left out."""


@dataclass(frozen=True, slots=True)
class CommitSnapshot:
    """What one commit says, and of which epochs it is true."""

    offsets: Mapping[TopicPartition, CommitOffset]
    epochs: Mapping[TopicPartition, int]
    assignments: Mapping[TopicPartition, int]
    """Which assignment each was taken in; a partition that is not ours to begin with has none."""
    notes: Mapping[TopicPartition, CommitNote] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.offsets)


class Commits:
    """What is committed of the positions.

    Args:
        max_bytes: of metadata; 0 leaves maps out.
        writer: who we are, for whoever reads a map.
    """

    def __init__(self, positions: Positions, *, max_bytes: int = 4_096, writer: str = "") -> None:
        self.positions = positions
        self._max_bytes, self._writer = max_bytes, writer

    def snapshot(self, partitions: Iterable[TopicPartition] | None = None) -> CommitSnapshot:
        """What is done and not committed yet, of all partitions or of some."""
        among = self.positions if partitions is None else self.positions.of(partitions)
        due = [position for position in among if position.is_dirty or self._is_map_due(position)]
        entries = {one.partition: self._entry(one) for one in due}
        return self._snapshot_of(due, entries)

    def chosen(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> CommitSnapshot:
        """What the user has chosen; the map goes with it where the offset is the one that we would commit."""
        ours = self.positions.of(offsets)
        entries = {}
        for partition, one in offsets.items():
            position = self.positions.get(partition)
            offset_map = self._map_of(position) if position is not None and position.finished == one.offset else None
            epoch = -1 if one.leader_epoch is None else one.leader_epoch
            entries[partition] = self._with_map(
                CommitOffset(*partition, one.offset, epoch, one.metadata, _topic_id(position)), offset_map, position
            )
        return self._snapshot_of(ours, entries)

    def without_map(self, entry: CommitOffset, note: CommitNote) -> CommitOffset | None:
        """The same with nothing but the user's text; None when it says nothing more."""
        text = encode_metadata(None, note.user_text, self._max_bytes).text
        return replace(entry, metadata=text) if text != entry.metadata else None

    def _snapshot_of(
        self, positions: Iterable[Position], entries: Mapping[TopicPartition, tuple[CommitOffset, CommitNote]]
    ) -> CommitSnapshot:
        taken = list(positions)
        return CommitSnapshot(
            {partition: entry for partition, (entry, _) in entries.items()},
            {position.partition: position.epoch for position in taken},
            {position.partition: position.assignment for position in taken},
            {partition: note for partition, (_, note) in entries.items()},
        )

    def _entry(self, position: Position) -> tuple[CommitOffset, CommitNote]:
        assert position.finished is not None
        user_text = position.committed_metadata if position.finished == position.committed else ""
        entry = CommitOffset(
            *position.partition, position.finished, position.delivered_epoch, user_text, _topic_id(position)
        )
        return self._with_map(entry, self._map_of(position), position)

    def _with_map(
        self, entry: CommitOffset, offset_map: OffsetMap | None, position: Position | None
    ) -> tuple[CommitOffset, CommitNote]:
        user_text = entry.metadata or ""
        writer = "" if offset_map is None else self._writer
        envelope = encode_metadata(offset_map, user_text, self._max_bytes, writer=writer)
        if position is not None and position.finished == entry.offset:
            position.map_fill.saw(envelope)
        note = CommitNote(user_text, offset_map, envelope.fill, envelope.is_map_dropped)
        return replace(entry, metadata=envelope.text), note

    def _map_of(self, position: Position) -> OffsetMap | None:
        return position.offset_map if self._max_bytes else None

    def _is_map_due(self, position: Position) -> bool:
        is_there = position.finished is not None and position.finished == position.committed
        return is_there and self._map_of(position) != position.committed_map

    def gone(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Those of ``snapshot`` that were released since it was taken: they are others' to commit now."""
        now = {position.partition: position.assignment for position in self.positions.of(snapshot.assignments)}
        return frozenset(one for one, then in snapshot.assignments.items() if now.get(one) != then)

    def unmoved(self, snapshot: CommitSnapshot) -> frozenset[TopicPartition]:
        """Return the partitions of ``snapshot`` that are read on since then and are not about to be released."""
        now = (one for one in self.positions.of(snapshot.epochs) if not one.is_halted)
        return frozenset(one.partition for one in now if one.epoch == snapshot.epochs[one.partition])

    def acknowledged(
        self, snapshot: CommitSnapshot, partitions: Iterable[TopicPartition], textless: Container[TopicPartition] = ()
    ) -> None:
        """The broker has stored what ``snapshot`` says of ``partitions``, of ``textless`` the offset alone."""
        for position in self.positions.of(partitions):
            entry = snapshot.offsets[position.partition]
            if snapshot.epochs.get(position.partition) == position.epoch:
                note = snapshot.notes[position.partition]
                user_text = "" if position.partition in textless else note.user_text
                position.note_committed(entry.offset, user_text, note.offset_map)


def _topic_id(position: Position | None) -> UUID:
    """Return the id of the topic that the records were read from; all zeros if nothing was fetched."""
    return NO_TOPIC_ID if position is None or position.fetched_topic_id is None else position.fetched_topic_id
