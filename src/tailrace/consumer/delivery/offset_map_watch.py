"""Offset maps of the assigned partitions: skips records that an earlier owner finished, and limits the size of maps.

The size of a map is estimated once for the records that are delivered together, not for each record, and not at all as
long as a partition's records are finished in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailrace.consumer.partition import Partition
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.offset_map import DecodedMetadata
from tailrace.core.progress import Progress
from tailrace.observe.events import (
    FinishedRecordsSkipped,
    ForeignMetadataFound,
    OffsetMapFound,
    OffsetMapFull,
    OffsetMapIgnored,
    OffsetMapRecovered,
)
from tailrace.records import Record

__all__ = ["OffsetMapWatch"]


class OffsetMapWatch:
    """Watches the offset maps of one consumer's partitions.

    Attributes:
        max_bytes: size limit of a partition's commit metadata; 0 if no maps are written.
        ignored: number of commits of earlier owners whose metadata was ignored, because another program wrote it, it
            is unreadable, or the partition's log was replaced or rewritten since.
        held_back: number of partitions whose offset map was too full at the last check.
        recheck_at: time of the loop at which ``holds_back`` must be called again even if nothing has changed; None for
            no such time.
    """

    def __init__(self, parts: ConsumerParts) -> None:
        self._observer = parts.observer
        self.max_bytes, self._writer = parts.config.offset_metadata_max_bytes, parts.config.client_id
        self._loop = asyncio.get_running_loop()
        self.ignored = self.held_back = 0
        self.recheck_at: float | None = None

    # ---- maps of earlier owners --------------------------------------------------------------------------------

    def report_found(self, position: Partition, decoded: DecodedMetadata) -> None:
        """Report the commit metadata of a newly assigned partition by an event, and count metadata that is ignored."""
        partition, offset = position.topic_partition, position.finished
        assert offset is not None
        if decoded.problem:
            self._observer.emit(OffsetMapIgnored(partition, offset, decoded.problem))
        elif decoded.is_foreign:
            self._observer.emit(ForeignMetadataFound(partition, offset))
        elif (found := decoded.offset_map) is not None:
            finished = found.finished_count
            self._observer.emit(OffsetMapFound(partition, offset, finished, decoded.writer))
        self.ignored += bool(decoded.problem) or decoded.is_foreign

    def check_log(self, position: Partition, end_offset: int, current_epoch: int) -> None:
        """Drop an earlier owner's offset map if it is of another log."""
        known = position.progress.known if position.progress is not None else None
        if known is None:
            return
        if reason := known.contradiction(str(position.topic_id or ""), end_offset, current_epoch):
            self._drop_known(position, reason)

    def check_batch(self, position: Partition, base_offset: int, leader_epoch: int) -> None:
        """Drop an earlier owner's offset map if a batch within the map's range was written after the map."""
        known = position.progress.known if position.progress is not None else None
        if known is not None and known.is_rewritten_by(base_offset, leader_epoch):
            reason = (
                f"its offset map covers records up to leader epoch {known.leader_epoch}, and offset {base_offset}"
                f" was written again under epoch {leader_epoch}"
            )
            self._drop_known(position, reason)

    def _drop_known(self, position: Partition, reason: str) -> None:
        assert position.progress is not None
        position.progress.forget_known()
        position.has_known_map = False
        self.ignored += 1
        self._observer.emit(OffsetMapIgnored(position.topic_partition, position.progress.finished, reason))

    def without_finished(self, position: Partition, records: Sequence[Record]) -> Sequence[Record]:
        """Return ``records`` without those that an earlier owner has finished; count these for an event."""
        known = position.progress.known if position.progress is not None else None
        if known is None:
            position.has_known_map = False
            return records
        if records and records[0].offset >= known.limit:
            self._report_skipped(position)
            return records
        left = [record for record in records if not known.is_finished(record.offset)]
        position.skipped_finished += len(records) - len(left)
        if records and records[-1].offset + 1 >= known.limit:
            self._report_skipped(position)
        return left

    def _report_skipped(self, position: Partition) -> None:
        count, position.skipped_finished = position.skipped_finished, 0
        if count:
            self._observer.emit(FinishedRecordsSkipped(position.topic_partition, count))

    # ---- size of the current map -------------------------------------------------------------------------------

    def measure(self, position: Partition) -> None:
        if position.progress is not None:
            position.map_fill.measure(position.progress, self.max_bytes, self._writer, self._loop.time())

    def holds_back(self, position: Partition) -> bool:
        """Check if a partition must not start new records because its offset map is too full, and return the result.

        An event is emitted when the result changes. A full map that may have shrunk is measured again, now or at
        ``recheck_at``.
        """
        progress, fill = position.progress, position.map_fill
        if progress is None:
            return False
        if not fill.is_high or not self._may_shrink(progress):
            self._report_change(position, progress, is_held=False)
            return False
        now = self._loop.time()
        again_at = fill.again_at(progress, now)
        if again_at is not None and again_at <= now:
            self.measure(position)
        elif again_at is not None:
            self.recheck_at = again_at if self.recheck_at is None else min(again_at, self.recheck_at)
        self._report_change(position, progress, is_held=fill.is_high)
        return fill.is_high

    def _may_shrink(self, progress: Progress) -> bool:
        """Return True if the map shrinks when records in flight finish, and delivery is past an earlier owner's map."""
        if not self.max_bytes or not progress.started:
            return False
        return progress.known is None or progress.delivered >= progress.known.limit

    def _report_change(self, position: Partition, progress: Progress, *, is_held: bool) -> None:
        partition, fill = position.topic_partition, position.map_fill
        if is_held is position.is_map_full:
            return
        position.is_map_full = is_held
        if is_held:
            self.held_back += 1
            self._observer.emit(OffsetMapFull(partition, progress.finished, progress.started, fill.fill))
        else:
            self.held_back -= 1
            self._observer.emit(OffsetMapRecovered(partition, progress.finished, fill.fill))

    def drop(self, position: Partition) -> None:
        """Forget a partition that was revoked, sought or reset; report records skipped in it by an event."""
        self.held_back -= position.is_map_full
        position.is_map_full = False
        self._report_skipped(position)
