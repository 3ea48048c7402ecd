"""Sums of each customer's orders in windows of five minutes: a handler converts orders to rows, which Spark sums up.

tailrace kafka --topic sales-orders:2                      # in one terminal; prints an export command
python examples/windows_on_spark.py order ann 250          # in another terminal, after that command: place an order
python examples/windows_on_spark.py /tmp/sums              # sum up orders until Ctrl-C
python examples/windows_on_spark.py /tmp/sums available_now    # sum up existing orders, show the sums, and exit
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from tailrace import App, Key
from tailrace.spark import results, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BROKERS = "TAILRACE_BOOTSTRAP_SERVERS"  # an option of the app
sales = App(group_id="sales")


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


def sum_by_window(orders: DataFrame) -> DataFrame:
    """Sum up orders by window and customer. In a stream, Spark keeps the sums of a window until the watermark."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - `tailrace run` works without Spark

    rows = orders.select(results(sales, to_sale)).withWatermark("at", "10 minutes")
    groups = rows.groupBy(sql.window("at", "5 minutes"), "customer").agg(sql.sum("cents").alias("cents"))
    return groups.selectExpr("string(window.start)", "customer", "cents")


def main(folder: str, trigger: str = "") -> None:
    """Sum up orders in a stream that writes changed sums to a table, and show the table."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(f"{folder}/sums.sqlite", check_same_thread=False)
    database.execute("CREATE TABLE IF NOT EXISTS sums (start, customer, cents, PRIMARY KEY (start, customer))")

    def upsert(sums: DataFrame, _batch_id: int) -> None:
        """Replace changed sums. A batch that is repeated after a crash writes the same sums again."""
        with database:
            database.executemany("REPLACE INTO sums VALUES (?, ?, ?)", sums.collect())

    with spark_session(sales, **{"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 4}) as spark:
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", os.environ[BROKERS])
        orders = source.option("subscribe", "sales-orders").option("startingOffsets", "earliest").load()
        stream = sum_by_window(orders).writeStream.outputMode("update").foreachBatch(upsert)
        stream = stream.option("checkpointLocation", f"{folder}/checkpoint")
        query = (stream.trigger(availableNow=True) if trigger == "available_now" else stream).start()
        with contextlib.suppress(KeyboardInterrupt):
            query.awaitTermination()
        query.stop()
    for row in database.execute("SELECT * FROM sums ORDER BY start, customer"):
        print(*row, sep="\t")


async def order(customer: str, cents: int) -> None:
    """Place an order."""
    async with App() as orders:
        await orders.publish("sales-orders", Order(cents, datetime.now(UTC)), key=customer)


if __name__ == "__main__":
    if sys.argv[1] == "order":
        asyncio.run(order(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
