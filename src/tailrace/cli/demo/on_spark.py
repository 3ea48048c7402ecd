"""The demo on Spark: a backfill writes what the handler returns as a table, and the table is counted.

Rule of this file: what is proved is proved of the table. It has a row for each time that a record was handled, with the
record's offset, so a record that came twice, or never, is seen there.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tailrace.cli.demo.counts import ArrivalDelays, HandledFlights, PartitionProof
from tailrace.cli.demo.handler import app_of, arrived
from tailrace.config import ConsumerOptions
from tailrace.errors import ConfigurationError
from tailrace.extras import install_hint
from tailrace.spark import BackfillProgress, SparkPipeline, overwritten_folders, spark_session
from tailrace.spark.session.connector import is_connector_cached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkReading", "check_spark"]

_IN_ONE_BATCH = 100_000
_BATCH_MAY_TAKE_S = 60


def check_spark() -> bool:
    """Whether all of Spark is on this machine; if not, its connector is downloaded when it starts.

    Raises:
        ConfigurationError: Spark is not installed.
    """
    if find_spec("pyspark") is None:
        raise ConfigurationError(f"pyspark is not installed - {install_hint('demo,spark')}")
    import pyspark  # noqa: PLC0415 - an extra

    return is_connector_cached(pyspark.__version__)


class _CutShortError(Exception):
    """Ends the thread; whoever cut it knows."""


class SparkReading:
    """Backfills all that the topic has, on Spark in this process, and counts.

    Args:
        topic: where from.
        partitions: how many it has.
        options: of the app, with the group.
    """

    def __init__(self, topic: str, partitions: int, options: ConsumerOptions) -> None:
        self.tally = HandledFlights(partitions, members=1)
        self.version = ""
        self.starting_s = 0.0
        """How long Spark took to come up."""
        self.reading_s = 0.0
        """How long the backfill took, with all that it wrote."""
        self._topic, self._options = topic, options
        self._once = [0] * partitions
        self._is_cut = False

    async def run(self, produced: Sequence[int]) -> None:
        """Start Spark, handle every record there, count what came of it, and stop Spark.

        Args:
            produced: by partition, so many offsets are to be there.

        Raises:
            TailraceError: as the backfill does.
        """
        working = asyncio.get_running_loop().run_in_executor(None, self._work, produced)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: it ends itself after the batch that is under way.
            self._is_cut = True
            done, _ = await asyncio.wait([working], timeout=_BATCH_MAY_TAKE_S)
            for one in done:
                one.exception()  # looked at, so that nobody complains of it
            raise

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """By partition: what was produced (offsets from 0), handled and committed."""
        (handled,) = self.tally.by_member
        return [
            PartitionProof(produced[one], handled[one], self._once[one], committed.get(one), ())
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
                max_records_per_batch=_IN_ONE_BATCH,
                on_progress=self._go_on,
            )
            self.reading_s = report.duration_s
            self._count(spark.read.parquet(f"{folder}/arrivals"), produced, spark)

    def _go_on(self, progress: BackfillProgress) -> None:
        if self._is_cut:
            raise _CutShortError
        self.tally.handled = progress.done

    def _count(self, arrivals: DataFrame, produced: Sequence[int], spark: SparkSession) -> None:
        """The sums by route, and how often each offset of each partition is there."""
        arrivals.createOrReplaceTempView("arrivals")
        for route, flights, minutes in spark.sql(
            "SELECT route, count(delay), coalesce(sum(delay), 0) FROM arrivals GROUP BY route"
        ).collect():
            self.tally.routes[route] = ArrivalDelays(flights, minutes)
        spark.createDataFrame(list(enumerate(produced)), "partition int, produced long").createOrReplaceTempView("ends")
        by_member = self.tally.by_member[0]
        for partition, handled, once in spark.sql(
            """
            SELECT partition, sum(times), count_if(times = 1 AND offset < produced)
            FROM (SELECT partition, offset, count(*) AS times FROM arrivals GROUP BY partition, offset)
            JOIN ends USING (partition)
            GROUP BY partition
            """
        ).collect():
            by_member[partition], self._once[partition] = handled, once
        self.tally.handled = sum(by_member)
