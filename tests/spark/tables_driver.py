"""Driver with Delta and Iceberg, run in its own process: python tables_driver.py BROKER GROUP TOPIC FOLDER.

Two batches of a backfill are written to Delta, and each fails before it is committed. The first is repeated with its
checkpoint, the second without it and as a longer batch. All other tables are written without Kafka.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from tailrace import App, TopicPartition
from tailrace.embedded.jars import class_path
from tailrace.spark import SparkPipeline, delta_table, iceberg_table, spark_session
from tailrace.spark.offsets.checkpoint import BatchNumber
from tests.spark import fares
from tests.spark.page import run_samples

_, BROKER, GROUP, TOPIC, FOLDER = sys.argv
MINOR = ".".join(pyspark.__version__.split(".")[:2])
DELTA = f"io.delta:delta-spark_{MINOR}_2.13:4.4.0"
# Iceberg has no release for Spark 4.2 yet, and results() needs Spark 4.1.
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0" if MINOR == "4.1" else ""
NAMESPACES = {"delta": "spark_catalog.default", **({"iceberg": "lake.db"} if ICEBERG else {})}
TABLES = ("all_fares", "newest_fares")

app = App(bootstrap_servers=BROKER, group_id=GROUP)
batches: list[int] = []


@app.handler(TOPIC)
async def double(number: int) -> int:
    """Return the row to write."""
    return 2 * number


def failing(rows: DataFrame, batch_id: int) -> None:
    """Write the batch, and fail before Spark learns of it."""
    delta_table(f"{FOLDER}/table", "doubling")(rows, batch_id)
    batches.append(batch_id)
    if len(batches) in {1, 3}:
        raise OSError("written, but not committed")


def backfill(spark: SparkSession) -> list[int]:
    pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
    for until in (30, 40):
        # Both rounds fail once; the second round repeats the batch of the first one.
        with contextlib.suppress(OSError):
            pipeline.backfill(double, sink=failing, until={TopicPartition(TOPIC, 0): until})
    shutil.rmtree(f"{FOLDER}/checkpoint")
    pipeline.backfill(double, sink=failing)
    return values_in(spark.read.format("delta").load(f"{FOLDER}/table"))


def values_in(rows: DataFrame) -> list[int]:
    return sorted(row[0] for row in rows.select("value").collect())


def append_twice(spark: SparkSession) -> dict[str, list[int]]:
    """Write batches of two checkpoints, of which one batch is repeated; return the values in each table."""
    sinks = {"by_name": delta_table("by_name", "w")}
    if ICEBERG:
        sinks["lake.db.once"] = iceberg_table("lake.db.once", "o'brien")
    for sink in sinks.values():
        for number in (BatchNumber(0, "a"), BatchNumber(0, "a"), BatchNumber(1, "a"), BatchNumber(0, "b")):
            sink(spark.createDataFrame([(10 * number + len(number.checkpoint),)], "value bigint"), number)
    return {table: values_in(spark.table(table)) for table in sinks}


def stream_results(spark: SparkSession) -> dict[str, object]:
    """Write a stream of results to tables, and merge it by key with the function of the page; return the rows."""
    found: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        page = run_samples(patch, results_as_columns=2, write_rows=1)
        for source, namespace in NAMESPACES.items():
            spark.sql(f"USE {namespace}")
            spark.sql(f"CREATE TABLE newest_fares (city STRING, cents BIGINT, at TIMESTAMP) USING {source}")

            def stream(name: str, checkpoint: str = f"{FOLDER}/{source}") -> DataStreamWriter:
                records = spark.readStream.schema("value binary").parquet(f"{FOLDER}/trips")
                writer = records.select(page.results(page.shop, page.price)).writeStream.trigger(availableNow=True)
                return writer.option("checkpointLocation", f"{checkpoint}-{name}")

            for _ in range(2):
                stream("all").format(source).toTable("all_fares").awaitTermination()
                stream("newest").foreachBatch(page.merge).start().awaitTermination()
                # A crash before Spark has written the batch to its commit log.
                for file in Path(FOLDER).glob(f"{source}-*/commits/*0*"):
                    file.unlink()
            tables = [spark.table(one).selectExpr("city", "unix_seconds(at)", "cents") for one in TABLES]
            found[source] = [sorted(map(list, one.collect())) for one in tables]
    return found


if __name__ == "__main__":
    settings = {
        "spark.jars": ",".join(str(jar) for one in (DELTA, ICEBERG) if one for jar in class_path(one)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": f"{FOLDER}/warehouse",
        # Defaults for Delta's reading of its own log are 50 and 200.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
    }
    if ICEBERG:
        settings["spark.sql.extensions"] += ",org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        settings["spark.sql.catalog.lake"] = "org.apache.iceberg.spark.SparkCatalog"
        settings["spark.sql.catalog.lake.type"] = "hadoop"
        settings["spark.sql.catalog.lake.warehouse"] = f"{FOLDER}/lake"
    with spark_session(app, master="local[2]", **settings) as session:
        trips = [(value,) for value in fares.trips(60)]
        session.createDataFrame(trips, "value binary").coalesce(1).write.parquet(f"{FOLDER}/trips")
        answer = {
            "values": backfill(session) if BROKER else [],
            "batches": batches,
            "appended": append_twice(session),
            "streamed": stream_results(session),
        }
    sys.stdout.write(json.dumps(answer))
