"""Driver in its own process, which reads Kafka by ``format("tailrace")``, without the Java connector.

    python source_driver.py HOW FOLDER OPTIONS

HOW is ``stream`` for a stream that is killed, ``connect`` for Spark Connect, or ``classic`` for a batch, a stream and
errors, with their plans. There is an event log. OPTIONS are the options of the source, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tailrace.spark.session import java_home

_, HOW, FOLDER, OPTIONS = sys.argv
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": f"{FOLDER}/warehouse",
    "spark.eventLog.dir": f"file://{FOLDER}/events",
    "spark.eventLog.compress": "false",
    "spark.eventLog.enabled": "true",
}


def session() -> SparkSession:
    os.environ |= {"JAVA_HOME": str(java_home(pyspark.__version__)), "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.remote("local[2]") if HOW == "connect" else SparkSession.builder.master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def source(reader, **options):
    return reader.format("tailrace").options(**{**json.loads(OPTIONS), **options}).load()


def run_stream(spark: SparkSession) -> None:
    """Run a stream until this process and Java are killed."""
    table = source(spark.readStream, maxOffsetsPerTrigger="1500").select("partition", "offset")
    query = table.writeStream.option("checkpointLocation", f"{FOLDER}/checkpoint").start(f"{FOLDER}/rows")
    sys.stdout.write(f"{spark._jvm.java.lang.ProcessHandle.current().pid()}\n")
    sys.stdout.flush()
    query.awaitTermination()


def run_connected(spark: SparkSession) -> None:
    """Write the number of records of a batch, and of a stream into a table."""
    query = source(spark.readStream).writeStream.trigger(availableNow=True)
    query.option("checkpointLocation", f"{FOLDER}/checkpoint").toTable("copied").awaitTermination()
    counts = [source(spark.read).count(), spark.table("copied").count()]
    sys.stdout.write(json.dumps(counts))


def run_classic(spark: SparkSession) -> None:
    """Write plans, messages of errors and the progress of a query."""
    spark.sparkContext.setLogLevel("INFO")
    table = source(spark.read)
    table.explain("formatted")
    table.explain("extended")
    sys.stdout.write(f"{table.count()}\n")
    query = source(spark.readStream).writeStream.trigger(availableNow=True).queryName("copy")
    query = query.option("checkpointLocation", f"{FOLDER}/checkpoint").start(f"{FOLDER}/rows")
    query.awaitTermination()
    query.explain(extended=True)
    sys.stdout.write(f"{query.lastProgress}\n")
    for wrong in ({"subscribe": "no-such-topic"}, {"bootstrap_server": "x"}, {"sasl_mechanism": "PLAINER"}):
        try:
            source(spark.read, **wrong).count()
        except PySparkException as error:
            sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    Path(FOLDER, "events").mkdir(exist_ok=True)
    spark = session()
    {"stream": run_stream, "connect": run_connected, "classic": run_classic}[HOW](spark)
    spark.stop()
