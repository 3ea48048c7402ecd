"""Names of a group's own topics: built from a template, and parsed.

This module is pure. A name does not always show at which dot the topic ends and the group id begins. The longest and
the shortest possible topic both count in that case.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Iterator

from tailrace.core.legal_topic_names import ILLEGAL_IN_TOPIC_NAME, topic_name_fault
from tailrace.errors import ConfigurationError

__all__ = ["DEAD", "REPLAY", "RETRY", "NameForm", "topic_name"]

DEAD = "{topic}.{group}.dead"
RETRY = "{topic}.{group}.retry.{delay}"
REPLAY = "{topic}.{group}.replay"

_FIELDS = ("topic", "group", "delay")


def topic_name(template: str = DEAD, *, topic: str, group: str, delay: str | None = None) -> str:
    """Return the name of one of a group's own topics, such as its dead-letter topic for ``topic``.

    If the group id has characters that are illegal in a topic name, they are replaced by dashes, and the first eight
    hexadecimal digits of the group id's SHA-256 are appended, so that ``a/b`` and ``a b`` yield different names. Two
    group ids yield equal names only if these 32 bits are equal, or if one group id was chosen to equal the replacement
    of the other.

    Args:
        template: template with the fields ``{topic}``, ``{group}`` and ``{delay}``.
        topic: topic that the group reads.
        group: group id.
        delay: delay of a retry topic, such as ``30s``; required if the template has ``{delay}``, otherwise None.

    Raises:
        ConfigurationError: the template is malformed, or the name is illegal or equals ``topic``.
    """
    named = set(_fields_of(template))
    if ("delay" in named) is not (delay is not None):
        raise _refusal(template, "it lacks {delay}" if delay is not None else "{delay} is for retry topics only")
    name = template.format(topic=topic, group=_legal(group), delay=delay)
    if fault := topic_name_fault(name):
        raise _refusal(template, f"it yields {name!r}, and {fault}")
    if name == topic:
        raise _refusal(template, f"it yields {name!r}, the topic itself, whose dead letters would be read forever")
    return name


class NameForm:
    """Parser of the names that a template yields.

    Args:
        template: template as for ``topic_name``.
        group: group id; None matches any group id.

    Raises:
        ConfigurationError: the template is malformed.
    """

    def __init__(self, template: str, group: str | None = None) -> None:
        # Without a group id, the topic may end at any of several dots; the longest and the shortest topic are tried.
        self._forms = [re.compile(_as_pattern(template, group, topic)) for topic in ("(?P<topic>.+)", "(?P<topic>.+?)")]

    def is_shared_name(self, name: str) -> bool:
        """Return True if the template has no ``{topic}`` and yields ``name``."""
        form = self._forms[0]
        return not form.groups and form.fullmatch(name) is not None

    def topics_of(self, name: str) -> Iterator[str]:
        """Return the topics for which the template may yield ``name``."""
        for form in self._forms:
            if form.groups and (found := form.fullmatch(name)) is not None:
                yield found["topic"]


def _as_pattern(template: str, group: str | None, topic: str) -> str:
    forms = {"topic": topic, "delay": "[0-9]+(?:ms|[smh])"}
    forms["group"] = ".+" if group is None else re.escape(_legal(group))
    found = ""
    for literal, field in _parts_of(template):
        found += re.escape(literal) + ("" if field is None else forms[field])
        if field == "topic":
            forms["topic"] = "(?P=topic)"
    return found


def _fields_of(template: str) -> Iterable[str]:
    return [field for _, field in _parts_of(template) if field is not None]


def _parts_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Return each literal part, with the name of the field that follows the part, or None."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _refusal(template, str(error)) from None
    for literal, field, spec, conversion in parts:
        if field is not None and (field not in _FIELDS or spec or conversion):
            raise _refusal(template, f"the only fields are {', '.join(f'{{{one}}}' for one in _FIELDS)}")
        yield literal, field


def _legal(group: str) -> str:
    if not ILLEGAL_IN_TOPIC_NAME.search(group):
        return group
    digits = hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{ILLEGAL_IN_TOPIC_NAME.sub('-', group)}-{digits}"


def _refusal(template: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"invalid topic template {template!r}: {why} - write it like {DEAD!r}")
