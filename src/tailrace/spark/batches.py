"""Execution of one batch on Spark: Python workers handle its records, and a sink writes their results.

One Spark job runs the handlers. Without a sink, its rows are the metrics of the tasks. With a sink, the rows also
contain the results, and are persisted until the sink has written them, so that the sink's jobs do not run the handlers
again. If an executor is lost, Spark runs its tasks again to recompute the rows. These tasks may fail, so the metrics
are checked again after the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from tailrace.context_managers import contextmanager
from tailrace.core.offset_map import OffsetMap
from tailrace.records import TopicPartition
from tailrace.spark.handler_selection import SelectedHandlers
from tailrace.spark.worker.entry import translated_errors
from tailrace.spark.worker.rows import columns_for, columns_of
from tailrace.spark.worker.shipment import Shipment, ShippedMaps
from tailrace.spark.worker.task_metrics import METRICS_COLUMN, TaskMetrics
from tailrace.spark.worker.task_runner import task_function

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["BatchRunner", "Sink"]

Sink: TypeAlias = "Callable[[DataFrame, int], object]"
"""Function that writes the results of a batch. Its arguments are the rows and the number of the batch.

A batch that is handled again has the same number.
"""

_IS_RESULT = f"""
    CASE WHEN {METRICS_COLUMN} IS NULL THEN true WHEN get_json_object({METRICS_COLUMN}, '$.error') = '' THEN false
    ELSE raise_error({METRICS_COLUMN}) END
"""
"""SQL condition that selects the rows of results and excludes the rows of metrics.

It raises an error if a task failed, so that the sink does not write the results of an incomplete batch.
"""


@dataclass(frozen=True)
class BatchRunner:
    """Runner of the handlers for the records of a batch.

    Attributes:
        selected: handlers to run.
        shipment: serialized app for the workers.
        row_type: Spark type of the handlers' results; None without a sink.
        sink: function that writes the results; None to discard them.
        parallelism: number of tasks; None for one task for each partition.
        offset_maps: offset maps of records that workers skip, because they are finished.
    """

    selected: SelectedHandlers
    shipment: Shipment
    row_type: DataType | None
    sink: Sink | None
    parallelism: int | None
    offset_maps: ShippedMaps = field(default_factory=lambda: ShippedMaps({}))

    def with_offset_maps(self, offset_maps: Mapping[TopicPartition, OffsetMap]) -> BatchRunner:
        """Return a copy of the runner with ``offset_maps``."""
        return replace(self, offset_maps=ShippedMaps(offset_maps))

    def run(self, records: DataFrame, batch_number: int) -> TaskMetrics:
        """Handle the records that Spark's Kafka source has read, call the sink, and return the metrics of all tasks.

        Raises:
            ConfigurationError: the executors lack tailrace, or have another version.
            HandlerFailedError: a handler failed for good and its options end the run.
            TailraceError: a task failed.
        """
        description = f"{self.selected.group_id} {self.selected.name}, batch {batch_number}"
        with translated_errors(), _described_jobs(records, description):
            return self._run(records, batch_number)

    def _run(self, records: DataFrame, batch_number: int) -> TaskMetrics:
        # If there is only one topic, Java does not send its name with every record.
        topic = None if self.selected.patterns or len(self.selected.topics) > 1 else self.selected.topics[0]
        # Without a shuffle, each task reads one partition of Kafka.
        has_one_partition = self.parallelism is None
        handle = task_function(
            self.shipment, self.offset_maps, self.row_type, topic, has_one_partition=has_one_partition
        )
        columns = columns_for(topic)
        rows = self._repartitioned(records).selectExpr(*columns).mapInArrow(handle, columns_of(self.row_type))
        if self.sink is None:
            return TaskMetrics.sum_of(row[METRICS_COLUMN] for row in rows.collect())
        persisted = rows.persist()
        try:
            metrics = _metrics_of(persisted)
            try:
                self.sink(persisted.filter(_IS_RESULT).drop(METRICS_COLUMN), batch_number)
            except Exception:
                # The failure of a task also fails the sink. In this case, raise the error of the task.
                _metrics_of(persisted)
                raise
            # Tasks that recomputed the rows of a lost executor may have failed.
            _metrics_of(persisted)
        finally:
            persisted.unpersist()
        return metrics

    def _repartitioned(self, records: DataFrame) -> DataFrame:
        """Distribute the records among ``parallelism`` tasks, in the order that the handlers require."""
        if self.parallelism is None:
            return records
        orders = {one.order_by for one in self.selected.handlers}
        if orders == {"none"}:
            return records.repartition(self.parallelism)
        key = ["topic", "partition"] if "partition" in orders else ["topic", "partition", "key"]
        return records.repartition(self.parallelism, *key).sortWithinPartitions("topic", "partition", "offset")


@contextmanager
def _described_jobs(records: DataFrame, description: str) -> Iterator[None]:
    """Describe Spark's jobs, unless they have a description, which those of a query get from Spark."""
    context = records.sparkSession.sparkContext
    if context.getLocalProperty("spark.job.description") is not None:
        yield
        return
    context.setJobDescription(description)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def _metrics_of(rows: DataFrame) -> TaskMetrics:
    """Return the sum of the metrics in ``rows``; raise the error of a failed task."""
    texts = rows.filter(f"{METRICS_COLUMN} IS NOT NULL").select(METRICS_COLUMN).collect()
    return TaskMetrics.sum_of(row[METRICS_COLUMN] for row in texts)
