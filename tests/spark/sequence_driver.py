"""Driver that is killed in a batch: python sequence_driver.py BROKER GROUP TOPIC FOLDER CALL SINK POINT.

CALL is ``backfill`` or ``start``, SINK is ``folders`` or ``delta``. POINT is when the driver is killed in its second
batch: ``before`` the sink writes, ``after`` it has written, ``late`` as ``after``, but the first batch is not committed
to the group either, or ``never``.
"""

from __future__ import annotations

import os
import signal
import sys

import pyspark

from tailrace import App
from tailrace.embedded.jars import class_path
from tailrace.spark import SparkPipeline, delta_table, overwritten_folders, spark_session, streaming

_, BROKER, GROUP, TOPIC, FOLDER, CALL, SINK, POINT = sys.argv
DELTA = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:4.4.0"

app = App(bootstrap_servers=BROKER, group_id=GROUP)
batches: list[int] = []


@app.handler(TOPIC)
async def same(number: int) -> int:
    """Return the row to write."""
    return number


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sink(rows: pyspark.sql.DataFrame, number: int) -> None:
    """Write the batch, and kill this process in the second one."""
    batches.append(number)
    is_second = len(batches) == 2
    if is_second and POINT == "before":
        kill()
    write = overwritten_folders(f"{FOLDER}/table") if SINK == "folders" else delta_table(f"{FOLDER}/table", "same")
    write(rows, number)
    if is_second and POINT in {"after", "late"}:
        kill()


if __name__ == "__main__":
    settings = {"spark.sql.shuffle.partitions": "2"}
    if SINK == "delta":
        settings |= {
            "spark.jars": ",".join(map(str, class_path(DELTA))),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    if POINT == "late":
        streaming._POLL_INTERVAL_S = 600.0  # the commit of a query's batch never comes
    with spark_session(app, master="local[2]", **settings) as spark:
        pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
        if CALL == "backfill":
            pipeline.backfill(same, sink=sink, max_records_per_batch=2_500)
        else:
            query = pipeline.start(same, sink=sink, max_records_per_batch=3_500, trigger="available_now")
            query.await_termination()
        rows = spark.read.format("parquet" if SINK == "folders" else "delta").load(f"{FOLDER}/table")
        sys.stdout.write(f"{rows.count()} {rows.select('value').distinct().count()}")
