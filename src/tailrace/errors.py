"""Exceptions that tailrace raises.

TailraceError
├── ConfigurationError               invalid option
├── ConsumerStateError               call not possible now: not started, closed, two readers, …
├── BrokerConnectionError            no response from a broker
│   ├── NodeNotConnectedError        no connection to a broker at present
│   ├── WrongBrokerError             another cluster or node than expected at an address
│   ├── AuthenticationError          TLS or SASL failed
│   └── RequestTimedOutError         no response in time
├── UnsupportedVersionError          broker too old or too new for a request
├── MalformedMessageError            bytes that do not follow the Kafka protocol
├── BrokerError                      response with an error code
│   ├── UnknownTopicError            topic that does not exist or may not be described
│   │   └── UnknownPartitionError    partition that its topic does not have
│   └── TopicAuthorizationFailedError, …
├── GroupError
│   ├── RebalanceError               a rebalance failed, or no poll within max_poll_interval_ms
│   ├── FencedMemberError            another member has the same group_instance_id
│   ├── NoCommonAssignorError        no assignment strategy in common with the group
│   ├── GroupNotEmptyError           operation that requires a group without members
│   ├── NotAConsumerGroupError       group of another type, such as Kafka Connect's
│   └── CommitFailedError            offsets were not committed
│       └── TopicRecreatedError      offsets of a topic that was deleted and recreated
├── OffsetOutOfRangeError            position outside the log or missing, and auto_offset_reset="none"
│   └── LogTruncatedError            log truncated to an offset before the position
├── OffsetGapError                   missing offsets, and allow_offset_gaps=False
├── UnreadableBatchError             record batch that cannot be delivered
│   ├── CorruptRecordError           damaged batch, or larger than max_decompressed_batch_bytes
│   └── RecordTooLargeError          batch larger than max_batch_bytes
├── CorruptCheckpointError           unreadable Spark checkpoint
├── DecodeError                      record that a deserializer or a handler's type does not accept
├── SchemaRegistryError              schema registry unreachable or refusing requests
├── ConsumerTimeoutError             no record in time
├── HandlerFailedError               a handler failed, and the app stops
├── PartialFailureError              some records of a batch failed; raised by batch handlers
├── PublishError                     record not published, or not acknowledged by the broker
│   ├── BufferFullError              no memory for another record in time
│   ├── PublishTimeoutError          record not acknowledged in time
│   ├── PublishTooLargeError         record larger than its topic allows
│   └── ProducerFencedError          another producer with the same transactional_id
├── DeadLetterError                  failed record not written to its dead-letter topic
├── KafkaServerError                 failure of an embedded broker of tailrace.testing
│   └── KafkaNotAvailableError       no Java, no jars and no Docker to start an embedded broker
└── SimulationError                  a simulation of tailrace.testing cannot go on

Each message says what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tailrace.error_codes import TRANSIENT, ErrorCode, name_of

if TYPE_CHECKING:
    from tailrace.records import TopicPartition

__all__ = [
    "AuthenticationError",
    "BrokerConnectionError",
    "BrokerError",
    "BufferFullError",
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
    "PublishTimeoutError",
    "PublishTooLargeError",
    "RebalanceError",
    "RecordTooLargeError",
    "RequestTimedOutError",
    "SchemaRegistryError",
    "SimulationError",
    "TailraceError",
    "TopicAuthorizationFailedError",
    "TopicRecreatedError",
    "UnknownGroupError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnreadableBatchError",
    "UnsupportedVersionError",
    "WrongBrokerError",
    "broker_error",
]

_MAX_SHOWN = 10
"""Maximum number of indices listed in an error message."""


class TailraceError(Exception):
    """Base class of all exceptions of tailrace."""


class ConfigurationError(TailraceError):
    """An option is missing, unknown, of the wrong type, or contradicts another one. The message says what to change."""


class ConsumerStateError(TailraceError):
    """The call is not possible now, for example because the object is not started, stopped, or has another reader."""


class BrokerConnectionError(TailraceError):
    """A broker could not be reached, or its connection failed before the response. A retry may succeed."""


class NodeNotConnectedError(BrokerConnectionError):
    """There is no connection to the broker at present. A retry after a backoff may succeed."""


class WrongBrokerError(BrokerConnectionError):
    """A connection reached another cluster or node than its address stood for. It was closed before other requests.

    The address was reused, or a proxy, load balancer or DNS entry leads elsewhere. A retry succeeds once the address is
    right again. To use another cluster at the same address, create another consumer or producer.
    """


class AuthenticationError(BrokerConnectionError):
    """TLS or SASL authentication failed. Check certificates and credentials; a retry without a change fails again."""


class RequestTimedOutError(BrokerConnectionError):
    """The broker did not respond in time. The connection is closed."""


class UnsupportedVersionError(TailraceError):
    """The broker does not support a version of a request that tailrace needs. The message says what to change."""


class MalformedMessageError(TailraceError):
    """The received bytes do not follow the Kafka protocol."""


class BrokerError(TailraceError):
    """The broker responded with an error code.

    Attributes:
        code: error code of the protocol.
        name: Kafka's name of the code, such as ``NOT_COORDINATOR``.
        retriable: True if the request may succeed when it is repeated: Kafka defines the error as retriable, or it is
            UNKNOWN_SERVER_ERROR.
        detail: description of the request that failed, or of the topic, partition or group.
    """

    advice: str = ""

    def __init__(self, code: int, detail: str = "") -> None:
        self.code: int = int(code)
        self.name: str = name_of(code)
        self.retriable: bool = code in TRANSIENT
        self.detail: str = detail or "the broker refused the request"
        parts = [self.detail, f"({self.name}, code {self.code})"]
        if self.advice:
            parts.append(f"- {self.advice}")
        super().__init__(" ".join(parts))
        self._arguments: tuple[object, ...] = (self.code, detail)

    def __reduce__(self) -> tuple[type[BrokerError], tuple[object, ...]]:
        return type(self), self._arguments


class UnknownTopicError(BrokerError):
    """The topic or partition does not exist, or the client's principal lacks DESCRIBE permission."""

    advice = "create the topic, check its spelling, or grant DESCRIBE on it to this principal"


class UnknownPartitionError(UnknownTopicError):
    """The topic exists but has no partition of this number."""

    advice = "name an existing partition, or add partitions to the topic"


class InvalidTopicError(BrokerError):
    """The topic name is invalid."""

    advice = "use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'"


class TopicAuthorizationFailedError(BrokerError):
    """The principal lacks a permission on the topic.

    Attributes:
        permission: operation that an ACL has to allow, such as ``READ`` or ``WRITE``, both of which include DESCRIBE.
    """

    def __init__(self, code: int, detail: str = "", permission: str = "READ") -> None:
        self.permission: str = permission
        self.advice: str = f"grant {permission} on the topic to this principal"
        super().__init__(code, detail)
        self._arguments = (self.code, detail, permission)


class GroupAuthorizationFailedError(BrokerError):
    """The principal lacks permission to use the group."""

    advice = "grant READ on the group to this principal"


class UnknownGroupError(BrokerError):
    """The group does not exist: it has no members and no committed offsets, which expire or can be deleted."""

    advice = "check its spelling: `tailrace groups list` shows all groups"


class InvalidSessionTimeoutError(BrokerError):
    """The session timeout is outside the broker's limits."""

    advice = "set session_timeout_ms between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"


class GroupError(TailraceError):
    """Base class of errors of a consumer group."""


class RebalanceError(GroupError):
    """A rebalance failed, or the consumer was not polled within ``max_poll_interval_ms``.

    A rebalance fails after ``rebalance_max_retries``, or if a rebalance callback, an assignor or a method of a
    ``GroupRole`` raises, takes too long or returns an invalid value.
    """


class FencedMemberError(GroupError):
    """Another member has the same ``group_instance_id``. This member cannot continue; give each its own id."""


class NoCommonAssignorError(GroupError):
    """The group does not admit the member: no assignment strategy in common, or another group type or protocol."""


class GroupNotEmptyError(GroupError):
    """The operation requires a group without members, but the group has members. Stop the members first.

    Attributes:
        members: description of each member: client, host, ``group_instance_id`` and member id.
    """

    def __init__(self, message: str, members: Iterable[str] = ()) -> None:
        self.members: tuple[str, ...] = tuple(members)
        super().__init__(message)

    def __reduce__(self) -> tuple[type[GroupNotEmptyError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.members)


class NotAConsumerGroupError(GroupError):
    """The group is not a consumer group. It is, for example, a group of Kafka Connect or a share group."""


class CommitFailedError(GroupError):
    """Offsets were not committed. The next owner of the partitions may receive the records again.

    Attributes:
        retriable: True if a later commit by the same consumer may succeed; False if the consumer has lost its
            membership or the partitions, or if the topic is deleted or recreated.
    """

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        self.retriable: bool = retriable
        super().__init__(message)


class TopicRecreatedError(CommitFailedError):
    """Offsets were not committed, because their topic was deleted and recreated with other records.

    Attributes:
        partitions: partitions whose offsets belong to the deleted topic.
        advice: last part of the message, about what happens next.
    """

    def __init__(self, partitions: Iterable[TopicPartition], advice: str = "") -> None:
        self.partitions: tuple[TopicPartition, ...] = tuple(sorted(partitions))
        self.advice: str = advice or "reading continues with the records of the new topic"
        super().__init__(
            f"{', '.join(map(str, self.partitions))}: not committed, because the topic was deleted and recreated after"
            f" these records were read - {self.advice}",
            retriable=False,
        )

    def __reduce__(self) -> tuple[type[TopicRecreatedError], tuple[tuple[TopicPartition, ...], str]]:
        return type(self), (self.partitions, self.advice)


class CorruptCheckpointError(TailraceError):
    """A file of a Spark query's checkpoint is cut off, or has an unknown format."""


class OffsetOutOfRangeError(TailraceError):
    """The position is outside the log, or the group has no committed offset, and ``auto_offset_reset="none"`` is set.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        offset: position outside the log; None if the group has no committed offset.
    """

    def __init__(self, topic: str, partition: int, offset: int | None) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.offset: int | None = offset
        problem = "no committed offset" if offset is None else f"offset {offset} is outside the log"
        super().__init__(
            f"{topic}[{partition}]: {problem}, and auto_offset_reset='none' is set"
            " - seek() to a position, or set auto_offset_reset to 'earliest' or 'latest'"
        )

    def __reduce__(self) -> tuple[type[OffsetOutOfRangeError], tuple[str, int, int | None]]:
        return type(self), (self.topic, self.partition, self.offset)


class LogTruncatedError(OffsetOutOfRangeError):
    """The log was truncated to an offset before the position, and ``auto_offset_reset="none"`` is set.

    Attributes:
        end_offset: offset up to which the log is unchanged (exclusive).
    """

    def __init__(self, topic: str, partition: int, offset: int | None, end_offset: int) -> None:
        self.end_offset: int = end_offset
        super().__init__(topic, partition, offset)
        message = (
            f"{topic}[{partition}]: the log was truncated to offset {end_offset}, below the position {offset}, and"
            f" auto_offset_reset='none' is set - seek() to {end_offset} to continue"
        )
        self.args: tuple[object, ...] = (message,)

    def __reduce__(self) -> tuple[type[LogTruncatedError], tuple[str, int, int | None, int]]:  # type: ignore[override]
        return type(self), (self.topic, self.partition, self.offset, self.end_offset)


class OffsetGapError(TailraceError):
    """Offsets are missing from a partition, and ``allow_offset_gaps=False`` is set.

    Attributes:
        partition: partition with the gap.
        offset: first missing offset.
        next_offset: first offset after the gap; ``seek()`` to it to continue without the missing records.
    """

    def __init__(self, partition: TopicPartition, offset: int, next_offset: int) -> None:
        self.partition: TopicPartition = partition
        self.offset: int = offset
        self.next_offset: int = next_offset
        super().__init__(
            f"{partition.topic}[{partition.partition}]: offsets {offset} to {next_offset - 1} are missing, and"
            f" allow_offset_gaps=False is set - seek() to {next_offset} to continue without them"
        )

    def __reduce__(self) -> tuple[type[OffsetGapError], tuple[TopicPartition, int, int]]:
        return type(self), (self.partition, self.offset, self.next_offset)


class UnreadableBatchError(TailraceError):
    """A record batch cannot be delivered. Other partitions can be read on.

    Attributes:
        partition: partition of the batch.
        offset: first offset of the batch, or the position from which it was fetched.
        next_offset: offset after the batch, to which ``seek()`` continues without the batch; None if it cannot be read.
        reason: fault of the batch.
        remedy: action by which the batch may become readable.
    """

    def __init__(
        self,
        partition: TopicPartition,
        offset: int,
        next_offset: int | None,
        reason: str,
        remedy: str = "restore the partition from a replica",
    ) -> None:
        self.partition: TopicPartition = partition
        self.offset: int = offset
        self.next_offset: int | None = next_offset
        self.reason: str = reason
        self.remedy: str = remedy
        after = "past the batch" if next_offset is None else f"to {next_offset}"
        super().__init__(
            f"{partition.topic}[{partition.partition}] at offset {offset}: {reason}"
            f" - {remedy}, or seek() {after} to continue without the batch"
        )

    def __reduce__(self) -> tuple[type[UnreadableBatchError], tuple[TopicPartition, int, int | None, str, str]]:
        return type(self), (self.partition, self.offset, self.next_offset, self.reason, self.remedy)


class CorruptRecordError(UnreadableBatchError):
    """A record batch cannot be read.

    The checksum is wrong, or the batch cannot be decoded, or decompresses to more than
    ``max_decompressed_batch_bytes``.
    """


class RecordTooLargeError(UnreadableBatchError):
    """A fetched batch is larger than ``max_batch_bytes``. Raise the limit, or seek past the batch."""


class DecodeError(TailraceError):
    """A key, value or header cannot be decoded by the deserializer or as the type that the handler declares."""


class SchemaRegistryError(TailraceError):
    """The schema registry is unreachable, too slow, or refuses the request. Check the registry's URL and credentials.

    In an app, the record for which the schema is needed does not count as failed: it is retried until the registry
    answers.
    """


class ConsumerTimeoutError(TailraceError):
    """No record arrived within ``consumer_timeout_ms``."""


class HandlerFailedError(TailraceError):
    """A handler failed permanently, and the app stops, usually because ``on_failure="stop"`` is set."""


class PartialFailureError(TailraceError):
    """Some records of a batch failed, and all others are finished; raised by batch handlers.

    Args:
        failed: errors by index in the batch, or only the indices. With indices only, the error of each record is the
            ``__cause__`` of this exception, or this exception if it has no cause.

    Attributes:
        failed: errors by index in the batch; None for indices without an error.
    """

    def __init__(self, failed: Mapping[int, Exception] | Iterable[int]) -> None:
        self.failed: dict[int, Exception | None] = (
            dict(failed) if isinstance(failed, Mapping) else dict.fromkeys(failed)
        )
        shown = ", ".join(map(str, list(self.failed)[:_MAX_SHOWN])) + (", …" if len(self.failed) > _MAX_SHOWN else "")
        super().__init__(f"{len(self.failed)} records of the batch failed, at index {shown}")

    def __reduce__(self) -> tuple[type[PartialFailureError], tuple[dict[int, Exception | None]]]:
        return type(self), (self.failed,)


class PublishError(TailraceError):
    """A record was not published, or not acknowledged by the broker; in the second case, the topic may contain it."""


class BufferFullError(PublishError):
    """A record was not published, because unacknowledged records took up all of ``buffer_memory`` for too long."""


class PublishTimeoutError(PublishError):
    """A record was not acknowledged in time: within ``publish_timeout_ms`` of an app, or ``delivery_timeout_ms``.

    Attributes:
        may_be_stored: True if the record was sent, and may be stored, or become stored later; False if it was not sent,
            and will not be.
    """

    def __init__(self, message: str, *, may_be_stored: bool = False) -> None:
        self.may_be_stored: bool = may_be_stored
        super().__init__(message)


class PublishTooLargeError(PublishError):
    """A published record is larger than its topic allows. Raise the topic's limit, or publish smaller records.

    Attributes:
        setting: name of the setting that is the limit: the topic's ``max.message.bytes``, or its ``segment.bytes`` for
            a record that does not fit into a segment of the log; or ``max_request_size`` of the producer.
    """

    def __init__(self, message: str, *, setting: str = "max.message.bytes") -> None:
        self.setting: str = setting
        super().__init__(message)


class ProducerFencedError(PublishError):
    """Another producer has the same ``transactional_id``, or a transaction timed out. This producer cannot continue."""


class DeadLetterError(TailraceError):
    """A failed record could not be written to its dead-letter topic. The offset of the record is not committed."""


class KafkaServerError(TailraceError):
    """An embedded broker of ``tailrace.testing`` did not start, or an operation on it failed."""


class KafkaNotAvailableError(KafkaServerError):
    """No embedded broker can be started: Java or the broker's jars are missing, and Docker cannot be used instead."""


class SimulationError(TailraceError):
    """All tasks of a simulation wait for ever, or code has reached for a real socket, thread or process."""


_CLASSES: dict[int, type[BrokerError]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicError,
    ErrorCode.UNKNOWN_TOPIC_ID: UnknownTopicError,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopicError,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GroupAuthorizationFailedError,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroupError,
    ErrorCode.INVALID_SESSION_TIMEOUT: InvalidSessionTimeoutError,
}


def broker_error(code: int, detail: str = "", *, permission: str = "READ") -> BrokerError:
    """Return a BrokerError for ``code``, of the subclass for this code if there is one.

    Args:
        code: error code of the protocol.
        detail: description of what failed.
        permission: operation on a topic that the request needs.
    """
    if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return TopicAuthorizationFailedError(code, detail, permission)
    return _CLASSES.get(code, BrokerError)(code, detail)
