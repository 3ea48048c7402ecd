"""Backfill: handles existing records in bounded batches and commits the group's offsets after each batch.

After a crash, the next run starts at the committed offsets. With a checkpoint, the offsets and the number of a batch
are saved before the batch starts. If the batch is interrupted, the next run, a backfill or a query, repeats it with the
same offsets and number before any other batch. After each batch, a new generation of the checkpoint starts at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tailrace.context_managers import contextmanager
from tailrace.errors import TailraceError
from tailrace.records import TopicPartition
from tailrace.spark.offsets.checkpoint import PlannedBatch, key_of
from tailrace.spark.offsets.ranges import Offsets, next_ends, offsets_left, spark_assign, spark_json
from tailrace.spark.offsets.start_offsets import StartOffsets, backfill_metadata, start_metadata, start_offsets_after
from tailrace.spark.streaming import Stage
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Backfill", "BackfillProgress", "BackfillReport", "GroupStatus", "OnProgress", "progress_reporter"]

# ---- progress and results --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """Progress of a backfill, counted in offsets; not every offset has a record."""

    done: int
    """Number of offsets in finished batches."""
    total: int
    """Number of offsets between the start and the end of the backfill."""
    elapsed_s: float
    """Seconds since the start of the backfill."""

    @property
    def per_second(self) -> float:
        """Mean number of offsets per second since the start."""
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated remaining time in seconds; None until the first batch has ended."""
        return (self.total - self.done) / self.per_second if self.per_second else None


OnProgress: TypeAlias = Callable[[BackfillProgress], object]
"""Function that is called at the start of a backfill and after each batch."""


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """Result of a backfill."""

    records: int
    """Number of records delivered to handlers."""
    failures: int
    """Number of records that failed for good, were skipped, or were written to a retry topic."""
    dead_letters: int
    """Number of records written to the dead-letter topic."""
    duration_s: float
    """Duration of the backfill in seconds."""
    offsets: Mapping[TopicPartition, int] = field(repr=False)
    """Committed offset after the backfill, by partition."""
    already_finished: int = 0
    """Number of records that were skipped because the live app had finished them before."""
    lost: int = 0
    """Number of offsets that were deleted from the log before they were read."""
    batches: int = 0
    """Number of batches."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Committed offsets and members of a group, and end offsets of the topics."""

    group_id: str
    committed: Mapping[TopicPartition, int]
    """Committed offsets by partition; a partition without a committed offset is missing."""
    ends: Mapping[TopicPartition, int] = field(repr=False)
    """End offsets by partition."""
    members: int
    """Number of live members."""

    @property
    def lag(self) -> int:
        """Sum of the lags of all partitions that have a committed offset."""
        return sum(max(0, self.ends[one] - offset) for one, offset in self.committed.items() if one in self.ends)


@contextmanager
def progress_reporter(title: str, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """Yield ``on_progress`` if it is not None.

    Otherwise, yield a function that shows a progress bar on stderr if stderr is a terminal and ``rich`` is installed,
    and that does nothing in other cases.
    """
    if on_progress is not None:
        yield on_progress
        return
    try:
        from rich import progress as rich  # noqa: PLC0415 - an extra
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ImportError:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.completed:,.0f} of {task.total:,.0f}, {task.fields[rate]:,.0f}/s"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, rate=0.0)
        yield lambda now: bar.update(task, completed=now.done, total=now.total, rate=now.per_second)


# ---- backfill --------------------------------------------------------------------------------------------------------


@dataclass
class Backfill:
    """Backfill of the topics of some handlers.

    Attributes:
        stage: what the backfill needs. The checkpoint stores the number and offsets of the current batch.
        max_offsets: approximate maximum number of offsets in a batch.
    """

    stage: Stage
    max_offsets: int

    def run(
        self,
        start_offsets: StartOffsets,
        ends: Offsets,
        on_progress: OnProgress,
        interrupted: tuple[int, Offsets] | None,
    ) -> BackfillReport:
        """Handle all records from ``start_offsets`` to ``ends``, after the batch that the last run has not finished.

        Args:
            start_offsets: start offsets, and offset maps of records that are finished.
            ends: end offset of each partition.
            on_progress: function that is called at the start and after each batch.
            interrupted: id and end offsets of a batch that starts at ``start_offsets`` and is repeated; or None.

        Raises:
            GroupNotEmptyError: the group has live members.
            CommitFailedError: the group's offsets were changed by another client.
            OffsetOutOfRangeError: the next offsets were deleted from the log, and ``auto_offset_reset="none"``.
            HandlerFailedError: a handler failed for good, and its options end the run.
            TailraceError: a worker failed.
        """
        stage, store, state = self.stage, self.stage.store, self.stage.state
        assert stage.batch_runner is not None
        started_at, total_metrics, batch_count = store.now, TaskMetrics(), 0
        next_offsets = dict(start_offsets.offsets)
        batch_runner = stage.batch_runner.with_offset_maps(start_offsets.offset_maps)
        total = offsets_left(next_offsets, ends)
        store.watch_maps(start_offsets.offset_maps)
        # Commit the start offsets, so that later runs and the live app start at the same offsets.
        store.commit(start_offsets.commits(start_offsets.uncommitted), start_metadata(), may_go_back=True)
        if interrupted is None:
            state.begin_generation(stage.cluster_state.topic_ids, next_offsets, start_metadata())
        on_progress(BackfillProgress(0, total, 0.0))
        while interrupted is not None or offsets_left(next_offsets, ends):
            batch_id, batch_ends = interrupted or self._plan(next_offsets, ends)
            batch_number, interrupted = state.batch_number(batch_id), None
            store.check_unchanged()
            try:
                metrics = batch_runner.run(self._read(next_offsets, batch_ends), batch_number)
            except TailraceError:
                raise
            except Exception:
                restart = start_offsets_after(store, start_offsets, next_offsets, stage.config, stage.observer)
                if restart is None:
                    raise
                reset_offsets = {one: offset for one, offset in restart.offsets.items() if offset != next_offsets[one]}
                store.watch_maps(restart.offset_maps)
                store.commit(restart.commits(reset_offsets), start_metadata(), may_go_back=True)
                start_offsets, next_offsets = restart, dict(restart.offsets)
                batch_runner = stage.batch_runner.with_offset_maps(restart.offset_maps)
                ends = {one: min(offset, start_offsets.logs[one].end) for one, offset in ends.items()}
                continue
            text = backfill_metadata(batch_id)
            store.commit(start_offsets.commits(batch_ends), text)
            if stage.checkpoint is not None:
                # This also forgets the plan: after a reset of the group, no other batch may get its number.
                state.begin_generation(stage.cluster_state.topic_ids, batch_ends, text)
                stage.checkpoint.save(state)
            next_offsets, batch_count = batch_ends, batch_count + 1
            total_metrics += metrics
            left = offsets_left(next_offsets, ends)
            on_progress(BackfillProgress(total - left, total, store.now - started_at))
        return BackfillReport(
            records=total_metrics.records,
            failures=total_metrics.failures,
            dead_letters=total_metrics.dead_letters,
            duration_s=store.now - started_at,
            offsets=next_offsets,
            already_finished=total_metrics.already_finished,
            lost=start_offsets.lost,
            batches=batch_count,
        )

    def _plan(self, next_offsets: Offsets, ends: Offsets) -> tuple[int, Offsets]:
        """Plan the next batch, save it in the checkpoint, if there is one, and return its id and end offsets."""
        batch_ends = next_ends(next_offsets, ends, self.max_offsets)
        state, checkpoint = self.stage.state, self.stage.checkpoint
        if checkpoint is None:
            return 0, batch_ends
        start, end = ({key_of(one): offset for one, offset in each.items()} for each in (next_offsets, batch_ends))
        state.planned = PlannedBatch(state.next_batch_id, start, end)
        state.next_batch_id += 1
        checkpoint.save(state)
        return state.planned.batch_id, batch_ends

    def _read(self, starts: Offsets, ends: Offsets) -> DataFrame:
        partitions: list[TopicPartition] = [one for one, offset in ends.items() if offset > starts[one]]
        reader = self.stage.spark.read.format("kafka").options(**self.stage.source)
        return (
            reader.option("assign", spark_assign(partitions))
            .option("startingOffsets", spark_json({one: starts[one] for one in partitions}))
            .option("endingOffsets", spark_json({one: ends[one] for one in partitions}))
            .load()
        )
