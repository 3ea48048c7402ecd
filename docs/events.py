"""Write docs/events.md from the declarations of the events: python docs/events.py."""

from __future__ import annotations

import ast
import functools
import inspect
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tailrace.observe import events
from tailrace.observe.events import Event

PAGE = Path(__file__).parent / "events.md"

OPENING = """\
# Events

All events of consumers, apps and worker processes, by subject, with their log levels and fields. To receive them, see
[monitor an app](howto/watch-an-app.md#hooks). Events with the level *Metrics*, which is below DEBUG, are meant for
hooks.

The classes are in `tailrace.observe.events`. Unless a field is described otherwise:

- `group_id` is the consumer group, and `handler` the name of a handler;
- `partition` and `offset` are those of the record;
- `reason`, `error` and `advice` are texts for people;
- `exception` is the exception that caused the event, or None; its traceback is not logged.

Durations are in seconds.
"""


def sections() -> Iterator[tuple[str, list[type[Event]]]]:
    """Yield the section headings in the module of the events, each with the events of its section."""
    parts = re.split(r"^# ---- (.*?) -+\n", inspect.getsource(events), flags=re.MULTILINE)[1:]
    for title, source in zip(parts[::2], parts[1::2], strict=True):
        names = re.findall(r"^class ([A-Z]\w*)\(", source, re.MULTILINE)
        yield title, [getattr(events, name) for name in names]


@functools.cache
def definitions() -> dict[str, ast.ClassDef]:
    """Return the definitions of the events by name."""
    tree = ast.parse(inspect.getsource(events))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def declared_fields(event: type[Event]) -> dict[str, tuple[str, str]]:
    """Return the type and the docstring of each field, inherited ones included, in the order of the constructor."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(event.__mro__[: event.__mro__.index(Event) + 1]):
        body = definitions()[base.__name__].body
        for statement, following in zip(body, [*body[1:], None], strict=True):
            match statement:
                case ast.AnnAssign(target=ast.Name(name), annotation=annotation):
                    is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                    text = " ".join(following.value.value.split()) if is_described else ""
                    found[name] = ast.unparse(annotation), text
    return {name: found[name] for name in event.__struct_fields__}


def entry(event: type[Event]) -> str:
    """Return the heading, level, text and fields of one event."""
    level = logging.getLevelName(event.level) if event.level >= logging.DEBUG else "Metrics"
    rows = [f"*{level}.* {inspect.cleandoc(event.__doc__ or '')}", ""]
    for name, (kind, text) in declared_fields(event).items():
        rows.append(f"- `{name}` (`{kind}`)" + (f": {text[0].lower()}{text[1:].rstrip('.')}" if text else ""))
    return f"### {event.__name__}\n\n" + "\n".join(rows).replace("``", "`") + "\n"


def written() -> str:
    """Return the page that matches the declarations."""
    parts = [f"## {title}\n\n" + "\n".join(map(entry, found)) for title, found in sections()]
    return "\n".join([OPENING, *parts])


if __name__ == "__main__":
    before = PAGE.read_text() if PAGE.exists() else ""
    PAGE.write_text(written())
    sys.stderr.write(f"{PAGE}: {'unchanged' if PAGE.read_text() == before else 'updated'}\n")
