"""Names of a group's own topics, such as its retry topics: they are built from templates, and parsed.

This module does no I/O.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tailrace.app.handlers import Handler
from tailrace.core.cluster_metadata import ILLEGAL_IN_TOPIC_NAME, topic_name_fault
from tailrace.errors import ConfigurationError

__all__ = [
    "DEAD",
    "DELAYED",
    "REPLAY",
    "RETRY",
    "NameForm",
    "RetryTopic",
    "delay_name",
    "publish_delay_topic",
    "retry_topic",
    "retry_topics_of",
    "topic_name",
]

DEAD = "{topic}.{group}.dead"
RETRY = "{topic}.{group}.retry.{delay}"
REPLAY = "{topic}.{group}.replay"
DELAYED = "{group}.delayed-publish.{delay}"

_FIELDS = ("topic", "group", "delay")
_UNITS = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


def topic_name(template: str = DEAD, *, topic: str, group: str, delay: str | None = None) -> str:
    """Return the name of a retry, replay or dead-letter topic of a group.

    If the group id has characters that are illegal in a topic name, they are replaced by dashes, and the first eight
    hexadecimal digits of the group id's SHA-256 are appended, so that ``a/b`` and ``a b`` yield different names.

    The template may have the fields ``{topic}``, ``{group}`` and, for a retry topic, ``{delay}``, such as ``30s``.

    Raises:
        ConfigurationError: the template is malformed, or the name is illegal or equals ``topic``.
    """
    named = set(_fields_of(template))
    if ("delay" in named) is not (delay is not None):
        reason = "it does not contain {delay}" if delay is not None else "{delay} is for retry topics only"
        raise _template_error(template, reason)
    name = template.format(topic=topic, group=_legal_group(group), delay=delay)
    if fault := topic_name_fault(name):
        raise _template_error(template, f"it yields {name!r}, and {fault}")
    if name == topic:
        raise _template_error(
            template, f"it yields {name!r}, the topic itself, so that handlers would receive their own dead letters"
        )
    return name


class NameForm:
    """Parser of names that were built from a template.

    Args:
        group: group id; None to parse names with any group id.

    Raises:
        ConfigurationError: the template is malformed.
    """

    def __init__(self, template: str, group: str | None = None) -> None:
        # If the group id is not known, the topic may end at any of several dots. Only the longest and the shortest
        # possible topic are considered.
        self._forms = [re.compile(_pattern_of(template, group, topic)) for topic in ("(?P<topic>.+)", "(?P<topic>.+?)")]

    def is_shared_name(self, name: str) -> bool:
        """Return True if the template yields ``name`` for every topic, because it does not contain ``{topic}``."""
        form = self._forms[0]
        return not form.groups and form.fullmatch(name) is not None

    def topics_of(self, name: str) -> Iterator[str]:
        """Yield the topics for which the template may yield ``name``."""
        for form in self._forms:
            if form.groups and (found := form.fullmatch(name)) is not None:
                yield found["topic"]


def _pattern_of(template: str, group: str | None, topic: str) -> str:
    """Return a regular expression for the names of a template; ``topic`` is the expression for ``{topic}``."""
    forms = {"topic": topic, "delay": "[0-9]+(?:ms|[smh])"}
    forms["group"] = ".+" if group is None else re.escape(_legal_group(group))
    pattern = ""
    for literal, field in _parts_of(template):
        pattern += re.escape(literal) + ("" if field is None else forms[field])
        if field == "topic":
            forms["topic"] = "(?P=topic)"  # A second {topic} must match the same text.
    return pattern


def _fields_of(template: str) -> Iterable[str]:
    return [field for _, field in _parts_of(template) if field is not None]


def _parts_of(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield each literal part with the name of the field that follows it; None after the last part."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _template_error(template, str(error)) from None
    for literal, field, spec, conversion in parts:
        if field is not None and (field not in _FIELDS or spec or conversion):
            raise _template_error(template, f"the only fields are {', '.join(f'{{{one}}}' for one in _FIELDS)}")
        yield literal, field


def _legal_group(group: str) -> str:
    """Return the group id with illegal characters replaced, see ``topic_name``."""
    if not ILLEGAL_IN_TOPIC_NAME.search(group):
        return group
    digits = hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{ILLEGAL_IN_TOPIC_NAME.sub('-', group)}-{digits}"


def _template_error(template: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"invalid topic template {template!r}: {reason} - write it like {DEAD!r}")


# ---- names and delays of a group's retry topics ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetryTopic:
    """Topic in which failed records wait for their next attempt."""

    origin: str
    """Topic from which the records were first read."""
    delay_ms: int
    """Milliseconds from the publishing of a record to this topic until its next attempt."""


def delay_name(delay_ms: int) -> str:
    """Return a delay as it appears in topic names, such as ``30s``, ``10m`` or ``1500ms``; unique for each delay."""
    size, unit = next((size, unit) for size, unit in _UNITS if delay_ms % size == 0)
    return f"{delay_ms // size}{unit}"


def retry_topic(origin: str, group_id: str, delay_ms: int) -> str:
    """Return the name of a group's retry topic for records of the topic ``origin``."""
    return topic_name(RETRY, topic=origin, group=group_id, delay=delay_name(delay_ms))


def publish_delay_topic(group_id: str, delay_ms: int) -> str:
    """Return the name of the topic in which messages of a group's app wait for a declared delay.

    Raises:
        ConfigurationError: the name is too long.
    """
    return topic_name(DELAYED, topic="", group=group_id, delay=delay_name(delay_ms))


def retry_topics_of(handlers: Iterable[Handler], group_id: str) -> dict[str, RetryTopic]:
    """Return the retry topics of a group's handlers, by name.

    Raises:
        ConfigurationError: the name of a retry topic is too long.
    """
    return {
        retry_topic(topic, group_id, delay_ms): RetryTopic(topic, delay_ms)
        for handler in handlers
        if handler.retry is not None
        for topic in handler.topics
        for delay_ms in handler.retry.topic_delays_ms
    }
