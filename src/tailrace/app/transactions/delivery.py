"""Delivery of records from a consumer into the open transaction.

A start offset that is not committed yet is committed in a transaction without records, before any record of its
partition is delivered. Otherwise another member could start at a different offset after an abort.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tailrace.app.transactions.deferred_records import DeferredRecords
from tailrace.app.transactions.interfaces import GroupSource, GroupView
from tailrace.app.transactions.partitions import TransactionPartitions, UndeliveredRecords
from tailrace.app.transactions.window import Window
from tailrace.core.delivery.positions import Position
from tailrace.core.delivery.progress import Lease
from tailrace.records import Record, TopicPartition

__all__ = ["InterruptibleWait", "TransactionDelivery"]

# ---- wait that can be ended early, for the next records of a consumer ------------------------------------------------

ResultT = TypeVar("ResultT")


class InterruptibleWait:
    """Wait of one task for an awaitable; at most one wait runs at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Timeout | None = None

    @property
    def is_waiting(self) -> bool:
        """True during a wait."""
        return self._waiting is not None

    async def wait(self, awaitable: Awaitable[ResultT], until: float | None) -> ResultT | None:
        """Return the result of an awaitable; cancel it and return None at ``until`` or when ``end`` is called.

        Args:
            awaitable: awaitable that loses nothing if it is canceled.
            until: event loop time; None for no limit.
        """
        try:
            async with asyncio.timeout_at(until) as self._waiting:
                return await awaitable
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def end(self) -> None:
        """End the current wait, if there is one."""
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(self._loop.time())


# ---- delivery of records from a consumer into the open transaction ---------------------------------------------------


class TransactionDelivery:
    """Delivery of one group's records from its consumer.

    Args:
        source: started consumer.
        group_view: positions of the consumer.
        partitions: partitions of the open transaction.
        deferred_records: records that must not join the open transaction.
        window: state of the open transaction, and limits for it.

    Attributes:
        single_record: partition and offset of the only record of the open transaction, if this record must have a
            transaction of its own; otherwise None.
        last_delivered: partition and offset of the last delivered record; None before the first delivery.
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
        self._slice_wait = InterruptibleWait()
        self.single_record: tuple[TopicPartition, int] | None = None
        self.last_delivered: tuple[TopicPartition, int] | None = None
        self._may_have_moved = True
        """True if a position may have changed since the last check."""
        group_view.watch(self._on_position_change)

    async def next(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease] | None:
        """Deliver the next records into the transaction, and return them; None if the window must be checked first.

        Args:
            room_of: returns how many records of a partition the handlers accept now.
        """
        if self._may_have_moved and self._add_start_offsets():
            return None
        undelivered = self._partitions.undelivered

        def room(partition: TopicPartition) -> int:
            return 0 if partition in undelivered else self._room(partition, None, room_of)

        # Read the time before looking for records, so that the wait ends at once if a record becomes due meanwhile.
        now = self._loop.time()
        until = self._window.next_deadline(now)
        if until is None:
            first = [one.first for one in undelivered.values()]
            until = self._deferred_records.next_due_at(now, self._group_view.next_offsets(), first)
        if (found := self._deliver_undelivered(room_of)) is not None:
            return found
        if (received := await self._slice_wait.wait(self._source.next_slice(room), until)) is None:
            return None
        position, lease = received
        if position.has_stale_commit or self._deferred_records.may_hold_back(position.partition):
            self._may_have_moved |= position.has_stale_commit
            undelivered[position.partition] = UndeliveredRecords(position, lease)
            self._deferred_records.note_read(lease.rest, self._loop.time())
            return self._deliver_undelivered(room_of)
        self._add_delivered(position, lease)
        return position, lease

    def interrupt(self) -> None:
        """End the wait of ``next``, so that the window is checked."""
        self._slice_wait.end()

    def progressed(self) -> None:
        """Look again for records to deliver, because records were finished or there is room for more."""
        if self._slice_wait.is_waiting and (self._partitions.undelivered or self._is_open_without_work):
            # ``next`` waits for the consumer, which knows neither the undelivered records nor the window.
            self._slice_wait.end()

    # ---- inside ------------------------------------------------------------------------------------------------

    def _on_position_change(self) -> None:
        self._may_have_moved = True
        self._slice_wait.end()

    def _add_start_offsets(self) -> bool:
        """Add uncommitted start offsets to the transaction, and have it committed; return True if there are any.

        If there are none, a position that advanced past control records or gaps opens a transaction without records.
        """
        starts = self._group_view.uncommitted_starts()
        self._may_have_moved = bool(starts)
        if starts:
            if not self._window.is_open:
                self._window.add(0, self._loop.time())
            self._partitions.add_start_offsets(starts)
            self._window.cut()
        elif not self._window.is_open:
            undelivered = self._partitions.undelivered
            if any(one.partition not in undelivered for one in self._group_view.advanced_positions()):
                # Records that arrive within ``transaction_interval_ms`` join the transaction.
                self._window.add(0, self._loop.time())
        return self._may_have_moved

    def _deliver_undelivered(self, room_of: Callable[[TopicPartition], int]) -> tuple[Position, Lease] | None:
        """Deliver records of ``undelivered`` of one partition, and return them; None if none may be delivered now."""
        now = self._loop.time()

        def count_of(records: Sequence[Record]) -> int:
            room = self._room(records[0].topic_partition, records[0].offset, room_of)
            return len(self._deferred_records.first_of(records, room, now)) if room else 0

        if (found := self._partitions.take_undelivered(count_of)) is None:
            return None
        position, lease = found
        self._add_delivered(position, lease)
        first = lease.records[0].offset
        if self._deferred_offsets.reaches(position.partition, first):
            self.single_record = position.partition, first
            self._window.close()
        return position, lease

    def _room(self, partition: TopicPartition, delivered: int | None, room_of: Callable[[TopicPartition], int]) -> int:
        """Return how many records of a partition may be delivered from the offset ``delivered`` on.

        If ``delivered`` is None, it is the next offset to deliver of the consumer.
        """
        room = 0 if self._partitions.is_full(partition) else min(room_of(partition), self._window.room)
        if partition not in self._deferred_offsets or not room:
            return room
        if delivered is None:
            delivered = self._group_view.next_offsets().get(partition)
        return self._deferred_offsets.room(partition, delivered, room, self._loop.time(), is_open=self._window.is_open)

    def _add_delivered(self, position: Position, lease: Lease) -> None:
        self._window.add(lease.count, self._loop.time())
        self._partitions.add_delivered(position, lease)
        self.last_delivered = position.partition, lease.records[-1].offset

    @property
    def _is_open_without_work(self) -> bool:
        """True if the window is open past its interval, no incomplete batch waits, and no handler runs."""
        has_work = self._partitions.are_gathering or self._partitions.are_running
        return self._window.is_kept_open(self._loop.time()) and not has_work
