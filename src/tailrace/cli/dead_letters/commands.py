"""Implementation of ``tailrace dead-letters``: list, show and replay."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import cast

from rich.markup import escape

from tailrace.cli.dead_letters.reading import DeadLetterReader, partitions_of
from tailrace.cli.dead_letters.replay import (
    DeadLetterTopic,
    ReplayPlan,
    ReplayRecord,
    create_topics,
    plan_replay,
    send,
    target_of,
)
from tailrace.cli.dead_letters.report import (
    as_json,
    escape_text,
    letter_as_json,
    letters_table,
    show_letter,
    summarize,
    summary_table,
)
from tailrace.cli.dead_letters.selection import DeadLetterFilter, position_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.connection import explicit_options
from tailrace.config import ConsumerConfig, ConsumerOptions, resolve
from tailrace.net.cluster import Cluster
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published
from tailrace.runner import run

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
        summaries = await summarize(reader.read())
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
            self._write(*map(letter_as_json, found))
        for letter in () if self._as_json else found:
            show_letter(self._screen, letter)
        if not found and not self._as_json:
            self._screen.line("total", self._none_text(reader))
        return 0

    # ---- replay ------------------------------------------------------------------------------------------------

    async def _replay(self, reader: DeadLetterReader, cluster: Cluster, config: ConsumerConfig) -> int:
        """Print the dead letters to send, and send them with ``--execute``; return 1 if some cannot be replayed."""
        found = await reader.select(_filter_of(self._arguments))
        if not found:
            if not self._as_json:
                self._screen.line("total", self._none_text(reader))
            return 0
        to_origin = bool(self._arguments.to_origin)
        dead_topic = DeadLetterTopic(self._topic, self._arguments.dead_letter)
        accepted = [letter for letter in found if not dead_topic.refusal(letter, to_origin=to_origin)]
        topics = {letter.origin.topic for letter in accepted if letter.origin is not None}
        topics |= {target_of(letter, to_origin=to_origin) for letter in accepted}
        partitions = await partitions_of(cluster, sorted({*topics, self._topic}), self._arguments.timeout)
        plan = plan_replay(
            found, partitions, dead_topic=dead_topic, to_origin=to_origin, default_partitions=partitions[self._topic]
        )
        self._print_plan(plan, partitions, to_origin=to_origin)
        if self._arguments.execute and plan.replays:
            await create_topics(cluster, plan.topics_to_create)
            async with Producer(config) as producer:
                await self._send(producer, plan)
        elif self._as_json:
            self._write(*(_line(one) for one in plan.replays))
        elif plan.replays:
            self._screen.line("dry run", f"nothing was sent - add --execute to send {_counted(len(plan.replays))}")
        return 1 if plan.refused else 0

    def _print_plan(self, plan: ReplayPlan, partitions: dict[str, int], *, to_origin: bool) -> None:
        if self._as_json:
            self._write(
                *(
                    {"letter": str(position_of(one)), "to": None, "sent": False, "why": why}
                    for one, why in plan.refused
                ),
                *(
                    {"letter": str(position_of(one)), "to": None, "sent": False, "why": _SUPERSEDED}
                    for one in plan.superseded
                ),
            )
            return
        screen = self._screen
        for topic in plan.topics:
            letters = [one.letter for one in plan.replays if one.topic == topic]
            is_new = topic in plan.topics_to_create
            size = _counted(plan.topics_to_create[topic] if is_new else partitions[topic], "partition")
            new = "new, " if is_new else ""
            screen.line("replay", f"{_counted(len(letters))} of {escape_text(self._topic)} to {topic} ({new}{size})")
            screen.show(letters_table(letters))
            screen.console.print()
        if plan.superseded:
            screen.line("skipped", f"{_counted(len(plan.superseded))}: {_SUPERSEDED}")
        for why in dict.fromkeys(why for _, why in plan.refused):
            positions = [str(position_of(one)) for one, reason in plan.refused if reason == why]
            shown = ", ".join(positions[:_MAX_POSITIONS]) + (", ..." if len(positions) > _MAX_POSITIONS else "")
            screen.line("skipped", escape(f"{_counted(len(positions))}: {escape_text(why)} ({shown})"))
        if to_origin and plan.replays:
            topics = ", ".join(plan.topics)
            screen.line("[bold red]warning[/]", f"every group that reads {topics} handles these records again")

    async def _send(self, producer: Producer, plan: ReplayPlan) -> None:
        sent = 0

        def on_sent(one: ReplayRecord, published: Published) -> None:
            nonlocal sent
            sent += 1
            if self._as_json:
                position = {"partition": published.partition[1], "offset": published.offset}
                self._write({**_line(one), "sent": True, **position})

        sending = send(producer, plan, on_sent)
        if self._as_json:
            await sending
            return
        await self._screen.watch(sending, {"replay": lambda: sent}, len(plan.replays))
        for topic, partitions in plan.topics_to_create.items():
            self._screen.line("created", f"{topic} ({_counted(partitions, 'partition')})")
        self._screen.line("sent", f"{_counted(sent)}, all acknowledged by the brokers")

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
