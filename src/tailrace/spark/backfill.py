"""A backfill: what is there is worked off in bounded batches, and the group committed after each.

Rule of this file: whoever is killed goes on where the group stands. Before a batch whose rows go to a sink is begun,
its offsets are written down; begun again, it has the same ones and the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.records import TopicPartition
from tailrace.spark.batches import BatchRunner
from tailrace.spark.offsets.checkpoint import Checkpoint, PipelineState, Planned, key_of, partition_of
from tailrace.spark.offsets.ranges import Offsets, left_between, next_ends, spark_assign, spark_json
from tailrace.spark.offsets.resume import said_at_start, said_by_backfill
from tailrace.spark.offsets.start_offsets import StartOffsets
from tailrace.spark.offsets.store import LogBounds, SparkOffsetStore
from tailrace.spark.reports import BackfillProgress, BackfillReport, OnProgress
from tailrace.spark.worker.task_metrics import TaskMetrics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Backfill"]


@dataclass
class Backfill:
    """One run of it.

    Attributes:
        options: of Spark's Kafka source.
        checkpoint: where batches are written down, if they are.
        most: so many offsets in one batch.
        overtaken: given the beginning and how far it has come, where to go on when retention has removed what is next;
            None when it has not.
    """

    spark: SparkSession
    store: SparkOffsetStore
    batches: BatchRunner
    options: Mapping[str, str]
    checkpoint: Checkpoint | None
    state: PipelineState | None
    most: int
    overtaken: Callable[[StartOffsets, Offsets], StartOffsets | None]

    def run(self, start_offsets: StartOffsets, ends: Offsets, on_progress: OnProgress) -> BackfillReport:
        """Work off what lies between.

        Raises:
            GroupNotEmptyError: the group has live members.
            CommitFailedError: somebody else has moved the group meanwhile.
            OffsetOutOfRangeError: what was next was removed, and ``auto_offset_reset="none"``.
            HandlerFailedError: a handler failed for good, and nothing says what else to do.
            TailraceError: as a worker raises it.
        """
        began_at, at, whole, count = self.store.now, dict(start_offsets.at), TaskMetrics(), 0
        batches = self.batches.beginning_at(start_offsets.done)
        total = left_between(at, ends)
        self.store.watch_maps(start_offsets.done)
        # Where nothing is committed the beginning is: the live app has to find the same one.
        self.store.commit(start_offsets.commits(start_offsets.unsaid), said_at_start(), may_go_back=True)
        on_progress(BackfillProgress(0, total, 0.0))
        while left_between(at, ends):
            batch_id, following = self._plan(at, ends, start_offsets.logs)
            self.store.check_untouched()
            try:
                tally = batches.run(self._read(at, following), batch_id)
            except TailraceError:
                raise
            except Exception:
                again = self.overtaken(start_offsets, at)
                if again is None:
                    raise
                moved = {one: offset for one, offset in again.at.items() if offset != at[one]}
                self.store.watch_maps(again.done)
                self.store.commit(again.commits(moved), said_at_start(), may_go_back=True)
                start_offsets, at, batches = again, dict(again.at), self.batches.beginning_at(again.done)
                ends = {one: min(offset, start_offsets.logs[one].end) for one, offset in ends.items()}
                continue
            self.store.commit(start_offsets.commits(following), said_by_backfill(batch_id))
            self._forget_plan()
            at, count = following, count + 1
            whole += tally
            on_progress(BackfillProgress(total - left_between(at, ends), total, self.store.now - began_at))
        return BackfillReport(
            records=whole.records,
            failures=whole.failures,
            dead_letters=whole.dead_letters,
            duration_s=self.store.now - began_at,
            offsets=at,
            passed=whole.passed,
            lost=start_offsets.lost,
            batches=count,
        )

    def _plan(self, at: Offsets, ends: Offsets, logs: Mapping[TopicPartition, LogBounds]) -> tuple[int, Offsets]:
        """The number and the ends of the next batch; those of one that was begun here before and is not committed."""
        if self.state is None or self.checkpoint is None:
            return 0, next_ends(at, ends, self.most)
        planned = self.state.planned
        if planned is not None and planned.start == {key_of(one): offset for one, offset in at.items()}:
            end = {partition_of(one): offset for one, offset in planned.end.items()}
            if all(offset <= logs[one].end for one, offset in end.items()):
                return self.state.number(planned.batch_id), end
        following = next_ends(at, ends, self.most)
        batch_id = self.state.next_batch_id
        self.state.next_batch_id += 1
        self.state.planned = Planned(
            batch_id,
            {key_of(one): offset for one, offset in at.items()},
            {key_of(one): offset for one, offset in following.items()},
        )
        self.checkpoint.save(self.state)
        return self.state.number(batch_id), following

    def _forget_plan(self) -> None:
        """The batch is committed: whoever sets the group back to its beginning wants another one."""
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
