"""Parsing and formatting of times and durations.

Times without a time zone are in UTC, in the input and output of all commands.
"""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import Literal, NamedTuple

__all__ = ["TailStart", "iso_text", "parse_duration", "parse_start", "parse_time", "utc_text"]

_UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_PARTS = "".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNIT_SECONDS)
_ISO = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE
)
_END_MS = 253_402_300_800_000
"""Start of the year 10000, the first year that ``datetime`` cannot represent."""


def parse_duration(text: str) -> float:
    """Parse a duration such as ``PT1H``, ``P1DT30M``, ``90s`` or ``1h30m`` and return seconds."""
    found = _ISO.fullmatch(text) or re.fullmatch(_PARTS, text)
    if found is None or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"must be a duration, such as 90s, 1h30m, 2d, PT1H or P1DT12H, not {text!r}")
    return sum(
        float(number) * size for number, size in zip(found.groups(), _UNIT_SECONDS.values(), strict=True) if number
    )


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time and return milliseconds since the epoch."""
    try:
        at = datetime.fromisoformat(text)
        milliseconds = round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise argparse.ArgumentTypeError(
            f"must be a time since 1970, such as 2026-01-31, 2026-01-31T09:00 (UTC) or 2026-01-31T09:00+02:00,"
            f" not {text!r}"
        )
    return milliseconds


def utc_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-01-31 09:00:00`` in UTC, or as ``N ms`` if this is not possible."""
    return _text(at_ms, "seconds").replace("T", " ").replace("+00:00", "")


def iso_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-01-31T09:00:00.000Z``, or as ``N ms`` if this is not possible."""
    return _text(at_ms, "milliseconds").replace("+00:00", "Z")


def _text(at_ms: int, timespec: str) -> str:
    if not 0 <= at_ms < _END_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec)


class TailStart(NamedTuple):
    """Offset or time at which ``tailrace tail`` starts."""

    kind: Literal["earliest", "latest", "offset", "last", "time", "ago"]
    number: float = 0
    """Offset (``offset``), number of offsets before the end (``last``), milliseconds since the epoch (``time``), or
    age in seconds (``ago``); 0 for ``earliest`` and ``latest``."""


def parse_start(text: str) -> TailStart:
    """Parse ``earliest``, ``latest``, ``1200``, ``-10``, ``2026-01-31T09:00`` or ``1h``."""
    if text in {"earliest", "latest"}:
        return TailStart("earliest" if text == "earliest" else "latest")
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return TailStart("last", -number) if text.startswith("-") else TailStart("offset", number)
    for kind, parse in (("ago", parse_duration), ("time", parse_time)):
        try:
            return TailStart("ago" if kind == "ago" else "time", parse(text))
        except argparse.ArgumentTypeError:
            continue
    raise argparse.ArgumentTypeError(
        "must be earliest, latest, an offset, -N for the last N offsets, a time such as 2026-01-31T09:00 (UTC), or an"
        f" age such as 1h, not {text!r}"
    )
