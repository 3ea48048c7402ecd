"""Where to begin in a log, as far as only its leader can say which offset that is.

Rule of this file: a start is a wish in words (the first record, ten before the end, yesterday at noon). It says what
has to be asked of the leader, one question after the other, and what the answers come to. It never leads out of the
log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tailrace.protocol.list_offsets import ListedOffset

__all__ = ["EARLIEST", "LATEST", "StartFrom", "StartPoint", "shares_of"]

LATEST, EARLIEST = -1, -2
"""What to ask ListOffsets for in place of a time."""


class StartFrom(StrEnum):
    """What a start is counted from."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """Nowhere: the user has to say."""
    TIME = "time"
    AGO = "ago"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """A place in a log.

    Attributes:
        number: the time, or how long ago, in milliseconds; or the offset.
        shift: so many records behind the first one or the end; before it when that is negative.
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

    def fixed(self, now_ms: int) -> StartPoint:
        """The same with a time in place of a duration."""
        return replace(self, whence=StartFrom.TIME, number=max(0, now_ms - self.number)) if self.is_duration else self

    @property
    def is_duration(self) -> bool:
        """Whether it depends on when it is asked."""
        return self.whence is StartFrom.AGO

    def question(self, known: Mapping[int, ListedOffset]) -> int | None:
        """What to ask the leader next, as ListOffsets has it; None when ``known``, by question, is enough."""
        if self.whence is StartFrom.TIME:
            wanted = [self.number]
            if self.number in known and known[self.number].offset < 0:
                wanted.append(LATEST)
        elif self.whence is StartFrom.OFFSET or self.shift:
            wanted = [EARLIEST, LATEST]
        else:
            wanted = [EARLIEST if self.whence is StartFrom.EARLIEST else LATEST]
        return next((question for question in wanted if question not in known), None)

    def place(self, known: Mapping[int, ListedOffset]) -> tuple[int, int]:
        """The offset, and the leader's epoch there, if it is known; when there is no question left."""
        if self.whence is StartFrom.TIME:
            found = known[self.number] if known[self.number].offset >= 0 else known[LATEST]
            return found.offset, found.leader_epoch
        if self.whence is not StartFrom.OFFSET and not self.shift:
            found = known[EARLIEST if self.whence is StartFrom.EARLIEST else LATEST]
            return found.offset, found.leader_epoch
        first, end = known[EARLIEST].offset, known[LATEST].offset
        wished = {StartFrom.OFFSET: self.number, StartFrom.EARLIEST: first}.get(self.whence, end) + self.shift
        return min(max(first, wished), end), -1


def shares_of(total: int, parts: int) -> list[int]:
    """``total`` records dealt out to so many partitions; what is left over goes one each to the first ones."""
    each, left = divmod(abs(total), parts)
    sign = 1 if total >= 0 else -1
    return [sign * (each + (number < left)) for number in range(parts)]
