"""Patterns of topics: who reads them, and in which language.

Rule of this file: with the classic protocol and without a group the names are matched here, by Python's ``re``. With
the consumer protocol the broker does it, as RE2 (KIP-848), so what Python thinks of the text does not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.errors import ConfigurationError

__all__ = ["BrokerPattern", "TopicChoice", "TopicPattern", "checked_pattern"]

_WORDS_OF_RE2 = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


@dataclass(frozen=True, slots=True)
class BrokerPattern:
    """A pattern that the broker reads."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Names that are chosen here, whatever the protocol, by whoever reads in the user's place."""

    pattern: str
    """In a word, for people."""
    takes: Callable[[str], bool]

    def fullmatch(self, name: str) -> bool:
        """Whether a topic is chosen."""
        return self.takes(name)


TopicPattern: TypeAlias = re.Pattern[str] | TopicChoice | BrokerPattern


def checked_pattern(given: object, group_protocol: str) -> TopicPattern:
    """What the user gave as ``pattern``, for whoever reads it.

    Raises:
        ConfigurationError: it is no text, or Python should read it and cannot; what a broker cannot read it tells.
    """
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return _for_broker(given) if group_protocol == "consumer" else given
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"pattern={given!r} will not do: it has to be a regular expression of names")
    if group_protocol == "consumer":
        return BrokerPattern(given)
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigurationError(f"pattern={given!r} is no regular expression: {error}") from error


def _for_broker(given: re.Pattern[str]) -> BrokerPattern:
    if given.flags & re.VERBOSE:
        raise ConfigurationError(
            f"pattern={given.pattern!r} will not do with group_protocol='consumer': the broker knows no re.VERBOSE"
            " - write it without blanks and comments"
        )
    flags = "".join(letter for flag, letter in _WORDS_OF_RE2 if given.flags & flag)
    return BrokerPattern(f"(?{flags}){given.pattern}" if flags else given.pattern)
