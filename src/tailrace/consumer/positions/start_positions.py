"""Moves positions to their start: at a takeover, an assignment, a seek or a reset, or to read records again.

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
        policy: decides where reading begins.
        on_changed: called when partitions were assigned or revoked, or positions were changed.

    Attributes:
        policy: decides where reading begins.
        on_changed: the argument of this name; callers of ``place`` and ``move`` call the function once all positions
            are set.
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
        """Read from ``start`` on; no fetched record of the partition may be left to deliver.

        Args:
            position: position of an assigned partition.
            start: where reading begins.
            before: position that is out of range, if that is the reason for the reset, which then emits an event.
            leader_epoch: leader epoch that the leader has returned with the offset; -1 if unknown.
        """
        if isinstance(start, StartPoint):
            position.reset(start, before)
        elif isinstance(start, OffsetAndMetadata):
            self._place_committed(position, start)
        else:
            position.begin(start, leader_epoch)

    def move(self, position: Position, start: Start, before: int | None = None) -> None:
        """Drop a partition's fetched records and records in flight, and read from ``start`` on."""
        self._reader.drop([position.partition])
        self.place(position, start, before)

    def restart(self, partitions: Iterable[TopicPartition]) -> None:
        """Read recreated topics: drop records fetched from the old topics, and look up the start in the new topics."""
        for position in self._positions.of(partitions):
            self.move(position, self.policy.of_added(position.partition), position.next_offset)
        self.on_changed()

    def read_again(self, position: Position, committed: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map lists as finished.

        If the topic was recreated after the commit, the committed offset is ignored and the reset policy applies.
        """
        if is_other_log(position.fetched_topic_id, position.partition, self._cluster.topology):
            self.restart([position.partition])
        else:
            self.move(position, committed)
            self.on_changed()

    def leave_to_user(self, position: Position) -> None:
        """Deliver an error in place of records until the user seeks (``auto_offset_reset="none"``)."""
        error = OffsetOutOfRangeError(*position.partition, position.reset_from)
        self._reader.put(position.partition, BufferedBatch(0, error=error), 0)
        position.refuse()

    def _place_committed(self, position: Position, committed: OffsetAndMetadata) -> None:
        offset, metadata, leader_epoch = committed
        decoded, topic_id = decode_metadata(metadata, offset), position.fetched_topic_id
        position.begin(offset, -1 if leader_epoch is None else leader_epoch, decoded.offset_map)
        # The cluster metadata may be old. With the former topic id, the next fetch detects that the topic was
        # recreated.
        position.fetched_topic_id = topic_id
        position.note_committed(offset, decoded.user_text, decoded.offset_map)
        if not position.is_fetchable:
            # The map is reported at a takeover only, and not again when its records are read again.
            self._reader.maps.report_found(position, decoded)
