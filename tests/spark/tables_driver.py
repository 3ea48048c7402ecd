"""Driver with Delta, run in its own process: python delta_driver.py BROKER GROUP TOPIC FOLDER.

Two batches of a backfill are written, and each fails before it is committed. The first is repeated with its checkpoint,
the second without it and as a longer batch.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys

import pyspark

from tailrace import App, TopicPartition
from tailrace.embedded.jars import class_path
from tailrace.spark import SparkPipeline, delta_table, spark_session

_, BROKER, GROUP, TOPIC, FOLDER = sys.argv
DELTA = f"io.delta:delta-spark_{'.'.join(pyspark.__version__.split('.')[:2])}_2.13:4.4.0"

app = App(bootstrap_servers=BROKER, group_id=GROUP)
batches: list[int] = []


@app.handler(TOPIC)
async def double(number: int) -> int:
    """Return the row to write."""
    return 2 * number


def failing(rows: pyspark.sql.DataFrame, batch_id: int) -> None:
    """Write the batch, and fail before Spark learns of it."""
    delta_table(f"{FOLDER}/table", "doubling")(rows, batch_id)
    batches.append(batch_id)
    if len(batches) in {1, 3}:
        raise OSError("written, but not committed")


if __name__ == "__main__":
    settings = {
        "spark.jars": ",".join(map(str, class_path(DELTA))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Defaults for Delta's reading of its own log are 50 and 200.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    with spark_session(app, master="local[2]", **settings) as spark:
        pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
        for until in (30, 40):
            # Both rounds fail once; the second round repeats the batch of the first one.
            with contextlib.suppress(OSError):
                pipeline.backfill(double, sink=failing, until={TopicPartition(TOPIC, 0): until})
        shutil.rmtree(f"{FOLDER}/checkpoint")
        pipeline.backfill(double, sink=failing)
        values = [row.value for row in spark.read.format("delta").load(f"{FOLDER}/table").collect()]
    sys.stdout.write(json.dumps({"batches": batches, "values": values}))
