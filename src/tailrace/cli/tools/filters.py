"""Conditions of ``--where``: parsing and matching.

``tail --help`` imports this module, so msgspec is imported when the first record is matched.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tailrace.records import Record

__all__ = ["Condition", "matcher", "parse_condition"]

_ABSENT = object()
"""Value of a field that the record does not have."""


class Condition(NamedTuple):
    """Comparison of one field with a value."""

    field: str
    """``key``, ``header.NAME``, or the path of a field of the JSON value, separated by dots."""
    comparison: Literal["=", "!=", "~"]
    wanted: str
    """Value to compare with; for ``~``, text that the field must contain."""


def parse_condition(text: str) -> Condition:
    """Parse a condition such as ``key=ann``, ``total!=0`` or ``header.trace~4bf9``."""
    found = re.fullmatch(r"([^=!~]+)(=|!=|~)(.*)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be FIELD=VALUE, FIELD!=VALUE or FIELD~PART, such as key=ann, not {text!r}"
        )
    comparison: Literal["=", "!=", "~"] = "=" if found[2] == "=" else "!=" if found[2] == "!=" else "~"
    return Condition(found[1].strip(), comparison, found[3])


def matcher(conditions: Sequence[Condition]) -> Callable[[Record], bool]:
    """Return a predicate that is true for records that match all conditions."""
    on_key_or_headers = [one for one in conditions if _is_key_or_header(one.field)]
    on_value = [
        (one.field.removeprefix("value.").split("."), one) for one in conditions if one not in on_key_or_headers
    ]

    def matches(record: Record) -> bool:
        if not all(_is_met(one, _key_or_header(record, one.field)) for one in on_key_or_headers):
            return False
        if not on_value:
            return True
        value = _decoded(record.value)
        return all(_is_met(one, _field_at(value, path)) for path, one in on_value)

    return matches


def _is_key_or_header(field: str) -> bool:
    return field == "key" or field.startswith("header.")


def _key_or_header(record: Record, field: str) -> object:
    """Return the text of the key or of the last header with this name.

    The result is None if the key or the value of the header is null, and ``_ABSENT`` if there is no such header.
    """
    from tailrace.cli.tools.byte_text import to_text  # noqa: PLC0415 - not needed by --help

    if field == "key":
        return None if record.key is None else to_text(record.key)[1]
    name = field.removeprefix("header.")
    found = [value for header, value in record.headers if header == name]
    return _ABSENT if not found else None if found[-1] is None else to_text(found[-1])[1]


def _decoded(content: bytes | None) -> object:
    import msgspec  # noqa: PLC0415 - not needed by --help

    try:
        return _ABSENT if content is None else msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ABSENT  # A value that is not JSON has no fields.


def _field_at(value: object, path: Sequence[str]) -> object:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def _is_met(condition: Condition, found: object) -> bool:
    if condition.comparison == "~":
        return found is not _ABSENT and condition.wanted in _text(found)
    return _is_equal(found, condition.wanted) is (condition.comparison == "=")


def _is_equal(found: object, wanted: str) -> bool:
    if found is _ABSENT or isinstance(found, str):
        return found == wanted
    expected = _decoded(wanted.encode())
    # JSON's true is not 1, but in Python True == 1.
    return expected == found and isinstance(expected, bool) is isinstance(found, bool)


def _text(found: object) -> str:
    import msgspec  # noqa: PLC0415 - not needed by --help

    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
