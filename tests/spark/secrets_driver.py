"""Driver that handles a topic of a secured broker in every way, and stores everything that Spark shows.

python secrets_driver.py FOLDER TOPIC < JSON object with the options of the app
"""

from __future__ import annotations

import json
import logging
import re
import sys
import urllib.request
from pathlib import Path

from tailrace import App
from tailrace.config import resolve
from tailrace.spark import SparkPipeline, results, spark_session
from tailrace.spark.session import source_options

FOLDER, TOPIC = Path(sys.argv[1]), sys.argv[2]
PAGES = [
    "environment", "SQL", "SQL/execution/?id=0", "StreamingQuery", "jobs", "stages", "executors", "storage",
    "api/v1/applications/{}/environment", "api/v1/applications/{}/sql?details=true&planDescription=true&length=1000",
    "api/v1/applications/{}/jobs", "api/v1/applications/{}/stages",
]  # fmt: skip

app = App(**json.load(sys.stdin), group_id="secrets", auto_offset_reset="earliest")
options = source_options(resolve(app.options), {})


@app.handler(TOPIC)
async def double(number: int) -> int:
    return 2 * number


def shown(spark) -> dict[str, str]:
    """Handle the topic, and return what plans, progress and pages show."""
    kafka = {**options, "subscribe": TOPIC, "startingOffsets": "earliest"}
    texts = {}
    rows = spark.read.format("kafka").options(**kafka).load().select(results(app, double))
    assert [row.value for row in rows.collect()] == [0, 2, 4]
    rows.explain("extended")
    stream = spark.readStream.format("kafka").options(**kafka).load().select(results(app, double))
    query = stream.writeStream.queryName("doubled").format("memory").trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(extended=True)
    texts["progress"] = str(query.lastProgress)
    pipeline = SparkPipeline(app, spark, checkpoint=str(FOLDER / "checkpoint"))
    assert pipeline.backfill(double, sink=lambda rows, _number: rows.collect()).records == 3
    pipeline.start(double, trigger="available_now").await_termination()
    rows.write.mode("overwrite").format("noop").save()
    address, number = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for page in PAGES:
        with opener.open(f"{address}/{page.format(number)}", timeout=60) as answer:
            texts[page] = answer.read().decode()
    return texts


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (FOLDER / "events").as_uri(),
        "spark.mine.certificate": options.get("kafka.ssl.keystore.key", ""),
    }
    (FOLDER / "events").mkdir()
    with spark_session(app, master="local[2]", **settings) as spark:
        for name, text in shown(spark).items():
            (FOLDER / f"shown-{re.sub('[/?]', '-', name)}").write_text(text)
