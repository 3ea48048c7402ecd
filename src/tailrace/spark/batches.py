"""One batch on Spark: read by Spark's own source, handled in its workers, counted, and given to a sink.

Rule of this file: handlers run once a batch. Without a sink there is one job, whose rows are the workers' tallies; with
one, the rows are kept until it has written them. What is lost with an executor is made again, so the tallies are looked
at behind the sink, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tailrace.core.offset_map import OffsetMap
from tailrace.records import TopicPartition
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.spark.worker.records import columns_for
from tailrace.spark.worker.rows import columns_of
from tailrace.spark.worker.shipment import Shipment
from tailrace.spark.worker.shipped_maps import ShippedMaps
from tailrace.spark.worker.task_metrics import COLUMN, TaskMetrics
from tailrace.spark.worker.task_runner import handling

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["BatchRunner", "Sink"]

Sink: TypeAlias = "Callable[[DataFrame, int], object]"
"""Writes the rows of one batch; the number is the batch's, and the same when the batch is handled again."""


_IS_RESULT = f"""
    CASE WHEN {COLUMN} IS NULL THEN true WHEN get_json_object({COLUMN}, '$.error') = '' THEN false
    ELSE raise_error({COLUMN}) END
"""
"""A task that failed has no rows, and whoever writes them may not take that for all there are."""


@dataclass(frozen=True)
class BatchRunner:
    """How batches are handled.

    Attributes:
        kind: of what handlers return; None without a sink.
        done: what the group had finished behind the offsets at which it is begun.
    """

    chosen: SelectedHandlers
    shipment: Shipment
    kind: DataType | None
    sink: Sink | None
    parallelism: int | None
    done: ShippedMaps = field(default_factory=lambda: ShippedMaps({}))

    def beginning_at(self, done: Mapping[TopicPartition, OffsetMap]) -> BatchRunner:
        """The same, of which so much is done."""
        return replace(self, done=ShippedMaps(done))

    def run(self, records: DataFrame, batch_id: int) -> TaskMetrics:
        """Handle what Spark's Kafka source has read.

        Raises:
            HandlerFailedError: a handler failed for good, and nothing says what else to do.
            TailraceError: what ended a worker's task.
        """
        # One text less for each record, on its way from Java.
        topic = None if self.chosen.patterns or len(self.chosen.topics) > 1 else self.chosen.topics[0]
        handle = handling(self.shipment, self.done, self.kind, topic, is_of_one=self.parallelism is None)
        rows = self._spread(records).selectExpr(*columns_for(topic)).mapInArrow(handle, columns_of(self.kind))
        if self.sink is None:
            return TaskMetrics.summed(row[COLUMN] for row in rows.collect())
        kept = rows.persist()
        try:
            tally = _tally_of(kept)
            try:
                self.sink(kept.filter(_IS_RESULT).drop(COLUMN), batch_id)
            except Exception:
                _tally_of(kept)
                raise
            # Rows that were lost meanwhile, with their executor, were made by other runs of their tasks.
            _tally_of(kept)
        finally:
            kept.unpersist()
        return tally

    def _spread(self, records: DataFrame) -> DataFrame:
        """Over as many tasks as are wanted, with what has to stay together in one, in order."""
        if self.parallelism is None:
            return records
        orders = {one.order_by for one in self.chosen.handlers}
        together = ["topic", "partition"] if "partition" in orders else ["topic", "partition", "key"]
        if orders == {"none"}:
            return records.repartition(self.parallelism)
        return records.repartition(self.parallelism, *together).sortWithinPartitions("topic", "partition", "offset")


def _tally_of(rows: DataFrame) -> TaskMetrics:
    return TaskMetrics.summed(row[COLUMN] for row in rows.filter(f"{COLUMN} IS NOT NULL").select(COLUMN).collect())
