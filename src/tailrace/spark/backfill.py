"""Backfill: handles existing records in bounded batches and commits the group's offsets after each batch.

After a crash, the next backfill starts at the committed offsets. With a checkpoint, the offsets and the number of a
batch are saved before the batch starts, so that they are the same if the batch is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.records import TopicPartition
from tailrace.spark.batches import BatchRunner
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, PlannedBatch, key_of, partition_of
from tailrace.spark.offsets.ranges import Offsets, next_ends, offsets_left, spark_assign, spark_json
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
    """Backfill of the topics of some handlers.

    Attributes:
        spark: session that reads the records.
        store: offsets of the group and of the logs.
        batch_runner: runner of the batches.
        options: options of Spark's Kafka source.
        checkpoint: checkpoint that stores the number and offsets of the current batch; None without a checkpoint.
        state: state of the checkpoint; None without a checkpoint.
        max_offsets: approximate maximum number of offsets in a batch.
        restart_after_loss: function that returns new start offsets if the next offsets were deleted from the log, and
            None otherwise; its arguments are the previous start offsets and the next offset of each partition.
    """

    spark: SparkSession
    store: SparkOffsetStore
    batch_runner: BatchRunner
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
            HandlerFailedError: a handler failed for good, and its options end the run.
            TailraceError: a worker failed.
        """
        started_at, total_metrics, batch_count = self.store.now, TaskMetrics(), 0
        next_offsets = dict(start_offsets.offsets)
        batch_runner = self.batch_runner.with_offset_maps(start_offsets.offset_maps)
        total = offsets_left(next_offsets, ends)
        self.store.watch_maps(start_offsets.offset_maps)
        # Commit the start offsets, so that later runs and the live app start at the same offsets.
        self.store.commit(start_offsets.commits(start_offsets.uncommitted), start_metadata(), may_go_back=True)
        on_progress(BackfillProgress(0, total, 0.0))
        while offsets_left(next_offsets, ends):
            batch_number, batch_ends = self._plan(next_offsets, ends, start_offsets.logs)
            self.store.check_unchanged()
            try:
                metrics = batch_runner.run(self._read(next_offsets, batch_ends), batch_number)
            except TailraceError:
                raise
            except Exception:
                restart = self.restart_after_loss(start_offsets, next_offsets)
                if restart is None:
                    raise
                reset_offsets = {one: offset for one, offset in restart.offsets.items() if offset != next_offsets[one]}
                self.store.watch_maps(restart.offset_maps)
                self.store.commit(restart.commits(reset_offsets), start_metadata(), may_go_back=True)
                start_offsets, next_offsets = restart, dict(restart.offsets)
                batch_runner = self.batch_runner.with_offset_maps(restart.offset_maps)
                ends = {one: min(offset, start_offsets.logs[one].end) for one, offset in ends.items()}
                continue
            self.store.commit(start_offsets.commits(batch_ends), backfill_metadata(batch_number))
            self._clear_plan()
            next_offsets, batch_count = batch_ends, batch_count + 1
            total_metrics += metrics
            left = offsets_left(next_offsets, ends)
            on_progress(BackfillProgress(total - left, total, self.store.now - started_at))
        return BackfillReport(
            records=total_metrics.records,
            failures=total_metrics.failures,
            dead_letters=total_metrics.dead_letters,
            duration_s=self.store.now - started_at,
            offsets=next_offsets,
            already_finished=total_metrics.already_finished,
            lost=start_offsets.lost,
            batches=batch_count,
        )

    def _plan(
        self, next_offsets: Offsets, ends: Offsets, logs: Mapping[TopicPartition, LogBounds]
    ) -> tuple[int, Offsets]:
        """Plan the next batch, save it in the checkpoint, if there is one, and return its number and end offsets.

        A saved batch that starts at ``next_offsets`` was not committed. It is returned again, unless a log now ends
        before the batch.
        """
        if self.state is None or self.checkpoint is None:
            return 0, next_ends(next_offsets, ends, self.max_offsets)
        start = {key_of(one): offset for one, offset in next_offsets.items()}
        planned = self.state.planned
        if planned is not None and planned.start == start:
            planned_ends = {partition_of(one): offset for one, offset in planned.end.items()}
            if all(offset <= logs[one].end for one, offset in planned_ends.items()):
                return self.state.batch_number(planned.batch_id), planned_ends
        batch_ends = next_ends(next_offsets, ends, self.max_offsets)
        batch_id = self.state.next_batch_id
        self.state.next_batch_id += 1
        end = {key_of(one): offset for one, offset in batch_ends.items()}
        self.state.planned = PlannedBatch(batch_id, start, end)
        self.checkpoint.save(self.state)
        return self.state.batch_number(batch_id), batch_ends

    def _clear_plan(self) -> None:
        """Delete the saved batch after its commit: after a reset of the group, no other batch may get its number."""
        if self.state is not None and self.checkpoint is not None:
            self.state.planned = None
            self.checkpoint.save(self.state)

    def _read(self, starts: Offsets, ends: Offsets) -> DataFrame:
        partitions: list[TopicPartition] = [one for one, offset in ends.items() if offset > starts[one]]
        reader = self.spark.read.format("kafka").options(**self.options)
        return (
            reader.option("assign", spark_assign(partitions))
            .option("startingOffsets", spark_json({one: starts[one] for one in partitions}))
            .option("endingOffsets", spark_json({one: ends[one] for one in partitions}))
            .load()
        )
