"""Replay of dead letters: planning and sending.

A dead letter counts as sent when all in-sync replicas have acknowledged the record. Records are sent in the order of
the offsets that they had in their original partition, so records of one key keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.admin.topics import create_topic
from tailrace.app.failures.dead_letters import DeadLetter, Origin, replay_record
from tailrace.app.topics.names import DEAD, REPLAY, topic_name
from tailrace.cli.dead_letters.selection import DeadLetterPosition, position_of
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConfigurationError, PublishError, PublishTooLargeError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.producer.producer import Producer
from tailrace.producer.publisher import Published

__all__ = ["DeadLetterTopic", "ReplayPlan", "ReplayRecord", "create_topics", "plan_replay", "send", "target_of"]

_CONCURRENT_SENDS = 500
_MAX_POSITIONS = 10
_NO_ORIGIN = Origin("", 0, 0, 0)
_INCOMPLETE = "its headers lack the origin or the group"


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """Dead letter, and the topic and partition to which its record is sent."""

    letter: DeadLetter
    topic: str
    partition: int | None
    """Partition of the original record; None if ``topic`` lacks it, so the producer chooses a partition by key."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Dead letters to send, and dead letters to skip."""

    replays: tuple[ReplayRecord, ...]
    """Dead letters to send, in the order of their original records."""
    topics_to_create: Mapping[str, int]
    """Number of partitions of each missing topic."""
    refused: tuple[tuple[DeadLetter, str], ...]
    """Dead letters that cannot be replayed, and the reasons."""
    superseded: tuple[DeadLetter, ...]
    """Dead letters of records that have a later dead letter: they failed again, or the failure was written twice."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics to which dead letters are sent."""
        return tuple(dict.fromkeys(one.topic for one in self.replays))


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Topic whose dead letters are replayed.

    Attributes:
        template: ``dead_letter=`` option of the app that wrote the dead letters.
    """

    name: str
    template: str = DEAD

    def refusal(self, letter: DeadLetter, *, to_origin: bool) -> str:
        """Return the reason why a dead letter cannot be replayed; empty if it can be replayed.

        The topic and the group in its headers must match the name of the dead-letter topic: any client that may write
        to this topic can write any headers, and the replay is sent with the permissions of the operator.
        """
        if letter.origin is None or not (letter.group_id or to_origin):
            return _INCOMPLETE
        claim = f"its headers name topic {letter.origin.topic!r} and group {letter.group_id!r}"
        try:
            expected = topic_name(self.template, topic=letter.origin.topic, group=letter.group_id)
            # This checks the topic in the headers also if the template does not contain {topic}.
            topic_name(REPLAY, topic=letter.origin.topic, group=letter.group_id)
        except ConfigurationError as error:
            return f"{claim}: {error}"
        if expected != self.name:
            return (
                f"{claim}, whose dead letters are in {expected!r} - give the dead_letter= of the app as --dead-letter"
            )
        return ""


def target_of(letter: DeadLetter, *, to_origin: bool) -> str:
    """Return the topic to which a dead letter is sent; the dead letter must have an origin."""
    assert letter.origin is not None
    return letter.origin.topic if to_origin else topic_name(REPLAY, topic=letter.origin.topic, group=letter.group_id)


def plan_replay(
    letters: Sequence[DeadLetter],
    partitions: Mapping[str, int],
    *,
    dead_topic: DeadLetterTopic,
    to_origin: bool,
    default_partitions: int,
) -> ReplayPlan:
    """Choose the dead letters to send, one for each original record, and the topics to send them to.

    Args:
        letters: selected dead letters.
        partitions: number of partitions of each topic that exists.
        dead_topic: topic that the dead letters were read from.
        to_origin: True to send to the original topics instead of the replay topics.
        default_partitions: number of partitions of a new replay topic whose original topic no longer exists.
    """
    refused = [(one, why) for one in letters if (why := dead_topic.refusal(one, to_origin=to_origin))]
    refused_positions = {position_of(letter) for letter, _ in refused}
    accepted = [letter for letter in letters if position_of(letter) not in refused_positions]
    latest = {_original_record(letter): letter for letter in sorted(accepted, key=_recency)}
    replays: list[ReplayRecord] = []
    topics_to_create: dict[str, int] = {}
    for letter in latest.values():
        origin, topic = letter.origin, target_of(letter, to_origin=to_origin)
        assert origin is not None
        if topic not in partitions:
            if to_origin:
                refused.append((letter, f"topic {topic} no longer exists - replay without --to-origin"))
                continue
            topics_to_create[topic] = partitions.get(origin.topic, default_partitions)
        count = partitions.get(topic) or topics_to_create[topic]
        replays.append(ReplayRecord(letter, topic, origin.partition if origin.partition < count else None))
    return ReplayPlan(
        tuple(sorted(replays, key=lambda one: (one.letter.origin or _NO_ORIGIN, position_of(one.letter)))),
        topics_to_create,
        tuple(refused),
        tuple(letter for letter in accepted if latest[_original_record(letter)] is not letter),
    )


def _original_record(letter: DeadLetter) -> object:
    """Return a value that identifies the original record and the group.

    The origin includes the timestamp, because a record of a recreated topic may have the offset of an earlier record.
    """
    return letter.group_id, letter.origin


def _recency(letter: DeadLetter) -> tuple[int, int, DeadLetterPosition]:
    return letter.deaths, letter.at_ms, position_of(letter)


async def create_topics(cluster: Cluster, topics_to_create: Mapping[str, int]) -> None:
    """Create the topics of a plan; do nothing for a topic that another client has created in the meantime.

    Raises:
        BrokerError: a topic cannot be created; the message gives the next step.
        BrokerConnectionError: the brokers do not answer in time.
    """
    for topic, partitions in topics_to_create.items():
        try:
            await create_topic(cluster, topic, partitions)
        except BrokerError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise broker_error(
                    error.code,
                    f"topic {topic} does not exist and cannot be created - create it with {partitions} partitions, or"
                    " have an administrator create it, and replay again",
                ) from error


async def send(producer: Producer, plan: ReplayPlan, on_sent: Callable[[ReplayRecord, Published], None]) -> None:
    """Send the dead letters of ``plan``, and call ``on_sent`` for each dead letter that is acknowledged.

    Raises:
        PublishError: some dead letters were rejected or not acknowledged; the message lists at most ten of them.
    """
    sent: set[int] = set()
    too_large: list[PublishTooLargeError] = []

    def on_acknowledged(one: ReplayRecord, published: Published) -> None:
        sent.add(id(one))
        on_sent(one, published)

    by_partition: dict[tuple[str, int | None], list[ReplayRecord]] = {}
    for one in plan.replays:
        by_partition.setdefault((one.topic, one.partition), []).append(one)
    outcomes = await asyncio.gather(
        *(_send_in_order(producer, replays, on_acknowledged, too_large) for replays in by_partition.values()),
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, PublishError):
            raise outcome
    if failures := [*too_large, *(outcome for outcome in outcomes if isinstance(outcome, PublishError))]:
        unsent = [position_of(one.letter) for one in plan.replays if id(one) not in sent]
        arguments = " ".join(f"--offset {position}" for position in unsent[:_MAX_POSITIONS])
        more = f" and {len(unsent) - _MAX_POSITIONS} more" if len(unsent) > _MAX_POSITIONS else ""
        raise PublishError(
            f"{len(sent)} of {len(plan.replays)} dead letters were acknowledged, the others were not"
            f" ({'; '.join(dict.fromkeys(map(str, failures)))}) - replay the others: {arguments}{more}"
        )


async def _send_in_order(
    producer: Producer,
    replays: Sequence[ReplayRecord],
    on_acknowledged: Callable[[ReplayRecord, Published], None],
    too_large: list[PublishTooLargeError],
) -> None:
    """Send records of one partition in order.

    Records that are too large are skipped, and their errors are added to ``too_large``.

    Raises:
        PublishError: a record was rejected for another reason or not acknowledged.
    """

    async def publish(one: ReplayRecord) -> None:
        message = replay_record(one.letter)
        try:
            published = await producer.publish(
                one.topic, message.value, key=message.key, headers=message.headers, partition=one.partition
            )
        except PublishTooLargeError as error:
            # A second attempt would also fail, so this record must not block the later records of its partition.
            too_large.append(error)
            return
        on_acknowledged(one, published)

    for at in range(0, len(replays), _CONCURRENT_SENDS):
        # The producer keeps the order within a chunk. If a record is rejected, later chunks would break the order.
        outcomes = await asyncio.gather(*map(publish, replays[at : at + _CONCURRENT_SENDS]), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
