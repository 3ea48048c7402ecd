"""Escaping of texts from brokers, records and exceptions, which must not control a terminal or forge log lines."""

from __future__ import annotations

import json
from types import TracebackType

from tailrace.user_exceptions import traceback_parts

__all__ = ["escaped", "escaped_json", "escaped_traceback"]


def escaped(text: str, *, keep: str = "") -> str:
    """Return ``text`` with unprintable characters escaped, except those in ``keep``.

    Unprintable are, for example, control characters, line ends and bidirectional controls.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else one.encode("unicode_escape").decode() for one in text)


def escaped_json(line: str) -> str:
    """Return a line of JSON with unprintable characters replaced by JSON's escape sequences.

    ``line`` must not contain unprintable characters outside JSON strings.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def escaped_traceback(
    kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
) -> str:
    """Return a traceback with unprintable characters escaped, and all lines of a message but the first indented.

    The indentation prevents that a message of several lines looks like several log lines.
    """
    if kind is None or exception is None:
        return ""
    text = "".join(map(_indented, traceback_parts(exception, traceback, compact=True)))
    return escaped(text.rstrip("\n"), keep="\n")


def _indented(part: str) -> str:
    # The text between two chained exceptions is the only part that begins with an empty line.
    if part.startswith("\n"):
        return part
    first, *others = part.splitlines()
    return "".join(f"{line}\n" for line in (first, *(one if one[:1] == " " else f"    {one}" for one in others)))
