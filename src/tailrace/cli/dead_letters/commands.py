"""What ``tailrace dead-letters`` does: list, show, replay, one after the other as the user reads it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import cast

from rich.markup import escape

from tailrace.cli.dead_letters.reading import Letters, partitions_of
from tailrace.cli.dead_letters.replay import (
    DeadLetterTopic,
    ReplayPlan,
    ReplayRecord,
    make_topics,
    plan_replay,
    send,
    target_of,
)
from tailrace.cli.dead_letters.report import (
    as_json,
    by_kind,
    kinds_table,
    letter_as_json,
    letters_table,
    plain,
    show_letter,
)
from tailrace.cli.dead_letters.selection import LetterSelection, place_of
from tailrace.cli.screen import Screen, count
from tailrace.cli.tools.connection import said_options
from tailrace.config import ConsumerConfig, ConsumerOptions, resolve
from tailrace.net.cluster import Cluster
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published
from tailrace.runner import run

__all__ = ["work"]

_SIGTERM = 143
_MOST_NAMED = 10
_AGAIN = "their records died again later, and the last letter of each goes"
_EARLY: ConsumerOptions = {"client_id": "tailrace-dead-letters", "socket_connection_setup_timeout_ms": 5_000}
_ALONE: ConsumerOptions = {
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    # Group options of the environment, an app or --set concern the app, not this reader.
    "group_id": None,
    "group_protocol": "classic",
    "group_instance_id": None,
    "group_remote_assignor": None,
    "enable_auto_commit": None,
    "reset_offset_on_start": False,
}


def work(options: argparse.Namespace) -> int:
    """Do what was asked; gives the exit code.

    Raises:
        TailraceError: it could not be done.
    """
    done = run(_Work(options).do())
    return _SIGTERM if done is None else done


class _Work:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._asked, self._topic, self._as_json = options, str(options.topic), bool(options.json)
        timeout_ms = round(options.timeout * 1000)
        self._options = cast(
            "ConsumerOptions",
            {
                **_EARLY,
                "start_timeout_ms": timeout_ms,
                "default_api_timeout_ms": timeout_ms,
                **said_options(options),
                **_ALONE,
            },
        )
        self._screen = Screen()

    async def do(self) -> int:
        """Reach the cluster and do it; gives the exit code."""
        config = resolve(self._options)
        with closing(Cluster(config)) as cluster:
            await cluster.bootstrap()
            letters = Letters(cluster, self._topic, self._options, self._asked.timeout)
            match self._asked.action:
                case "list":
                    return await self._list(letters)
                case "show":
                    return await self._show(letters)
                case _:
                    return await self._replay(letters, cluster, config)

    # ---- list --------------------------------------------------------------------------------------------------

    async def _list(self, letters: Letters) -> int:
        kinds = await by_kind(letters.read())
        if self._as_json:
            self._write(*(kind.as_json() for kind in kinds))
            return 0
        if kinds:
            self._screen.console.print(kinds_table(self._topic, kinds))
            self._screen.console.print()
        total = sum(kind.count for kind in kinds)
        self._screen.say("letters", f"{count(total)} in {plain(self._topic)}" if total else self._none(letters))
        if total and letters.others:
            self._screen.say("others", f"{_counted(letters.others, 'record')} without a failure in the headers")
        return 0

    # ---- show --------------------------------------------------------------------------------------------------

    async def _show(self, letters: Letters) -> int:
        choice = _choice_of(self._asked)
        if choice == LetterSelection() and not self._asked.all:
            latest = None
            async for letter in letters.read():
                if latest is None or (letter.at_ms, place_of(letter)) > (latest.at_ms, place_of(latest)):
                    latest = letter
            found = [] if latest is None else [latest]
        else:
            found = await letters.chosen(choice)
        if self._as_json:
            self._write(*map(letter_as_json, found))
        for letter in () if self._as_json else found:
            show_letter(self._screen, letter)
        if not found and not self._as_json:
            self._screen.say("letters", self._none(letters))
        return 0

    # ---- replay ------------------------------------------------------------------------------------------------

    async def _replay(self, letters: Letters, cluster: Cluster, config: ConsumerConfig) -> int:
        found = await letters.chosen(_choice_of(self._asked))
        if not found:
            if not self._as_json:
                self._screen.say("letters", self._none(letters))
            return 0
        to_origin = bool(self._asked.to_origin)
        dead_topic = DeadLetterTopic(self._topic, self._asked.dead_letter)
        good = [letter for letter in found if not dead_topic.refusal(letter, to_origin=to_origin)]
        names = {letter.origin.topic for letter in good if letter.origin is not None}
        names |= {target_of(letter, to_origin=to_origin) for letter in good}
        partitions = await partitions_of(cluster, sorted({*names, self._topic}), self._asked.timeout)
        plan = plan_replay(
            found, partitions, dead_topic=dead_topic, to_origin=to_origin, otherwise=partitions[self._topic]
        )
        self._announce(plan, partitions, to_origin=to_origin)
        if self._asked.execute and plan.sendings:
            await make_topics(cluster, plan.to_make)
            async with Producer(config) as producer:
                await self._send(producer, plan)
        elif self._as_json:
            self._write(*(_line(one) for one in plan.sendings))
        elif plan.sendings:
            self._screen.say("dry run", "nothing was sent - the same with --execute sends them")
        return 1 if plan.left_out else 0

    def _announce(self, plan: ReplayPlan, partitions: dict[str, int], *, to_origin: bool) -> None:
        if self._as_json:
            self._write(
                *({"letter": str(place_of(one)), "to": None, "sent": False, "why": why} for one, why in plan.left_out),
                *({"letter": str(place_of(one)), "to": None, "sent": False, "why": _AGAIN} for one in plan.outlived),
            )
            return
        screen = self._screen
        for topic in plan.topics:
            here = [one.letter for one in plan.sendings if one.topic == topic]
            size = f"{_counted(plan.to_make[topic], 'partition')}, to be made" if topic in plan.to_make else ""
            size = size or _counted(partitions[topic], "partition")
            screen.say("replay", f"{_counted(len(here))} of {plain(self._topic)} to {topic} ({size})")
            screen.show(letters_table(here))
            screen.console.print()
        if plan.outlived:
            screen.say("left out", f"{_counted(len(plan.outlived))}: {_AGAIN}")
        for why in dict.fromkeys(why for _, why in plan.left_out):
            places = [str(place_of(one)) for one, reason in plan.left_out if reason == why]
            shown = ", ".join(places[:_MOST_NAMED]) + (", ..." if len(places) > _MOST_NAMED else "")
            screen.say("left out", escape(f"{_counted(len(places))}: {plain(why)} ({shown})"))
        if to_origin and plan.sendings:
            topics = ", ".join(plan.topics)
            screen.say("[bold red]warning[/]", f"every group that reads {topics} handles them again, not one alone")

    async def _send(self, producer: Producer, plan: ReplayPlan) -> None:
        sent = 0

        def acknowledged(one: ReplayRecord, placed: Published) -> None:
            nonlocal sent
            sent += 1
            if self._as_json:
                self._write({**_line(one), "sent": True, "partition": placed.partition[1], "offset": placed.offset})

        sending = send(producer, plan, acknowledged)
        if self._as_json:
            await sending
            return
        await self._screen.watch(sending, {"replay": lambda: sent}, len(plan.sendings))
        for topic, partitions in plan.to_make.items():
            self._screen.say("made", f"{topic}, {_counted(partitions, 'partition')}")
        self._screen.say("sent", f"{_counted(sent)}, all acknowledged by the brokers")

    # ---- words -------------------------------------------------------------------------------------------------

    def _none(self, letters: Letters) -> str:
        others = f", {_counted(letters.others, 'other record')}" if letters.others else ""
        chosen = _choice_of(self._asked) != LetterSelection() if self._asked.action != "list" else False
        return f"none {'of these ' if chosen else ''}in {plain(self._topic)}{others}"

    def _write(self, *entries: Mapping[str, object]) -> None:
        sys.stdout.writelines(f"{as_json(entry)}\n" for entry in entries)
        sys.stdout.flush()


def _choice_of(options: argparse.Namespace) -> LetterSelection:
    return LetterSelection(tuple(options.offset or ()), options.since, tuple(options.error_type or ()), options.limit)


def _line(one: ReplayRecord) -> dict[str, object]:
    origin = one.letter.origin
    return {
        "letter": str(place_of(one.letter)),
        "origin": None if origin is None else origin._asdict(),
        "to": one.topic,
        "sent": False,
    }


def _counted(number: int, what: str = "letter") -> str:
    return f"1 {what}" if number == 1 else f"{count(number)} {what}s"
