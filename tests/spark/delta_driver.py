"""A session with Delta, which is a process of its own: python delta_driver.py BROKER GROUP TOPIC FOLDER.

Of a backfill of two batches the first is written, fails then, and is handled again by the same program.
"""

from __future__ import annotations

import json
import sys

import pyspark

from penstock import App
from penstock.embedded.jars import class_path
from penstock.spark import SparkPipeline, delta_table, spark_session

_, BROKER, GROUP, TOPIC, FOLDER = sys.argv
DELTA = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:4.4.0"

app = App(bootstrap_servers=BROKER, group_id=GROUP)
batches: list[int] = []


@app.handler(TOPIC)
async def double(number: int) -> int:
    """What is written."""
    return 2 * number


def failing_once(rows: pyspark.sql.DataFrame, batch_id: int) -> None:
    """Write, and fail before anybody knows."""
    delta_table(f"{FOLDER}/table", "doubling")(rows, batch_id)
    batches.append(batch_id)
    if len(batches) == 1:
        raise OSError("it was written, and nobody knows")


if __name__ == "__main__":
    settings = {
        "spark.jars": ",".join(map(str, class_path(DELTA))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Of what Delta reads its own log with there would be 50 and 200.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_session(app, master="local[2]", **settings) as spark:
        pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
        try:
            pipeline.backfill(double, sink=failing_once, max_records_per_batch=30)
        except OSError:
            pipeline.backfill(double, sink=failing_once, max_records_per_batch=30)
        values = [row.value for row in spark.read.format("delta").load(f"{FOLDER}/table").collect()]
    sys.stdout.write(json.dumps({"batches": batches, "values": values}))
