"""What ``penstock dead-letters`` does: list, show, replay, one after the other as the user reads it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from contextlib import closing

from penstock.app.producer import Producer
from penstock.app.publisher import Published
from penstock.cli.dead_letters.choosing import Choice, place_of
from penstock.cli.dead_letters.reading import Letters, partitions_of
from penstock.cli.dead_letters.replay import Plan, Sending, make_topics, plan_replay, send, target_of
from penstock.cli.dead_letters.report import (
    as_json,
    by_kind,
    kinds_table,
    letter_as_json,
    letters_table,
    plain,
    show_letter,
)
from penstock.cli.screen import Screen, count
from penstock.config import ConsumerConfig, ConsumerOptions, resolve
from penstock.consumer.run import run
from penstock.net.cluster import Cluster

__all__ = ["work"]

_SIGTERM = 143
_MOST_NAMED = 10
_AGAIN = "their records died again later, and the last letter of each goes"
_OPTIONS: ConsumerOptions = {
    "client_id": "penstock-dead-letters",
    "socket_connection_setup_timeout_ms": 5_000,
    "auto_offset_reset": "earliest",
    "isolation_level": "read_committed",
    # Whatever the environment says of a group is about the app, and not about who looks at what it left.
    "group_id": None,
    "group_protocol": "classic",
    "group_instance_id": None,
    "group_remote_assignor": None,
    "enable_auto_commit": None,
}


def work(options: argparse.Namespace) -> int:
    """Do what was asked; gives the exit code.

    Raises:
        PenstockError: it could not be done.
    """
    # aiokafka's warnings of a broker that is away would stand between our lines; what matters is raised.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    done = run(_Work(options).do())
    return _SIGTERM if done is None else done


class _Work:
    """One call of the command."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._asked, self._topic, self._as_json = options, str(options.topic), bool(options.json)
        self._options = _OPTIONS.copy()
        if options.bootstrap_servers:
            self._options["bootstrap_servers"] = options.bootstrap_servers
        self._screen = Screen()

    async def do(self) -> int:
        """Reach the cluster and do it; gives the exit code."""
        config = resolve(self._options)
        with closing(Cluster(config)) as cluster:
            await cluster.bootstrap()
            letters = Letters(cluster, self._topic, self._options)
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
        if choice == Choice() and not self._asked.all:
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
        names = {letter.origin.topic for letter in found if letter.origin is not None}
        names |= {topic for letter in found if (topic := target_of(letter, to_origin=to_origin)) is not None}
        partitions = await partitions_of(cluster, sorted({*names, self._topic}))
        plan = plan_replay(found, partitions, to_origin=to_origin, otherwise=partitions[self._topic])
        self._announce(plan, partitions, to_origin=to_origin)
        if self._asked.yes and plan.sendings:
            await make_topics(cluster, plan.to_make)
            async with Producer(config) as producer:
                await self._send(producer, plan)
        elif self._as_json:
            self._write(*(_line(one) for one in plan.sendings))
        elif plan.sendings:
            self._screen.say("dry run", "nothing was sent - the same with --yes sends them")
        return 1 if plan.left_out else 0

    def _announce(self, plan: Plan, partitions: dict[str, int], *, to_origin: bool) -> None:
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
            screen.say("left out", f"{_counted(len(places))}: {why} ({shown})")
        if to_origin and plan.sendings:
            topics = ", ".join(plan.topics)
            screen.say("[bold red]warning[/]", f"every group that reads {topics} handles them again, not one alone")

    async def _send(self, producer: Producer, plan: Plan) -> None:
        sent = 0

        def acknowledged(one: Sending, placed: Published) -> None:
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
        chosen = _choice_of(self._asked) != Choice() if self._asked.action != "list" else False
        return f"none {'of these ' if chosen else ''}in {plain(self._topic)}{others}"

    def _write(self, *entries: Mapping[str, object]) -> None:
        sys.stdout.writelines(f"{as_json(entry)}\n" for entry in entries)
        sys.stdout.flush()


def _choice_of(options: argparse.Namespace) -> Choice:
    return Choice(tuple(options.offset or ()), options.since, tuple(options.error_type or ()), options.limit)


def _line(one: Sending) -> dict[str, object]:
    origin = one.letter.origin
    return {
        "letter": str(place_of(one.letter)),
        "origin": None if origin is None else origin._asdict(),
        "to": one.topic,
        "sent": False,
    }


def _counted(number: int, what: str = "letter") -> str:
    return f"1 {what}" if number == 1 else f"{count(number)} {what}s"
