"""Headers that tailrace adds to records of a group's own topics. Pure: no clock, IO or logging.

The names of these headers begin with ``tailrace-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

__all__ = [
    "DUE_AT",
    "MAX_INT32",
    "MAX_INT64",
    "PREFIX",
    "Header",
    "added_headers",
    "int_header",
    "text_header",
    "without_tailrace_headers",
]

Header: TypeAlias = tuple[str, bytes | None]

PREFIX = "tailrace-"
"""Prefix of all headers that tailrace adds."""
DUE_AT = PREFIX + "due-at"
"""Time at which a record of a retry topic, or a delayed message, is due, in milliseconds since the epoch."""
MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
"""Greatest partition and count; greatest offset and time."""

_NUMBER = re.compile(rb"[0-9]{1,19}")


def added_headers(headers: Iterable[Header]) -> dict[str, bytes]:
    """Return the headers that tailrace added; without those that are null."""
    return {name: value for name, value in headers if value is not None and name.startswith(PREFIX)}


def without_tailrace_headers(headers: Iterable[Header]) -> tuple[Header, ...]:
    """Return the headers that tailrace did not add."""
    return tuple((name, value) for name, value in headers if not name.startswith(PREFIX))


def text_header(added: Mapping[str, bytes], name: str) -> str:
    """Return the text in a header; "" if the header is missing."""
    return added.get(name, b"").decode("utf-8", "replace")


def int_header(added: Mapping[str, bytes], name: str, limit: int) -> int | None:
    """Return the number in a header; None if the header is missing or contains no integer from 0 to ``limit``."""
    digits = added.get(name, b"")
    return number if _NUMBER.fullmatch(digits) and (number := int(digits)) <= limit else None
