"""``tailrace tail``: print the records of a topic, without a group and without commits.

Control characters are escaped, except in raw values that are not written to a terminal. In a table, keys and values are
truncated so that a row fits into the width of the terminal, but values keep at least ``_MIN_VALUE_WIDTH`` cells.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from tailrace import admin
from tailrace.cli.options import (
    CONNECTION_HELP,
    WITHOUT_GROUP,
    add_connection_options,
    explicit_options,
    open_cluster,
    parse_duration,
    parse_time,
    positive_integer,
)
from tailrace.cli.output import iso_text, json_line, to_json, to_text, utc_text
from tailrace.cli.reading import read_batches
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, UnknownTopicError
from tailrace.observe.log_format import escaped

if TYPE_CHECKING:
    from tailrace.net.cluster import Cluster
    from tailrace.records import Record, TopicPartition

__all__ = ["TailStart", "arguments", "matcher", "parse_condition", "parse_start", "run", "writer_of"]

_OFFSET_WIDTH, _TIME_WIDTH, _KEY_WIDTH = 14, 19, 14
"""Widths of columns in cells; a wide character takes two cells."""
_MIN_VALUE_WIDTH = 10
_ABSENT = object()
"""Value of a field that the record does not have."""

_DESCRIPTION = """\
Print the records of a topic until Ctrl-C; by default, only new records.

Each record is one line of JSON with topic, partition, offset, timestamp, key,
value and headers. A value that is a JSON object or array is embedded unchanged.
Any other value is a string: the text itself, or hex if it is not text. The
field value_format is JSON, text, hex or null. Records of a partition are in
order.
"""

_EPILOG = f"""\
examples:
  tailrace tail orders
  tailrace tail orders --from -10 --no-follow
  tailrace tail orders --from 2026-01-31T09:00 --where customer.id=17 --max 5
  tailrace tail orders --from earliest --where key=ann --format table
  tailrace tail orders --from 1h | jq -c .value.total

conditions of --where:
  key=ann             the key is ann
  status=paid         the field "status" of the JSON value is paid
  lines.0.sku=A17     the field "sku" of the first element of "lines" is A17
  header.trace~4bf92  the header "trace" contains 4bf92
  total!=0            the field "total" is not 0, or is missing

{CONNECTION_HELP}
The command joins no group and commits no offset.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "--from",
        dest="start",
        type=parse_start,
        default=TailStart("latest"),
        metavar="START",
        help="earliest, latest, an offset, -N for the last N offsets of each partition, an ISO 8601 time, or an age"
        " such as 1h (default: latest)",
    )
    parser.add_argument("--max", type=positive_integer, metavar="N", help="stop after N records")
    parser.add_argument(
        "--no-follow", action="store_true", help="print only records that exist at the start, then exit"
    )
    parser.add_argument(
        "--where",
        type=parse_condition,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="print only matching records (repeatable; all conditions must match)",
    )
    parser.add_argument(
        "--partition",
        type=_partitions,
        action="append",
        default=[],
        metavar="N[,N]",
        help="read only these partitions (repeatable)",
    )
    parser.add_argument(
        "--format",
        choices=["json", "table", "raw"],
        default="json",
        help="output format; raw prints only the value (default: %(default)s)",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    add_connection_options(parser, json=False)


def _partitions(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"must be partition numbers, such as 0 or 0,3, not {text!r}")
    return tuple(map(int, text.split(",")))


class TailStart(NamedTuple):
    """Offset or time at which ``tailrace tail`` starts."""

    kind: Literal["earliest", "latest", "offset", "last", "time", "ago"]
    number: float = 0
    """Offset (``offset``), number of offsets before the end (``last``), milliseconds since the epoch (``time``), or
    age in seconds (``ago``); 0 for ``earliest`` and ``latest``."""


def parse_start(text: str) -> TailStart:
    """Parse ``earliest``, ``latest``, ``1200``, ``-10``, ``2026-01-31T09:00`` or ``1h``."""
    if text in {"earliest", "latest"}:
        return TailStart("earliest" if text == "earliest" else "latest")
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return TailStart("last", -number) if text.startswith("-") else TailStart("offset", number)
    for kind, parse in (("ago", parse_duration), ("time", parse_time)):
        try:
            return TailStart("ago" if kind == "ago" else "time", parse(text))
        except argparse.ArgumentTypeError:
            continue
    raise argparse.ArgumentTypeError(
        "must be earliest, latest, an offset, -N for the last N offsets, a time such as 2026-01-31T09:00 (UTC), or an"
        f" age such as 1h, not {text!r}"
    )


# ---- reading --------------------------------------------------------------------------------------------------------


async def run(options: argparse.Namespace) -> int:
    """Print records until a signal arrives, ``--max`` records are printed, or the end is reached with ``--no-follow``.

    Raises:
        UnknownTopicError: the topic does not exist.
        ConfigurationError: a partition of ``--partition`` does not exist, or an option is wrong.
        ConsumerTimeoutError: with ``--no-follow``, no record arrived for a minute, although the log has unread records.
        BrokenPipeError: the reader of stdout closed the pipe.
    """
    from tailrace.consumer.consumer import Consumer

    async with open_cluster(options) as cluster:
        partitions = await _selected_partitions(cluster, options)
        starts, ends = await _bounds(cluster, partitions, options.start, options.timeout)
    consumer_options = {"client_id": "tailrace-tail", **explicit_options(options), **WITHOUT_GROUP}
    async with Consumer(options.topic, **consumer_options) as consumer:
        out, remaining = sys.stdout.buffer, options.max
        matches, encode = matcher(options.where), writer_of(options.format)
        if options.format == "table":
            out.write(_heading())
            out.flush()
        async for records in read_batches(consumer, starts, ends if options.no_follow else None):
            # Partitions that are added to the topic after the start are read, too, but not selected.
            chosen = (one for one in records if one.topic_partition in starts or not options.partition)
            for record in islice(filter(matches, chosen), remaining):
                out.write(encode(record))
                if remaining is not None:
                    remaining -= 1
            out.flush()
            if remaining == 0 or not _has_reader():
                break
    return 0


def _has_reader() -> bool:
    """Return False if the reader of stdout has closed the pipe, and True if not, or if this cannot be determined."""
    try:
        from select import POLLERR, poll

        poller = poll()
        poller.register(sys.stdout.fileno(), 0)
        return not any(event & POLLERR for _, event in poller.poll(0))
    except (ImportError, OSError, ValueError):
        return True  # stdout has no file descriptor, or the platform has no poll()


# ---- start -------------------------------------------------------------------------------------------------------


async def _selected_partitions(cluster: Cluster, options: argparse.Namespace) -> list[TopicPartition]:
    from tailrace.records import TopicPartition

    counts = await admin.partitions_of(cluster, [options.topic], timeout_s=options.timeout)
    if options.topic not in counts:
        raise await _unknown_topic_error(cluster, options.topic)
    existing = range(counts[options.topic])
    selected = sorted({number for numbers in options.partition for number in numbers}) or existing
    for number in selected:
        if number not in existing:
            raise ConfigurationError(
                f"topic {options.topic!r} has no partition {number} - its partitions are 0 to {len(existing) - 1}"
            )
    return [TopicPartition(options.topic, number) for number in selected]


async def _unknown_topic_error(cluster: Cluster, topic: str) -> UnknownTopicError:
    """Return an error that suggests a similar topic name."""
    with cluster.watching(None):
        await cluster.refresh()
    close = get_close_matches(topic, cluster.topology.topics, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}{hint}")


async def _bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], start: TailStart, timeout_s: float
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the start offset and the current end offset of each partition."""
    begins = await admin.list_offsets(cluster, dict.fromkeys(partitions, admin.EARLIEST), timeout_s=timeout_s)
    ends = await admin.list_offsets(cluster, dict.fromkeys(partitions, admin.LATEST), timeout_s=timeout_s)
    since_ms = start.number if start.kind == "time" else (time.time() - start.number) * 1000
    at_time = {}
    if start.kind in {"time", "ago"}:
        at_time = await admin.list_offsets(
            cluster, dict.fromkeys(partitions, max(0, int(since_ms))), timeout_s=timeout_s
        )
    starts = {
        one: _start_offset(start, begins[one].offset, ends[one].offset, at_time[one].offset if at_time else -1)
        for one in partitions
    }
    return starts, {one: listed.offset for one, listed in ends.items()}


def _start_offset(start: TailStart, begin: int, end: int, at_time: int) -> int:
    """Return the start offset in a log whose first offset is ``begin`` and whose end offset is ``end``.

    ``at_time`` is the offset of the first record at or after the start time, or -1 if all records are older.
    """
    match start.kind:
        case "earliest":
            return begin
        case "latest":
            return end
        case "offset":
            return min(max(int(start.number), begin), end)
        case "last":
            return max(end - int(start.number), begin)
        case _:
            return at_time if at_time >= 0 else end


# ---- conditions of --where ------------------------------------------------------------------------------------------


class _Condition(NamedTuple):
    """Comparison of one field with a value."""

    field: str
    """``key``, ``header.NAME``, or the path of a field of the JSON value, separated by dots."""
    comparison: Literal["=", "!=", "~"]
    wanted: str
    """Value to compare with; for ``~``, text that the field must contain."""


def parse_condition(text: str) -> _Condition:
    """Parse a condition such as ``key=ann``, ``total!=0`` or ``header.trace~4bf9``."""
    found = re.fullmatch(r"([^=!~]+)(=|!=|~)(.*)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"must be FIELD=VALUE, FIELD!=VALUE or FIELD~PART, such as key=ann, not {text!r}"
        )
    comparison: Literal["=", "!=", "~"] = "=" if found[2] == "=" else "!=" if found[2] == "!=" else "~"
    return _Condition(found[1].strip(), comparison, found[3])


def matcher(conditions: Sequence[_Condition]) -> Callable[[Record], bool]:
    """Return a predicate that is true for records that match all conditions."""
    on_key_or_headers = [one for one in conditions if _is_key_or_header(one.field)]
    on_value = [
        (one.field.removeprefix("value.").split("."), one) for one in conditions if one not in on_key_or_headers
    ]

    def matches(record: Record) -> bool:
        if not all(_is_met(one, _key_or_header(record, one.field)) for one in on_key_or_headers):
            return False
        if not on_value:
            return True
        value = _decoded(record.value)
        return all(_is_met(one, _field_at(value, path)) for path, one in on_value)

    return matches


def _is_key_or_header(field: str) -> bool:
    return field == "key" or field.startswith("header.")


def _key_or_header(record: Record, field: str) -> object:
    """Return the text of the key or of the last header with this name.

    The result is None if the key or the value of the header is null, and ``_ABSENT`` if there is no such header.
    """
    if field == "key":
        return None if record.key is None else to_text(record.key)[1]
    name = field.removeprefix("header.")
    found = [value for header, value in record.headers if header == name]
    return _ABSENT if not found else None if found[-1] is None else to_text(found[-1])[1]


def _decoded(content: bytes | None) -> object:
    import msgspec

    try:
        return _ABSENT if content is None else msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _ABSENT  # A value that is not JSON has no fields.


def _field_at(value: object, path: Sequence[str]) -> object:
    for name in path:
        if isinstance(value, dict):
            value = value.get(name, _ABSENT)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def _is_met(condition: _Condition, found: object) -> bool:
    if condition.comparison == "~":
        return found is not _ABSENT and condition.wanted in _text(found)
    return _is_equal(found, condition.wanted) is (condition.comparison == "=")


def _is_equal(found: object, wanted: str) -> bool:
    if found is _ABSENT or isinstance(found, str):
        return found == wanted
    expected = _decoded(wanted.encode())
    # JSON's true is not 1, but in Python True == 1.
    return expected == found and isinstance(expected, bool) is isinstance(found, bool)


def _text(found: object) -> str:
    import msgspec

    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


# ---- formats --------------------------------------------------------------------------------------------------------


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


def _heading() -> bytes:
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
    return json_line(entry).encode()


def _raw(record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def _raw_on_terminal(record: Record) -> bytes:
    return escaped((record.value or b"").decode("utf-8", "backslashreplace"), keep="\n\t").encode() + b"\n"


# ---- rows --------------------------------------------------------------------------------------------------------


def _width() -> int:
    return shutil.get_terminal_size().columns


def _row(position: str, at: str, key: str, value: str, width: int) -> bytes:
    value_width = max(_MIN_VALUE_WIDTH, width - _OFFSET_WIDTH - _TIME_WIDTH - _KEY_WIDTH - 6)
    start = f"{position:<{_OFFSET_WIDTH}}  {at:<{_TIME_WIDTH}}  {_fit(key, _KEY_WIDTH)}"
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
