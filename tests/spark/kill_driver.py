"""Process that handles a topic on a cluster of Spark or live, and kills itself, a worker or an executor on the way.

    python kill_driver.py WAY MASTER BROKER GROUP TOPIC FOLDER

WAY is ``pipeline``, ``results`` or ``live``. The app is defined in the script, so it is sent to the workers by value.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from tailrace import App, Record
from tailrace.spark import SparkPipeline, group_source, results, spark_session, start_in_group

_, WAY, MASTER, BROKER, GROUP, TOPIC, FOLDER = sys.argv
BATCH = 20_000
KILLS = {(0, 7_000): "worker", (1, 12_000): "executor", (2, 17_000): "driver", (3, 35_000): "live"}
"""Process to kill, by partition and offset."""

app = App(bootstrap_servers=BROKER, group_id=GROUP, auto_offset_reset="earliest")
files: dict[int, int] = {}


async def kill(process: str) -> None:
    """Kill a process, unless an earlier run did so."""
    happened = Path(FOLDER, process)
    if happened.exists():  # noqa: ASYNC240 - four times
        return
    happened.touch()  # noqa: ASYNC240
    if process == "executor":
        daemon = Path(f"/proc/{os.getppid()}/stat").read_text()  # noqa: ASYNC240
        os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
    if process == "driver":
        await asyncio.Event().wait()  # the test kills the driver
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler(TOPIC, order_by="partition")
async def enter(record: Record) -> int:
    """Write the time and the record to the ledger."""
    if process := KILLS.get((record.partition, record.offset)):
        await kill(process)
    if os.getpid() not in files:
        files[os.getpid()] = os.open(f"{FOLDER}/ledger/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(files[os.getpid()], b"%d %d %d\n" % (time.monotonic_ns(), record.partition, record.offset))
    return record.offset


def run_on_spark() -> None:
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}
    with spark_session(app, master=MASTER, **settings) as spark:
        if WAY == "pipeline":
            pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
            pipeline.start(enter, max_records_per_batch=BATCH, trigger="available_now").await_termination()
            return
        source = spark.readStream.format("kafka").options(**group_source(app, enter))
        records = source.option("maxOffsetsPerTrigger", BATCH).load()
        rows = records.select("partition", "offset", results(app, enter))

        def write(writer):
            return writer.trigger(availableNow=True).start(f"{FOLDER}/table")

        start_in_group(app, enter, rows, f"{FOLDER}/checkpoint", write).await_termination()


if __name__ == "__main__":
    if WAY == "live":
        asyncio.run(app.run())
    else:
        run_on_spark()
