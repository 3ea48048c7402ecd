"""Sends letters to be handled once more.

Rule of this file: a letter counts as sent when it is acknowledged. Letters of one partition go in the order of their
records, so what a key has in common is in order again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.admin.topics import create_topic
from tailrace.app.failures.dead_letters import DeadLetter, Origin, replay_letter
from tailrace.app.topics.names import DEAD, REPLAY, topic_name
from tailrace.cli.dead_letters.selection import LetterPlace, place_of
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConfigurationError, PublishError, PublishTooLargeError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published

__all__ = ["DeadLetterTopic", "ReplayPlan", "ReplayRecord", "make_topics", "plan_replay", "send", "target_of"]

_TOGETHER = 500
_MOST_NAMED = 10
_NO_ORIGIN = Origin("", 0, 0, 0)
_NOWHERE = "it does not say where it came from, or of which group it is"


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """One letter, and where it goes."""

    letter: DeadLetter
    topic: str
    partition: int | None
    """None where the topic has no such partition: its key decides."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What goes where."""

    sendings: tuple[ReplayRecord, ...]
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


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """The topic whose letters are replayed.

    Attributes:
        template: the ``dead_letter=`` of the app that wrote them.
    """

    name: str
    template: str = DEAD

    def refusal(self, letter: DeadLetter, *, to_origin: bool) -> str:
        """Return why a letter cannot be replayed; empty when it can.

        Anyone who may write to the topic may write any origin and group into a letter, and a replay is sent with the
        rights of the operator. Hence both must be those that the name of the topic is made of.
        """
        if letter.origin is None or not (letter.group_id or to_origin):
            return _NOWHERE
        said = f"it says topic {letter.origin.topic!r} and group {letter.group_id!r}"
        try:
            expected = topic_name(self.template, topic=letter.origin.topic, group=letter.group_id)
            # A template without {topic} lets any name through.
            topic_name(REPLAY, topic=letter.origin.topic, group=letter.group_id)
        except ConfigurationError as error:
            return f"{said}: {error}"
        if expected != self.name:
            return (
                f"{said}, whose dead letters are in {expected!r} - give the dead_letter= of its app as"
                " --dead-letter TEMPLATE"
            )
        return ""


def target_of(letter: DeadLetter, *, to_origin: bool) -> str:
    """Return the topic that a letter goes to, which is not refused."""
    assert letter.origin is not None
    return letter.origin.topic if to_origin else topic_name(REPLAY, topic=letter.origin.topic, group=letter.group_id)


def plan_replay(
    letters: Sequence[DeadLetter],
    partitions: Mapping[str, int],
    *,
    dead_topic: DeadLetterTopic,
    to_origin: bool,
    otherwise: int,
) -> ReplayPlan:
    """What goes where, among topics of so many ``partitions``; each record once.

    A replay topic that is not there is made as large as the topic that its letters came from, or with ``otherwise``
    partitions where that one is gone.
    """
    left_out = [(one, why) for one in letters if (why := dead_topic.refusal(one, to_origin=to_origin))]
    refused = {place_of(letter) for letter, _ in left_out}
    good = [letter for letter in letters if place_of(letter) not in refused]
    last = {_record_of(letter): letter for letter in sorted(good, key=_age)}
    sendings: list[ReplayRecord] = []
    to_make: dict[str, int] = {}
    for letter in last.values():
        origin, topic = letter.origin, target_of(letter, to_origin=to_origin)
        assert origin is not None
        if topic not in partitions:
            if to_origin:
                left_out.append((letter, f"topic {topic} is no more - leave --to-origin out"))
                continue
            to_make[topic] = partitions.get(origin.topic, otherwise)
        count = partitions.get(topic) or to_make[topic]
        sendings.append(ReplayRecord(letter, topic, origin.partition if origin.partition < count else None))
    return ReplayPlan(
        tuple(sorted(sendings, key=lambda one: (one.letter.origin or _NO_ORIGIN, place_of(one.letter)))),
        to_make,
        tuple(left_out),
        tuple(letter for letter in good if last[_record_of(letter)] is not letter),
    )


def _record_of(letter: DeadLetter) -> object:
    """Of which record it is, and of which group.

    Its time tells it from the record at the same offset of a topic that was deleted and made again.
    """
    return letter.group_id, letter.origin


def _age(letter: DeadLetter) -> tuple[int, int, LetterPlace]:
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


async def send(producer: Producer, plan: ReplayPlan, on_sent: Callable[[ReplayRecord, Published], None]) -> None:
    """Send all of the plan; ``on_sent`` is told of each when it is acknowledged.

    Raises:
        PublishError: some were refused or not acknowledged; it says which to send again.
    """
    sent: set[int] = set()
    too_large: list[PublishTooLargeError] = []

    def acknowledged(one: ReplayRecord, placed: Published) -> None:
        sent.add(id(one))
        on_sent(one, placed)

    lanes: dict[tuple[str, int | None], list[ReplayRecord]] = {}
    for one in plan.sendings:
        lanes.setdefault((one.topic, one.partition), []).append(one)
    outcomes = await asyncio.gather(
        *(_send_in_order(producer, lane, acknowledged, too_large) for lane in lanes.values()), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PublishError):
            raise outcome
    if failures := [*too_large, *(outcome for outcome in outcomes if isinstance(outcome, PublishError))]:
        left = [place_of(one.letter) for one in plan.sendings if id(one) not in sent]
        again = " ".join(f"--offset {place}" for place in left[:_MOST_NAMED])
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        raise PublishError(
            f"{len(sent)} of {len(plan.sendings)} letters are acknowledged, the others are not"
            f" ({'; '.join(dict.fromkeys(map(str, failures)))}) - replay them again: {again}{more}"
        )


async def _send_in_order(
    producer: Producer,
    lane: Sequence[ReplayRecord],
    acknowledged: Callable[[ReplayRecord, Published], None],
    too_large: list[PublishTooLargeError],
) -> None:
    async def publish(one: ReplayRecord) -> None:
        letter = replay_letter(one.letter)
        try:
            placed = await producer.publish(
                one.topic, letter.value, key=letter.key, headers=letter.headers, partition=one.partition
            )
        except PublishTooLargeError as error:
            # No later attempt can send this one: it must not keep the others of its lane back.
            too_large.append(error)
            return
        acknowledged(one, placed)

    for at in range(0, len(lane), _TOGETHER):
        # Those that come together stay in order; the next do not overtake what was refused.
        outcomes = await asyncio.gather(*map(publish, lane[at : at + _TOGETHER]), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
