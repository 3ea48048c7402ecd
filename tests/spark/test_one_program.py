"""One program with ``results``, unchanged as a batch, a stream, on Spark Connect, in a pipeline, and on rows."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tailrace.spark.session import connector_jars, java_home
from tests.spark import fares
from tests.support.commands import environment
from tests.support.witness import Witness

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(280)]

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def broker(kafka_server) -> str:
    """Return the address of a broker whose topic contains the trips of an hour."""
    kafka_server.create_topic(fares.TOPIC, 2)
    values = fares.trips(60)
    Witness(kafka_server.bootstrap_servers).produce(fares.TOPIC, values, keys=[b"%d" % (n % 3) for n in range(60)])
    return kafka_server.bootstrap_servers


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env=environment(PYTHONPATH=str(FOLDER.parents[1]), **variables),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_batches_and_streams_of_kafka_have_the_same_windows_as_rows(spark, broker, tmp_path):
    """Windows of results are the same on rows, in a batch of Kafka, and, as far as they are closed, in a stream."""
    table = str(tmp_path / "table")
    rows = spark.createDataFrame([(one,) for one in fares.trips(60)], "value binary")
    stream = fares.revenue(fares.kafka(spark, broker, stream=True)).writeStream.trigger(availableNow=True)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    query.awaitTermination()

    assert fares.rows_in(fares.revenue(rows)) == fares.sums(60, 60)
    assert fares.rows_in(fares.revenue(fares.kafka(spark, broker, stream=False))) == fares.sums(60, 60)
    # The last window is open: the watermark is one minute before the last trip.
    assert fares.rows_in(spark.read.parquet(table)) == fares.sums(60, 55)


@pytest.mark.slow
def test_spark_connect_runs_the_program(spark, broker, tmp_path):
    """On Spark Connect, rows, a batch and a stream into a table give the same windows."""
    done = run(sys.executable, str(FOLDER / "fares_driver.py"), "connect", str(tmp_path), broker)

    rows, batch, table = (set(map(tuple, one)) for one in json.loads(done.stdout))
    assert rows == batch == fares.sums(60, 60)
    assert table == fares.sums(60, 55)


@pytest.mark.slow
def test_a_client_of_spark_connect_commits_for_the_group(broker, tmp_path):
    """On Spark Connect, the client commits each batch of a query, and a second start continues after them."""
    done = run(sys.executable, str(FOLDER / "fares_driver.py"), "group", str(tmp_path), broker)

    assert json.loads(done.stdout) == [48, 1]
    assert asyncio.run(Witness(broker).committed("fares", fares.TOPIC, 2)) == asyncio.run(
        Witness(broker).ends(fares.TOPIC, 2)
    )


@pytest.mark.slow
def test_a_declarative_pipeline_runs_the_program(spark, broker, tmp_path):
    """``spark-pipelines run`` materializes a batch and a stream of results."""
    (tmp_path / "spark-pipeline.yml").write_text(
        f"name: fares\nstorage: file://{tmp_path}/storage\nlibraries:\n  - glob:\n      include: pipeline/**\n"
    )
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "tables.py").write_text(
        "from pyspark import pipelines as dp\n"
        "from pyspark.sql import SparkSession\n"
        "from tests.spark import fares\n\n"
        "@dp.table\n"
        "def streamed():\n"
        f"    return fares.revenue(fares.kafka(SparkSession.active(), '{broker}', stream=True))\n\n"
        "@dp.materialized_view\n"
        "def batched():\n"
        f"    return fares.revenue(fares.kafka(SparkSession.active(), '{broker}', stream=False))\n"
    )
    jars = connector_jars(pyspark.__version__, [one.name for one in Path(pyspark.__file__).parent.glob("jars/*.jar")])
    settings = {
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    command = [str(Path(sys.executable).with_name("spark-pipelines")), "run"]
    command += ["--remote", "local[2]", "--jars", ",".join(map(str, jars))]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    java = str(java_home(pyspark.__version__))
    run(*command, "--spec", str(tmp_path / "spark-pipeline.yml"), JAVA_HOME=java, PYSPARK_PYTHON=sys.executable)

    tables = {name: spark.read.parquet(str(tmp_path / "warehouse" / name)) for name in ("batched", "streamed")}
    assert fares.rows_in(tables["batched"]) == fares.sums(60, 60)
    assert fares.rows_in(tables["streamed"]) == fares.sums(60, 55)


@pytest.mark.slow
def test_a_permanent_error_is_not_repeated(broker, tmp_path):
    """If Spark repeats a task after a permanent error, the handler is not called again, and the error is the same."""
    done = run(sys.executable, str(FOLDER / "fares_driver.py"), "attempts", str(tmp_path), broker)

    text, calls = json.loads(done.stdout)
    assert "fail failed at t[0] offset 0: ValueError: never" in text
    assert 'raise ValueError("never")' in text
    assert calls == "5\n"
