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

    def report_found(self, partition: Partition, decoded: DecodedMetadata) -> None:
        """Report the commit metadata of a newly assigned partition by an event, and count metadata that is ignored."""
        topic_partition, offset = partition.topic_partition, partition.finished
        assert offset is not None
        if decoded.problem:
            self._observer.emit(OffsetMapIgnored(topic_partition, offset, decoded.problem))
        elif decoded.is_foreign:
            self._observer.emit(ForeignMetadataFound(topic_partition, offset))
        elif (found := decoded.offset_map) is not None:
            finished = found.finished_count
            self._observer.emit(OffsetMapFound(topic_partition, offset, finished, decoded.writer))
        self.ignored += bool(decoded.problem) or decoded.is_foreign

    def check_log(self, partition: Partition, end_offset: int, current_epoch: int) -> None:
        """Drop an earlier owner's offset map if it is of another log."""
        known = partition.progress.known if partition.progress is not None else None
        if known is None:
            return
        if reason := known.contradiction(str(partition.topic_id or ""), end_offset, current_epoch):
            self._drop_known(partition, reason)

    def check_batch(self, partition: Partition, base_offset: int, leader_epoch: int) -> None:
        """Drop an earlier owner's offset map if a batch within the map's range was written after the map."""
        known = partition.progress.known if partition.progress is not None else None
        if known is not None and known.is_rewritten_by(base_offset, leader_epoch):
            reason = (
                f"its offset map covers records up to leader epoch {known.leader_epoch}, and offset {base_offset}"
                f" was written again under epoch {leader_epoch}"
            )
            self._drop_known(partition, reason)

    def _drop_known(self, partition: Partition, reason: str) -> None:
        assert partition.progress is not None
        partition.progress.forget_known()
        partition.has_known_map = False
        self.ignored += 1
        self._observer.emit(OffsetMapIgnored(partition.topic_partition, partition.progress.finished, reason))

    def without_finished(self, partition: Partition, records: Sequence[Record]) -> Sequence[Record]:
        """Return ``records`` without those that an earlier owner has finished; count these for an event."""
        known = partition.progress.known if partition.progress is not None else None
        if known is None:
            partition.has_known_map = False
            return records
        if records and records[0].offset >= known.limit:
            self._report_skipped(partition)
            return records
        left = [record for record in records if not known.is_finished(record.offset)]
        partition.skipped_finished += len(records) - len(left)
        if records and records[-1].offset + 1 >= known.limit:
            self._report_skipped(partition)
        return left

    def _report_skipped(self, partition: Partition) -> None:
        count, partition.skipped_finished = partition.skipped_finished, 0
        if count:
            self._observer.emit(FinishedRecordsSkipped(partition.topic_partition, count))

    # ---- size of the current map -------------------------------------------------------------------------------

    def measure(self, partition: Partition) -> None:
        if partition.progress is not None:
            partition.map_fill.measure(partition.progress, self.max_bytes, self._writer, self._loop.time())

    def holds_back(self, partition: Partition) -> bool:
        """Check if a partition must not start new records because its offset map is too full, and return the result.

        An event is emitted when the result changes. A full map that may have shrunk is measured again, now or at
        ``recheck_at``.
        """
        progress, fill = partition.progress, partition.map_fill
        if progress is None:
            return False
        if not fill.is_high or not self._may_shrink(progress):
            self._report_change(partition, progress, is_held=False)
            return False
        now = self._loop.time()
        again_at = fill.again_at(progress, now)
        if again_at is not None and again_at <= now:
            self.measure(partition)
        elif again_at is not None:
            self.recheck_at = again_at if self.recheck_at is None else min(again_at, self.recheck_at)
        self._report_change(partition, progress, is_held=fill.is_high)
        return fill.is_high

    def _may_shrink(self, progress: Progress) -> bool:
        """Return True if the map shrinks when records in flight finish, and delivery is past an earlier owner's map."""
        if not self.max_bytes or not progress.started:
            return False
        return progress.known is None or progress.delivered >= progress.known.limit

    def _report_change(self, partition: Partition, progress: Progress, *, is_held: bool) -> None:
        topic_partition, fill = partition.topic_partition, partition.map_fill
        if is_held is partition.is_map_full:
            return
        partition.is_map_full = is_held
        if is_held:
            self.held_back += 1
            self._observer.emit(OffsetMapFull(topic_partition, progress.finished, progress.started, fill.fill))
        else:
            self.held_back -= 1
            self._observer.emit(OffsetMapRecovered(topic_partition, progress.finished, fill.fill))

    def drop(self, partition: Partition) -> None:
        """Forget a partition that was revoked, sought or reset; report records skipped in it by an event."""
        self.held_back -= partition.is_map_full
        partition.is_map_full = False
        self._report_skipped(partition)
