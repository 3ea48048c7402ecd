"""Write docs/public_api.txt, the snapshot of the public surface: ``python docs/public_api.py``.

It holds the names, signatures, fields and defaults of ``tailrace``, ``tailrace.testing``, ``tailrace.spark`` and the
integrations, the options, the events and the commands. A test compares it with the code, so that no change to it goes
unnoticed.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import re
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec

from tailrace.cli.entry import COMMANDS
from tailrace.config import ConsumerConfig
from tailrace.observe import events

SNAPSHOT = Path(__file__).parent / "public_api.txt"
PACKAGES = (
    "tailrace",
    "tailrace.testing",
    "tailrace.spark",
    "tailrace.integrations.opentelemetry",
    "tailrace.integrations.prometheus",
    "tailrace.integrations.endpoints",
    "tailrace.integrations.sql",
)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
ANNOTATION = re.compile(r"(: |-> )(['\"])(.*?)\2")
"""An annotation is text, as its module postpones evaluation."""


def signature(function: object) -> str:
    """Return the signature of a function or class as text, the same in each process."""
    try:
        text = str(inspect.signature(function))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "(...)"
    return ADDRESS.sub("", ANNOTATION.sub(r"\1\3", text))


def members(kind: type) -> Iterator[str]:
    """Yield the public members of a class that tailrace itself defines."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("tailrace"):
            continue
        for name, member in sorted(vars(base).items()):
            if name in seen or (name.startswith("_") and name not in {"__aiter__", "__anext__", "__iter__"}):
                continue
            seen.add(name)
            raw = inspect.unwrap(getattr(member, "__func__", member))
            if isinstance(member, property):
                yield f"    {name}: {signature(member.fget).rpartition('-> ')[2]}"
            elif inspect.isfunction(raw):
                prefix = "async " if inspect.iscoroutinefunction(raw) or inspect.isasyncgenfunction(raw) else ""
                yield f"    {prefix}{name}{signature(raw)}"


def fields_of(kind: type) -> Iterator[str]:
    """Yield the fields of a dataclass, struct or named tuple with their types and defaults."""
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
            yield f"    {field.name}: {field.type}{ADDRESS.sub('', default)}"
    elif issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields"):
        yield from (f"    {name}: {note}" for name, note in inspect.get_annotations(kind).items())


def described(name: str, value: object) -> Iterator[str]:
    """Yield the lines of one public name."""
    if not inspect.isclass(value):
        is_function = callable(value) and not isinstance(value, types.UnionType)
        yield f"{name}{signature(value) if is_function else ''}"
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"class {name}({bases})"
    if issubclass(value, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in value)
    elif dataclasses.is_dataclass(value) or issubclass(value, msgspec.Struct | tuple):
        yield from fields_of(value)
    elif inspect.isfunction(vars(value).get("__init__")):
        yield f"    __init__{signature(vars(value)['__init__'])}"
    yield from members(value)


def options() -> Iterator[str]:
    """Yield the options of Consumer with their types and defaults."""
    for field in dataclasses.fields(ConsumerConfig):
        yield f"{field.name}: {field.type} = {ADDRESS.sub('', repr(field.default))}"


def event_names() -> Iterator[str]:
    """Yield the events with their fields."""
    for name in events.__all__:
        kind = getattr(events, name)
        notes = {name: note for base in reversed(kind.__mro__) for name, note in inspect.get_annotations(base).items()}
        shown = ", ".join(f"{name}: {notes[name]}" for name in kind.__struct_fields__)
        yield f"{name}({shown})"


def arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command's own arguments and those of its subcommands."""
    nested: list[argparse.ArgumentParser] = []
    shown = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of its arguments
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            nested.extend(dict.fromkeys(action.choices.values()))
        elif action.dest != "help":
            name = "/".join(action.option_strings) or action.dest
            plain = action.default is None or action.default is False or action.default is argparse.SUPPRESS
            shown.append(name if plain else f"{name}={action.default!r}")
    yield f"{parser.prog}: {', '.join(shown)}"
    for one in nested:
        yield from arguments(one)


def commands() -> Iterator[str]:
    """Yield every command with its arguments and defaults."""
    for name in COMMANDS:
        parser = argparse.ArgumentParser(prog=f"tailrace {name}")
        import_module(f"tailrace.cli.{name.replace('-', '_')}").arguments(parser)
        yield from arguments(parser)


def written() -> str:
    """Return the snapshot as the code has it."""
    parts = []
    for package in PACKAGES:
        module = import_module(package)
        lines = [line for name in sorted(module.__all__) for line in described(name, getattr(module, name))]
        parts.append((package, lines))
    parts += [("options", list(options())), ("events", list(event_names())), ("commands", list(commands()))]
    return "\n".join(f"# {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts)


if __name__ == "__main__":
    SNAPSHOT.write_text(written())
