"""Driver whose session ends while a query handles its second batch.

python ending_driver.py BROKER GROUP TOPIC FOLDER HOW
"""

from __future__ import annotations

import asyncio
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from tailrace import App, Depends, Record, TailraceError
from tailrace.spark import SparkPipeline, spark_session

_, BROKER, GROUP, TOPIC, FOLDER, HOW = sys.argv

app = App(bootstrap_servers=BROKER, group_id=GROUP)


def buffer() -> Iterator[list[str]]:
    """Provide a buffer that is written when the app is closed."""
    kept: list[str] = []
    Path(FOLDER, f"opened-{uuid.uuid4().hex}").touch()
    yield kept
    Path(FOLDER, f"flushed-{uuid.uuid4().hex}").write_text("\n".join(kept))


@app.on_stop
def stopped() -> None:
    """Record that the app was stopped."""
    Path(FOLDER, f"stopped-{uuid.uuid4().hex}").touch()


@app.handler(TOPIC)
async def enter(record: Record, kept: Annotated[list[str], Depends(buffer, scope="app")]) -> None:
    """Buffer the value, and wait in the second batch until the driver is about to end."""
    if record.offset == 15:
        Path(FOLDER, "inside").touch()  # noqa: ASYNC240 - once
        while not Path(FOLDER, "ending").exists():  # noqa: ASYNC110, ASYNC240 - another process creates it
            await asyncio.sleep(0.05)
        if HOW == "context":
            await asyncio.Event().wait()
    kept.append(str(record.offset))


if __name__ == "__main__":
    spark = spark_session(app, master="local[2]")
    query = SparkPipeline(app, spark, checkpoint=f"{FOLDER}/checkpoint").start(enter, max_records_per_batch=10)
    waiting = threading.Event()
    while not Path(FOLDER, "inside").exists():
        waiting.wait(0.05)
    Path(FOLDER, "ending").touch()
    match HOW:
        case "stop":
            spark.stop()
        case "raise":
            with spark:
                raise RuntimeError("the driver's own")
        case "exit":
            with spark:
                sys.exit(5)
        case "context":
            spark.sparkContext.stop()
            try:
                query.await_termination(60)
            except TailraceError as error:
                sys.stdout.write(f"{error}\n")
            threads = {one.name for one in threading.enumerate()}
            sys.stdout.write("open\n" if "tailrace spark" in threads else "closed\n")
