"""Patterns of topic names, matched against whole names.

With ``group_protocol="classic"``, and without a group, tailrace matches names by Python's ``re``. With
``group_protocol="consumer"``, the broker matches them by RE2 (KIP-848), and tailrace does not check the syntax.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tailrace.errors import ConfigurationError

__all__ = ["BrokerPattern", "TopicPattern", "TopicPredicate", "checked_pattern"]

_FLAGS_IN_RE2 = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


@dataclass(frozen=True, slots=True)
class BrokerPattern:
    """Regular expression in RE2 syntax that the broker matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TopicPredicate:
    """Function that selects topics by name, in place of a pattern. An App uses it with both group protocols.

    Attributes:
        pattern: description of the topics, for error messages.
        selects: returns True for the name of a topic to subscribe to.
    """

    pattern: str
    selects: Callable[[str], bool]

    def fullmatch(self, name: str) -> bool:
        """Return ``selects(name)``; named like the method of ``re.Pattern``."""
        return self.selects(name)


TopicPattern: TypeAlias = re.Pattern[str] | TopicPredicate | BrokerPattern


def checked_pattern(given: object, group_protocol: str) -> TopicPattern:
    """Return ``given`` as a pattern for Python or, with ``group_protocol="consumer"``, for the broker.

    Args:
        given: regular expression, or compiled pattern. A pattern for the broker keeps the flags IGNORECASE, MULTILINE
            and DOTALL.
        group_protocol: ``"classic"`` or ``"consumer"``.

    Raises:
        ConfigurationError: ``given`` is neither a non-empty string nor a compiled pattern of strings; a pattern for
            Python is not a valid regular expression; or a pattern for the broker has the flag re.VERBOSE, which brokers
            do not support.
    """
    if isinstance(given, re.Pattern) and isinstance(given.pattern, str):
        return _broker_pattern(given) if group_protocol == "consumer" else given
    if not isinstance(given, str) or not given:
        raise ConfigurationError(
            f"pattern must be a regular expression of topic names such as 'orders[.].*', not {given!r}"
        )
    if group_protocol == "consumer":
        return BrokerPattern(given)
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigurationError(f"pattern={given!r} is not a valid regular expression: {error}") from error


def _broker_pattern(given: re.Pattern[str]) -> BrokerPattern:
    if given.flags & re.VERBOSE:
        raise ConfigurationError(
            f"pattern={given.pattern!r} has re.VERBOSE, which brokers do not support (group_protocol='consumer')"
            " - remove blanks and comments from the pattern, and the flag"
        )
    flags = "".join(name for flag, name in _FLAGS_IN_RE2 if given.flags & flag)
    return BrokerPattern(f"(?{flags}){given.pattern}" if flags else given.pattern)
