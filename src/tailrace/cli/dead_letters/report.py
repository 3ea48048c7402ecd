"""Output of dead letters: tables and text for people, lines of JSON for programs.

The contents of records are untrusted: on a terminal, their rich markup and control characters are not interpreted. JSON
output contains keys and values unchanged; the field ``format`` says whether the field ``value`` is JSON, text or hex.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tailrace.app.failures.dead_letters import DeadLetter, Origin
from tailrace.cli.dead_letters.selection import DeadLetterPosition, position_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.byte_text import as_json as content_as_json
from tailrace.cli.tools.byte_text import readable
from tailrace.observe.escaping import escaped, escaped_json

__all__ = [
    "FailureSummary",
    "as_json",
    "letter_as_json",
    "letters_table",
    "plain",
    "show_letter",
    "summarize",
    "summary_table",
    "when",
]

_MAX_ROWS = 20


# ---- summaries -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class FailureSummary:
    """Number and times of the dead letters of one handler and error type."""

    group: str
    handler: str
    error_type: str
    count: int
    first_ms: int
    last_ms: int
    oldest: DeadLetterPosition
    """Position of the dead letter that failed first."""

    def as_json(self) -> dict[str, object]:
        """Return the summary as a mapping to print as one line of JSON."""
        return {
            "group": self.group,
            "handler": self.handler,
            "error_type": self.error_type,
            "count": self.count,
            "first": _iso(self.first_ms),
            "last": _iso(self.last_ms),
            "oldest": str(self.oldest),
        }


async def summarize(letters: AsyncIterator[DeadLetter]) -> list[FailureSummary]:
    """Count dead letters by group, handler and error type, the most frequent first."""
    summaries: dict[tuple[str, str, str], FailureSummary] = {}
    async for letter in letters:
        key, position = (letter.group_id, letter.handler, letter.error_type), position_of(letter)
        summary = summaries.get(key)
        if summary is None:
            summaries[key] = FailureSummary(*key, 1, letter.at_ms, letter.at_ms, position)
            continue
        summary.count += 1
        summary.last_ms = max(summary.last_ms, letter.at_ms)
        summary.first_ms, summary.oldest = min((summary.first_ms, summary.oldest), (letter.at_ms, position))
    return sorted(summaries.values(), key=lambda one: (-one.count, one.first_ms, one.oldest))


def summary_table(topic: str, summaries: Iterable[FailureSummary]) -> Table:
    """Return a table with a row for each summary."""
    table = _table(f"{topic}, by handler and error (times in UTC)")
    table.add_column("handler, error", overflow="fold", ratio=1)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("first, last", no_wrap=True, min_width=19)
    table.add_column("oldest", justify="right", no_wrap=True)
    found = list(summaries)
    groups = {summary.group for summary in found}
    for summary in found:
        handler = f"{summary.handler} of group {summary.group}" if len(groups) > 1 else summary.handler
        table.add_row(
            Text(f"{plain(handler) or '(no handler)'}\n{plain(summary.error_type)}"),
            count(summary.count),
            f"{when(summary.first_ms)}\n{when(summary.last_ms)}",
            str(summary.oldest),
        )
    return table


# ---- single dead letters ---------------------------------------------------------------------------------------


def letters_table(letters: list[DeadLetter]) -> Table:
    """Return a table of the first 20 dead letters; if there are more, the last row counts the rest."""
    table = _table("in the order of sending (times in UTC)")
    table.add_column("offset", justify="right", no_wrap=True)
    table.add_column("failed", no_wrap=True, min_width=19)
    table.add_column("origin", overflow="fold", ratio=1)
    table.add_column("error", overflow="fold", ratio=1)
    for letter in letters[:_MAX_ROWS]:
        origin = "unknown" if letter.origin is None else plain(str(letter.origin))
        # The module of the error is left out to avoid wrapping; `list` and `show` print it.
        error = plain(letter.error_type.rpartition(".")[2])
        table.add_row(str(position_of(letter)), when(letter.at_ms), Text(origin), Text(error))
    if len(letters) > _MAX_ROWS:
        table.add_row("", f"and {count(len(letters) - _MAX_ROWS)} more")
    return table


def show_letter(screen: Screen, letter: DeadLetter) -> None:
    """Print all parts of a dead letter."""

    def line(label: str, text: str) -> None:
        screen.line(label, escape(plain(text)))

    line("offset", f"{position_of(letter)} of {letter.record.topic}, failed {when(letter.at_ms)} UTC")
    line("error", f"{letter.error_type}: {letter.reason}" if letter.reason else letter.error_type)
    line("handler", f"{letter.handler} of group {letter.group_id}, {_times(letter.attempts, 'attempt')}")
    line("origin", _origin_text(letter.origin))
    if letter.deaths > 1:
        line("deaths", f"{letter.deaths}, after {_times(letter.replays, 'replay')}")
    for number, (name, value) in enumerate(letter.headers):
        line("" if number else "headers", f"{name}: {_short(value)}")
    line("key", _short(letter.key))
    kind, text = readable(letter.value, indent=2)
    size = "" if letter.value is None else f", {count(len(letter.value))} bytes"
    line("value", "null (tombstone)" if kind == "null" else f"{kind}{size}")
    _page(screen, _dump(letter.value) if kind == "hex" else text)
    if letter.traceback:
        line("traceback", "")
        _page(screen, letter.traceback.rstrip("\n"))
    screen.console.print()


def letter_as_json(letter: DeadLetter) -> dict[str, object]:
    """Return all parts of a dead letter as a mapping to print as one line of JSON."""
    return {
        "letter": str(position_of(letter)),
        "topic": letter.record.topic,
        "failed_at": _iso(letter.at_ms),
        "error_type": letter.error_type,
        "reason": letter.reason,
        "traceback": letter.traceback,
        "handler": letter.handler,
        "group": letter.group_id,
        "attempts": letter.attempts,
        "deaths": letter.deaths,
        "replays": letter.replays,
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
    kind, value = content_as_json(content)
    return {"format": kind, "value": value}


def _short(content: bytes | None) -> str:
    kind, text = readable(content)
    if kind == "JSON":
        assert content is not None
        return content.decode()
    return "null" if kind == "null" else f"0x{text}" if kind == "hex" else text


def _dump(content: bytes | None) -> str:
    lines = []
    for at in range(0, len(content or b""), 16):
        part = (content or b"")[at : at + 16]
        letters = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Return ``text`` with unprintable characters other than newlines escaped."""
    return escaped(text, keep="\n")


def when(at_ms: int) -> str:
    """Format a time in UTC to the second."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _iso(at_ms: int) -> str | int:
    """Format a time in ISO 8601; return ``at_ms`` unchanged if it is out of range."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return at_ms


def _origin_text(origin: Origin | None) -> str:
    return "unknown" if origin is None else f"{origin}, written {when(origin.timestamp)} UTC"


def _times(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _page(screen: Screen, text: str) -> None:
    """Print text indented and without wrapping, so that it can be copied."""
    for line in plain(text).splitlines():
        screen.console.print(Text(f"  {line}"), soft_wrap=True)


def _table(title: str) -> Table:
    return Table(
        title=Text(plain(title)),
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        expand=True,
    )
