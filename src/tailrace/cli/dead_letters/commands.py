"""Implementation of ``tailrace dead-letters``: reading, listing, showing and replaying.

The contents of records are untrusted: in text output, rich markup and control characters in them are escaped. In JSON
output, keys, values and header values are objects with two fields: ``format`` is JSON, text, hex or null; ``value`` is
the content.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import cast

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tailrace.admin.offsets import LATEST, list_offsets
from tailrace.admin.topics import partitions_of
from tailrace.app.failures.dead_letters import DeadLetter, Origin, read_dead_letter
from tailrace.app.topics.names import DEAD
from tailrace.cli.dead_letters import DeadLetterFilter, DeadLetterPosition, position_of
from tailrace.cli.dead_letters.replay import (
    DeadLetterTopic,
    ReplayMark,
    ReplayMarks,
    ReplayPlan,
    ReplayRecord,
    ReplayRun,
    create_topics,
    plan_replay,
    record_id,
    replay_run,
)
from tailrace.cli.options import WITHOUT_GROUP, explicit_options
from tailrace.cli.output import count, counted, iso_text, to_json, to_text, utc_text, write_json
from tailrace.cli.reading import read_batches
from tailrace.cli.screen import Screen, titled_table
from tailrace.config import ConsumerConfig, ConsumerOptions, resolve
from tailrace.consumer.consumer import Consumer
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, PublishError, UnknownTopicError
from tailrace.net.cluster import Cluster
from tailrace.observe.log_format import escaped
from tailrace.producer.publisher import Published
from tailrace.producer.record_producer import RecordProducer
from tailrace.records import Record, TopicPartition

__all__ = ["DeadLetterReader", "Invocation"]

_MAX_POSITIONS = 10
_MAX_ROWS = 20
_SUPERSEDED = "a later dead letter of the same record is sent instead"

# ---- reading --------------------------------------------------------------------------------------------------------


class DeadLetterReader:
    """Reads and selects the dead letters of a topic.

    Args:
        cluster: connected cluster.
        topic: dead-letter topic.
        options: options of the consumer that reads the topic.
        timeout_s: time limit for requesting the metadata, and again for the end offsets; it includes retries.

    Attributes:
        others: number of records that were read and are neither dead letters nor marks.
        marks: marks of replays that were read.
    """

    def __init__(self, cluster: Cluster, topic: str, options: ConsumerOptions, timeout_s: float) -> None:
        self.others, self.marks = 0, ReplayMarks()
        self._read_to: dict[TopicPartition, int] = {}
        self._cluster, self._topic, self._options, self._timeout_s = cluster, topic, options, timeout_s

    async def read(self) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters from the end of the last call, or the first, to the current end of the topic.

        The dead letters of a partition are in the order of their offsets. ``marks`` receives the marks of replays, and
        ``others`` is increased by each other record that is not a dead letter.

        Raises:
            UnknownTopicError: the topic does not exist.
            ConsumerTimeoutError: no record arrived for a minute, although the topic has unread records.
        """
        begins, self._read_to = self._read_to, await self._ends()
        async for record in self._records(begins, self._read_to):
            letter = read_dead_letter(record)
            if letter is not None:
                yield letter
            elif not self.marks.add(record):
                self.others += 1

    async def select(self, selection: DeadLetterFilter) -> list[DeadLetter]:
        """Return the selected dead letters in the order of their failures, at most ``selection.limit``.

        Raises:
            ConfigurationError: there is no dead letter at a selected position. Positions are not checked if the
                selection also has a time or error types, because these may exclude a dead letter at a position.
        """
        found = [letter async for letter in self.read() if selection.matches(letter)]
        if selection.positions and not (selection.since_ms or selection.error_types):
            self._raise_if_missing(set(selection.positions) - {position_of(letter) for letter in found})
        return selection.sort_and_limit(found)

    def _raise_if_missing(self, missing: Iterable[DeadLetterPosition]) -> None:
        if positions := ", ".join(map(str, sorted(missing))):
            raise ConfigurationError(
                f"{self._topic} has no dead letter at {positions} - find positions with `tailrace dead-letters list"
                f" {self._topic}`"
            )

    async def _records(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> AsyncIterator[Record]:
        if not ends:
            return
        async with Consumer(self._topic, **self._options) as consumer:
            async for records in read_batches(consumer, {one: begins.get(one) for one in ends}, ends):
                for record in records:
                    yield record

    async def _ends(self) -> dict[TopicPartition, int]:
        counts = await partitions_of(self._cluster, [self._topic], timeout_s=self._timeout_s)
        if self._topic not in counts:
            raise await self._unknown_topic_error()
        wanted = [TopicPartition(self._topic, number) for number in range(counts[self._topic])]
        found = await list_offsets(self._cluster, dict.fromkeys(wanted, LATEST), timeout_s=self._timeout_s)
        return {one: listed.offset for one, listed in found.items()}

    async def _unknown_topic_error(self) -> UnknownTopicError:
        with self._cluster.watching(None):
            await self._cluster.refresh()
        existing = sorted(name for name, topic in self._cluster.topology.topics.items() if not topic.is_internal)
        dead = [name for name in existing if name.endswith((".dead", "dlq", "DLQ", "dead-letters"))]
        close = list(dict.fromkeys([*get_close_matches(self._topic, existing, n=3), *dead]))[:5]
        hint = f"did you mean {' or '.join(close)}?" if close else "and no other looks like a dead-letter topic"
        return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {self._topic!r}, {hint}")


# ---- the command ----------------------------------------------------------------------------------------------------


class Invocation:
    """One run of the command with its arguments."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._arguments, self._topic, self._as_json = options, str(options.topic), bool(options.json)
        timeout_ms = round(options.timeout * 1000)
        self._options = cast(
            "ConsumerOptions",
            {
                "client_id": "tailrace-dead-letters",
                "socket_connection_setup_timeout_ms": 5_000,
                "start_timeout_ms": timeout_ms,
                "default_api_timeout_ms": timeout_ms,
                **explicit_options(options),
                **WITHOUT_GROUP,
                "isolation_level": "read_committed",
            },
        )
        self._screen = Screen()

    async def run(self) -> int:
        """Connect to the cluster, run the action and return the exit code."""
        config = resolve(self._options)
        with closing(Cluster(config)) as cluster:
            await cluster.bootstrap()
            reader = DeadLetterReader(cluster, self._topic, self._options, self._arguments.timeout)
            match self._arguments.action:
                case "list":
                    return await self._list(reader)
                case "show":
                    return await self._show(reader)
                case _:
                    return await self._replay(reader, cluster, config)

    # ---- list --------------------------------------------------------------------------------------------------

    async def _list(self, reader: DeadLetterReader) -> int:
        summaries = await _summarize(reader.read(), reader.marks)
        if self._as_json:
            write_json(summary.as_json() for summary in summaries)
            return 0
        if summaries:
            self._screen.console.print(_summary_table(self._topic, summaries))
            self._screen.console.print()
        total = sum(summary.count for summary in summaries)
        self._screen.line("total", f"{_letters(total)} in {_escape(self._topic)}" if total else self._none_text(reader))
        if replayed := sum(summary.replayed for summary in summaries):
            self._screen.line("replayed", f"{count(replayed)} of them; `replay` sends only the others")
        if total and reader.others:
            self._screen.line("others", f"{counted(reader.others, 'record')} without the headers of a dead letter")
        return 0

    # ---- show --------------------------------------------------------------------------------------------------

    async def _show(self, reader: DeadLetterReader) -> int:
        selection = _filter_of(self._arguments)
        if selection == DeadLetterFilter() and not self._arguments.all:
            latest = None
            async for letter in reader.read():
                if latest is None or (letter.at_ms, position_of(letter)) > (latest.at_ms, position_of(latest)):
                    latest = letter
            found = [] if latest is None else [latest]
        else:
            found = await reader.select(selection)
        if self._as_json:
            write_json(_letter_as_json(letter, reader.marks.of(letter)) for letter in found)
        for letter in () if self._as_json else found:
            _show_letter(self._screen, letter, reader.marks.of(letter))
        if not found and not self._as_json:
            self._screen.line("total", self._none_text(reader))
        return 0

    # ---- replay ------------------------------------------------------------------------------------------------

    async def _replay(self, reader: DeadLetterReader, cluster: Cluster, config: ConsumerConfig) -> int:
        """Print the dead letters to send, and send them with ``--execute``.

        Return 1 if some cannot be replayed, or if all were replayed before.
        """
        found = await reader.select(_filter_of(self._arguments))
        if not found:
            if not self._as_json:
                self._screen.line("total", self._none_text(reader))
            return 0
        dead_topic = DeadLetterTopic(self._topic, self._arguments.dead_letter or DEAD, self._arguments.to_origin)
        accepted = [letter for letter in found if not dead_topic.refusal(letter)]
        topics = {letter.origin.topic for letter in accepted if letter.origin is not None}
        topics |= {dead_topic.target(one.origin, one.group_id) for one in accepted if one.origin is not None}
        partitions = await partitions_of(cluster, sorted({*topics, self._topic}), timeout_s=self._arguments.timeout)

        def new_plan() -> ReplayPlan:
            return plan_replay(
                found,
                partitions,
                dead_topic=dead_topic,
                marks=reader.marks,
                again=self._arguments.again,
            )

        plan = new_plan()
        self._print_plan(plan, partitions, reader.marks, to_origin=dead_topic.origin is not None)
        if self._arguments.execute and plan.replays:
            await create_topics(cluster, plan.topics_to_create)
            async with RecordProducer(config) as producer, replay_run(producer, self._topic) as replay:
                async for _ in reader.read():
                    pass  # Only the marks matter: the selection was printed.
                if (other := reader.marks.other_run(replay.id)) is not None:
                    client, until_ms = other
                    raise PublishError(
                        f"nothing was sent: another replay of {self._topic} runs ({client}) - wait until it has ended;"
                        f" if it was killed, replay again after {utc_text(until_ms)} UTC"
                    )
                planned, plan = {position_of(one.letter) for one in plan.replays}, new_plan()
                self._print_replayed([one for one in plan.replayed if position_of(one[0]) in planned])
                if plan.replays:
                    await self._send(replay, plan)
        elif self._as_json:
            write_json(map(_line, plan.replays))
        elif plan.replays:
            self._screen.line("dry run", f"nothing was sent - add --execute to send {_letters(len(plan.replays))}")
        return 1 if plan.refused or not plan.replays else 0

    def _print_plan(self, plan: ReplayPlan, partitions: dict[str, int], marks: ReplayMarks, *, to_origin: bool) -> None:
        if self._as_json:
            for letter, why in (*plan.refused, *((one, _SUPERSEDED) for one in plan.superseded)):
                write_json([{"letter": str(position_of(letter)), "to": None, "sent": False, "why": why}])
            self._print_replayed(plan.replayed)
            return
        screen = self._screen
        for topic in plan.topics:
            letters = [one.letter for one in plan.replays if one.topic == topic]
            is_new = topic in plan.topics_to_create
            size = counted(plan.topics_to_create[topic] if is_new else partitions[topic], "partition")
            new = "new, " if is_new else ""
            screen.line("replay", f"{_letters(len(letters))} of {_escape(self._topic)} to {topic} ({new}{size})")
            screen.show(_letters_table(letters, marks))
            screen.console.print()
        if plan.superseded:
            screen.line("skipped", f"{_letters(len(plan.superseded))}: {_SUPERSEDED}")
        self._print_replayed(plan.replayed)
        for why in dict.fromkeys(why for _, why in plan.refused):
            letters = [one for one, reason in plan.refused if reason == why]
            screen.line("skipped", escape(f"{_letters(len(letters))}: {_escape(why)} ({_positions(letters)})"))
        if to_origin and plan.replays:
            topics = ", ".join(plan.topics)
            screen.line("[bold red]warning[/]", f"every group that reads {topics} handles these records again")

    def _print_replayed(self, replayed: Sequence[tuple[DeadLetter, ReplayMark]]) -> None:
        """Print the dead letters that are skipped because another replay has sent them."""
        if self._as_json:
            write_json(
                {
                    "letter": str(position_of(letter)),
                    "to": None,
                    "sent": False,
                    "why": f"replayed to {mark.target} - add --again",
                    "replayed_at": iso_text(mark.at_ms),
                }
                for letter, mark in replayed
            )
        elif replayed:
            letters = [letter for letter, _ in replayed]
            last = utc_text(max(mark.at_ms for _, mark in replayed))
            why = f"replayed before, last {last} UTC - add --again to replay again"
            self._screen.line("skipped", f"{_letters(len(letters))}: {why} ({_positions(letters)})")

    async def _send(self, replay: ReplayRun, plan: ReplayPlan) -> None:
        sent = 0

        def on_sent(one: ReplayRecord, published: Published) -> None:
            nonlocal sent
            sent += 1
            if self._as_json:
                position = {"partition": published.partition, "offset": published.offset}
                write_json([{**_line(one), "sent": True, **position}])

        sending = replay.send(plan, on_sent)
        if self._as_json:
            await sending
            return
        try:
            await self._screen.watch(sending, {"replay": lambda: sent}, len(plan.replays))
        except asyncio.CancelledError:
            self._screen.line(
                "stopped", f"{count(sent)} of {_letters(len(plan.replays))} were sent, and marked as replayed"
            )
            raise
        for topic, partitions in plan.topics_to_create.items():
            self._screen.line("created", f"{topic} ({counted(partitions, 'partition')})")
        self._screen.line("sent", f"{_letters(sent)}, all acknowledged by the brokers and marked as replayed")

    # ---- output ------------------------------------------------------------------------------------------------

    def _none_text(self, reader: DeadLetterReader) -> str:
        """Return the text to print if no dead letter was found."""
        others = f" ({counted(reader.others, 'other record')})" if reader.others else ""
        is_filtered = self._arguments.action != "list" and _filter_of(self._arguments) != DeadLetterFilter()
        return f"no {'matching ' if is_filtered else ''}dead letters in {_escape(self._topic)}{others}"


def _filter_of(options: argparse.Namespace) -> DeadLetterFilter:
    return DeadLetterFilter(tuple(options.offset or ()), options.since, tuple(options.error_type or ()), options.limit)


def _positions(letters: Sequence[DeadLetter]) -> str:
    shown = ", ".join(str(position_of(one)) for one in letters[:_MAX_POSITIONS])
    return shown + (", ..." if len(letters) > _MAX_POSITIONS else "")


def _line(one: ReplayRecord) -> dict[str, object]:
    origin = one.letter.origin
    return {
        "letter": str(position_of(one.letter)),
        "origin": None if origin is None else origin._asdict(),
        "to": one.topic,
        "sent": False,
    }


def _letters(number: int) -> str:
    return counted(number, "dead letter")


# ---- summaries -------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _FailureSummary:
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


async def _summarize(dead_letters: AsyncIterator[DeadLetter], marks: ReplayMarks) -> list[_FailureSummary]:
    """Return a summary for each combination of group, handler and error type, the greatest count first.

    Args:
        dead_letters: contents of a dead-letter topic.
        marks: marks of the topic, which are complete when ``dead_letters`` ends.
    """
    summaries: dict[tuple[str, str, str], _FailureSummary] = {}
    records: Counter[tuple[str, int, _FailureSummary]] = Counter()
    async for letter in dead_letters:
        key, position = (letter.group_id, letter.handler, letter.error_type), position_of(letter)
        summary = summaries.get(key)
        if summary is None:
            summary = summaries[key] = _FailureSummary(*key, 0, letter.at_ms, letter.at_ms, position)
        summary.count += 1
        summary.last_ms = max(summary.last_ms, letter.at_ms)
        summary.first_ms, summary.oldest = min((summary.first_ms, summary.oldest), (letter.at_ms, position))
        records[record_id(letter), letter.deaths, summary] += 1
    for (record, deaths, summary), number in records.items():
        if marks.of_record(record, deaths) is not None:
            summary.replayed += number
    return sorted(summaries.values(), key=lambda one: (-one.count, one.first_ms, one.oldest))


def _summary_table(topic: str, summaries: Iterable[_FailureSummary]) -> Table:
    table = titled_table(_escape(f"{topic}, by handler and error (times in UTC)"), expand=True)
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
            Text(f"{_escape(handler) or '(no handler)'}\n{_escape(summary.error_type)}"),
            count(summary.count),
            count(summary.replayed),
            f"{utc_text(summary.first_ms)}\n{utc_text(summary.last_ms)}",
            str(summary.oldest),
        )
    return table


# ---- single dead letters ---------------------------------------------------------------------------------------


def _letters_table(letters: list[DeadLetter], marks: ReplayMarks) -> Table:
    """Return a table of the first 20 dead letters; if there are more, the last row counts the others."""
    table = titled_table("in the order of sending (times in UTC)", expand=True)
    table.add_column("offset", justify="right", no_wrap=True)
    table.add_column("failed", no_wrap=True, min_width=19)
    table.add_column("origin", overflow="fold", ratio=1)
    table.add_column("error", overflow="fold", ratio=1)
    for letter in letters[:_MAX_ROWS]:
        origin = "unknown" if letter.origin is None else _escape(str(letter.origin))
        # The module of the error is left out to save width; `list` and `show` print it.
        error = _escape(letter.error_type.rpartition(".")[2])
        mark = marks.of(letter)
        again = "" if mark is None else f"\nreplayed\n{utc_text(mark.at_ms)}"
        table.add_row(str(position_of(letter)), f"{utc_text(letter.at_ms)}{again}", Text(origin), Text(error))
    if len(letters) > _MAX_ROWS:
        table.add_row("", f"and {count(len(letters) - _MAX_ROWS)} more")
    return table


def _show_letter(screen: Screen, letter: DeadLetter, mark: ReplayMark | None) -> None:
    """Print all parts of a dead letter, and ``mark`` if it was replayed."""

    def line(label: str, text: str) -> None:
        screen.line(label, escape(_escape(text)))

    line("offset", f"{position_of(letter)} of {letter.record.topic}, failed {utc_text(letter.at_ms)} UTC")
    line("error", f"{letter.error_type}: {letter.reason}" if letter.reason else letter.error_type)
    line("handler", f"{letter.handler} of group {letter.group_id}, {counted(letter.attempts, 'attempt')}")
    line("origin", _origin_text(letter.origin))
    if letter.deaths > 1:
        line("deaths", f"{letter.deaths}, after {counted(letter.replays, 'replay')}")
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


def _letter_as_json(letter: DeadLetter, mark: ReplayMark | None) -> dict[str, object]:
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


def _escape(text: str) -> str:
    """Return ``text`` with control characters, except newlines, escaped."""
    return escaped(text, keep="\n")


def _origin_text(origin: Origin | None) -> str:
    return "unknown" if origin is None else f"{origin}, written {utc_text(origin.timestamp)} UTC"


def _print_indented(screen: Screen, text: str) -> None:
    """Print text indented and without wrapping, so that it can be copied."""
    for line in _escape(text).splitlines():
        screen.console.print(Text(f"  {line}"), soft_wrap=True)
