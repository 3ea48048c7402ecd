"""Every error that tailrace raises, as one tree.

TailraceError
├── ConfigurationError               an option is missing, unknown, mistyped, or contradicts another
├── ConsumerStateError               not started, closed, or two readers at once
├── BrokerConnectionError            no answer from a broker
│   ├── NodeNotConnectedError        nobody is connected to that node now
│   ├── AuthenticationError          TLS or SASL refused us
│   └── RequestTimedOutError         no answer in time
├── UnsupportedVersionError          the broker is too old (or too new) for what is asked
├── MalformedMessageError            bytes that are not what the protocol says
├── BrokerError                      the broker answered with an error code
│   └── UnknownTopicError, TopicAuthorizationFailedError, …
├── GroupError
│   ├── RebalanceError               joining the group failed for good, or a rebalance callback did
│   ├── FencedMemberError            another member took this one's place
│   ├── NoCommonAssignorError        the group's members share no assignment strategy
│   ├── GroupNotEmptyError           a tool may not touch the group while it has live members
│   ├── NotAConsumerGroupError       a tool was given a group of something else, such as Kafka Connect's workers
│   └── CommitFailedError            offsets were not committed
│       └── TopicRecreatedError      they belong to a topic that was deleted and recreated
├── OffsetOutOfRangeError            a position outside of the log, and no reset policy
│   └── LogTruncatedError            the log was cut, and goes on in another way
├── OffsetGapError                   offsets missing from a partition that must have none
├── RecordTooLargeError              a record above a limit that was set strictly
├── CorruptCheckpointError           a Spark checkpoint that cannot be read
├── CorruptRecordError               a record batch whose checksum does not hold
├── DecodeError                      a record that the handler's type does not accept
├── SchemaRegistryError              a schema registry could not be asked: it is away, slow, or refuses us
├── ConsumerTimeoutError             no record within the time that was asked for
├── HandlerFailedError               a handler failed and ``on_failure="stop"`` says so
├── PartialFailureError              some records of a batch failed; a batch handler raises it
├── PublishError                     a record was not acknowledged by the broker
│   ├── PublishTooLargeError         larger than its topic allows
│   └── ProducerFencedError          another process has the same transactional_id
├── DeadLetterError                  a failed record could not be written to its dead-letter topic
└── KafkaServerError                 the embedded broker of tailrace.testing does not start
    └── KafkaNotAvailableError       there is nothing on this machine to start it with

Each message says what happened and what to do next. Control flow inside tailrace is by values, never by these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from tailrace.error_codes import RETRIABLE, ErrorCode, name_of

if TYPE_CHECKING:
    from tailrace.records import TopicPartition

__all__ = [
    "AuthenticationError",
    "BrokerConnectionError",
    "BrokerError",
    "CommitFailedError",
    "ConfigurationError",
    "ConsumerStateError",
    "ConsumerTimeoutError",
    "CorruptCheckpointError",
    "CorruptRecordError",
    "DeadLetterError",
    "DecodeError",
    "FencedMemberError",
    "GroupAuthorizationFailedError",
    "GroupError",
    "GroupNotEmptyError",
    "HandlerFailedError",
    "InvalidSessionTimeoutError",
    "InvalidTopicError",
    "KafkaNotAvailableError",
    "KafkaServerError",
    "LogTruncatedError",
    "MalformedMessageError",
    "NoCommonAssignorError",
    "NodeNotConnectedError",
    "NotAConsumerGroupError",
    "OffsetGapError",
    "OffsetOutOfRangeError",
    "PartialFailureError",
    "ProducerFencedError",
    "PublishError",
    "PublishTooLargeError",
    "RebalanceError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "SchemaRegistryError",
    "TailraceError",
    "TopicAuthorizationFailedError",
    "TopicRecreatedError",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "broker_error",
]

_SHOWN = 10
"""So many indices are named in a message."""


class TailraceError(Exception):
    """The root: ``except TailraceError`` catches all that tailrace raises."""


class ConfigurationError(TailraceError):
    """An option is missing, unknown, mistyped, or contradicts another."""


class ConsumerStateError(TailraceError):
    """The consumer is not in a state for this call: not started, closed, or read by two tasks at once."""


class BrokerConnectionError(TailraceError):
    """A broker could not be reached, or the connection to it broke before it answered."""


class NodeNotConnectedError(BrokerConnectionError):
    """Nobody is connected to that node now; another try after a pause may be."""


class AuthenticationError(BrokerConnectionError):
    """TLS or SASL refused us; trying again with the same credentials will not help."""


class RequestTimedOutError(BrokerConnectionError):
    """The broker did not answer in time; the connection that waited for it is closed."""


class UnsupportedVersionError(TailraceError):
    """The broker does not offer a version of a request that this needs."""


class MalformedMessageError(TailraceError):
    """Bytes that are not what the Kafka protocol says they should be."""


class BrokerError(TailraceError):
    """The broker answered with an error code.

    Attributes:
        code: the number on the wire.
        name: Kafka's name of it, such as ``NOT_COORDINATOR``.
        retriable: whether Kafka says that the same request may succeed later.
        detail: what it was about.
    """

    advice: ClassVar[str] = ""

    def __init__(self, code: int, detail: str = "") -> None:
        self.code: int = int(code)
        self.name: str = name_of(code)
        self.retriable: bool = code in RETRIABLE
        self.detail: str = detail or "the broker refused the request"
        parts = [self.detail, f"({self.name}, code {self.code})"]
        if self.advice:
            parts.append(f"- {self.advice}")
        super().__init__(" ".join(parts))
        self._arguments = (self.code, detail)

    def __reduce__(self) -> tuple[type[BrokerError], tuple[int, str]]:
        return type(self), self._arguments


class UnknownTopicError(BrokerError):
    """The topic, or the partition of it, does not exist, or we may not know of it."""

    advice = "create the topic, check its spelling, or ask for permission to describe it"


class InvalidTopicError(BrokerError):
    """The topic's name is not a legal one."""

    advice = "a topic's name has 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'"


class TopicAuthorizationFailedError(BrokerError):
    """The principal may not read the topic."""

    advice = "grant READ and DESCRIBE on the topic to this principal"


class GroupAuthorizationFailedError(BrokerError):
    """The principal may not use the group."""

    advice = "grant READ on the group to this principal"


class UnknownGroupError(BrokerError):
    """The group does not exist: it has no members and has committed nothing, or that has expired."""

    advice = "check its spelling: `tailrace groups list` shows those that there are"


class InvalidSessionTimeoutError(BrokerError):
    """The session timeout is outside of the bounds that the broker sets."""

    advice = "set session_timeout_ms between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"


class GroupError(TailraceError):
    """Something about the consumer group."""


class RebalanceError(GroupError):
    """Joining the group failed for good, or a rebalance callback raised or overran its deadline."""


class FencedMemberError(GroupError):
    """Another member took this one's place (the same ``group_instance_id``): this one must not go on."""


class NoCommonAssignorError(GroupError):
    """The group's members share no assignment strategy, or the group is of another kind."""


class GroupNotEmptyError(GroupError):
    """The group has live members, and what was asked would be undone or contradicted by them.

    Attributes:
        members: each in a few words: client, host, name of a static member, id.
    """

    def __init__(self, message: str, members: Iterable[str] = ()) -> None:
        self.members: tuple[str, ...] = tuple(members)
        super().__init__(message)

    def __reduce__(self) -> tuple[type[GroupNotEmptyError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.members)


class NotAConsumerGroupError(GroupError):
    """The group is one of something else than consumers, such as Kafka Connect's workers or a share group."""


class CommitFailedError(GroupError):
    """Offsets were not committed; the records are delivered again to whoever owns the partitions next.

    Attributes:
        retriable: whether a later commit by the same consumer may succeed. False when its membership or the partitions
            are lost, or the topic is deleted or recreated.
    """

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        self.retriable: bool = retriable
        super().__init__(message)


class TopicRecreatedError(CommitFailedError):
    """Offsets were not committed, since their topic was deleted and recreated: the name has other records now.

    Attributes:
        partitions: those whose offsets belong to the deleted topic.
    """

    def __init__(self, partitions: Iterable[TopicPartition], advice: str = "") -> None:
        self.partitions: tuple[TopicPartition, ...] = tuple(sorted(partitions))
        self.advice: str = advice or "reading continues with the records of the new topic"
        super().__init__(
            f"{', '.join(map(str, self.partitions))}: not committed, since the topic was deleted and recreated after"
            f" these records were read - {self.advice}",
            retriable=False,
        )

    def __reduce__(self) -> tuple[type[TopicRecreatedError], tuple[tuple[TopicPartition, ...], str]]:
        return type(self), (self.partitions, self.advice)


class CorruptCheckpointError(TailraceError):
    """A file of a Spark query's checkpoint is cut off, or has an unknown format."""


class OffsetOutOfRangeError(TailraceError):
    """A position is outside of the log and ``auto_offset_reset="none"`` forbids to guess another.

    Attributes:
        topic: the topic.
        partition: the number of the partition in it.
        offset: the position that the log does not have; None when the group has no committed offset.
    """

    def __init__(self, topic: str, partition: int, offset: int | None) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int | None = offset
        what = "no committed offset" if offset is None else f"offset {offset} is outside of the log"
        super().__init__(
            f"{topic}[{partition}]: {what}, and auto_offset_reset='none' forbids to choose another"
            " - seek() to a position, or set auto_offset_reset to 'earliest' or 'latest'"
        )

    def __reduce__(self) -> tuple[type[OffsetOutOfRangeError], tuple[str, int, int | None]]:
        return type(self), (self.topic, self.partition, self.offset)


class LogTruncatedError(OffsetOutOfRangeError):
    """The log was cut below the position, and ``auto_offset_reset="none"`` forbids to go on in what took its place.

    Attributes:
        end_offset: up to there the log is what it was.
    """

    def __init__(self, topic: str, partition: int, offset: int | None, end_offset: int) -> None:
        self.end_offset: int = end_offset
        super().__init__(topic, partition, offset)
        what = f"{topic}[{partition}]: the log was cut at offset {end_offset}, below the position {offset}"
        said = f"{what}, and auto_offset_reset='none' forbids to choose another - seek() to {end_offset} to go on"
        self.args: tuple[object, ...] = (said,)

    def __reduce__(self) -> tuple[type[LogTruncatedError], tuple[str, int, int | None, int]]:  # type: ignore[override]
        return type(self), (self.topic, self.partition, self.offset, self.end_offset)


class OffsetGapError(TailraceError):
    """Offsets are missing from a partition of which it was said that it has no gaps.

    Attributes:
        partition: where they are missing.
        offset: the first one that is missing.
        next_offset: the first one that is there again; ``seek()`` to it to go on without them.
    """

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int) -> None:
        self.partition: TopicPartition = partition
        self.offset: int = offset
        self.next_offset: int = next_offset
        super().__init__(
            f"{partition.topic}[{partition.partition}]: offsets {offset} to {next_offset - 1} are missing, and"
            f" allow_offset_gaps=False - seek() to {next_offset} to go on without them"
        )

    def __reduce__(self) -> tuple[type[OffsetGapError], tuple[TopicPartition, int, int]]:
        return type(self), (self.partition, self.offset, self.next_offset)


class RecordTooLargeError(TailraceError):
    """A record is larger than a limit that was set strictly."""


class CorruptRecordError(TailraceError):
    """A record batch does not pass its checksum, or cannot be read, after several fetches of it.

    Attributes:
        partition: where it is.
        offset: the first offset of the batch; ``seek()`` past it to go on without it.
    """

    def __init__(self, partition: TopicPartition, offset: int, reason: str) -> None:
        self.partition: TopicPartition = partition
        self.offset: int = offset
        self._reason = reason
        super().__init__(
            f"{partition.topic}[{partition.partition}] at offset {offset}: {reason}"
            " - restore the partition from a replica, or seek() past the batch to go on without it"
        )

    def __reduce__(self) -> tuple[type[CorruptRecordError], tuple[TopicPartition, int, str]]:
        return type(self), (self.partition, self.offset, self._reason)


class DecodeError(TailraceError):
    """A record's bytes are not what the handler's type accepts."""


class SchemaRegistryError(TailraceError):
    """A schema registry could not be asked: it is away, too slow, or refuses us.

    That says nothing of the record that needs the schema: it waits, and is tried again until the registry is back.
    """


class ConsumerTimeoutError(TailraceError):
    """No record came within the time that was asked for."""


class HandlerFailedError(TailraceError):
    """A handler failed for good, and ``on_failure="stop"`` says that the app stops then."""


class PartialFailureError(TailraceError):
    """Some records of a batch failed, and the others are done: a batch handler raises it to say so.

    Args:
        failed: their indices in the batch, each with its error; or the indices alone, and then the error is what this
            one was raised from, or this one.

    Attributes:
        failed: the errors by index; None where there is none.
    """

    def __init__(self, failed: Mapping[int, Exception] | Iterable[int]) -> None:
        self.failed: dict[int, Exception | None] = (
            dict(failed) if isinstance(failed, Mapping) else dict.fromkeys(failed)
        )
        some = ", ".join(map(str, list(self.failed)[:_SHOWN])) + (", …" if len(self.failed) > _SHOWN else "")
        super().__init__(f"{len(self.failed)} records of the batch failed, at index {some}")

    def __reduce__(self) -> tuple[type[PartialFailureError], tuple[dict[int, Exception | None]]]:
        return type(self), (self.failed,)


class PublishError(TailraceError):
    """A record to publish was not acknowledged by the broker."""


class PublishTooLargeError(PublishError):
    """A record to publish is larger than its topic allows, or than the producer does."""


class ProducerFencedError(PublishError):
    """Another process has the same ``transactional_id`` (or a transaction took too long): this one must not go on."""


class DeadLetterError(TailraceError):
    """A failed record could not be written to its dead-letter topic; its offset is not committed."""


class KafkaServerError(TailraceError):
    """The embedded broker of ``tailrace.testing`` does not start, or cannot do what was asked of it."""


class KafkaNotAvailableError(KafkaServerError):
    """There is nothing on this machine to start an embedded broker with: no Java, no jars, no Docker."""


_CLASSES: dict[int, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicError,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopicError,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TopicAuthorizationFailedError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GroupAuthorizationFailedError,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroupError,
    ErrorCode.INVALID_SESSION_TIMEOUT: InvalidSessionTimeoutError,
}


def broker_error(code: int, detail: str = "") -> BrokerError:
    """The error of ``code``, of its own class where a user may want to catch it, else a plain BrokerError."""
    return _CLASSES.get(code, BrokerError)(code, detail)
