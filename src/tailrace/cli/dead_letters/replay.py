"""Replay of dead letters: marks in the dead-letter topic, planning and sending.

A dead letter counts as sent when all in-sync replicas have acknowledged the record. Only then it is marked as replayed,
so a replay that is killed between the two sends a record again the next time, and never loses one. Records are sent in
the order of the offsets that they had in their original partition, so records of one key keep their order.

A mark is a record of the dead-letter topic. It is in the partition of its dead letter, behind it, so that retention
deletes the dead letter first, and a recreated topic has neither. Its key is its own, so that compaction keeps it.
Marks are readable by every operator, and no other topic or permission is needed than those of the dead-letter topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from tailrace.admin.topics import create_topic
from tailrace.app.added_headers import PREFIX
from tailrace.app.failures.dead_letters import DeadLetter, ForwardedRecord, Origin, replay_record
from tailrace.app.topics.names import DEAD, REPLAY, topic_name
from tailrace.cli.dead_letters import DeadLetterPosition, position_of
from tailrace.context_managers import asynccontextmanager
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerError, ConfigurationError, PublishError, PublishTooLargeError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.producer.record_producer import RecordProducer
from tailrace.records import Record

__all__ = [
    "DeadLetterTopic",
    "ReplayMark",
    "ReplayMarks",
    "ReplayPlan",
    "ReplayRecord",
    "ReplayRun",
    "create_topics",
    "plan_replay",
    "record_id",
    "replay_run",
]

_CONCURRENT_SENDS = 500
_INTERRUPTED_S = 5
"""Maximum seconds that an interrupted replay waits until the records in flight are acknowledged and marked."""
_MAX_POSITIONS = 10
_NO_ORIGIN = Origin("", 0, 0, 0)
_INCOMPLETE = "its headers lack the origin or the group"
_CONFLICT = (
    "the same record has another dead letter with another key, value or headers, so not both are genuine - compare them"
    " with `show`, and select one with --offset"
)

# ---- marks ----------------------------------------------------------------------------------------------------------

_CLAIM_PARTITION: Final = 0
"""Partition of the marks of runs: its log decides which of two replays was first."""

_HEADER = PREFIX + "replay-mark"
ACTIVE_MS: Final = 120_000
"""Milliseconds after its last mark for which a replay without an end counts as running."""
_SUSPENDED_S: Final = ACTIVE_MS / 2000
"""Seconds without a mark after which the process was suspended, so that another replay may soon begin."""
_TRACE_HEADERS = frozenset(
    {
        "traceparent",
        "tracestate",
        "baggage",
        "b3",
        *(f"x-b3-{name}" for name in ("traceid", "spanid", "parentspanid", "sampled", "flags")),
        "uber-trace-id",
        "x-amzn-trace-id",
    }
)
"""Lowercase names of headers that an app replaces in a dead letter by the trace of the failed attempt."""


def record_id(letter: DeadLetter) -> str:
    """Return a digest of the group, the origin, and the key, value and own headers of a dead letter's record.

    Trace headers do not count, because each failure of a record has its own.
    """
    headers = [one for one in letter.headers if one[0].lower() not in _TRACE_HEADERS]
    content = (letter.group_id, letter.origin, letter.key, letter.value, headers)
    return hashlib.sha256(msgspec.msgpack.encode(content)).hexdigest()


class ReplayMark(msgspec.Struct, frozen=True, tag="replayed", tag_field="kind"):
    """Dead letter whose record was sent, and acknowledged by the brokers."""

    run: str
    """Replay that sent the record."""
    letter: str
    """Position of the dead letter."""
    record: str
    """``record_id`` of the dead letter."""
    deaths: int
    """Number of deaths of the dead letter; dead letters of the same record with fewer deaths count as replayed."""
    to: str
    partition: int
    offset: int
    at_ms: int

    @property
    def target(self) -> str:
        """Topic, partition and offset of the sent record."""
        return f"{self.to}[{self.partition}]@{self.offset}"

    def as_record(self) -> ForwardedRecord:
        return _as_record(f"{PREFIX}replayed-{self.record}", self)


class _RunMark(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """Start or end of a replay."""

    run: str
    state: Literal["started", "ended"]
    client: str
    """Host and process of the replay."""

    def as_record(self) -> ForwardedRecord:
        return _as_record(f"{PREFIX}replay-{self.run}", self)


class _Run(NamedTuple):
    client: str
    started_at: int
    """Offset of its first mark."""
    ended_at: int | None


class ReplayMarks:
    """Marks that were read from a dead-letter topic."""

    def __init__(self) -> None:
        self._replayed: dict[str, ReplayMark] = {}
        self._runs: dict[str, _Run] = {}
        self._last_ms: dict[str, int] = {}

    def add(self, record: Record) -> bool:
        """Add the mark that a record contains; return False if it contains none."""
        if not any(name == _HEADER for name, _ in record.headers):
            return False
        try:
            mark = msgspec.json.decode(record.value or b"", type=ReplayMark | _RunMark)
        except msgspec.MsgspecError:  # Any client that may write to the topic can write any record.
            return False
        self._last_ms[mark.run] = max(self._last_ms.get(mark.run, 0), record.timestamp)
        if isinstance(mark, ReplayMark):
            known = self._replayed.get(mark.record)
            if known is None or mark.deaths >= known.deaths:
                self._replayed[mark.record] = mark
        elif record.partition == _CLAIM_PARTITION:
            started = self._runs.get(mark.run) or _Run(mark.client, record.offset, None)
            ended_at = record.offset if mark.state == "ended" else None
            self._runs[mark.run] = started._replace(ended_at=ended_at)
        return True

    def of(self, letter: DeadLetter) -> ReplayMark | None:
        """Return the mark of a dead letter that was replayed, itself or by a later dead letter of the same record."""
        return self.of_record(record_id(letter), letter.deaths)

    def of_record(self, record: str, deaths: int) -> ReplayMark | None:
        """Return the mark that covers a dead letter with this ``record_id`` and number of deaths."""
        mark = self._replayed.get(record)
        return mark if mark is not None and mark.deaths >= deaths else None

    def deaths(self, letter: DeadLetter) -> int:
        """Return the number of deaths to send with a dead letter, so that a later death exceeds that of every mark."""
        mark = self._replayed.get(record_id(letter))
        return letter.deaths if mark is None else max(letter.deaths, mark.deaths)

    def other_run(self, run: str) -> tuple[str, int] | None:
        """Return the client of a replay that was first and has not ended, and the time when it counts as ended.

        ``run`` is this replay, whose start must have been read. A replay that ended before this start does not count:
        all its marks were acknowledged, and therefore read. A replay that was killed counts until it has written no
        mark for two minutes.
        """
        own = self._runs[run]
        for name, other in self._runs.items():
            is_first = name != run and other.started_at < own.started_at
            if is_first and (other.ended_at is None or other.ended_at > own.started_at):
                until_ms = self._last_ms[name] + ACTIVE_MS
                if until_ms > self._last_ms[run]:
                    return other.client, until_ms
        return None


def _as_record(key: str, mark: ReplayMark | _RunMark) -> ForwardedRecord:
    return ForwardedRecord(key.encode(), msgspec.json.encode(mark), ((_HEADER, b"1"),))


# ---- plan -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplayRecord:
    """Dead letter, and the topic and partition to which its record is sent."""

    letter: DeadLetter
    topic: str
    partition: int | None
    """Partition of the original record; None if ``topic`` lacks it, so the producer chooses a partition by key."""
    deaths: int
    """Number of deaths to send."""


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
    replayed: tuple[tuple[DeadLetter, ReplayMark], ...] = ()
    """Dead letters that an earlier replay has sent, with its marks."""

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.topic for one in self.replays))


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """Topic whose dead letters are replayed.

    Attributes:
        template: ``dead_letter=`` option of the app that wrote the dead letters.
        origin: topic that ``--to-origin`` names; None to replay to the replay topics.
    """

    name: str
    template: str = DEAD
    origin: str | None = None

    def refusal(self, letter: DeadLetter) -> str:
        """Return the reason why a dead letter cannot be replayed; empty if it can be replayed.

        The topic and the group in its headers must match the name of the dead-letter topic, and the topic must be
        ``origin``: any client that may write to this topic can write any headers, and the replay is sent with the
        permissions of the operator. The name alone does not decide, because "a.b.c.dead" is the name for topic "a" and
        group "b.c", too.
        """
        if letter.origin is None or not (letter.group_id or self.origin):
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
        if self.origin is not None and letter.origin.topic != self.origin:
            return f"its headers name topic {letter.origin.topic!r}, not the {self.origin!r} of --to-origin"
        return ""

    def target(self, origin: Origin, group_id: str) -> str:
        """Return the topic to which a record of ``origin`` is sent for a group."""
        return topic_name(REPLAY, topic=origin.topic, group=group_id) if self.origin is None else origin.topic


def plan_replay(
    letters: Sequence[DeadLetter],
    partitions: Mapping[str, int],
    *,
    dead_topic: DeadLetterTopic,
    marks: ReplayMarks,
    again: bool = False,
) -> ReplayPlan:
    """Choose the dead letters to send, one for each original record, and the topics to send them to.

    Args:
        letters: selected dead letters.
        partitions: number of partitions of each topic that exists. If the original topic no longer does, a new replay
            topic gets as many as the dead-letter topic.
        dead_topic: topic that the dead letters were read from.
        marks: marks of the dead-letter topic.
        again: True to send dead letters that were replayed, too.
    """
    refused = [(one, why) for one in letters if (why := dead_topic.refusal(one))]
    refused_positions = {position_of(letter) for letter, _ in refused}
    by_origin: defaultdict[object, list[DeadLetter]] = defaultdict(list)
    for letter in sorted(letters, key=_recency):
        if position_of(letter) not in refused_positions:
            # The origin includes the timestamp, because a record of a recreated topic may have the offset of an
            # earlier record.
            by_origin[letter.group_id, letter.origin].append(letter)
    replays: list[ReplayRecord] = []
    superseded: list[DeadLetter] = []
    replayed: list[tuple[DeadLetter, ReplayMark]] = []
    topics_to_create: dict[str, int] = {}
    for copies in by_origin.values():
        *earlier, letter = copies
        sent = [(one, mark) for one in copies if not again and (mark := marks.of(one)) is not None]
        if len(set(map(record_id, copies))) > 1:
            replayed += sent
            sent_positions = {position_of(one) for one, _ in sent}
            refused += [(one, _CONFLICT) for one in copies if position_of(one) not in sent_positions]
            continue
        if sent and sent[-1][0] is letter:
            replayed += sent
            continue
        assert letter.origin is not None
        origin, topic = letter.origin, dead_topic.target(letter.origin, letter.group_id)
        superseded += earlier
        if topic not in partitions:
            if dead_topic.origin is not None:
                refused.append((letter, f"topic {topic} no longer exists - replay without --to-origin"))
                continue
            topics_to_create[topic] = partitions.get(origin.topic) or partitions[dead_topic.name]
        count = partitions.get(topic) or topics_to_create[topic]
        replays.append(
            ReplayRecord(letter, topic, origin.partition if origin.partition < count else None, marks.deaths(letter))
        )
    return ReplayPlan(
        tuple(sorted(replays, key=lambda one: (one.letter.origin or _NO_ORIGIN, position_of(one.letter)))),
        topics_to_create,
        tuple(refused),
        tuple(superseded),
        tuple(replayed),
    )


def _recency(letter: DeadLetter) -> tuple[int, int, DeadLetterPosition]:
    return letter.deaths, letter.at_ms, position_of(letter)


# ---- sending --------------------------------------------------------------------------------------------------------


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


class ReplayRun:
    """One replay, which other replays of the same dead-letter topic see by its marks.

    Args:
        producer: sends the records and the marks.
        dead_topic: dead-letter topic.
    """

    def __init__(self, producer: RecordProducer, dead_topic: str) -> None:
        self.id = uuid.uuid4().hex
        self._producer, self._dead_topic = producer, dead_topic
        self._client = f"{socket.gethostname()}, process {os.getpid()}"
        self._last_mark = 0.0

    async def mark_state(self, state: Literal["started", "ended"]) -> None:
        """Mark the start or the end of this replay.

        Raises:
            PublishError: the mark is not acknowledged.
        """
        record = _RunMark(self.id, state, self._client).as_record()
        self._last_mark = time.time()
        try:
            await self._producer.publish(
                OutgoingRecord(self._dead_topic, record.value, record.key, record.headers, _CLAIM_PARTITION)
            )
        except PublishError as error:
            raise PublishError(
                f"no mark can be written to {self._dead_topic}, which shows what was replayed: {error} - grant WRITE on"
                f" {self._dead_topic}"
            ) from error

    async def send(self, plan: ReplayPlan, on_sent: Callable[[ReplayRecord, Published], None]) -> None:
        """Send the dead letters of ``plan``, mark each that is acknowledged, and call ``on_sent`` for it.

        If the call is canceled, no other dead letter is sent, and those in flight are marked if they are acknowledged
        within a few seconds.

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
            *(self._send_in_order(replays, on_acknowledged, too_large) for replays in by_partition.values()),
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
        self,
        replays: Sequence[ReplayRecord],
        on_acknowledged: Callable[[ReplayRecord, Published], None],
        too_large: list[PublishTooLargeError],
    ) -> None:
        """Send and mark records of one partition in order.

        Records that are too large are skipped, and their errors are added to ``too_large``.

        Raises:
            PublishError: a record was rejected for another reason or not acknowledged, or its mark was not.
        """

        async def publish(one: ReplayRecord) -> None:
            message = replay_record(one.letter, deaths=one.deaths)
            try:
                published = await self._producer.publish(
                    OutgoingRecord(one.topic, message.value, message.key, message.headers, one.partition)
                )
            except PublishTooLargeError as error:
                # A second attempt would also fail, so this record must not block the later records of its partition.
                too_large.append(error)
                return
            await self._mark(one.letter, published)
            on_acknowledged(one, published)

        for at in range(0, len(replays), _CONCURRENT_SENDS):
            if time.time() - self._last_mark > _SUSPENDED_S:
                raise PublishError("the process was suspended, so another replay may have begun")
            # The producer keeps the order within a chunk. If a record is rejected, later chunks would break the order.
            chunk = asyncio.gather(*map(publish, replays[at : at + _CONCURRENT_SENDS]), return_exceptions=True)
            try:
                outcomes = await asyncio.shield(chunk)
            except asyncio.CancelledError:
                # The brokers may store what is in flight, so its marks must follow.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_INTERRUPTED_S):
                        await chunk
                raise
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _mark(self, letter: DeadLetter, published: Published) -> None:
        topic, partition = published.topic_partition
        mark = ReplayMark(
            self.id,
            str(position_of(letter)),
            record_id(letter),
            letter.deaths,
            topic,
            partition,
            published.offset,
            round(time.time() * 1000),
        ).as_record()
        try:
            await self._producer.publish(
                OutgoingRecord(self._dead_topic, mark.value, mark.key, mark.headers, letter.record.partition)
            )
        except PublishError as error:
            raise PublishError(
                f"{position_of(letter)} was sent, but could not be marked as replayed: {error}"
            ) from error
        self._last_mark = time.time()


@asynccontextmanager
async def replay_run(producer: RecordProducer, dead_topic: str) -> AsyncIterator[ReplayRun]:
    """Mark the start of a replay, and its end when the context ends.

    Raises:
        PublishError: the mark of the start is not acknowledged, so nothing may be sent.
    """
    run = ReplayRun(producer, dead_topic)
    await run.mark_state("started")
    try:
        yield run
    finally:
        # Without this mark, the replay counts as ended two minutes later.
        with contextlib.suppress(PublishError):
            await run.mark_state("ended")
