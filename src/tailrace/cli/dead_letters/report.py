"""How letters are shown: tables and pages for people, lines of JSON for programs.

Rule of this file: what stands in a record was written by anybody. On a screen nothing of it is markup or steers the
terminal; in JSON it is exactly what it was, and ``format`` says how it is written.
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
from tailrace.cli.dead_letters.selection import LetterPlace, place_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.byte_text import as_json as content_as_json
from tailrace.cli.tools.byte_text import readable
from tailrace.observe.escaping import escaped, escaped_json

__all__ = [
    "LetterKind",
    "as_json",
    "by_kind",
    "kinds_table",
    "letter_as_json",
    "letters_table",
    "plain",
    "show_letter",
    "when",
]

_MOST_ROWS = 20


# ---- kinds of letters ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LetterKind:
    """The letters of one handler that failed in one way."""

    group: str
    handler: str
    error_type: str
    count: int
    first_ms: int
    last_ms: int
    oldest: LetterPlace
    """Of the one that failed first."""

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "group": self.group,
            "handler": self.handler,
            "error_type": self.error_type,
            "count": self.count,
            "first": _iso(self.first_ms),
            "last": _iso(self.last_ms),
            "oldest": str(self.oldest),
        }


async def by_kind(letters: AsyncIterator[DeadLetter]) -> list[LetterKind]:
    """The letters counted, the most frequent kind first."""
    kinds: dict[tuple[str, str, str], LetterKind] = {}
    async for letter in letters:
        of, place = (letter.group_id, letter.handler, letter.error_type), place_of(letter)
        kind = kinds.get(of)
        if kind is None:
            kinds[of] = LetterKind(*of, 1, letter.at_ms, letter.at_ms, place)
            continue
        kind.count += 1
        kind.last_ms = max(kind.last_ms, letter.at_ms)
        kind.first_ms, kind.oldest = min((kind.first_ms, kind.oldest), (letter.at_ms, place))
    return sorted(kinds.values(), key=lambda kind: (-kind.count, kind.first_ms, kind.oldest))


def kinds_table(topic: str, kinds: Iterable[LetterKind]) -> Table:
    """A row for each kind."""
    table = _table(f"{topic}, by handler and error (times in UTC)")
    table.add_column("handler, error", overflow="fold", ratio=1)
    table.add_column("letters", justify="right", no_wrap=True)
    table.add_column("first, last", no_wrap=True, min_width=19)
    table.add_column("oldest", justify="right", no_wrap=True)
    found = list(kinds)
    groups = {kind.group for kind in found}
    for kind in found:
        handler = f"{kind.handler} of group {kind.group}" if len(groups) > 1 else kind.handler
        table.add_row(
            Text(f"{plain(handler) or '(no handler)'}\n{plain(kind.error_type)}"),
            count(kind.count),
            f"{when(kind.first_ms)}\n{when(kind.last_ms)}",
            str(kind.oldest),
        )
    return table


# ---- single letters --------------------------------------------------------------------------------------------


def letters_table(letters: list[DeadLetter]) -> Table:
    """A row for each of the first letters."""
    table = _table("in the order in which they go (times in UTC)")
    table.add_column("letter", justify="right", no_wrap=True)
    table.add_column("failed", no_wrap=True, min_width=19)
    table.add_column("origin", overflow="fold", ratio=1)
    table.add_column("error", overflow="fold", ratio=1)
    for letter in letters[:_MOST_ROWS]:
        origin = "nobody knows" if letter.origin is None else plain(str(letter.origin))
        # Its module stands in `list` and `show`; here it would be cut in two.
        error = plain(letter.error_type.rpartition(".")[2])
        table.add_row(str(place_of(letter)), when(letter.at_ms), Text(origin), Text(error))
    if len(letters) > _MOST_ROWS:
        table.add_row("", f"and {count(len(letters) - _MOST_ROWS)} more")
    return table


def show_letter(screen: Screen, letter: DeadLetter) -> None:
    """All that is known of one."""

    def say(label: str, text: str) -> None:
        screen.say(label, escape(plain(text)))

    say("letter", f"{place_of(letter)} of {letter.record.topic}, failed {when(letter.at_ms)} UTC")
    say("error", f"{letter.error_type}: {letter.reason}" if letter.reason else letter.error_type)
    say("handler", f"{letter.handler} of group {letter.group_id}, {_times(letter.attempts, 'attempt')}")
    say("origin", _said_of(letter.origin))
    if letter.deaths > 1:
        say("deaths", f"{letter.deaths}, after {_times(letter.replays, 'replay')}")
    for number, (name, value) in enumerate(letter.headers):
        say("" if number else "headers", f"{name}: {_short(value)}")
    say("key", _short(letter.key))
    kind, text = readable(letter.value, indent=2)
    size = "" if letter.value is None else f", {count(len(letter.value))} bytes"
    say("value", "null, a tombstone" if kind == "null" else f"{kind}{size}")
    _page(screen, _dump(letter.value) if kind == "hex" else text)
    if letter.traceback:
        say("traceback", "")
        _page(screen, letter.traceback.rstrip("\n"))
    screen.console.print()


def letter_as_json(letter: DeadLetter) -> dict[str, object]:
    """All that is known of one, for programs."""
    return {
        "letter": str(place_of(letter)),
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
    """One line."""
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
    """Text that steers no terminal: what cannot be printed is written out."""
    return escaped(text, keep="\n")


def when(at_ms: int) -> str:
    """A time as people read it, in UTC."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def _iso(at_ms: int) -> str | int:
    """A time as programs read it; what is no time stays a number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return at_ms


def _said_of(origin: Origin | None) -> str:
    return "nobody knows" if origin is None else f"{origin}, written {when(origin.timestamp)} UTC"


def _times(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _page(screen: Screen, text: str) -> None:
    """Text as it is, below its label; lines are as long as they are, so that they can be copied."""
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
