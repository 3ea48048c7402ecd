"""Kafka's rule for topic names (``org.apache.kafka.common.internals.Topic``). Pure: no clock, IO or logging."""

from __future__ import annotations

import functools
import re

__all__ = ["ILLEGAL_IN_TOPIC_NAME", "topic_name_fault"]

ILLEGAL_IN_TOPIC_NAME = re.compile(r"[^a-zA-Z0-9._-]")
_MAX_LENGTH = 249


@functools.lru_cache(1024)
def topic_name_fault(name: object) -> str:
    """Return the rule that ``name`` breaks, as part of an error message; empty if the name is legal."""
    if not isinstance(name, str):
        return f"a topic name must be a string, not {type(name).__name__}"
    if illegal := ILLEGAL_IN_TOPIC_NAME.search(name):
        return f"a topic name may contain only a-z, A-Z, 0-9, '.', '_' and '-', not {illegal[0]!r}"
    if not name or name in {".", ".."} or len(name) > _MAX_LENGTH:
        return f"a topic name must have 1 to {_MAX_LENGTH} characters and must not be '.' or '..'"
    return ""
