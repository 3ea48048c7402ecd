"""Which records are meant: conditions as a user writes them, and whether a record fulfils them.

Rule of this file: a ``--help`` reads it, so JSON is imported when the first record is looked at.
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


class Condition(NamedTuple):
    """One of them."""

    field: str
    """``key``, ``header.NAME``, or the way to a field of a JSON value."""
    comparison: Literal["=", "!=", "~"]
    wanted: str


def parse_condition(text: str) -> Condition:
    """``key=ann``, ``total!=0``, ``header.trace~4bf9``."""
    found = re.fullmatch(r"([^=!~]+)(=|!=|~)(.*)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no condition - write key=ann, status=paid, total!=0, or name~part for what contains it"
        )
    comparison: Literal["=", "!=", "~"] = "=" if found[2] == "=" else "!=" if found[2] == "!=" else "~"
    return Condition(found[1].strip(), comparison, found[3])


def matcher(conditions: Sequence[Condition]) -> Callable[[Record], bool]:
    """Whether a record fulfils all of them."""
    of_record = [one for one in conditions if _is_of_record(one.field)]
    of_value = [(one.field.removeprefix("value.").split("."), one) for one in conditions if one not in of_record]

    def takes(record: Record) -> bool:
        if not all(_holds(one, _of_record(record, one.field)) for one in of_record):
            return False
        if not of_value:
            return True
        value = _decoded(record.value)
        return all(_holds(one, _at(value, path)) for path, one in of_value)

    return takes


def _is_of_record(field: str) -> bool:
    return field == "key" or field.startswith("header.")


def _of_record(record: Record, field: str) -> object:
    from tailrace.cli.tools.byte_text import readable  # noqa: PLC0415 - a --help does without

    if field == "key":
        return None if record.key is None else readable(record.key)[1]
    name = field.removeprefix("header.")
    found = [value for header, value in record.headers if header == name]
    return _ABSENT if not found else None if found[-1] is None else readable(found[-1])[1]


def _decoded(content: bytes | None) -> object:
    import msgspec  # noqa: PLC0415 - a --help does without

    try:
        return _ABSENT if content is None else msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ABSENT  # no JSON has no fields


def _at(value: object, path: Sequence[str]) -> object:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def _holds(condition: Condition, found: object) -> bool:
    if condition.comparison == "~":
        return found is not _ABSENT and condition.wanted in _text(found)
    return _is_equal(found, condition.wanted) is (condition.comparison == "=")


def _is_equal(found: object, wanted: str) -> bool:
    if found is _ABSENT or isinstance(found, str):
        return found == wanted
    meant = _decoded(wanted.encode())
    # In Python True is 1.
    return meant == found and isinstance(meant, bool) is isinstance(found, bool)


def _text(found: object) -> str:
    import msgspec  # noqa: PLC0415 - a --help does without

    return found if isinstance(found, str) else msgspec.json.encode(found).decode()
