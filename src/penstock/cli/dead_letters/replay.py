"""Sends letters to be handled once more.

Rule of this file: a letter counts as sent when it is acknowledged. Letters of one partition go in the order of their
records, so what a key has in common is in order again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.admin.topics import create_topic
from penstock.app.dead_letters import DeadLetter, Origin, replay_letter
from penstock.app.own_names import REPLAY, topic_name
from penstock.app.producer import Producer
from penstock.app.publisher import Published
from penstock.cli.dead_letters.choosing import Place, place_of
from penstock.error_codes import ErrorCode
from penstock.errors import BrokerError, PublishError, broker_error
from penstock.net.cluster import Cluster

__all__ = ["Plan", "Sending", "make_topics", "plan_replay", "send", "target_of"]

_TOGETHER = 500
_MOST_NAMED = 10
_NO_ORIGIN = Origin("", 0, 0, 0)
_NOWHERE = "it does not say where it came from, or of which group it is"


@dataclass(frozen=True, slots=True)
class Sending:
    """One letter, and where it goes."""

    letter: DeadLetter
    topic: str
    partition: int | None
    """None where the topic has no such partition: its key decides."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes where."""

    sendings: tuple[Sending, ...]
    """In the order of the records that they were."""
    to_make: Mapping[str, int]
    """Topics that are not there yet, and how many partitions they get."""
    left_out: tuple[tuple[DeadLetter, str], ...]
    """Letters that cannot go anywhere, and why."""
    outlived: tuple[DeadLetter, ...]
    """Letters of records of which a later one goes: they died again, or the same death was written twice."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All that something goes to."""
        return tuple(dict.fromkeys(one.topic for one in self.sendings))


def target_of(letter: DeadLetter, *, to_origin: bool) -> str | None:
    """The topic that a letter goes to; None when it does not say enough.

    Raises:
        ConfigurationError: the name that it gives is no topic's.
    """
    if letter.origin is None:
        return None
    if to_origin:
        return letter.origin.topic
    return topic_name(REPLAY, topic=letter.origin.topic, group=letter.group_id) if letter.group_id else None


def plan_replay(
    letters: Sequence[DeadLetter], partitions: Mapping[str, int], *, to_origin: bool, otherwise: int
) -> Plan:
    """What goes where, among topics of so many ``partitions``; each record once.

    A replay topic that is not there is made as large as the topic that its letters came from, or with ``otherwise``
    partitions where that one is gone.
    """
    last = {_record_of(letter): letter for letter in sorted(letters, key=_age)}
    sendings: list[Sending] = []
    left_out: list[tuple[DeadLetter, str]] = []
    to_make: dict[str, int] = {}
    for letter in last.values():
        origin, topic = letter.origin, target_of(letter, to_origin=to_origin)
        if origin is None or topic is None:
            left_out.append((letter, _NOWHERE))
            continue
        if topic not in partitions:
            if to_origin:
                left_out.append((letter, f"topic {topic} is no more - leave --to-origin out"))
                continue
            to_make[topic] = partitions.get(origin.topic, otherwise)
        count = partitions.get(topic) or to_make[topic]
        sendings.append(Sending(letter, topic, origin.partition if origin.partition < count else None))
    return Plan(
        tuple(sorted(sendings, key=lambda one: (one.letter.origin or _NO_ORIGIN, place_of(one.letter)))),
        to_make,
        tuple(left_out),
        tuple(letter for letter in letters if last[_record_of(letter)] is not letter),
    )


def _record_of(letter: DeadLetter) -> object:
    """Of which record it is, and of which group; one that does not say is like no other.

    Its time tells it from the record at the same offset of a topic that was deleted and made again.
    """
    return place_of(letter) if letter.origin is None else (letter.group_id, letter.origin)


def _age(letter: DeadLetter) -> tuple[int, int, Place]:
    return letter.deaths, letter.at_ms, place_of(letter)


async def make_topics(cluster: Cluster, to_make: Mapping[str, int]) -> None:
    """Make what is missing; what somebody else makes meanwhile will do.

    Raises:
        BrokerError: a topic may not be made; it says what to do.
        BrokerConnectionError: the brokers do not answer in time.
    """
    for topic, partitions in to_make.items():
        try:
            await create_topic(cluster, topic, partitions)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise broker_error(
                    error.code,
                    f"{topic} is not there and cannot be made - make it with {partitions} partitions, or have somebody"
                    " do it who may, and replay again",
                ) from error


async def send(producer: Producer, plan: Plan, on_sent: Callable[[Sending, Published], None]) -> None:
    """Send all of the plan; ``on_sent`` is told of each when it is acknowledged.

    Raises:
        PublishError: some were refused or not acknowledged; it says which to send again.
    """
    sent: set[int] = set()

    def acknowledged(one: Sending, placed: Published) -> None:
        sent.add(id(one))
        on_sent(one, placed)

    lanes: dict[tuple[str, int | None], list[Sending]] = {}
    for one in plan.sendings:
        lanes.setdefault((one.topic, one.partition), []).append(one)
    outcomes = await asyncio.gather(
        *(_send_in_order(producer, lane, acknowledged) for lane in lanes.values()), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PublishError):
            raise outcome
    if failures := [outcome for outcome in outcomes if isinstance(outcome, PublishError)]:
        left = [place_of(one.letter) for one in plan.sendings if id(one) not in sent]
        again = " ".join(f"--offset {place}" for place in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        raise PublishError(
            f"{len(sent)} of {len(plan.sendings)} letters are acknowledged, the others are not"
            f" ({'; '.join(dict.fromkeys(map(str, failures)))}) - replay them again: {again}{more}"
        )


async def _send_in_order(
    producer: Producer, lane: Sequence[Sending], acknowledged: Callable[[Sending, Published], None]
) -> None:
    async def publish(one: Sending) -> None:
        letter = replay_letter(one.letter)
        placed = await producer.publish(
            one.topic, letter.value, key=letter.key, headers=letter.headers, partition=one.partition
        )
        acknowledged(one, placed)

    for at in range(0, len(lane), _TOGETHER):
        # Those that come together stay in order; the next do not overtake what was refused.
        outcomes = await asyncio.gather(*map(publish, lane[at : at + _TOGETHER]), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
