"""Output formats of ``tailrace tail``: lines of JSON, rows of a table, raw values.

Control characters are escaped, except in raw values that are not written to a terminal. In a table, keys and values are
truncated so that a row fits into the width of the terminal, but values keep at least ``_MIN_VALUE_WIDTH`` cells.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Callable

import msgspec

from tailrace.cli.tools.byte_text import to_json, to_text
from tailrace.cli.tools.times import iso_text, utc_text
from tailrace.observe.log_format import escaped, escaped_json
from tailrace.records import Record

__all__ = ["heading", "writer_of"]

_OFFSET_WIDTH, _TIME_WIDTH, _KEY_WIDTH = 14, 19, 14
"""Widths of columns in cells; a wide character takes two cells."""
_MIN_VALUE_WIDTH = 10


def writer_of(form: str) -> Callable[[Record], bytes]:
    """Return a function that encodes a record, with a newline, in the format ``json``, ``table`` or ``raw``."""
    if form == "table":
        width = _width()
        return lambda record: _row(
            f"{record.partition}:{record.offset}",
            utc_text(record.timestamp),
            _cell_text(record.key),
            _cell_text(record.value),
            width,
        )
    if form == "json":
        return _json_line
    return _raw_on_terminal if sys.stdout.isatty() else _raw


def heading() -> bytes:
    """Return the heading of the table and the line below it."""
    width = _width()
    return _row("offset", "time (UTC)", "key", "value", width) + b"-" * width + b"\n"


def _json_line(record: Record) -> bytes:
    key_format, key = to_json(record.key)
    value_format, value = to_json(record.value)
    headers = [(name, *to_json(content)) for name, content in record.headers]
    entry = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso_text(record.timestamp),
        "key": key,
        "value": value,
        "headers": [{"name": name, "value": content, "format": kind} for name, kind, content in headers],
        "key_format": key_format,
        "value_format": value_format,
    }
    return escaped_json(msgspec.json.encode(entry).decode()).encode() + b"\n"


def _raw(record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def _raw_on_terminal(record: Record) -> bytes:
    return escaped((record.value or b"").decode("utf-8", "backslashreplace"), keep="\n\t").encode() + b"\n"


# ---- rows --------------------------------------------------------------------------------------------------------


def _width() -> int:
    return shutil.get_terminal_size().columns


def _row(position: str, time: str, key: str, value: str, width: int) -> bytes:
    value_width = max(_MIN_VALUE_WIDTH, width - _OFFSET_WIDTH - _TIME_WIDTH - _KEY_WIDTH - 6)
    start = f"{position:<{_OFFSET_WIDTH}}  {time:<{_TIME_WIDTH}}  {_fit(key, _KEY_WIDTH)}"
    row = f"{start}  {_fit(value, value_width).rstrip()}"
    return f"{row.rstrip()}\n".encode()


def _cell_text(content: bytes | None) -> str:
    kind, text = to_text(content)
    return "null" if kind == "null" else f"0x{text}" if kind == "hex" else escaped(text)


def _fit(text: str, width: int) -> str:
    """Pad or truncate ``text`` to exactly ``width`` cells; truncated text ends with an ellipsis."""
    if len(text) <= width and text.isascii():
        return text.ljust(width)
    cells, kept = 0, []
    for one in text:
        cells += _cells(one)
        kept.append(one)
        if cells > width:
            break
    if cells <= width:
        return text + " " * (width - cells)
    while kept and cells > width - 1:
        cells -= _cells(kept.pop())
    return "".join(kept) + "…" + " " * (width - 1 - cells)


def _cells(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
