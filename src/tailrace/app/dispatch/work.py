"""Started work of an executor, and the partitions whose records it holds.

What is finished is told to a partition's tracker here alone. Of work that finishes in order nothing is told record by
record: the executor knows the lowest offset that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.app.publish.abandonment import HandlerTask
from tailrace.core.delivery.offset_tracker import OffsetTracker
from tailrace.core.delivery.progress import Position
from tailrace.core.dispatch.batching import HandlerBatch
from tailrace.core.dispatch.lanes import QueuedRecord
from tailrace.records import Record, TopicPartition

__all__ = ["HeldPartition", "RunningBatch", "Work", "Worker"]


@dataclass(slots=True, eq=False)
class HeldPartition:
    """Records of one partition that an executor holds, since the partition's last beginning."""

    position: Position
    tracker: OffsetTracker
    """Knows the records that are started, but for those of ``whole`` batches, and finish out of order."""
    whole: dict[RunningBatch, int] = field(default_factory=dict)
    """Running batches of which the tracker knows nothing, each with its lowest offset."""
    passed: int = 0
    """By key: the tracker knows the waiting records below this offset, which other batches have overtaken."""
    is_halted: bool = False
    """True if none of its records is started here any more, and no failed one is tried again."""
    left: int | None = None
    """Since then: the lowest offset that will not be finished here."""

    @property
    def is_current(self) -> bool:
        """True if the partition was not sought, reset or assigned anew since."""
        return self.position.tracker is self.tracker

    @property
    def lowest(self) -> int | None:
        """Lowest offset that the tracker knows to be unfinished."""
        return self.tracker.lowest

    def begin(self, offset: int) -> None:
        """Note a record that is started, or waits for one that is."""
        self.tracker.begin(offset)

    def finish(self, offset: int) -> None:
        """Note that a record of ``begin`` is finished."""
        self.tracker.finish(offset)

    def advance(self, end: int) -> None:
        """Note that all below ``end`` is finished, or known to be unfinished."""
        self.tracker.advance(end)

    def halt(self, unstarted: Sequence[int]) -> None:
        """Start nothing more of it, and leave what was not started to the partition's next owner."""
        self.is_halted = True
        for running in list(self.whole):
            # What runs is waited for, also after records that are left.
            running.track()
        self.tracker.leave(unstarted)
        self.left = _lower(self.left, min(unstarted, default=None))

    def leave(self, offset: int) -> None:
        """Leave a started record to the partition's next owner."""
        self.tracker.abandon(offset)
        self.left = _lower(self.left, offset)
        if self.is_current and self.position.delivered is not None:
            self.position.delivered = _lower(self.position.delivered, self.left)


class Work(Protocol):
    """A record or a batch that was started and is not finished, in a task.

    Attributes:
        queued: the record or batch, as it was taken out of the queue.
        publishing: mark of the task.
        since: time at which the handler was called; None while it is not called, or waits for another attempt.
        waits: pauses before another attempt, each of one partition; None for all of them.
    """

    queued: Any
    publishing: HandlerTask
    since: float | None
    waits: dict[asyncio.Future[None], TopicPartition | None]

    @property
    def records(self) -> list[Record]:
        """Records that are not finished, and not left to another owner."""

    @property
    def sources(self) -> Mapping[TopicPartition, HeldPartition]:
        """The partitions of ``records``, as they were held when the records were added."""


class Worker:
    """Task that runs one record after the other.

    Attributes:
        context: context in which each record starts.
        record: the record that it runs.
        queued: the same, once that is suspended or was parked before.
        rested: ends the worker's rest; None while it does not rest.
        has_rested: True if the event loop had its turn while the last record was suspended.
        has_paused: True if the last record waited for another attempt.
        is_left: True if the record is left to another owner.
    """

    __slots__ = (
        "context",
        "has_paused",
        "has_rested",
        "is_left",
        "publishing",
        "queued",
        "record",
        "rested",
        "since",
        "waits",
    )

    def __init__(self, context: Context) -> None:
        self.publishing = HandlerTask(context)
        self.context = context.copy()
        self.record: Record | None = None
        self.queued: QueuedRecord[HeldPartition] | None = None
        self.since: float | None = None
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}
        self.rested: asyncio.Future[None] | None = None
        self.has_rested = self.has_paused = self.is_left = False

    @property
    def records(self) -> list[Record]:
        """The record that it runs, if any."""
        return [] if self.record is None or self.is_left else [self.record]

    @property
    def sources(self) -> Mapping[TopicPartition, HeldPartition]:
        """The record's partition; empty while the record was never suspended."""
        return {} if self.queued is None else {self.queued.record.topic_partition: self.queued.source}


class RunningBatch:
    """Task that runs one batch.

    Attributes:
        is_tracked: True if the trackers know each of its records; else they know none.
    """

    __slots__ = ("is_tracked", "publishing", "queued", "since", "waits")

    def __init__(self, context: Context, batch: HandlerBatch[HeldPartition]) -> None:
        self.publishing, self.queued = HandlerTask(context), batch
        self.since: float | None = None
        self.is_tracked = False
        self.waits: dict[asyncio.Future[None], TopicPartition | None] = {}
        for partition, held in batch.sources.items():
            held.whole[self] = batch.lowest[partition]

    @property
    def records(self) -> list[Record]:
        """Records of the batch that are not finished."""
        return self.queued.records

    @property
    def sources(self) -> Mapping[TopicPartition, HeldPartition]:
        """The partitions of the batch."""
        return self.queued.sources

    def track(self) -> None:
        """Have the trackers know each record: others may be finished before it."""
        for record in self.records:
            self.sources[record.topic_partition].begin(record.offset)
        self.is_tracked = True
        for held in self.sources.values():
            held.whole.pop(self, None)

    def finish(self, records: Iterable[Record]) -> None:
        """Finish tracked records."""
        for record in records:
            self.sources[record.topic_partition].finish(record.offset)

    def finish_whole(self, *, is_by_key: bool) -> None:
        """Finish a batch that is not tracked; then others that start before its end have to be."""
        for partition, held in self.sources.items():
            if held.whole.pop(self, None) is None or not held.whole:
                continue
            end = self.records[-1].offset if is_by_key else self.queued.lowest[partition]
            for other in [one for one, first in held.whole.items() if first < end]:
                other.track()


def _lower(one: int | None, other: int | None) -> int | None:
    return min((offset for offset in (one, other) if offset is not None), default=None)
