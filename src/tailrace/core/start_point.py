"""Start points: places in a log that only the partition leader can resolve to an offset. Pure: no clock, IO or logging.

Examples are the first record, ten records before the end, and a time. A start point determines which timestamps to
request from the leader with ListOffsets, one after the other, and resolves the answers to an offset within the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tailrace.protocol.records import ListedOffset

__all__ = ["EARLIEST", "LATEST", "StartFrom", "StartPoint", "shares_of"]

LATEST, EARLIEST = -1, -2
"""Special timestamps of ListOffsets, which request the end offset and the first offset."""


class StartFrom(StrEnum):
    """Origin of a start point."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """No start (``auto_offset_reset="none"``): the user has to seek."""
    TIME = "time"
    """First record with a timestamp from ``StartPoint.number`` on; the end of the log if there is none."""
    AGO = "ago"
    """As TIME, but ``StartPoint.number`` is an age in milliseconds instead of a timestamp."""
    OFFSET = "offset"
    """Offset ``StartPoint.number``, or the nearest offset that the log contains."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Point in a log at which reading begins.

    Attributes:
        whence: origin, which determines the meaning of the numbers.
        number: timestamp or age in milliseconds, or an offset; not used with EARLIEST, LATEST and NONE.
        shift: number of records after the first record (EARLIEST) or the end of the log (LATEST); a negative number
            counts backward.
    """

    whence: StartFrom
    number: int = 0
    shift: int = 0

    def __str__(self) -> str:
        match self.whence:
            case StartFrom.TIME:
                return f"the time {self.number}"
            case StartFrom.AGO:
                return f"{self.number} ms ago"
            case StartFrom.OFFSET:
                return f"offset {self.number}"
            case _:
                return f"{self.whence}{self.shift:+d}" if self.shift else str(self.whence)

    def with_timestamp(self, now_ms: int) -> StartPoint:
        """Return the start point with a timestamp in place of an age; ``self`` if it has no age."""
        return replace(self, whence=StartFrom.TIME, number=max(0, now_ms - self.number)) if self.is_duration else self

    @property
    def is_duration(self) -> bool:
        """True if the start point has an age, so that the offset depends on the current time."""
        return self.whence is StartFrom.AGO

    @property
    def depends_on_end(self) -> bool:
        """True if the offset depends on the end of the log at the time of the look-up.

        Records that are written before the look-up may then be skipped.
        """
        return self.whence is not StartFrom.NONE and (self.whence is not StartFrom.EARLIEST or self.shift != 0)

    def next_timestamp(self, known: Mapping[int, ListedOffset]) -> int | None:
        """Return the next timestamp to request with ListOffsets; None if the answers in ``known`` suffice."""
        if self.whence is StartFrom.TIME:
            wanted = [self.number]
            if self.number in known and known[self.number].offset < 0:
                wanted.append(LATEST)
        elif self.whence is StartFrom.OFFSET or self.shift:
            wanted = [EARLIEST, LATEST]
        else:
            wanted = [EARLIEST if self.whence is StartFrom.EARLIEST else LATEST]
        return next((timestamp for timestamp in wanted if timestamp not in known), None)

    def resolve(self, known: Mapping[int, ListedOffset]) -> tuple[int, int]:
        """Return the offset and its leader epoch, which is -1 if unknown.

        ``known`` contains the answers to all timestamps that ``next_timestamp`` has returned.
        """
        if self.whence is StartFrom.TIME:
            found = known[self.number] if known[self.number].offset >= 0 else known[LATEST]
            return found.offset, found.leader_epoch
        if self.whence is not StartFrom.OFFSET and not self.shift:
            found = known[EARLIEST if self.whence is StartFrom.EARLIEST else LATEST]
            return found.offset, found.leader_epoch
        first, end = known[EARLIEST].offset, known[LATEST].offset
        requested = {StartFrom.OFFSET: self.number, StartFrom.EARLIEST: first}.get(self.whence, end) + self.shift
        return min(max(first, requested), end), -1


def shares_of(total: int, parts: int) -> list[int]:
    """Divide ``total`` into ``parts`` shares that differ by one at most, those farthest from zero first.

    >>> shares_of(7, 2), shares_of(-7, 2)
    ([4, 3], [-4, -3])
    """
    each, left = divmod(abs(total), parts)
    sign = 1 if total >= 0 else -1
    return [sign * (each + (number < left)) for number in range(parts)]
