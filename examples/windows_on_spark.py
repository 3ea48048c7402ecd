"""Sums of each customer's orders in windows of five minutes: a handler converts orders to rows, which Spark sums up.

tailrace kafka --topic sales-orders:2                      # in one terminal; prints an export command
python examples/windows_on_spark.py order ann 250          # in another terminal, after that command: place an order
python examples/windows_on_spark.py /tmp/sums              # handle orders until Ctrl-C
python examples/windows_on_spark.py /tmp/sums available_now    # handle existing orders, show the sums, and exit
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from tailrace import App, Key
from tailrace.spark import SparkPipeline, overwritten_folders, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sales = App(group_id="sales", auto_offset_reset="earliest")


class Order(msgspec.Struct):
    """Value of a record, such as ``{"cents": 250, "at": "2026-01-05T12:01:00Z"}``; the customer is the key."""

    cents: int
    at: datetime


class Sale(msgspec.Struct):
    """Row whose fields are the columns of the DataFrame."""

    customer: str
    cents: int
    at: datetime


@sales.handler("sales-orders")
async def to_sale(order: Order, customer: Annotated[str, Key]) -> Sale | None:
    """Return a row, or None for a free order. `tailrace run` can also run this handler, which does not need Spark."""
    return Sale(customer, order.cents, order.at) if order.cents else None


def sum_by_window(rows: DataFrame) -> DataFrame:
    """Sum up the rows of one micro-batch by window and customer."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - `tailrace run` works without Spark

    groups = rows.groupBy(sql.window("at", "5 minutes"), "customer")
    return groups.agg(sql.sum("cents").alias("cents")).select("window.start", "customer", "cents")


def sum_batches(spark: SparkSession, folder: str) -> DataFrame:
    """Sum up the sums of all batches, because the orders of a window may be in several batches."""
    parts = spark.read.parquet(f"{folder}/sums")
    return parts.groupBy("start", "customer").agg({"cents": "sum"}).orderBy("start", "customer")


def main(folder: str, trigger: str = "10 seconds") -> None:
    """Run the handler on Spark, write the sums of each batch as Parquet, and show the sums of all batches."""
    # The folder of a batch is overwritten as a whole, so a batch that is handled again after a crash counts once.
    write = overwritten_folders(f"{folder}/sums")
    with spark_session(sales, **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 4}) as spark:
        pipeline = SparkPipeline(sales, spark, checkpoint=f"{folder}/checkpoint")
        query = pipeline.start(
            to_sale, trigger=trigger, sink=lambda rows, batch_id: write(sum_by_window(rows), batch_id)
        )
        with contextlib.suppress(KeyboardInterrupt):  # The next run handles an interrupted batch again.
            query.await_termination()
        query.stop()
        sum_batches(spark, folder).show(truncate=False)


async def order(customer: str, cents: int) -> None:
    """Publish an order with an app that has no handlers, so that no member joins the group while Spark runs."""
    async with App() as orders:
        await orders.publish("sales-orders", Order(cents, datetime.now(UTC)), key=customer)


if __name__ == "__main__":
    if sys.argv[1] == "order":
        asyncio.run(order(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
