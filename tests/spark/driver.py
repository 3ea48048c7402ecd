"""Driver in its own process, for tests that kill it or its executors.

    python driver.py BROKER GROUP TOPIC FOLDER MASTER HOW BATCH AT

The app is defined in the script, as in many jobs, so that it is sent to the workers by value.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from tailrace import App, Record
from tailrace.spark import SparkPipeline, spark_session

_, BROKER, GROUP, TOPIC, FOLDER, MASTER, HOW, BATCH, AT = sys.argv

app = App(bootstrap_servers=BROKER, group_id=GROUP)
files: dict[int, int] = {}


def executor() -> int:
    """Return the process id of the executor's JVM, the grandparent of a worker."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


@app.handler(TOPIC)
async def enter(record: Record) -> None:
    """Write to the ledger, and cause the failure ``HOW`` once at one offset of the second batch."""
    if record.offset == int(AT) and not Path(FOLDER, "happened").exists():  # noqa: ASYNC240 - once
        Path(FOLDER, "happened").touch()  # noqa: ASYNC240
        if HOW == "kill-executor":
            os.kill(executor(), signal.SIGKILL)
        if HOW == "kill-worker":
            os._exit(1)
        if HOW in {"hang", "stream"}:
            await asyncio.Event().wait()
    if os.getpid() not in files:
        files[os.getpid()] = os.open(f"{FOLDER}/ledger/{os.getpid()}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(files[os.getpid()], b"%d %d\n" % (record.partition, record.offset))


if __name__ == "__main__":
    settings = {"spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"]}  # as for the driver
    with spark_session(app, master=MASTER, **settings) as spark:
        pipeline = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint")
        if HOW == "stream":
            pipeline.start(enter, max_records_per_batch=int(BATCH)).await_termination()
        report = pipeline.backfill(enter, max_records_per_batch=int(BATCH))
    sys.stdout.write(f"{report.records}\n")
