"""Run the handlers of an app on Apache Spark: in a streaming query, or in a backfill that hands over to the app.

``results`` is an expression with the results of a handler, for any DataFrame of records.

Needs the extra ``tailrace[spark]``.
"""

from tailrace.spark.backfill import BackfillProgress, BackfillReport, GroupStatus
from tailrace.spark.expression import results
from tailrace.spark.group_query import group_source, start_in_group
from tailrace.spark.pipeline import SparkPipeline
from tailrace.spark.session import spark_session
from tailrace.spark.sinks import delta_table, iceberg_table, overwritten_folders
from tailrace.spark.streaming import SparkQuery

__all__ = [
    "BackfillProgress",
    "BackfillReport",
    "GroupStatus",
    "SparkPipeline",
    "SparkQuery",
    "delta_table",
    "group_source",
    "iceberg_table",
    "overwritten_folders",
    "results",
    "spark_session",
    "start_in_group",
]
