"""Writes docs/options.md from the declaration of the options: python docs/options.py."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tailrace.config import ConsumerConfig

MARKS = {"live": "live", "object": "as_is", "classic": "classic"}
PAGE = Path(__file__).parent / "options.md"

OPENING = """\
# Options

Of `Consumer`, `App` and every command. How they are given: [connect](howto/connect.md). What an `App` alone takes, and
its handlers, stands in `help(tailrace.App)` and `help(tailrace.App.handler)`.

*Live* ones may be set anew while a consumer runs, by `await consumer.reconfigure(…)`; *object* are those that no text
can give, and so no environment; *classic* those that the broker decides with `group_protocol="consumer"`.
"""


def sections() -> Iterator[tuple[str, list[str]]]:
    """The names of the options, under the headings of their declaration."""
    found = re.split(r"^ +# ---- (.*)\n", inspect.getsource(ConsumerConfig), flags=re.MULTILINE)[1:]
    for title, rows in zip(found[::2], found[1::2], strict=True):
        if names := re.findall(r"^ {4}(\w+): .*= _option\(", rows, re.MULTILINE):
            yield title, names


def table(names: list[str]) -> str:
    """A row for each."""
    fields = {field.name: field for field in dataclasses.fields(ConsumerConfig)}
    rows = ["| option | default | |", "|---|---|---|"]
    for name in names:
        metadata, default = fields[name].metadata, fields[name].default
        marks = [word for word, mark in MARKS.items() if metadata[mark]]
        shown = f"{default:_}" if type(default) is int else repr(default).replace("'", '"')
        meaning = " ".join([metadata["meaning"].replace("|", r"\|"), *(f"*{word}*" for word in marks)])
        rows.append(f"| `{name}` | `{shown}` | {meaning} |")
    return "\n".join(rows)


def written() -> str:
    """The page as the declaration has it now."""
    parts = [f"## {title[0].upper()}{title[1:]}\n\n{table(names)}\n" for title, names in sections()]
    return "\n".join([OPENING, *parts])


if __name__ == "__main__":
    before = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(written())
    sys.stderr.write(f"{PAGE}: {'as it was' if PAGE.read_text() == before else 'written anew'}\n")
