"""Reaction to record batches that cannot be read, for an app, which cannot seek past them (``on_corrupt_batch``)."""

from __future__ import annotations

import asyncio
import random
import shlex
from typing import Literal, TypeAlias

from tailrace.consumer.partition import Partition, UnreadableBatch
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.backoff import Backoff
from tailrace.errors import UnreadableBatchError
from tailrace.observe.events import CorruptBatchSkipped, PartitionBlocked, PartitionUnblocked

__all__ = ["OnCorruptBatch", "UnreadableBatches"]

OnCorruptBatch: TypeAlias = Literal["pause", "stop", "skip"]

_PAUSES = Backoff(1.0, 30.0)
"""Pauses between two attempts to read a batch."""


class UnreadableBatches:
    """Batches of one consumer that cannot be read: their partitions wait, or the batches are skipped.

    A waiting partition has no buffered records and is not fetched until the next attempt. ``Partition.unreadable`` has
    its batch; a seek, a reset and a revocation end the wait.

    Args:
        policy: ``on_corrupt_batch``.

    Attributes:
        is_waiting: True if a partition waits, or a wait has ended since ``update``.
        skipped: number of skipped batches.
    """

    def __init__(self, policy: OnCorruptBatch, parts: ConsumerParts) -> None:
        self._policy, self._parts, self._partitions = policy, parts, parts.partitions
        self._observer, self._group_id = parts.observer, parts.config.group_id
        self._loop = asyncio.get_running_loop()
        self.is_waiting = False
        self.skipped = 0

    @property
    def next_retry_at(self) -> float | None:
        """Time of the event loop at which ``update`` must be called; None for no such time."""
        waiting = [one.unreadable for one in self._partitions if one.fetched is None]
        return min((batch.retry_at for batch in waiting if batch is not None), default=None)

    def handle(self, error: UnreadableBatchError) -> None:
        """Let the partition of the batch wait, or skip the batch.

        Raises:
            UnreadableBatchError: the policy is "stop".
        """
        if self._policy == "stop":
            raise error
        partition = self._partitions.get(error.partition)
        if partition is None or (offset := partition.delivered) is None:
            return
        partition.drop_batches()
        if self._policy == "skip" and error.next_offset is not None and error.next_offset > offset:
            partition.skip_batch(error.next_offset)
            partition.unreadable = None
            self.skipped += 1
            self._observer.emit(
                CorruptBatchSkipped(self._group_id, error.partition, offset, error.next_offset, error.reason, error)
            )
        else:
            self._wait(partition, offset, error)
        self._parts.changed()

    def update(self) -> None:
        """Fetch the batches whose next attempt is due, and note the partitions that could be read on."""
        now, self.is_waiting = self._loop.time(), False
        for partition in self._partitions:
            batch = partition.unreadable
            if batch is None:
                continue
            if (partition.delivered or 0) > batch.offset:
                partition.unreadable = None
                self._observer.emit(PartitionUnblocked(self._group_id, partition.topic_partition, batch.offset))
                continue
            self.is_waiting = True
            if partition.fetched is None and batch.retry_at <= now:
                partition.fetch_again()
                self._parts.changed()

    def _wait(self, partition: Partition, offset: int, error: UnreadableBatchError) -> None:
        earlier = partition.unreadable
        attempts = 1 if earlier is None else earlier.attempts + 1
        retry_at = self._loop.time() + _PAUSES.pause_s(attempts, random.random())  # noqa: S311 - for jitter
        advice = f"{error.remedy}, or {self._way_on(error)}"
        partition.wait_at(UnreadableBatch(offset, error.next_offset, error.reason, advice, attempts, retry_at))
        self.is_waiting = True
        if earlier is None or earlier.offset != offset:
            self._observer.emit(
                PartitionBlocked(
                    self._group_id, partition.topic_partition, offset, error.next_offset, error.reason, advice, error
                )
            )

    def _way_on(self, error: UnreadableBatchError) -> str:
        """Return an instruction to move the group past a batch."""
        topic, number = error.partition
        command = f"tailrace offsets reset {shlex.quote(self._group_id or '')} --topic {topic}:{number} --to-offset"
        if error.next_offset is None:
            return f"stop the group and run `{command} N --execute`, with the first offset after the batch as N"
        return f"stop the group and run `{command} {error.next_offset} --execute`"
