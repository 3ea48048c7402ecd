"""Counts of handled records, which show if each record was handled exactly once.

Records are counted by partition and offset, so a duplicate cannot hide a missing record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.records import Record

__all__ = ["FEWEST_FLIGHTS", "ArrivalDelays", "HandledFlights", "PartitionProof"]

FEWEST_FLIGHTS = 100
"""Minimum number of arrived flights of a route in the report."""


class ArrivalDelays:
    """Number and total delay of the arrived flights of one route."""

    __slots__ = ("flights", "minutes")

    def __init__(self, flights: int = 0, minutes: int = 0) -> None:
        self.flights = flights
        self.minutes = minutes

    @property
    def mean(self) -> float:
        """Mean delay in minutes."""
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
