"""Selection of dead letters: parsing of arguments and matching."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tailrace.app.failures.dead_letters import DeadLetter

__all__ = ["DeadLetterFilter", "DeadLetterPosition", "parse_position", "parse_since", "position_of"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class DeadLetterPosition(NamedTuple):
    """Partition and offset of a dead letter, written as ``P:O``."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions of the dead letters to select; a condition that is empty or None matches all dead letters."""

    positions: Collection[DeadLetterPosition] = ()
    since_ms: int | None = None
    """Earliest time of the failure, in milliseconds since the epoch."""
    error_types: Collection[str] = ()
    """Names of error classes, with or without the module."""
    limit: int | None = None
    """Maximum number of dead letters; None for all."""

    def matches(self, letter: DeadLetter) -> bool:
        """Return True if a dead letter matches all conditions, regardless of the limit."""
        if self.positions and position_of(letter) not in self.positions:
            return False
        if self.since_ms is not None and letter.at_ms < self.since_ms:
            return False
        if not self.error_types:
            return True
        return not {letter.error_type, letter.error_type.rpartition(".")[2]}.isdisjoint(self.error_types)

    def sort_and_limit(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Return the dead letters in the order of their failures, at most the first ``limit``."""
        return sorted(letters, key=lambda letter: (letter.at_ms, position_of(letter)))[: self.limit]


def position_of(letter: DeadLetter) -> DeadLetterPosition:
    """Return the partition and offset of a dead letter in its dead-letter topic."""
    return DeadLetterPosition(letter.record.partition, letter.record.offset)


def parse_position(text: str) -> DeadLetterPosition:
    """Parse partition and offset, such as ``3:17``."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be PARTITION:OFFSET, such as 0:17, not {text!r}")
    return DeadLetterPosition(int(found[1]), int(found[2]))


def parse_since(text: str) -> int:
    """Parse a time, or an age such as ``2h``, and return milliseconds since the epoch."""
    found = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    try:
        if found is not None:
            return int((time.time() - timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()) * 1000)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be an age, such as 90s, 30m, 2h or 3d, or a time, such as 2026-01-31T09:00 (UTC), not {text!r}"
        ) from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
