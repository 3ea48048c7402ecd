"""Program that runs unchanged on every kind of DataFrame with records."""

from __future__ import annotations

import datetime as dt

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from tailrace import App
from tailrace.spark import results

TOPIC = "fares-trips"
SOURCED_TOPIC = "fares-sourced"
"""Topic of the tests of tailrace's own source."""
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

app = App(bootstrap_servers="localhost:1", group_id="fares", dead_letter="{topic}.dead")


class Trip(msgspec.Struct):
    city: str
    at: dt.datetime
    km: int


class Fare(msgspec.Struct):
    city: str
    at: dt.datetime
    cents: int
    note: str | None = None


@app.handler(TOPIC, order_by="key")
async def price(trip: Trip) -> Fare | None:
    return Fare(trip.city, trip.at, 120 * trip.km) if trip.km else None


sourced = App(bootstrap_servers="localhost:1", group_id="sourced")
sourced.handler(SOURCED_TOPIC, order_by="key")(price)


@sourced.handler("fares-other")
async def silent(trip: Trip):
    """Handle a trip without a return annotation, from which no columns can be derived."""


shared = App(bootstrap_servers="localhost:1", group_id="shared")
shared.handler(SOURCED_TOPIC, when=lambda record: record.offset % 2 == 0)(price)


@shared.handler(SOURCED_TOPIC, when=lambda record: record.offset % 2 == 1)
async def other(trip: Trip) -> Fare:
    """Handle the records of the topic that ``price`` does not."""
    return Fare(trip.city, trip.at, 0)


def revenue(records: DataFrame) -> DataFrame:
    """Return the revenue of each city in windows of five minutes."""
    return (
        records.select(results(app, price))
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "5 minutes"), "city")
        .agg(F.sum("cents").alias("cents"))
        .select("window.start", "city", "cents")
    )


def trips(count: int) -> list[bytes]:
    """Return the values of trips in three cities, one a minute; every fifth has no fare."""
    return [msgspec.json.encode(Trip(f"city-{n % 3}", BEGIN + dt.timedelta(minutes=n), n % 5)) for n in range(count)]


def sums(count: int, until_minute: int) -> set[tuple[int, str, int]]:
    """Return the rows of ``revenue`` for windows that end before a minute, computed without Spark.

    The start of a window is in seconds since 1970.
    """
    found: dict[tuple[int, str], int] = {}
    for n in range(count):
        if n % 5 and n // 5 * 5 + 5 <= until_minute:
            key = n // 5 * 5, f"city-{n % 3}"
            found[key] = found.get(key, 0) + 120 * (n % 5)
    return {(int(BEGIN.timestamp()) + 60 * minute, city, cents) for (minute, city), cents in found.items()}


def rows_in(table: DataFrame) -> set[tuple[int, str, int]]:
    """Return the rows of a result of ``revenue``, with the start of a window in seconds since 1970."""
    rows = table.selectExpr("unix_seconds(start)", "city", "cents").collect()
    assert len(set(map(tuple, rows))) == len(rows)
    return set(map(tuple, rows))


def kafka(spark: SparkSession, broker: str, *, stream: bool) -> DataFrame:
    """Return the records of the topic, as a batch or as a stream."""
    reader = spark.readStream if stream else spark.read
    options = {"kafka.bootstrap.servers": broker, "subscribe": TOPIC, "startingOffsets": "earliest"}
    return reader.format("kafka").options(**options).load()
