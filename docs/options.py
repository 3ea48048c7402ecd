"""Generator of the texts about options: docs/options.md, the facts in docstrings, and the lists in help texts.

The facts of an option are its default, valid range and restrictions, and its names in other clients. Run
``python docs/options.py`` after a change of an option.
"""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import itertools
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.app.handlers import Handler
from tailrace.app.options import AppConfig
from tailrace.app.policies import Batch, Retry
from tailrace.app.transactions.kafka_access import TransactionOptions
from tailrace.config import ConsumerConfig, ProducerConfig
from tailrace.config.other_clients import NAMES_BY_CLIENT

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "options.md"
CONSUMER_OPTIONS = ROOT / "src/tailrace/config/consumer_options.py"
PRODUCER_OPTIONS = ROOT / "src/tailrace/config/producer_options.py"
APP_OPTIONS = ROOT / "src/tailrace/app/options.py"
WIDTH = 120

OPENING = """\
# Options

Options of `Consumer`, `Producer`, `App` and handlers. Commands take the options of `Consumer`.
[Connect](howto/connect.md) shows how to set options by arguments, environment variables and the command line. Times are
in milliseconds, sizes in bytes.

The last column has the option's name in Java, librdkafka and aiokafka, if it differs from the name here by more than
dots in place of underscores.

- *live*: the option can be changed while a consumer runs, by `await consumer.reconfigure(…)`.
- *object*: the value is a Python object, so it cannot be set by an environment variable or on the command line.
- *classic*: the option applies to `group_protocol="classic"`; setting it with `"consumer"` raises an error.
"""


OF_PRODUCERS = """\
A producer takes these options, and those of `Consumer` for connections, security, timeouts and retries, except
`client_rack` and `default_api_timeout_ms`; and `hooks`."""

WORDS = {
    int: "integer",
    str: "string",
    bool: "boolean",
    re.Pattern[str]: "regular expression",
    dt.timedelta: "timedelta",
}
PLURALS = {"string": "strings", "function": "functions", "EventHook": "EventHook objects"}


class Option(NamedTuple):
    """One option, as documented and as declared."""

    name: str
    section: str
    text: list[str]
    """Paragraphs of the text, without the facts."""
    facts: str
    default: str
    kind: str
    marks: list[str]
    elsewhere: str
    span: tuple[int, int]
    """Lines of the docstring in the source."""


class Row(NamedTuple):
    """Declared default and metadata of an option."""

    default: object
    metadata: Mapping[str, Any]
    kind: str


def rows_of(*kinds: Any) -> dict[str, Row]:  # noqa: ANN401 - dataclasses
    """Return the row of each option that the dataclasses declare."""
    return {
        field.name: Row(field.default, field.metadata, words_for(typing.get_type_hints(kind)[field.name]))
        for kind in kinds
        for field in dataclasses.fields(kind)
    }


def words_for(hint: Any) -> str:  # noqa: ANN401 - any type of an option
    """Return the description of an option's type, or its valid values."""
    members, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is typing.Literal:
        return ", ".join(f'`"{one}"`' for one in members)
    if origin in {typing.Union, types.UnionType}:
        return ", ".join(dict.fromkeys(words_for(one) for one in members if one is not type(None)))
    if origin is tuple and members[1:] == (Ellipsis,):
        element = words_for(members[0])
        return f"list of {PLURALS[element]}" if element in PLURALS else f"one, or a list, of: {element}"
    if origin is tuple:
        return "host and port"
    if origin is Callable:
        return "function"
    return WORDS.get(hint) or ("mapping" if origin is Mapping else hint.__name__)


def options_of(path: Path, kind: str, rows: Mapping[str, Row]) -> Iterator[Option]:
    """Yield the options that a TypedDict documents."""
    source = path.read_text(encoding="utf-8")
    lines, section = source.splitlines(), ""
    body = next(n.body for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == kind)
    for key, text in itertools.pairwise(body):
        if not isinstance(key, ast.AnnAssign) or not isinstance(key.target, ast.Name):
            continue
        if found := re.fullmatch(r" *# ---- (.*)", lines[key.lineno - 2]):
            section = found[1]
        assert isinstance(text, ast.Expr), key.target.id
        assert isinstance(text.value, ast.Constant)
        paragraphs = [" ".join(one.split()) for one in text.value.value.split("\n\n")]
        hand_written = [one for one in paragraphs if not one.startswith("Default: ")]
        yield described(key.target.id, section, hand_written, rows[key.target.id], (text.lineno, text.end_lineno or 0))


def described(name: str, section: str, text: list[str], row: Row, span: tuple[int, int]) -> Option:
    """Return an option with the facts from its row."""
    metadata, default = row.metadata, shown(row.default)
    least, most = metadata.get("at_least"), metadata.get("at_most")
    marks = [
        mark for mark, key in (("live", "live"), ("object", "is_object"), ("classic", "classic")) if metadata.get(key)
    ]
    range_ = f" Minimum: {least}." if least is not None else ""
    if least is not None and most is None:
        range_ += " No maximum."
    rest = [
        "Can be changed by ``reconfigure``." if "live" in marks else "",
        'Only with ``group_protocol="classic"``.' if "classic" in marks else "",
        "Not from the environment." if "object" in marks else "",
    ]
    names = [
        f"{client}: {' or '.join(theirs)}"
        for client, spellings in NAMES_BY_CLIENT.items()
        if (theirs := [dotted(client, their) for their, ours in spellings.items() if ours == name])
    ]
    elsewhere = "; ".join(names)
    facts = " ".join(filter(None, [f"Default: {default}.{range_}", *rest, f"{elsewhere}." if elsewhere else ""]))
    return Option(name, section, text, facts, default + range_.rstrip("."), row.kind, marks, elsewhere, span)


def dotted(client: str, name: str) -> str:
    """Return a name as a client spells it."""
    return name if client == "aiokafka" or name.endswith("_cb") else name.replace("_", ".")


def shown(default: object) -> str:
    """Return a default as the documentation shows it."""
    if isinstance(default, Retry | Batch):
        return f"{type(default).__name__}()"
    return f"{default:_}" if type(default) is int else repr(default).replace("'", '"')


# ---- docstrings ------------------------------------------------------------------------------------------------------


def with_facts(path: Path, *kinds: tuple[str, Mapping[str, Row]]) -> str:
    """Return the source of ``path`` with the facts of each option at the end of its docstring."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [option for kind, rows in kinds for option in options_of(path, kind, rows)]
    for option in sorted(found, key=lambda one: -one.span[0]):
        first, *more = [*option.text, option.facts]
        paragraphs = [f'    """{first}']
        for one in more:
            paragraphs += [
                "",
                textwrap.fill(one, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False),
            ]
        lines[option.span[0] - 1 : option.span[1]] = [*"\n".join(paragraphs).split("\n"), '    """']
    return "\n".join(lines) + "\n"


def summary(option: Option, *, indent: int) -> str:
    """Return the line of an option in a help text, with the first sentence of its docstring if that fits."""
    line = f"{' ' * indent}{option.name}={option.default.partition(' Minimum')[0].rstrip('.')}"
    full = f"{line}: {option.text[0].replace('``', '')}"
    return full if len(full) <= WIDTH else line


def with_list(path: Path, first: str, options: list[Option], *, indent: int, note: str = "") -> str:
    """Return the source of ``path`` with a list of ``options`` after the line ``first`` of a docstring."""
    source = path.read_text(encoding="utf-8")
    listed = "\n".join(summary(one, indent=indent + 4) for one in options)
    head = f"{' ' * indent}{first}{note}\n"
    pattern = rf"^ {{{indent}}}{re.escape(first)}[^\n]*\n(?: {{{indent + 4}}}\w+=[^\n]*\n)*"
    assert len(re.findall(pattern, source, re.MULTILINE)) == 1, (path, first)
    return re.sub(pattern, lambda _found: f"{head}{listed}\n", source, flags=re.MULTILINE)


# ---- page ------------------------------------------------------------------------------------------------------------


def table(options: list[Option]) -> str:
    """Return the table of some options."""
    rows = ["| option | type | default | meaning | in other clients |", "|---|---|---|---|---|"]
    for one in options:
        text = " ".join([*one.text, *(f"*{mark}*" for mark in one.marks)]).replace("``", "`").replace("|", r"\|")
        default, _, least = one.default.partition(" Minimum: ")
        bound = f", at least {least.partition('.')[0]}" if least else ""
        rows.append(f"| `{one.name}` | {one.kind}{bound} | `{default.rstrip('.')}` | {text} | {one.elsewhere} |")
    return "\n".join(rows)


def consumer_options() -> list[Option]:
    """Return the options of a consumer."""
    rows = rows_of(ConsumerConfig)
    return [one for kind in ("ClientOptions", "ConsumerOptions") for one in options_of(CONSUMER_OPTIONS, kind, rows)]


def producer_options() -> list[Option]:
    """Return the options that only a producer has."""
    return list(options_of(PRODUCER_OPTIONS, "ProducerOptions", rows_of(ProducerConfig)))


def app_options() -> list[Option]:
    """Return the options of an app itself."""
    return list(options_of(APP_OPTIONS, "AppOptions", rows_of(AppConfig, TransactionOptions)))


def handler_options() -> list[Option]:
    """Return the options of a handler."""
    return list(options_of(APP_OPTIONS, "HandlerOptions", rows_of(Handler)))


def page() -> str:
    """Return docs/options.md."""
    consumer = consumer_options()
    sections = list(dict.fromkeys(one.section for one in consumer))
    parts = [OPENING, "## Consumer\n"]
    parts += [f"### {name.capitalize()}\n\n{table([o for o in consumer if o.section == name])}\n" for name in sections]
    parts += [f"## Producer\n\n{OF_PRODUCERS}\n\n{table(producer_options())}\n"]
    parts += [f"## App\n\nAn app takes these options, and all options of `Consumer`.\n\n{table(app_options())}\n"]
    parts += [f"## Handlers\n\nOptions of `@app.handler` and `@app.batch_handler`.\n\n{table(handler_options())}\n"]
    return "\n".join(parts)


# ---- files -----------------------------------------------------------------------------------------------------------

IN_CLASSES = (
    "Options, by default from ``TAILRACE_...`` variables; see ``tailrace.ConsumerOptions`` and docs/options.md:"
)
OWN = "Options of the app; see ``tailrace.AppOptions`` and docs/options.md:"
OF_HANDLERS = "Options; see ``tailrace.HandlerOptions`` and docs/options.md:"

GENERATED: list[tuple[Path, Callable[[], str]]] = [
    (
        CONSUMER_OPTIONS,
        lambda: with_facts(
            CONSUMER_OPTIONS,
            ("ClientOptions", rows_of(ConsumerConfig)),
            ("ConsumerOptions", rows_of(ConsumerConfig)),
        ),
    ),
    (PRODUCER_OPTIONS, lambda: with_facts(PRODUCER_OPTIONS, ("ProducerOptions", rows_of(ProducerConfig)))),
    (
        APP_OPTIONS,
        lambda: with_facts(
            APP_OPTIONS,
            ("HandlerOptions", rows_of(Handler)),
            ("AppOptions", rows_of(AppConfig, TransactionOptions)),
        ),
    ),
    (
        ROOT / "src/tailrace/consumer/consumer.py",
        lambda: with_list(ROOT / "src/tailrace/consumer/consumer.py", IN_CLASSES, consumer_options(), indent=4),
    ),
    (
        ROOT / "src/tailrace/app/app.py",
        lambda: with_list(ROOT / "src/tailrace/app/app.py", OWN, app_options(), indent=4),
    ),
    (
        ROOT / "src/tailrace/app/app.py",
        lambda: with_list(ROOT / "src/tailrace/app/app.py", IN_CLASSES, consumer_options(), indent=4),
    ),
    (
        ROOT / "src/tailrace/app/handlers.py",
        lambda: with_list(ROOT / "src/tailrace/app/handlers.py", OF_HANDLERS, handler_options(), indent=8),
    ),
    (PAGE, page),
]
"""Generated files, each with a function that returns its text; no file depends on a later one."""


if __name__ == "__main__":
    for path, generated in GENERATED:
        before, now = path.read_text(encoding="utf-8"), generated()
        path.write_text(now, encoding="utf-8")
        sys.stderr.write(f"{path.relative_to(ROOT)}: {'unchanged' if before == now else 'written'}\n")
