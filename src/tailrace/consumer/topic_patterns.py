"""Patterns of topic names.

With the classic protocol and without a group, tailrace matches names by Python's ``re``. With the consumer protocol the
broker matches them by RE2 (KIP-848), so tailrace does not check such a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.errors import ConfigurationError

__all__ = ["BrokerPattern", "TopicChoice", "TopicPattern", "checked_pattern"]

_RE2_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


@dataclass(frozen=True, slots=True)
class BrokerPattern:
    """Pattern that the broker resolves."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Predicate of topic names, applied by tailrace whatever the group protocol; used by App."""

    pattern: str
    """Description for messages."""
    takes: Callable[[str], bool]

    def fullmatch(self, name: str) -> bool:
        """Return True if the topic is chosen."""
        return self.takes(name)


TopicPattern: TypeAlias = re.Pattern[str] | TopicChoice | BrokerPattern


def checked_pattern(given: object, group_protocol: str) -> TopicPattern:
    """Return ``given`` as a pattern for tailrace or for the broker, depending on the group protocol.

    Raises:
        ConfigurationError: ``given`` is not a string, or tailrace resolves the pattern and it is not valid in Python.
    """
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return _for_broker(given) if group_protocol == "consumer" else given
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"pattern must be a regular expression of topic names, not {given!r}")
    if group_protocol == "consumer":
        return BrokerPattern(given)
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigurationError(f"pattern must be a regular expression, not {given!r}: {error}") from error


def _for_broker(given: re.Pattern[str]) -> BrokerPattern:
    if given.flags & re.VERBOSE:
        raise ConfigurationError(
            f"pattern={given.pattern!r} has re.VERBOSE, which brokers do not support (group_protocol='consumer')"
            " - write it without blanks and comments"
        )
    flags = "".join(name for flag, name in _RE2_FLAGS if given.flags & flag)
    return BrokerPattern(f"(?{flags}){given.pattern}" if flags else given.pattern)
