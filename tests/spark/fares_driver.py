"""Driver in its own process, which runs the program in ``fares`` on Kafka.

    python fares_driver.py HOW FOLDER BROKER

HOW is ``connect`` for a server of Spark Connect, ``group`` for a query in a group there, or ``attempts`` for a handler
that fails on a cluster.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace import App, Retry
from tailrace.spark import group_source, results, spark_session, start_in_group
from tailrace.spark.session import connector_jars, java_home
from tests.spark import fares

_, HOW, FOLDER, BROKER = sys.argv


def connected() -> SparkSession:
    """Start a server of Spark Connect in a child process, and return a session that is its client."""
    jars = connector_jars(pyspark.__version__, [one.name for one in Path(pyspark.__file__).parent.glob("jars/*.jar")])
    os.environ |= {"JAVA_HOME": str(java_home(pyspark.__version__)), "PYSPARK_PYTHON": sys.executable}
    settings = {
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.warehouse.dir": FOLDER,
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.remote("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_connected() -> object:
    spark = connected()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    rows = spark.createDataFrame([(one,) for one in fares.trips(60)], "value binary")
    stream = fares.revenue(fares.kafka(spark, BROKER, stream=True)).writeStream.trigger(availableNow=True)
    query = stream.option("checkpointLocation", f"{FOLDER}/checkpoint").toTable("fares")
    query.awaitTermination()
    found = [fares.revenue(rows), fares.revenue(fares.kafka(spark, BROKER, stream=False)), spark.table("fares")]
    answer = [sorted(fares.rows_in(one)) for one in found]
    spark.stop()
    return answer


def run_group() -> object:
    spark = connected()
    fares.app.configure(bootstrap_servers=BROKER)
    records = spark.readStream.format("kafka").options(**group_source(fares.app, fares.price)).load()
    queries = []
    for _ in range(2):
        rows = records.select(results(fares.app, fares.price))
        query = start_in_group(
            fares.app, fares.price, rows, f"{FOLDER}/checkpoint", lambda writer: writer.toTable("fares")
        )
        if not queries:
            while query.query.lastProgress is None:
                query.await_termination(0.1)
        query.stop()
        queries.append(query.query_id)
    count = spark.table("fares").count()
    spark.stop()
    return [count, len(set(queries))]


def run_attempts() -> object:
    app = App(bootstrap_servers="localhost:1", group_id="g", retry=Retry(attempts=1), on_failure="stop")

    @app.handler("t")
    async def fail(number: int) -> int:
        with Path(FOLDER, "calls").open("a") as file:  # noqa: ASYNC230 - a few lines
            file.write(f"{number}\n")
        raise ValueError("never")

    with spark_session(master="local[2,4]") as spark:
        try:
            spark.createDataFrame([("5",)], "value string").coalesce(1).select(results(app, fail)).collect()
        except PySparkException as error:
            return [str(error), Path(FOLDER, "calls").read_text()]
    return None


if __name__ == "__main__":
    run = {"connect": run_connected, "group": run_group, "attempts": run_attempts}[HOW]
    sys.stdout.write(json.dumps(run()))
