"""What tools write: tables and labelled lines for people, lines of JSON for programs.

Rule of this file: names and texts come from brokers, so from anybody: nothing of them steers a terminal. On a screen a
row is a line, and what has no room in it ends with an ellipsis. Into a pipe, and where rich is not installed, the same
is written plainly, and whole.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tailrace.observe.escaping import escaped, escaped_json

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Column", "Paper", "count", "counted", "drawn", "plain", "write_json"]

_LABEL = 9


class Column(NamedTuple):
    """One column of a table."""

    name: str
    is_number: bool = False
    is_folded: bool = False
    """Where there is no room for it, it goes on in the next line, as it is not to be cut."""


class Paper:
    """Writes for people; with rich where it is there, and somebody looks."""

    def __init__(self) -> None:
        self._screen = None
        try:
            from tailrace.cli.screen import Screen  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            return
        screen = Screen()
        # A shell does not hand COLUMNS on unless it is told to: who says it wants so many.
        if screen.is_terminal or os.environ.get("COLUMNS"):
            self._screen = screen

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at it, and it can be drawn anew."""
        return self._screen is not None and self._screen.is_terminal

    def say(self, label: str, text: str) -> None:
        """A labelled line."""
        if self._screen is None:
            _print(f"{label:<{_LABEL}} {plain(text)}")
            return
        from rich.markup import escape  # noqa: PLC0415 - an extra

        self._screen.say(label, escape(plain(text)))

    def gap(self) -> None:
        """An empty line."""
        _print("")

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
        """A table, with an empty line behind it."""
        cells = [[plain(cell) for cell in row] for row in rows]
        if self._screen is None:
            _print(_plainly(columns, cells))
        else:
            self._screen.console.print(drawn(columns, cells))
            self._screen.console.print()


def drawn(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> RenderableType:
    """The table, as rich draws it."""
    from rich import box  # noqa: PLC0415 - an extra
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(header_style="dim", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.is_number else "left",
            no_wrap=column.is_number,
            overflow="fold" if column.is_folded else "ellipsis",
        )
    for row in rows:
        # Not of the column: one that never wraps is not made narrower either.
        cells = zip(row, columns, strict=True)
        table.add_row(*(Text(cell, no_wrap=not column.is_folded) for cell, column in cells))
    return table


def _plainly(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    table = [[column.name for column in columns], *rows]
    widths = [max(len(row[place]) for row in table) for place in range(len(columns))]
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
    """A line for each."""
    sys.stdout.write("".join(f"{escaped_json(msgspec.json.encode(entry).decode())}\n" for entry in entries))
    sys.stdout.flush()


def plain(text: str) -> str:
    """Text that steers no terminal: what cannot be printed is written out."""
    return escaped(text)


def count(number: int | None) -> str:
    """A whole number as people write it; a dash where there is none."""
    return "-" if number is None else f"{number:,}"


def counted(number: int, what: str) -> str:
    """``1 partition``, ``2 partitions``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
