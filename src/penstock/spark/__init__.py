"""The same handlers on Spark: streaming, backfill, and the way to the live group and back.

Needs the extra ``penstock[spark]``.
"""

from penstock.spark.pipeline import SparkPipeline
from penstock.spark.reports import BackfillProgress, BackfillReport, Standing
from penstock.spark.session import spark_session
from penstock.spark.sinks import delta_table, overwritten_folders
from penstock.spark.streaming import SparkQuery

__all__ = [
    "BackfillProgress",
    "BackfillReport",
    "SparkPipeline",
    "SparkQuery",
    "Standing",
    "delta_table",
    "overwritten_folders",
    "spark_session",
]
