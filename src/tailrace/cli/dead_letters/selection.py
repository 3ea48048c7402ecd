"""Which letters: what a user writes, and what it means.

Rule of this file: pure, but for the clock behind ``2h``; it is read before anything else is imported.
"""

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

__all__ = ["LetterPlace", "LetterSelection", "parse_place", "parse_since", "place_of"]

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class LetterPlace(NamedTuple):
    """Where a letter stands in its topic; users write it as ``P:O``."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """The letters that are meant: those that pass each of these; all of them where nothing is said."""

    places: Collection[LetterPlace] = ()
    since_ms: int | None = None
    error_types: Collection[str] = ()
    limit: int | None = None

    def takes(self, letter: DeadLetter) -> bool:
        """Whether a letter passes, the limit aside."""
        if self.places and place_of(letter) not in self.places:
            return False
        if self.since_ms is not None and letter.at_ms < self.since_ms:
            return False
        if not self.error_types:
            return True
        return not {letter.error_type, letter.error_type.rpartition(".")[2]}.isdisjoint(self.error_types)

    def first(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Those that failed first, as many as the limit allows, in that order."""
        return sorted(letters, key=lambda letter: (letter.at_ms, place_of(letter)))[: self.limit]


def place_of(letter: DeadLetter) -> LetterPlace:
    """Where it stands."""
    return LetterPlace(letter.record.partition, letter.record.offset)


def parse_place(text: str) -> LetterPlace:
    """``3:17`` as partition and offset."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no place - write PARTITION:OFFSET, such as 0:17")
    return LetterPlace(int(found[1]), int(found[2]))


def parse_since(text: str) -> int:
    """A time, or how long ago it is, as milliseconds since the epoch."""
    found = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    try:
        if found is not None:
            return int((time.time() - timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()) * 1000)
        at = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time - write how long ago, such as 90s, 30m, 2h, 3d, or when, such as 2026-01-31T09:00"
        ) from None
    return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
