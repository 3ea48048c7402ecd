"""The same handlers on Spark: streaming, backfill, and the way to the live group and back.

Needs the extra ``penstock[spark]``.
"""

from penstock.spark.session import spark_session

__all__ = ["spark_session"]
