"""One batch on Spark: read by Spark's Kafka source, handled by Python workers, counted and passed to a sink.

One Spark job runs the handlers. Without a sink, its rows are the metrics of the tasks. With a sink, the rows also
contain the results, and are persisted until the sink has written them, so that the sink's jobs do not run the handlers
again. Spark recomputes rows that are lost with an executor. The recomputed tasks may fail, so the metrics are checked
again after the sink.
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
"""Function that writes the rows of a batch; its second argument is the number of the batch, stable on repetition."""


_IS_RESULT = f"""
    CASE WHEN {COLUMN} IS NULL THEN true WHEN get_json_object({COLUMN}, '$.error') = '' THEN false
    ELSE raise_error({COLUMN}) END
"""
"""SQL condition that selects the rows of results and excludes the rows of metrics.

It raises in the sink's job if a task failed, since the sink must not write the results of an incomplete batch.
"""


@dataclass(frozen=True)
class BatchRunner:
    """Handles batches.

    Attributes:
        chosen: handlers to run.
        kind: Spark type of the handlers' results; None without a sink.
        done: offset maps of the partitions, for records finished after the start offsets.
    """

    chosen: SelectedHandlers
    shipment: Shipment
    kind: DataType | None
    sink: Sink | None
    parallelism: int | None
    done: ShippedMaps = field(default_factory=lambda: ShippedMaps({}))

    def beginning_at(self, done: Mapping[TopicPartition, OffsetMap]) -> BatchRunner:
        """Return a copy with the offset maps of new start offsets."""
        return replace(self, done=ShippedMaps(done))

    def run(self, records: DataFrame, batch_number: int) -> TaskMetrics:
        """Handle the records that Spark's Kafka source has read.

        Raises:
            HandlerFailedError: a handler failed for good and its options end the run.
            TailraceError: a task failed.
        """
        # With one topic, its name is not sent from Java with every record.
        topic = None if self.chosen.patterns or len(self.chosen.topics) > 1 else self.chosen.topics[0]
        # Without a shuffle, each task reads one partition of Kafka.
        handle = handling(self.shipment, self.done, self.kind, topic, has_one_partition=self.parallelism is None)
        rows = self._spread(records).selectExpr(*columns_for(topic)).mapInArrow(handle, columns_of(self.kind))
        if self.sink is None:
            return TaskMetrics.summed(row[COLUMN] for row in rows.collect())
        persisted = rows.persist()
        try:
            metrics = _metrics_of(persisted)
            try:
                self.sink(persisted.filter(_IS_RESULT).drop(COLUMN), batch_number)
            except Exception:
                # The sink's job also fails if a task failed: raise the error of the task, which names the cause.
                _raise_task_error(persisted)
                raise
            # Rows lost with an executor were recomputed by tasks that may have failed.
            _raise_task_error(persisted)
        finally:
            persisted.unpersist()
        return metrics

    def _spread(self, records: DataFrame) -> DataFrame:
        """Repartition the records to ``parallelism`` tasks, keeping the handlers' order."""
        if self.parallelism is None:
            return records
        orders = {one.order_by for one in self.chosen.handlers}
        together = ["topic", "partition"] if "partition" in orders else ["topic", "partition", "key"]
        if orders == {"none"}:
            return records.repartition(self.parallelism)
        return records.repartition(self.parallelism, *together).sortWithinPartitions("topic", "partition", "offset")


def _raise_task_error(rows: DataFrame) -> None:
    """Raise the error of a failed task, if there is one."""
    _metrics_of(rows)


def _metrics_of(rows: DataFrame) -> TaskMetrics:
    return TaskMetrics.summed(row[COLUMN] for row in rows.filter(f"{COLUMN} IS NOT NULL").select(COLUMN).collect())
