"""What the members of the group have handled, counted so that it can be proved.

Rule of this file: pure counting. Each offset of each partition has a counter of its own, so a record that came twice,
or never, is seen whatever else came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailrace.records import Record

__all__ = ["FEWEST_FLIGHTS", "ArrivalDelays", "HandledFlights", "PartitionProof"]

FEWEST_FLIGHTS = 100
"""A route with fewer flights that arrived does not count: its mean says little."""


class ArrivalDelays:
    """Of the flights of one route that arrived."""

    __slots__ = ("flights", "minutes")

    def __init__(self, flights: int = 0, minutes: int = 0) -> None:
        self.flights = flights
        self.minutes = minutes

    @property
    def mean(self) -> float:
        """Minutes a flight."""
        return self.minutes / self.flights


class PartitionProof(NamedTuple):
    """What is known of one partition in the end."""

    produced: int
    handled: int
    """Records that the members handled, a record that came twice counted twice."""
    once: int
    """Offsets among those produced that were handled exactly once."""
    committed: int | None
    """The offset that the broker has; None without any."""
    members: tuple[int, ...]
    """Who handled records of it."""

    @property
    def holds(self) -> bool:
        """Whether each record was handled once, and the commit says so."""
        return self.produced == self.handled == self.once == (self.committed or 0)


class HandledFlights:
    """What was handled, by offset, by member and by route."""

    def __init__(self, partitions: int, members: int) -> None:
        self.handled = 0
        self.by_member = [[0] * partitions for _ in range(members)]
        self.routes: dict[str, ArrivalDelays] = {}
        self._seen = [bytearray() for _ in range(partitions)]

    def take(self, member: int, record: Record, route: str, delay: int | None) -> None:
        """One record was handled by ``member``; ``delay`` is that of the flight, None if it never arrived."""
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

    def worst(self, count: int) -> list[tuple[str, ArrivalDelays]]:
        """The routes with the highest mean delay, of those with enough flights."""
        enough = [(route, delays) for route, delays in self.routes.items() if delays.flights >= FEWEST_FLIGHTS]
        return sorted(enough, key=lambda one: (-one[1].mean, one[0]))[:count]

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """By partition: what was produced (offsets from 0), handled and committed."""
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
