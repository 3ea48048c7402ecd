"""Output of dead letters: tables and text, or lines of JSON with ``--json``.

The contents of records are untrusted: in text output, rich markup and control characters in them are escaped. In JSON
output, keys, values and header values are objects with two fields: ``format`` is JSON, text, hex or null; ``value`` is
the content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tailrace.app.failures.dead_letters import DeadLetter, Origin
from tailrace.cli.dead_letters.marks import ReplayMark, ReplayMarks, record_id
from tailrace.cli.dead_letters.selection import DeadLetterPosition, position_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.byte_text import to_json, to_text
from tailrace.observe.log_format import escaped, escaped_json

__all__ = [
    "FailureSummary",
    "as_json",
    "escape_text",
    "iso_text",
    "letter_as_json",
    "letters_table",
    "show_letter",
    "summarize",
    "summary_table",
    "utc_text",
]

_MAX_ROWS = 20


# ---- summaries -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class FailureSummary:
    """Number of dead letters of one group, handler and error type, and the times of the first and last failure."""

    group: str
    handler: str
    error_type: str
    count: int
    first_ms: int
    last_ms: int
    oldest: DeadLetterPosition
    """Position of the dead letter that failed first."""
    replayed: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the fields of the summary in JSON output."""
        return {
            "group": self.group,
            "handler": self.handler,
            "error_type": self.error_type,
            "count": self.count,
            "replayed": self.replayed,
            "first": iso_text(self.first_ms),
            "last": iso_text(self.last_ms),
            "oldest": str(self.oldest),
        }


async def summarize(dead_letters: AsyncIterator[DeadLetter], marks: ReplayMarks) -> list[FailureSummary]:
    """Return a summary for each combination of group, handler and error type, the greatest count first.

    Args:
        dead_letters: contents of a dead-letter topic.
        marks: marks of the topic, which are complete when ``dead_letters`` ends.
    """
    summaries: dict[tuple[str, str, str], FailureSummary] = {}
    records: Counter[tuple[str, int, FailureSummary]] = Counter()
    async for letter in dead_letters:
        key, position = (letter.group_id, letter.handler, letter.error_type), position_of(letter)
        summary = summaries.get(key)
        if summary is None:
            summary = summaries[key] = FailureSummary(*key, 0, letter.at_ms, letter.at_ms, position)
        summary.count += 1
        summary.last_ms = max(summary.last_ms, letter.at_ms)
        summary.first_ms, summary.oldest = min((summary.first_ms, summary.oldest), (letter.at_ms, position))
        records[record_id(letter), letter.deaths, summary] += 1
    for (record, deaths, summary), number in records.items():
        if marks.of_record(record, deaths) is not None:
            summary.replayed += number
    return sorted(summaries.values(), key=lambda one: (-one.count, one.first_ms, one.oldest))


def summary_table(topic: str, summaries: Iterable[FailureSummary]) -> Table:
    """Return a table with a row for each summary."""
    table = _table(f"{topic}, by handler and error (times in UTC)")
    table.add_column("handler, error", overflow="fold", ratio=1)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("replayed", justify="right", no_wrap=True)
    table.add_column("first, last", no_wrap=True, min_width=19)
    table.add_column("oldest", justify="right", no_wrap=True)
    found = list(summaries)
    groups = {summary.group for summary in found}
    for summary in found:
        handler = f"{summary.handler} of group {summary.group}" if len(groups) > 1 else summary.handler
        table.add_row(
            Text(f"{escape_text(handler) or '(no handler)'}\n{escape_text(summary.error_type)}"),
            count(summary.count),
            count(summary.replayed),
            f"{utc_text(summary.first_ms)}\n{utc_text(summary.last_ms)}",
            str(summary.oldest),
        )
    return table


# ---- single dead letters ---------------------------------------------------------------------------------------


def letters_table(letters: list[DeadLetter], marks: ReplayMarks) -> Table:
    """Return a table of the first 20 dead letters; if there are more, the last row counts the others."""
    table = _table("in the order of sending (times in UTC)")
    table.add_column("offset", justify="right", no_wrap=True)
    table.add_column("failed", no_wrap=True, min_width=19)
    table.add_column("origin", overflow="fold", ratio=1)
    table.add_column("error", overflow="fold", ratio=1)
    for letter in letters[:_MAX_ROWS]:
        origin = "unknown" if letter.origin is None else escape_text(str(letter.origin))
        # The module of the error is left out to save width; `list` and `show` print it.
        error = escape_text(letter.error_type.rpartition(".")[2])
        mark = marks.of(letter)
        again = "" if mark is None else f"\nreplayed\n{utc_text(mark.at_ms)}"
        table.add_row(str(position_of(letter)), f"{utc_text(letter.at_ms)}{again}", Text(origin), Text(error))
    if len(letters) > _MAX_ROWS:
        table.add_row("", f"and {count(len(letters) - _MAX_ROWS)} more")
    return table


def show_letter(screen: Screen, letter: DeadLetter, mark: ReplayMark | None) -> None:
    """Print all parts of a dead letter, and ``mark`` if it was replayed."""

    def line(label: str, text: str) -> None:
        screen.line(label, escape(escape_text(text)))

    line("offset", f"{position_of(letter)} of {letter.record.topic}, failed {utc_text(letter.at_ms)} UTC")
    line("error", f"{letter.error_type}: {letter.reason}" if letter.reason else letter.error_type)
    line("handler", f"{letter.handler} of group {letter.group_id}, {_counted(letter.attempts, 'attempt')}")
    line("origin", _origin_text(letter.origin))
    if letter.deaths > 1:
        line("deaths", f"{letter.deaths}, after {_counted(letter.replays, 'replay')}")
    if mark is not None:
        line("replayed", f"{utc_text(mark.at_ms)} UTC to {mark.target}")
    for number, (name, value) in enumerate(letter.headers):
        line("" if number else "headers", f"{name}: {_one_line(value)}")
    line("key", _one_line(letter.key))
    kind, text = to_text(letter.value, indent=2)
    size = "" if letter.value is None else f", {count(len(letter.value))} bytes"
    line("value", "null (tombstone)" if kind == "null" else f"{kind}{size}")
    _print_indented(screen, _hex_dump(letter.value) if kind == "hex" else text)
    if letter.traceback:
        line("traceback", "")
        _print_indented(screen, letter.traceback.rstrip("\n"))
    screen.console.print()


def letter_as_json(letter: DeadLetter, mark: ReplayMark | None) -> dict[str, object]:
    """Return the fields of a dead letter in JSON output; ``mark`` shows that it was replayed."""
    return {
        "letter": str(position_of(letter)),
        "topic": letter.record.topic,
        "failed_at": iso_text(letter.at_ms),
        "error_type": letter.error_type,
        "reason": letter.reason,
        "traceback": letter.traceback,
        "handler": letter.handler,
        "group": letter.group_id,
        "attempts": letter.attempts,
        "deaths": letter.deaths,
        "replays": letter.replays,
        "replayed_at": None if mark is None else iso_text(mark.at_ms),
        "replayed_to": None if mark is None else mark.target,
        "origin": None if letter.origin is None else letter.origin._asdict(),
        "key": _value_as_json(letter.key),
        "value": _value_as_json(letter.value),
        "headers": [{"name": name, **_value_as_json(value)} for name, value in letter.headers],
    }


def as_json(entry: Mapping[str, object]) -> str:
    """Encode a mapping as one line of JSON."""
    return escaped_json(msgspec.json.encode(entry).decode())


# ---- bytes, times and texts ------------------------------------------------------------------------------------


def _value_as_json(content: bytes | None) -> dict[str, object]:
    kind, value = to_json(content)
    return {"format": kind, "value": value}


def _one_line(content: bytes | None) -> str:
    kind, text = to_text(content)
    if kind == "JSON":
        assert content is not None
        return content.decode()
    return "null" if kind == "null" else f"0x{text}" if kind == "hex" else text


def _hex_dump(content: bytes | None) -> str:
    lines = []
    for at in range(0, len(content or b""), 16):
        part = (content or b"")[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def escape_text(text: str) -> str:
    """Return ``text`` with control characters, except newlines, escaped."""
    return escaped(text, keep="\n")


def utc_text(at_ms: int) -> str:
    """Format milliseconds since the epoch as a time in UTC to the second, or as ``N ms`` if this is not possible."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def iso_text(at_ms: int) -> str | int:
    """Format milliseconds since the epoch in ISO 8601; return ``at_ms`` if ``datetime`` cannot represent it."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return at_ms


def _origin_text(origin: Origin | None) -> str:
    return "unknown" if origin is None else f"{origin}, written {utc_text(origin.timestamp)} UTC"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _print_indented(screen: Screen, text: str) -> None:
    """Print text indented and without wrapping, so that it can be copied."""
    for line in escape_text(text).splitlines():
        screen.console.print(Text(f"  {line}"), soft_wrap=True)


def _table(title: str) -> Table:
    return Table(
        title=Text(escape_text(title)),
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        expand=True,
    )
