"""Backfill: handles existing records in bounded batches and commits the group's offsets after each.

A killed backfill continues at the committed offsets. With a checkpoint, the offsets and the number of a batch are saved
there before the batch starts, so that they are the same if the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.records import TopicPartition
from tailrace.spark.batches import BatchRunner
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, PlannedBatch, key_of, partition_of
from tailrace.spark.offsets.ranges import Offsets, left_between, next_ends, spark_assign, spark_json
from tailrace.spark.offsets.resume import backfill_metadata, start_metadata
from tailrace.spark.offsets.start_offsets import StartOffsets
from tailrace.spark.offsets.store import LogBounds, SparkOffsetStore
from tailrace.spark.reports import BackfillProgress, BackfillReport, OnProgress
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Backfill"]


@dataclass
class Backfill:
    """One backfill.

    Attributes:
        options: options of Spark's Kafka source.
        checkpoint: checkpoint in which batches are planned, if any.
        max_offsets: maximum number of offsets in a batch.
        restart_after_loss: function that returns new start offsets if the next offsets were deleted from the log, and
            None otherwise; its arguments are the previous start offsets and the current offsets.
    """

    spark: SparkSession
    store: SparkOffsetStore
    batches: BatchRunner
    options: Mapping[str, str]
    checkpoint: Checkpoint | None
    state: PipelineState | None
    max_offsets: int
    restart_after_loss: Callable[[StartOffsets, Offsets], StartOffsets | None]

    def run(self, start_offsets: StartOffsets, ends: Offsets, on_progress: OnProgress) -> BackfillReport:
        """Handle all records from ``start_offsets`` to ``ends``.

        Raises:
            GroupNotEmptyError: the group has live members.
            CommitFailedError: the group's offsets were changed by another client.
            OffsetOutOfRangeError: the next offsets were deleted from the log, and ``auto_offset_reset="none"``.
            HandlerFailedError: a handler failed for good and its options end the run.
            TailraceError: a worker failed.
        """
        began_at, at, total_metrics, count = self.store.now, dict(start_offsets.at), TaskMetrics(), 0
        batches = self.batches.beginning_at(start_offsets.done)
        total = left_between(at, ends)
        self.store.watch_maps(start_offsets.done)
        # Start offsets without a commit are committed, so that the app would start at the same ones.
        self.store.commit(start_offsets.commits(start_offsets.uncommitted), start_metadata(), may_go_back=True)
        on_progress(BackfillProgress(0, total, 0.0))
        while left_between(at, ends):
            batch_number, following = self._plan(at, ends, start_offsets.logs)
            self.store.check_unchanged()
            try:
                metrics = batches.run(self._read(at, following), batch_number)
            except TailraceError:
                raise
            except Exception:
                restart = self.restart_after_loss(start_offsets, at)
                if restart is None:
                    raise
                moved = {one: offset for one, offset in restart.at.items() if offset != at[one]}
                self.store.watch_maps(restart.done)
                self.store.commit(restart.commits(moved), start_metadata(), may_go_back=True)
                start_offsets, at, batches = restart, dict(restart.at), self.batches.beginning_at(restart.done)
                ends = {one: min(offset, start_offsets.logs[one].end) for one, offset in ends.items()}
                continue
            self.store.commit(start_offsets.commits(following), backfill_metadata(batch_number))
            self._clear_plan()
            at, count = following, count + 1
            total_metrics += metrics
            on_progress(BackfillProgress(total - left_between(at, ends), total, self.store.now - began_at))
        return BackfillReport(
            records=total_metrics.records,
            failures=total_metrics.failures,
            dead_letters=total_metrics.dead_letters,
            duration_s=self.store.now - began_at,
            offsets=at,
            already_finished=total_metrics.already_finished,
            lost=start_offsets.lost,
            batches=count,
        )

    def _plan(self, at: Offsets, ends: Offsets, logs: Mapping[TopicPartition, LogBounds]) -> tuple[int, Offsets]:
        """Return batch number and end offsets of the next batch, or those of a planned batch that was not committed."""
        if self.state is None or self.checkpoint is None:
            return 0, next_ends(at, ends, self.max_offsets)
        planned = self.state.planned
        if planned is not None and planned.start == {key_of(one): offset for one, offset in at.items()}:
            end = {partition_of(one): offset for one, offset in planned.end.items()}
            if all(offset <= logs[one].end for one, offset in end.items()):
                return self.state.number(planned.batch_id), end
        following = next_ends(at, ends, self.max_offsets)
        batch_id = self.state.next_batch_id
        self.state.next_batch_id += 1
        self.state.planned = PlannedBatch(
            batch_id,
            {key_of(one): offset for one, offset in at.items()},
            {key_of(one): offset for one, offset in following.items()},
        )
        self.checkpoint.save(self.state)
        return self.state.number(batch_id), following

    def _clear_plan(self) -> None:
        """Delete the plan of a committed batch: after a reset to its start, another batch must not reuse its number."""
        if self.state is not None and self.checkpoint is not None:
            self.state.planned = None
            self.checkpoint.save(self.state)

    def _read(self, at: Offsets, following: Offsets) -> DataFrame:
        moved: list[TopicPartition] = [one for one, offset in following.items() if offset > at[one]]
        reader = self.spark.read.format("kafka").options(**self.options)
        return (
            reader.option("assign", spark_assign(moved))
            .option("startingOffsets", spark_json({one: at[one] for one in moved}))
            .option("endingOffsets", spark_json({one: following[one] for one in moved}))
            .load()
        )
