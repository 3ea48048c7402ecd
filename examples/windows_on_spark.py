"""What each customer bought in each five minutes: a handler makes rows of orders, and Spark adds them up.

tailrace kafka --topic sales-orders:2                      # in one terminal; it prints what to export
python examples/windows_on_spark.py order ann 250          # in another, after that export: somebody buys something
python examples/windows_on_spark.py /tmp/sums              # follows the topic, until Ctrl-C
python examples/windows_on_spark.py /tmp/sums available_now    # handles what is there, shows the sums, and ends
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
from aiokafka import AIOKafkaProducer

from tailrace import App, Key
from tailrace.spark import SparkPipeline, overwritten_folders, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sales = App(group_id="sales", auto_offset_reset="earliest")


class Order(msgspec.Struct):
    """A record of the topic: ``{"cents": 250, "at": "2026-01-05T12:01:00Z"}``, and the customer is its key."""

    cents: int
    at: datetime


class Sale(msgspec.Struct):
    """A row: its fields are the columns of the DataFrame."""

    customer: str
    cents: int
    at: datetime


@sales.handler("sales-orders")
async def sold(order: Order, customer: Annotated[str, Key]) -> Sale | None:
    """Not a word of Spark in here: `tailrace run` runs it as well. What was given away is no row."""
    return Sale(customer, order.cents, order.at) if order.cents else None


def by_window(rows: DataFrame) -> DataFrame:
    """The sums of one micro-batch: a row for each customer and five minutes that occur in it."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - so that the live app needs no Spark

    of_five_minutes = rows.groupBy(sql.window("at", "5 minutes"), "customer")
    return of_five_minutes.agg(sql.sum("cents").alias("cents")).select("window.start", "customer", "cents")


def sums(spark: SparkSession, folder: str) -> DataFrame:
    """All that was written, summed up: orders of the same window may have come in several batches, however late."""
    parts = spark.read.parquet(f"{folder}/sums")
    return parts.groupBy("start", "customer").agg({"cents": "sum"}).orderBy("start", "customer")


def main(folder: str, trigger: str = "10 seconds") -> None:
    """Start the handler on Spark, write the windows as Parquet, and show what came of it."""
    # Each batch has a folder of its own, overwritten as a whole: handled again after a crash, it still counts once.
    write = overwritten_folders(f"{folder}/sums")
    with spark_session(sales, **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 4}) as spark:
        pipeline = SparkPipeline(sales, spark, checkpoint=f"{folder}/checkpoint")
        query = pipeline.start(sold, trigger=trigger, sink=lambda rows, batch_id: write(by_window(rows), batch_id))
        with contextlib.suppress(KeyboardInterrupt):  # a batch that it cuts short is handled again the next time
            query.await_termination()
        query.stop()
        sums(spark, folder).show(truncate=False)


async def order(customer: str, cents: int) -> None:
    """Write an order, as the program at the till would: it is no member of the group, so it is not in Spark's way."""
    async with AIOKafkaProducer(bootstrap_servers=os.environ["TAILRACE_BOOTSTRAP_SERVERS"]) as till:
        bought = msgspec.json.encode(Order(cents, datetime.now(UTC)))
        await till.send_and_wait("sales-orders", bought, key=customer.encode())


if __name__ == "__main__":
    if sys.argv[1] == "order":
        asyncio.run(order(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
