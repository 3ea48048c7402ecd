"""The demo on Spark: a backfill writes the handler's results to a table, and Spark counts the rows.

Each call of the handler adds a row with partition and offset, so missing and duplicate records are found.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailrace.cli.demo.flights import ArrivalDelays, HandledFlights, PartitionProof, app_of, arrived
from tailrace.config import ConsumerOptions
from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint
from tailrace.spark import BackfillProgress, SparkPipeline, overwritten_folders, spark_session
from tailrace.spark.session import is_connector_cached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkReader", "check_spark"]

_MAX_RECORDS_PER_BATCH = 100_000
_BATCH_TIMEOUT_S = 60


def check_spark() -> bool:
    """Return True if Spark's Kafka connector is cached, and False if Spark must download it.

    Raises:
        ConfigurationError: pyspark is not installed.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError(f"pyspark is not installed - {install_hint('demo,spark')}")
    import pyspark

    return is_connector_cached(pyspark.__version__)


class _BackfillCanceledError(Exception):
    """Ends the thread of a canceled backfill."""


class SparkReader:
    """Backfill of the topic on a local Spark, with counts of the results.

    Args:
        topic: topic to read.
        partitions: number of partitions of the topic.
        options: options of the app, including the group.

    Attributes:
        counts: counts of the handled records.
        version: version of Spark.
    """

    def __init__(self, topic: str, partitions: int, options: ConsumerOptions) -> None:
        self.counts = HandledFlights(partitions, members=1)
        self.version = ""
        self.starting_s = 0.0
        """Startup time of Spark, in seconds."""
        self.reading_s = 0.0
        """Duration of the backfill in seconds, including the time to write the results."""
        self._topic, self._options = topic, options
        self._handled_once = [0] * partitions
        self._is_canceled = False

    async def run(self, produced: Sequence[int]) -> None:
        """Start Spark, handle and count all records, and stop Spark.

        Args:
            produced: number of produced records by partition.
        """
        backfill = asyncio.get_running_loop().run_in_executor(None, self._work, produced)
        try:
            await asyncio.shield(backfill)
        except asyncio.CancelledError:
            # A thread cannot be canceled, but the backfill raises after the current batch.
            self._is_canceled = True
            done, _ = await asyncio.wait([backfill], timeout=_BATCH_TIMEOUT_S)
            for one in done:
                one.exception()  # Otherwise asyncio would log the exception as never retrieved.
            raise

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """Return the counts of each partition, given the numbers of produced records and the committed offsets."""
        (handled,) = self.counts.by_member
        return [
            PartitionProof(produced[one], handled[one], self._handled_once[one], committed.get(one), ())
            for one in range(len(produced))
        ]

    def _work(self, produced: Sequence[int]) -> None:
        began = time.monotonic()
        app = app_of(self._topic, self._options)
        with (
            tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder,
            spark_session(app, **{"spark.sql.shuffle.partitions": len(produced)}) as spark,
        ):
            self.version, self.starting_s = spark.version, time.monotonic() - began
            pipeline = SparkPipeline(app, spark, checkpoint=f"{folder}/checkpoint")
            report = pipeline.backfill(
                arrived,
                sink=overwritten_folders(f"{folder}/arrivals"),
                max_records_per_batch=_MAX_RECORDS_PER_BATCH,
                on_progress=self._on_progress,
            )
            self.reading_s = report.duration_s
            self._count(spark.read.parquet(f"{folder}/arrivals"), produced, spark)

    def _on_progress(self, progress: BackfillProgress) -> None:
        if self._is_canceled:
            raise _BackfillCanceledError
        self.counts.handled = progress.done

    def _count(self, arrivals: DataFrame, produced: Sequence[int], spark: SparkSession) -> None:
        """Count the rows of ``arrivals`` by route, and the handled records of each partition."""
        arrivals.createOrReplaceTempView("arrivals")
        for route, flights, minutes in spark.sql(
            "SELECT route, count(delay), coalesce(sum(delay), 0) FROM arrivals GROUP BY route"
        ).collect():
            self.counts.routes[route] = ArrivalDelays(flights, minutes)
        spark.createDataFrame(list(enumerate(produced)), "partition int, produced long").createOrReplaceTempView("ends")
        by_member = self.counts.by_member[0]
        for partition, handled, handled_once in spark.sql(
            """
            SELECT partition, sum(times), count_if(times = 1 AND offset < produced)
            FROM (SELECT partition, offset, count(*) AS times FROM arrivals GROUP BY partition, offset)
            JOIN ends USING (partition)
            GROUP BY partition
            """
        ).collect():
            by_member[partition], self._handled_once[partition] = handled, handled_once
        self.counts.handled = sum(by_member)
