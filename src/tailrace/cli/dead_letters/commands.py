"""Implementation of ``tailrace dead-letters``: list, show and replay."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import cast

from rich.markup import escape

from tailrace.app.failures.dead_letters import DeadLetter
from tailrace.cli.dead_letters.marks import ReplayMark, ReplayMarks
from tailrace.cli.dead_letters.reading import DeadLetterReader, partitions_of
from tailrace.cli.dead_letters.replay import (
    DeadLetterTopic,
    ReplayPlan,
    ReplayRecord,
    ReplayRun,
    create_topics,
    plan_replay,
    replay_run,
    target_of,
)
from tailrace.cli.dead_letters.report import (
    as_json,
    escape_text,
    iso_text,
    letter_as_json,
    letters_table,
    show_letter,
    summarize,
    summary_table,
    utc_text,
)
from tailrace.cli.dead_letters.selection import DeadLetterFilter, position_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.connection import explicit_options
from tailrace.config import ConsumerConfig, ConsumerOptions, resolve
from tailrace.errors import PublishError
from tailrace.net.cluster import Cluster
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published
from tailrace.signals import run

__all__ = ["work"]

_SIGTERM_EXIT_CODE = 143
_MAX_POSITIONS = 10
_SUPERSEDED = "a later dead letter of the same record is sent instead"
_DEFAULTS: ConsumerOptions = {"client_id": "tailrace-dead-letters", "socket_connection_setup_timeout_ms": 5_000}
_WITHOUT_GROUP: ConsumerOptions = {
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    # Group options that come from --app, --set or the environment are for the app, not for this command.
    "group_id": None,
    "group_protocol": "classic",
    "group_instance_id": None,
    "group_remote_assignor": None,
    "enable_auto_commit": None,
    "reset_offset_on_start": False,
}


def work(options: argparse.Namespace) -> int:
    """Run the action that ``options`` names and return the exit code."""
    exit_code = run(_Invocation(options).run())
    return _SIGTERM_EXIT_CODE if exit_code is None else exit_code


class _Invocation:
    """One run of the command with its arguments."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._arguments, self._topic, self._as_json = options, str(options.topic), bool(options.json)
        timeout_ms = round(options.timeout * 1000)
        self._options = cast(
            "ConsumerOptions",
            {
                **_DEFAULTS,
                "start_timeout_ms": timeout_ms,
                "default_api_timeout_ms": timeout_ms,
                **explicit_options(options),
                **_WITHOUT_GROUP,
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
        summaries = await summarize(reader.read(), reader.marks)
        if self._as_json:
            self._write(*(summary.as_json() for summary in summaries))
            return 0
        if summaries:
            self._screen.console.print(summary_table(self._topic, summaries))
            self._screen.console.print()
        total = sum(summary.count for summary in summaries)
        self._screen.line(
            "total", f"{_counted(total)} in {escape_text(self._topic)}" if total else self._none_text(reader)
        )
        if replayed := sum(summary.replayed for summary in summaries):
            self._screen.line("replayed", f"{count(replayed)} of them; `replay` sends only the others")
        if total and reader.others:
            self._screen.line("others", f"{_counted(reader.others, 'record')} without the headers of a dead letter")
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
            self._write(*(letter_as_json(letter, reader.marks.of(letter)) for letter in found))
        for letter in () if self._as_json else found:
            show_letter(self._screen, letter, reader.marks.of(letter))
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
        dead_topic = DeadLetterTopic(self._topic, self._arguments.dead_letter, self._arguments.to_origin)
        accepted = [letter for letter in found if not dead_topic.refusal(letter)]
        topics = {letter.origin.topic for letter in accepted if letter.origin is not None}
        topics |= {target_of(letter, to_origin=dead_topic.origin is not None) for letter in accepted}
        partitions = await partitions_of(cluster, sorted({*topics, self._topic}), self._arguments.timeout)

        def new_plan() -> ReplayPlan:
            return plan_replay(
                found,
                partitions,
                dead_topic=dead_topic,
                marks=reader.marks,
                again=self._arguments.again,
                default_partitions=partitions[self._topic],
            )

        plan = new_plan()
        self._print_plan(plan, partitions, reader.marks, to_origin=dead_topic.origin is not None)
        if self._arguments.execute and plan.replays:
            await create_topics(cluster, plan.topics_to_create)
            async with Producer(config) as producer, replay_run(producer, self._topic) as replay:
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
            self._write(*(_line(one) for one in plan.replays))
        elif plan.replays:
            self._screen.line("dry run", f"nothing was sent - add --execute to send {_counted(len(plan.replays))}")
        return 1 if plan.refused or not plan.replays else 0

    def _print_plan(self, plan: ReplayPlan, partitions: dict[str, int], marks: ReplayMarks, *, to_origin: bool) -> None:
        if self._as_json:
            for letter, why in (*plan.refused, *((one, _SUPERSEDED) for one in plan.superseded)):
                self._write({"letter": str(position_of(letter)), "to": None, "sent": False, "why": why})
            self._print_replayed(plan.replayed)
            return
        screen = self._screen
        for topic in plan.topics:
            letters = [one.letter for one in plan.replays if one.topic == topic]
            is_new = topic in plan.topics_to_create
            size = _counted(plan.topics_to_create[topic] if is_new else partitions[topic], "partition")
            new = "new, " if is_new else ""
            screen.line("replay", f"{_counted(len(letters))} of {escape_text(self._topic)} to {topic} ({new}{size})")
            screen.show(letters_table(letters, marks))
            screen.console.print()
        if plan.superseded:
            screen.line("skipped", f"{_counted(len(plan.superseded))}: {_SUPERSEDED}")
        self._print_replayed(plan.replayed)
        for why in dict.fromkeys(why for _, why in plan.refused):
            letters = [one for one, reason in plan.refused if reason == why]
            screen.line("skipped", escape(f"{_counted(len(letters))}: {escape_text(why)} ({_positions(letters)})"))
        if to_origin and plan.replays:
            topics = ", ".join(plan.topics)
            screen.line("[bold red]warning[/]", f"every group that reads {topics} handles these records again")

    def _print_replayed(self, replayed: Sequence[tuple[DeadLetter, ReplayMark]]) -> None:
        """Print the dead letters that are skipped because another replay has sent them."""
        if self._as_json:
            self._write(
                *(
                    {
                        "letter": str(position_of(letter)),
                        "to": None,
                        "sent": False,
                        "why": f"replayed to {mark.target} - add --again",
                        "replayed_at": iso_text(mark.at_ms),
                    }
                    for letter, mark in replayed
                )
            )
        elif replayed:
            letters = [letter for letter, _ in replayed]
            last = utc_text(max(mark.at_ms for _, mark in replayed))
            why = f"replayed before, last {last} UTC - add --again to replay again"
            self._screen.line("skipped", f"{_counted(len(letters))}: {why} ({_positions(letters)})")

    async def _send(self, replay: ReplayRun, plan: ReplayPlan) -> None:
        sent = 0

        def on_sent(one: ReplayRecord, published: Published) -> None:
            nonlocal sent
            sent += 1
            if self._as_json:
                position = {"partition": published.partition[1], "offset": published.offset}
                self._write({**_line(one), "sent": True, **position})

        sending = replay.send(plan, on_sent)
        if self._as_json:
            await sending
            return
        try:
            await self._screen.watch(sending, {"replay": lambda: sent}, len(plan.replays))
        except asyncio.CancelledError:
            self._screen.line(
                "stopped", f"{count(sent)} of {_counted(len(plan.replays))} were sent, and marked as replayed"
            )
            raise
        for topic, partitions in plan.topics_to_create.items():
            self._screen.line("created", f"{topic} ({_counted(partitions, 'partition')})")
        self._screen.line("sent", f"{_counted(sent)}, all acknowledged by the brokers and marked as replayed")

    # ---- output ------------------------------------------------------------------------------------------------

    def _none_text(self, reader: DeadLetterReader) -> str:
        """Return the text to print if no dead letter was found."""
        others = f" ({_counted(reader.others, 'other record')})" if reader.others else ""
        is_filtered = self._arguments.action != "list" and _filter_of(self._arguments) != DeadLetterFilter()
        return f"no {'matching ' if is_filtered else ''}dead letters in {escape_text(self._topic)}{others}"

    def _write(self, *entries: Mapping[str, object]) -> None:
        sys.stdout.writelines(f"{as_json(entry)}\n" for entry in entries)
        sys.stdout.flush()


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


def _counted(number: int, noun: str = "dead letter") -> str:
    return f"1 {noun}" if number == 1 else f"{count(number)} {noun}s"
