"""Delivery of records from a consumer into the open transaction.

A partition's start offset is committed before any of its records is delivered, in a transaction without records.
Without that commit, another member could start at a different offset after an abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tailrace.app.transactions.deferred_records import DeferredRecords
from tailrace.app.transactions.interfaces import GroupSource, GroupView
from tailrace.app.transactions.interruptible_wait import InterruptibleWait
from tailrace.app.transactions.partitions import TransactionPartitions, UndeliveredRecords
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.core.transactions.window import Window
from tailrace.records import Record, TopicPartition

__all__ = ["TransactionDelivery"]


class TransactionDelivery:
    """Delivery of one group's records from its consumer.

    Args:
        source: started consumer.
        group_view: positions of the consumer.
        partitions: partitions of the open transaction.
        deferred_records: records that must not join the transaction.
        window: state of the transaction.

    Attributes:
        alone: partition and offset of the record that is handled in a transaction of its own; None if there is none.
        last: partition and offset of the last delivered record.
    """

    def __init__(
        self,
        source: GroupSource,
        group_view: GroupView,
        partitions: TransactionPartitions,
        deferred_records: DeferredRecords,
        window: Window,
    ) -> None:
        self._source, self._group_view, self._partitions = source, group_view, partitions
        self._deferred_records, self._deferred_offsets, self._window = (
            deferred_records,
            deferred_records.deferred_offsets,
            window,
        )
        self._loop = asyncio.get_running_loop()
        self._coming = InterruptibleWait()
        self.alone: tuple[TopicPartition, int] | None = None
        self.last: tuple[TopicPartition, int] | None = None
        self._has_moved = True
        """True if a position may have moved past the committed offset."""
        group_view.watch(self._moved)

    async def next(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease] | None:
        """Return the next records to deliver; None if the caller must check the window first."""
        if self._has_moved and self._add_start_offsets():
            return None
        undelivered = self._partitions.undelivered

        def room(partition: TopicPartition) -> int:
            return 0 if partition in undelivered else self._room(partition, None, room_of)

        # The time is read before looking for records, so that the next call finds a record that becomes due meanwhile.
        now = self._loop.time()
        until = self._window.next_deadline(now)
        if until is None:
            first = [one.first for one in undelivered.values()]
            until = self._deferred_records.next_due_at(now, self._group_view.delivered(), first)
        if (found := self._next_undelivered(room_of)) is not None:
            return found
        if (come := await self._coming.wait(self._source.next_slice(room), until)) is None:
            return None
        position, lease = come
        if position.has_stale_commit or self._deferred_records.may_hold_back(position.partition):
            self._has_moved |= position.has_stale_commit
            undelivered[position.partition] = UndeliveredRecords(position, lease)
            return self._next_undelivered(room_of)
        self._took(position, lease)
        return position, lease

    def look_again(self) -> None:
        """End the wait of ``next``, so that the window is checked."""
        self._coming.cut()

    def progressed(self) -> None:
        """Check again for records to deliver: some were finished, or there is room for more."""
        if self._coming.is_waiting and (self._partitions.undelivered or self._is_open_without_work):
            # The consumer does not know about records that wait here, or about windows.
            self._coming.cut()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        self._has_moved = True
        self._coming.cut()

    def _add_start_offsets(self) -> bool:
        """Add uncommitted start offsets to the transaction; return True if there are any, to be committed at once.

        If there are none, a position that has moved without delivered records opens a transaction, too.
        """
        begun = self._group_view.begun()
        self._has_moved = bool(begun)
        if begun:
            if not self._window.is_open:
                self._window.add(0, self._loop.time())
            self._partitions.begin(begun)
            self._window.cut()
        elif not self._window.is_open:
            undelivered = self._partitions.undelivered
            if any(one.partition not in undelivered for one in self._group_view.passed()):
                # Records that come within the interval join the transaction.
                self._window.add(0, self._loop.time())
        return self._has_moved

    def _next_undelivered(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease] | None:
        """Return undelivered records that may be delivered now; None if there are none."""

        def take(records: Sequence[Record]) -> int:
            room = self._room(records[0].topic_partition, records[0].offset, room_of)
            return len(self._deferred_records.first_of(records, room)) if room else 0

        if (found := self._partitions.next_undelivered(take)) is None:
            return None
        position, lease = found
        self._took(position, lease)
        first = lease.records[0].offset
        if self._deferred_offsets.reaches(position.partition, first):
            self.alone = position.partition, first
            self._window.close()
        return position, lease

    def _room(self, partition: TopicPartition, delivered: int | None, room_of: Callable[[TopicPartition], int]) -> int:
        room = 0 if self._partitions.is_full(partition) else min(room_of(partition), self._window.room)
        if partition not in self._deferred_offsets or not room:
            return room
        if delivered is None:
            delivered = self._group_view.delivered().get(partition)
        return self._deferred_offsets.room(partition, delivered, room, self._loop.time(), is_open=self._window.is_open)

    def _took(self, position: Position, lease: Lease) -> None:
        self._window.add(lease.count, self._loop.time())
        self._partitions.took(position, lease)
        self.last = position.partition, lease.records[-1].offset

    @property
    def _is_open_without_work(self) -> bool:
        """True if a window is open past its interval although no batch waits and no handler runs."""
        has_work = self._partitions.are_gathering or self._partitions.are_running
        return self._window.is_kept_open(self._loop.time()) and not has_work
