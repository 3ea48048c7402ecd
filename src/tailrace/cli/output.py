"""Output of commands: tables and labeled lines, or lines of JSON with ``--json``; formats of bytes, times and numbers.

Control characters are escaped, because names and texts from brokers are untrusted. On a terminal, or if COLUMNS is set,
rich fits tables into the width. Otherwise, or if rich is not installed, tables are plain text without truncated cells.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from tailrace.observe.log_format import escaped, escaped_json

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "Column",
    "Format",
    "TextOutput",
    "count",
    "counted",
    "iso_text",
    "json_line",
    "rich_table",
    "to_json",
    "to_text",
    "utc_text",
    "write_json",
]

Format: TypeAlias = Literal["null", "JSON", "text", "hex"]

_LABEL_WIDTH = 9
_END_MS = 253_402_300_800_000
"""Start of the year 10000, the first year that ``datetime`` cannot represent."""


class Column(NamedTuple):
    """Column of a table."""

    name: str
    is_number: bool = False
    is_folded: bool = False
    """True if rich wraps long cells of the column; False if it truncates them with an ellipsis."""


class TextOutput:
    """Writer of labeled lines and tables to stdout."""

    def __init__(self) -> None:
        self._screen = None
        try:
            from tailrace.cli.screen import Screen
        except ModuleNotFoundError:
            return
        screen = Screen()
        # Shells do not export COLUMNS by default, so if it is set, the user wants tables of that width.
        if screen.is_terminal or os.environ.get("COLUMNS"):
            self._screen = screen

    @property
    def is_terminal(self) -> bool:
        """True if stdout is a terminal and rich is installed."""
        return self._screen is not None and self._screen.is_terminal

    def line(self, label: str, text: str) -> None:
        """Print ``text`` after ``label``."""
        if self._screen is None:
            _print(f"{label:<{_LABEL_WIDTH}} {escaped(text)}")
            return
        from rich.markup import escape

        self._screen.line(label, escape(escaped(text)))

    def gap(self) -> None:
        _print("")

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """Print a table and an empty line."""
        cells = [[escaped(cell) for cell in row] for row in rows]
        if self._screen is None:
            _print(_plain_table(columns, cells))
        else:
            self._screen.console.print(rich_table(columns, cells))
            self._screen.console.print()


def rich_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> RenderableType:
    """Return a table that rich can print; control characters in ``rows`` must be escaped."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="dim", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold" if column.is_folded else "ellipsis",
        )
    for row in rows:
        # Set no_wrap for cells, not for columns, because rich does not narrow a column that has no_wrap.
        cells = zip(row, columns, strict=True)
        table.add_row(*(Text(cell, no_wrap=not column.is_folded) for cell, column in cells))
    return table


def _plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    table = [[column.name for column in columns], *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return "".join(
        "   ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        + "\n"
        for row in table
    )


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def write_json(entries: Iterable[Mapping[str, object]]) -> None:
    """Print each entry as one line of JSON."""
    sys.stdout.write("".join(map(json_line, entries)))
    sys.stdout.flush()


def json_line(entry: Mapping[str, object]) -> str:
    """Encode a mapping as one line of JSON, with a newline."""
    import msgspec

    return f"{escaped_json(msgspec.json.encode(entry).decode())}\n"


def count(number: int | None) -> str:
    """Format a whole number with separators; format None as a dash."""
    return "-" if number is None else f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 partition``, ``2 partitions``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def to_text(content: bytes | None, *, indent: int = -1) -> tuple[Format, str]:
    """Return the format of ``content`` and its text in this format; the text of None is empty.

    Only objects and arrays have the format JSON. They are indented by ``indent`` spaces per level, or on one line if
    ``indent`` is negative; numbers keep their digits. Hex is the format of bytes that are not printable UTF-8.
    """
    import msgspec

    if content is None:
        return "null", ""
    if content[:1] in {b"{", b"["}:
        try:
            msgspec.json.decode(content)
            return "JSON", msgspec.json.format(content, indent=indent).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the content starts like JSON but is not JSON
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "hex", content.hex()
    return ("text", text) if all(one.isprintable() or one in "\n\r\t" for one in text) else ("hex", content.hex())


def to_json(content: bytes | None) -> tuple[Format, object]:
    """Return the format of ``content``, and a value that msgspec encodes as JSON."""
    import msgspec

    kind, text = to_text(content)
    return kind, None if kind == "null" else msgspec.Raw(text.encode()) if kind == "JSON" else text


def utc_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-01-31 09:00:00`` in UTC, or as ``N ms`` if this is not possible."""
    return _text(at_ms, "seconds").replace("T", " ").replace("+00:00", "")


def iso_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as ``2026-01-31T09:00:00.000Z``, or as ``N ms`` if this is not possible."""
    return _text(at_ms, "milliseconds").replace("+00:00", "Z")


def _text(at_ms: int, timespec: str) -> str:
    if not 0 <= at_ms < _END_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec)
