"""Names of a group's own topics: made by a template, and read back.

Rule of this file: pure. A name says which topic it is for, but not always where the topic's name ends and the group's
begins; then both readings count.
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
    """The name of a topic of the group's own, such as its dead letters of ``topic``.

    A group id may have characters that no topic may have. They become dashes, and eight digits of its hash follow, so
    ``a/b`` and ``a b`` are two names; two groups share one only if 32 bits of SHA-256 do, or if somebody makes it so.

    Args:
        template: with ``{topic}``, ``{group}`` and ``{delay}`` where they belong.
        topic: that the group reads.
        group: its id.
        delay: of a retry topic, such as ``30s``; the template has a place for it then, and only then.

    Raises:
        ConfigurationError: the template is none, or its name is no topic's, or that of ``topic`` itself.
    """
    named = set(_fields_of(template))
    if ("delay" in named) is not (delay is not None):
        raise _refusal(template, "it needs {delay}" if delay is not None else "it has {delay}, and there is none here")
    name = template.format(topic=topic, group=_legal(group), delay=delay)
    if fault := topic_name_fault(name):
        raise _refusal(template, f"it gives {name!r}, and {fault}")
    if name == topic:
        raise _refusal(template, f"it gives {name!r}, the topic itself, which would be read again for ever")
    return name


class NameForm:
    """A template, read backwards.

    Args:
        template: as ``topic_name`` has it.
        group: the group id; None for any.

    Raises:
        ConfigurationError: it is none.
    """

    def __init__(self, template: str, group: str | None = None) -> None:
        # Where the group is any, the topic's name may end early or late.
        self._forms = [re.compile(_as_pattern(template, group, topic)) for topic in ("(?P<topic>.+)", "(?P<topic>.+?)")]

    def is_of_all(self, name: str) -> bool:
        """Whether ``name`` is the one that the template gives for each topic."""
        form = self._forms[0]
        return not form.groups and form.fullmatch(name) is not None

    def topics_of(self, name: str) -> Iterator[str]:
        """The topics of which ``name`` may be one."""
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
    """What stands there as it is, each time with the field behind it."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise _refusal(template, str(error)) from None
    for literal, field, spec, conversion in parts:
        if field is not None and (field not in _FIELDS or spec or conversion):
            raise _refusal(template, f"between braces it knows {', '.join(_FIELDS)} and nothing else")
        yield literal, field


def _legal(group: str) -> str:
    if not ILLEGAL_IN_TOPIC_NAME.search(group):
        return group
    digits = hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{ILLEGAL_IN_TOPIC_NAME.sub('-', group)}-{digits}"


def _refusal(template: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"the topic template {template!r} will not do: {why} - write it like {DEAD!r}")
