"""Moves positions to where reading begins: at a takeover, an assignment, a seek, a reset, or to read records again.

No other module of the consumer begins or resets a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.reader import Reader
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.offset_map import decode_metadata
from tailrace.core.positions.start_point import StartPoint
from tailrace.core.positions.start_policy import Start, StartPolicy
from tailrace.errors import OffsetOutOfRangeError
from tailrace.net.cluster import Cluster
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["StartPositions"]


class StartPositions:
    """Places the positions of one consumer where reading begins.

    Args:
        on_changed: called when a partition came, went, or has another position.

    Attributes:
        policy: decides where reading begins.
        on_changed: the same; whoever places positions calls it when all of them are placed.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        reader: Reader,
        policy: StartPolicy,
        on_changed: Callable[[], None],
    ) -> None:
        self._cluster, self._positions, self._reader = cluster, positions, reader
        self.policy, self.on_changed = policy, on_changed

    def place(self, position: Position, start: Start, before: int | None = None, leader_epoch: int = -1) -> None:
        """Read from ``start`` on; nothing fetched of the partition may be left to deliver.

        Args:
            position: position of an assigned partition.
            start: where to begin.
            before: position that the log does not have, if there is one; a reset from it is an event.
            leader_epoch: leader epoch at an offset, as the leader has told it.
        """
        if isinstance(start, StartPoint):
            position.reset(start, before)
        elif isinstance(start, OffsetAndMetadata):
            self._take_up(position, start)
        else:
            position.begin(start, leader_epoch)

    def move(self, position: Position, start: Start, before: int | None = None) -> None:
        """Drop what is fetched and in flight of a partition, and read from ``start`` on."""
        self._reader.drop([position.partition])
        self.place(position, start, before)

    def restart(self, partitions: Iterable[TopicPartition]) -> None:
        """Read recreated topics: drop fetched records of the old ones and look for the position in the new ones."""
        for position in self._positions.of(partitions):
            self.move(position, self.policy.of_added(position.partition), position.next_offset)
        self.on_changed()

    def read_again(self, position: Position, committed: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that its offset map says are finished.

        An offset of a topic's former self is none of the recreated topic, which is read by the reset policy.
        """
        if is_other_log(position.fetched_topic_id, position.partition, self._cluster.topology):
            self.restart([position.partition])
        else:
            self.move(position, committed)
            self.on_changed()

    def leave_to_user(self, position: Position) -> None:
        """Deliver an error in place of records until the user seeks: ``auto_offset_reset="none"``."""
        error = OffsetOutOfRangeError(*position.partition, position.reset_from)
        self._reader.put(position.partition, BufferedBatch(0, error=error), 0)
        position.refuse()

    def _take_up(self, position: Position, committed: OffsetAndMetadata) -> None:
        offset, metadata, leader_epoch = committed
        decoded, topic_id = decode_metadata(metadata, offset), position.fetched_topic_id
        position.begin(offset, -1 if leader_epoch is None else leader_epoch, decoded.offset_map)
        # Metadata may be old: with the id, the next fetch finds out whether the offset is of the same topic.
        position.fetched_topic_id = topic_id
        position.note_committed(offset, decoded.user_text, decoded.offset_map)
        if not position.is_fetchable:
            # A takeover; records that are read again have the map that was found then.
            self._reader.maps.found(position, decoded)
