"""Kafka's rule for names of topics (``org.apache.kafka.common.internals.Topic``)."""

from __future__ import annotations

import functools
import re

__all__ = ["ILLEGAL_IN_TOPIC_NAME", "topic_name_fault"]

ILLEGAL_IN_TOPIC_NAME = re.compile(r"[^a-zA-Z0-9._-]")
_LONGEST = 249


@functools.lru_cache(1024)
def topic_name_fault(name: object) -> str:
    """Return why no topic can have this name; empty for a legal name."""
    if not isinstance(name, str):
        return f"a topic's name is text, not {type(name).__name__}"
    if illegal := ILLEGAL_IN_TOPIC_NAME.search(name):
        return f"no topic's name has {illegal[0]!r}, only a-z, A-Z, 0-9, '.', '_' and '-'"
    if not name or name in {".", ".."} or len(name) > _LONGEST:
        return f"a topic's name has 1 to {_LONGEST} characters and is not '.' or '..'"
    return ""
