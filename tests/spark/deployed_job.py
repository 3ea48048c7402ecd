"""Job for tests of deployments: runs handlers with several interpreters of the executors, and prints the outcomes.

    spark-submit deployed_job.py CASES [ARCHIVE MODULES]

CASES is a JSON object of arrays [ACTION, INTERPRETER]. ARCHIVE and MODULES are sent by a client of Spark Connect.

The app is the module ``shop``, which the job receives by ``--py-files`` or by its environment.
"""

import json
import sys

import shop
from pyspark.sql import SparkSession

from tailrace.spark import SparkPipeline, results

spark = SparkSession.builder.getOrCreate()
if len(sys.argv) > 2:
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    spark.addArtifacts(sys.argv[2], archive=True)
    spark.addArtifacts(sys.argv[3], pyfile=True)


def run(action: str) -> object:
    """Return the outcome of an action."""
    if action == "results":
        rows = spark.createDataFrame([(b"1",), (b"2",)], "value binary").repartition(2)
        return sorted({tuple(row) for row in rows.select(results(shop.app, shop.locate)).collect()})
    return SparkPipeline(shop.app, spark, checkpoint=shop.CHECKPOINT).backfill(shop.locate).records


outcomes = {}
for name, (action, interpreter) in json.loads(sys.argv[1]).items():
    spark.conf.set("spark.sql.execution.pyspark.python", interpreter)
    try:
        outcomes[name] = run(action)
    except Exception as error:  # noqa: BLE001 - reported to the test
        outcomes[name] = [type(error).__name__, str(error)]
sys.stdout.write(json.dumps(outcomes))
