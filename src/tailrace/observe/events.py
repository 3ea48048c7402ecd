"""Events of consumers, apps and worker processes.

Events are immutable values that are passed to hooks and written to the log. No event is emitted for a record that is
handled successfully. Tests check events instead of log text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, TypeAlias

import msgspec

from tailrace.records import TopicPartition
from tailrace.user_exceptions import shortened
from tailrace.values import Value

__all__ = [
    "AppFailed",
    "AssignmentFaultFound",
    "AssignmentFaultResolved",
    "BatchFailed",
    "BatchFailedPermanently",
    "BrokerUnreachable",
    "BrokersUnavailable",
    "CapabilityMissing",
    "CheckpointAbandoned",
    "ClusterRebootstrapped",
    "CommitCallbackFailed",
    "CommitFailed",
    "CommitMetadataDropped",
    "ConnectionLost",
    "ConnectionOpened",
    "ConsumerFailed",
    "ConsumerStarted",
    "ConsumerStopped",
    "CoordinatorFound",
    "CoordinatorLost",
    "CorruptBatchFetched",
    "CorruptBatchSkipped",
    "CredentialsUnencrypted",
    "DeadLetterFailed",
    "DrainTimedOut",
    "Event",
    "FetchCompleted",
    "FetchFailed",
    "FetchInterrupted",
    "FinishedRecordsSkipped",
    "ForeignMetadataFound",
    "GroupJoined",
    "GroupLeft",
    "GroupRequestCompleted",
    "GroupRequestFailed",
    "HandlerAbandoned",
    "HandlerFailed",
    "HandlerFailedPermanently",
    "HandlerOverdue",
    "HandlersOverlap",
    "IdempotenceDisabled",
    "LeaveGroupTimedOut",
    "LogTruncated",
    "LoopBlocked",
    "LoopUnblocked",
    "MetadataRefreshFailed",
    "OffsetMapDropped",
    "OffsetMapFound",
    "OffsetMapFull",
    "OffsetMapIgnored",
    "OffsetMapRecovered",
    "OffsetOverrideRejected",
    "OffsetReset",
    "OffsetsCommitted",
    "OutboxBlocked",
    "OutboxRecovered",
    "OutboxUnavailable",
    "PartitionBlocked",
    "PartitionReadPaused",
    "PartitionUnblocked",
    "PartitionsAssigned",
    "PartitionsLost",
    "PartitionsRevoked",
    "PublishDelayed",
    "RebalanceStarted",
    "RecordDeadLettered",
    "RecordDelayed",
    "RecordSkipped",
    "RecordUnmatched",
    "RecordUnreadable",
    "RecordsAbandoned",
    "ReplayTopicMissing",
    "SessionExpired",
    "ShutdownTimedOut",
    "SparkQueryFailed",
    "StartOffsetDelayed",
    "StartOffsetFound",
    "TelemetryFailed",
    "TlsFilesRefused",
    "TokenRenewalFailed",
    "TopicCreated",
    "TopicMissing",
    "TopicRecreated",
    "TransactionAborted",
    "TransactionInDoubt",
    "TransactionalProducerReplaced",
    "TransactionsStalled",
    "VersionsUnknown",
    "WorkerExited",
    "WorkerStarted",
    "WrongBrokerReached",
]

Partitions = frozenset[TopicPartition]

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_MEASUREMENT = 1
"""Log level of events that are emitted for metrics, below DEBUG."""


class Event(Value):
    """Base class of all events."""

    level: ClassVar[int] = logging.INFO
    """Log level of the event."""
    repeated_s: ClassVar[float] = 0.0
    """Minimum time in seconds between log lines of equal events, which then have the number ``times``; 0 to log all."""
    repeated_fields: ClassVar[tuple[str, ...] | None] = None
    """Fields in which events are equal for ``repeated_s``; None for all fields.

    Named where another field may differ each time, such as an error with the time until the next attempt.
    """

    @property
    def exception(self) -> BaseException | None:
        """Exception that caused the event; None if there is none.

        Subclasses whose events can have an exception declare a field of this name.
        """
        return None

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception to log with its traceback, in the form that ``logging`` accepts; None if there is none."""
        return None


def _exc_info(exception: BaseException | None) -> ExcInfo | None:
    if exception is None:
        return None
    logged = shortened(exception)
    return type(logged), logged, logged.__traceback__


# ---- Brokers and connections -----------------------------------------------------------------------------------


class ConnectionOpened(Event):
    """A connection to a broker was opened: TCP, TLS, ApiVersions and SASL have succeeded."""

    level = logging.DEBUG
    address: str
    """Host and port of the broker."""
    channel: str
    """Purpose of the connection: ``main``, ``fetch``, ``offsets``, ``group`` or ``heartbeat``.

    If the connection is used by one group member only, the member id follows after a colon.
    """


class TlsFilesRefused(Event):
    """Certificates, keys or authorities have changed and cannot be loaded; new connections use the former ones."""

    level = logging.WARNING
    reason: str
    """Reason, with the names of the files."""


class TokenRenewalFailed(Event):
    """A token for OAUTHBEARER could not be renewed. New connections use the former one until it expires."""

    level = logging.WARNING
    repeated_s = 30.0
    provider: str
    """Value of ``sasl_oauth_token_provider``."""
    usable_until: str
    """Time until which the former token is used, in ISO 8601."""
    reason: str
    exception: BaseException | None = None


class ConnectionLost(Event):
    """A connection failed or was closed by the broker. The next request opens it again."""

    address: str
    """Host and port of the broker."""
    channel: str
    """Purpose of the connection, as in ``ConnectionOpened``."""
    reason: str
    exception: BaseException | None = None


class BrokerUnreachable(Event):
    """A connection to a broker could not be opened. Requests to the broker fail until a backoff is over.

    Not emitted if the authentication failed, which raises ``AuthenticationError``.
    """

    level = logging.WARNING
    repeated_s = 30.0
    address: str
    """Host and port of the broker."""
    reason: str
    exception: BaseException | None = None


class WrongBrokerReached(Event):
    """A connection reached another cluster or node than expected, and was closed before other requests were sent.

    So nothing was read from, committed to or published in another cluster. The client connects again after a backoff,
    and continues once the address leads to the expected broker. If the cluster was replaced on purpose, restart the
    process.
    """

    level = logging.ERROR
    repeated_s = 30.0
    address: str
    """Host and port of the connection."""
    reason: str
    exception: BaseException | None = None


class CredentialsUnencrypted(Event):
    """A password or token is about to be sent without TLS."""

    level = logging.WARNING
    address: str
    """Hosts and ports of the brokers, or URLs of the schema registry."""
    advice: str
    """Options to set so that the credentials are encrypted."""


class MetadataRefreshFailed(Event):
    """No known broker answered a Metadata request. The addresses of ``bootstrap_servers`` are tried next."""

    level = logging.WARNING
    repeated_s = 30.0
    repeated_fields = ()
    reason: str
    exception: BaseException | None = None


class ClusterRebootstrapped(Event):
    """None of the known brokers answered, but one of ``bootstrap_servers`` returned the current brokers (KIP-899)."""

    level = logging.WARNING
    brokers: tuple[str, ...]
    """Addresses of the current brokers."""


class VersionsUnknown(Event):
    """Brokers did not answer at the start, so it is not known whether they offer all requests that are needed.

    The start goes on. If a broker lacks a request, this raises an error when the request is sent to the broker.
    """

    level = logging.WARNING
    brokers: tuple[str, ...]
    """Node ids and addresses of the brokers."""
    reason: str


class CapabilityMissing(Event):
    """A broker lacks requests for something that an app may do. The start goes on."""

    level = logging.WARNING
    reason: str
    """Brokers, the capability, and the requests that are missing, with the versions on both sides."""
    consequence: str
    """Function of the app that does not work."""


class IdempotenceDisabled(Event):
    """A producer publishes without idempotence: records may be stored twice.

    A record whose answer is lost is sent again, and may have been stored before. No record is lost, and each record is
    first stored after the earlier records of its partition.
    """

    level = logging.WARNING
    reason: str
    """Brokers that do not offer idempotent producers; or the option that disables idempotence."""
    consequence: str


class BrokersUnavailable(Event):
    """An app with ``require_broker=False`` reached no broker at its start. The app tries again after a pause."""

    level = logging.WARNING
    reason: str
    pause_s: float
    """Pause before the next attempt, in seconds."""
    exception: BaseException | None = None


# ---- Consumer group --------------------------------------------------------------------------------------------


class CoordinatorFound(Event):
    """The coordinator of the group was found."""

    group_id: str
    address: str
    """Host and port of the coordinator."""


class CoordinatorLost(Event):
    """The coordinator moved, failed or stopped answering. The group's next request looks up the coordinator again."""

    group_id: str
    reason: str


class RebalanceStarted(Event):
    """A rebalance began: this member revokes partitions or joins the group.

    Emitted once for each rebalance, even if the member must join several times.
    """

    group_id: str
    reason: str


class GroupJoined(Event):
    """The member joined a generation of the group and takes over its partitions. Emitted before PartitionsAssigned.

    Not emitted for a generation in which a cooperative member only releases partitions, because it joins again at once.
    """

    group_id: str
    generation: int
    """Generation (classic protocol) or member epoch (KIP-848)."""
    member_id: str
    protocol: str
    """Assignment strategy of the group; for a ``GroupMember``, the protocol that the group has chosen."""
    is_leader: bool
    """True if this member computes the assignment of the group (classic protocol)."""


class PartitionsAssigned(Event):
    """The group has assigned partitions. Emitted in each rebalance, even if ``added`` is empty.

    Emitted before the rebalance callbacks, and before records of ``added`` are delivered. Records of ``kept`` are
    delivered throughout.
    """

    group_id: str
    added: Partitions
    """Newly assigned partitions."""
    kept: Partitions
    """Partitions that were assigned before the rebalance and still are."""


class AssignmentFaultFound(Event):
    """The group's assignment has a fault: partitions without an owner, or partitions that this member cannot read.

    The member does not read such partitions and joins again, so that the group computes another assignment.
    """

    level = logging.WARNING
    group_id: str
    partitions: Partitions
    """Partitions without an owner, or partitions that were assigned to this member and that it does not read."""
    reason: str


class AssignmentFaultResolved(Event):
    """A fault that ``AssignmentFaultFound`` has reported is over, or the membership has ended."""

    group_id: str


class PartitionsRevoked(Event):
    """Partitions were revoked.

    Emitted after the wait for records in flight, the commit and the call of the rebalance listener.
    """

    group_id: str
    partitions: Partitions


class PartitionsLost(Event):
    """Partitions were lost without a commit, because this member is no longer in the group."""

    level = logging.WARNING
    group_id: str
    partitions: Partitions
    reason: str


class DrainTimedOut(Event):
    """Records of revoked partitions were unfinished after ``rebalance_drain_ms``. These records are delivered again."""

    level = logging.WARNING
    partitions: Partitions
    """Partitions with unfinished records."""
    waited_s: float
    """Duration of the wait, in seconds."""


class OffsetOverrideRejected(Event):
    """A rebalance callback returned an invalid offset, or a partition that is not assigned. The offset is ignored."""

    level = logging.WARNING
    partition: TopicPartition
    offset: object
    """Value that the callback returned."""
    reason: str


class SessionExpired(Event):
    """No heartbeat was acknowledged within the session timeout, so the member gives up its partitions."""

    level = logging.WARNING
    group_id: str
    silent_s: float
    """Time since the last acknowledged heartbeat, in seconds."""


class GroupRequestCompleted(Event):
    """The coordinator answered a request of the member, and the request is not repeated. Emitted for metrics only."""

    level = _MEASUREMENT
    group_id: str
    request: str
    """Kind of the request, such as ``Join``, ``Sync``, ``Commit``, ``Heartbeat`` or ``GroupHeartbeat`` (KIP-848)."""
    took_s: float
    """Time until the response, in seconds."""


class GroupRequestFailed(Event):
    """A request of the member to the coordinator failed."""

    repeated_s = 30.0
    repeated_fields = ("group_id", "request", "reaction")
    group_id: str
    request: str
    """Kind of the request, as in ``GroupRequestCompleted``."""
    error: str
    reaction: str
    """Next step after the failure, such as ``retrying``."""


class GroupLeft(Event):
    """The coordinator acknowledged that the member left, after a LeaveGroup request or a last heartbeat (KIP-848)."""

    group_id: str
    member_id: str


class LeaveGroupTimedOut(Event):
    """An app that was being stopped had no time left to commit and to leave its group.

    Finished records whose offsets are not committed are delivered again.
    """

    level = logging.WARNING
    group_id: str


# ---- Offsets ---------------------------------------------------------------------------------------------------


class OffsetsCommitted(Event):
    """Offsets were committed, by a commit request or in a transaction."""

    level = logging.DEBUG
    group_id: str
    offsets: Mapping[TopicPartition, int]
    """Committed offset of each partition: the offset of the next record to read after a restart."""
    took_s: float | None = None
    """Duration of the commit in seconds, including retries; None if unknown."""


class CommitFailed(Event):
    """A commit was refused or not answered. Records after the last committed offset may be delivered again."""

    level = logging.WARNING
    repeated_s = 30.0
    repeated_fields = ("group_id", "will_retry")
    group_id: str
    error: str
    will_retry: bool
    """True if a later commit includes the offsets; False if the consumer stops or a commit cannot succeed any more."""
    exception: BaseException | None = None
    took_s: float | None = None
    """Duration of the commit in seconds, including retries and the wait for an earlier commit; None if unknown."""


class CommitCallbackFailed(Event):
    """``offset_commit_callback`` raised or timed out. The outcome of the commit does not change."""

    level = logging.ERROR
    group_id: str
    error: str
    exception: BaseException | None = None
    """Exception of the callback, which is logged with its traceback."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class CommitMetadataDropped(Event):
    """An offset was committed without its metadata, which was larger than the broker accepts."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    text_bytes: int
    """Size of the metadata, in bytes."""


class OffsetReset(Event):
    """The position was outside the log, or its topic was recreated, and ``auto_offset_reset`` set a new position.

    Not emitted for a partition without a committed offset.
    """

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    """Position before the reset."""
    after: int
    """Position after the reset."""
    policy: str
    """Policy that was applied: ``earliest``, ``latest``, a time or a duration."""
    lost: int | None
    """Number of offsets that were skipped; None if the position moved backwards or the number is unknown."""


class StartOffsetDelayed(Event):
    """The start offset of a partition is not known yet, because its leader does not return it. The request is repeated.

    The partition is not read meanwhile. If it starts at the end of its log, records that are written before the leader
    answers are skipped. Only emitted once until ``StartOffsetFound``.
    """

    level = logging.WARNING
    partition: TopicPartition
    start: str
    """Start point: ``earliest``, ``latest``, a time or a duration."""
    reason: str
    waited_s: float
    """Time in seconds since the look-up of the start offset began."""


class StartOffsetFound(Event):
    """The start offset of a partition is known after ``StartOffsetDelayed``."""

    level = logging.INFO
    partition: TopicPartition
    offset: int
    """Start offset."""
    waited_s: float
    """Time in seconds since the look-up of the start offset began."""


class TopicRecreated(Event):
    """An offset was not committed, because its topic was deleted and recreated after the records were read.

    Fetched records of the old topic are dropped, and reading continues with the new topic's records.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Offset in the old topic that could not be committed."""


class OffsetMapFound(Event):
    """An assigned partition was committed with an offset map. The finished records that the map lists are skipped."""

    partition: TopicPartition
    offset: int
    """Committed offset."""
    finished: int
    """Number of finished offsets after the committed offset, including offsets without a record."""
    writer: str
    """Client that wrote the map."""


class OffsetMapIgnored(Event):
    """The offset map of an earlier owner is ignored, and the records that the map lists are handled again.

    The map is unreadable, or the log does not contain the records that the earlier owner had read.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    reason: str


class ForeignMetadataFound(Event):
    """An assigned partition was committed with metadata of the user or another client instead of an offset map."""

    level = logging.DEBUG
    partition: TopicPartition
    offset: int
    """Committed offset."""


class FinishedRecordsSkipped(Event):
    """Records that an earlier owner had finished were skipped.

    Emitted once for each assignment of a partition, when its position reaches the end of the offset map.
    """

    partition: TopicPartition
    records: int
    """Number of skipped records."""


class OffsetMapFull(Event):
    """The offset map of a partition is almost too large for a commit, so no more records of the partition are started.

    ``OffsetMapRecovered`` follows when the map has shrunk, because its lowest unfinished record is finished.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Offset of the lowest unfinished record."""
    unfinished: int
    """Number of the partition's records in flight."""
    fill: float
    """Size of the map as a fraction of ``offset_metadata_max_bytes``; above 1, commits do not contain the map."""


class OffsetMapRecovered(Event):
    """The offset map of a partition fits into a commit again, and further records of the partition are started."""

    partition: TopicPartition
    offset: int
    """Offset of the lowest unfinished record."""
    fill: float
    """Size of the map as a fraction of ``offset_metadata_max_bytes``."""


class OffsetMapDropped(Event):
    """An offset was committed without the offset map.

    If the member ends before it commits a map, the finished records after the offset are delivered again.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    reason: str


# ---- Producers -------------------------------------------------------------------------------------------------


class PublishDelayed(Event):
    """A record has waited for the partitions of its topic for a second, or to be stored for three seconds."""

    level = logging.WARNING
    repeated_s = 30.0
    repeated_fields = ("topic",)
    topic: str
    reason: str
    """Answer of the brokers; if records wait to be stored, that for one of their partitions."""


class RecordsAbandoned(Event):
    """A producer ended with unacknowledged records, which failed, and may be stored.

    ``stop_timeout_ms`` was over, ``stop()`` was canceled, or the event loop ended before it was called.
    """

    level = logging.WARNING
    records: int
    """Number of unacknowledged records."""


class OutboxBlocked(Event):
    """Records of an outbox were not published. Their keys wait for retries; other keys are published."""

    level = logging.ERROR
    table: str
    """Table of the outbox."""
    keys: int
    """Number of keys that wait for a retry."""
    row: int
    """Id of the first row that was not published."""
    topic: str
    """Topic of this row."""
    error: str
    """Error of this row."""
    exception: BaseException | None = None


class OutboxUnavailable(Event):
    """A statement or connection of an outbox relay failed. The relay reconnects until it succeeds."""

    level = logging.WARNING
    table: str
    """Table of the outbox."""
    error: str
    exception: BaseException | None = None


class OutboxRecovered(Event):
    """After OutboxBlocked or OutboxUnavailable, the relay has reached the database and no key waits for a retry."""

    table: str
    """Table of the outbox."""


# ---- Transactions ----------------------------------------------------------------------------------------------


class TransactionAborted(Event):
    """A transaction was aborted, including the records published in it. The consumed records are delivered again."""

    level = logging.WARNING
    group_id: str
    records: int
    """Number of consumed records in the transaction."""
    reason: str
    exception: BaseException | None = None


class TransactionInDoubt(Event):
    """The request to end a transaction (EndTxn) was not answered. It is repeated until the outcome is known."""

    level = logging.WARNING
    group_id: str
    reason: str
    exception: BaseException | None = None


class TransactionsStalled(Event):
    """A group has records, but committed no transaction for three times the transaction timeout.

    The app's health is degraded until a transaction is committed.
    """

    level = logging.ERROR
    group_id: str
    seconds: float
    """Time without a commit, in seconds."""
    reason: str


class TransactionalProducerReplaced(Event):
    """The transactional producer failed and was replaced by a new one with the same ``transactional_id``."""

    level = logging.WARNING
    group_id: str
    transactional_id: str
    reason: str
    exception: BaseException | None = None


# ---- Fetching --------------------------------------------------------------------------------------------------


class FetchCompleted(Event):
    """A broker answered a Fetch request. Emitted for metrics, below DEBUG."""

    level = _MEASUREMENT
    broker: str
    """Name of the broker, such as ``broker 1``."""
    size: int
    """Size of the fetched record sets, in bytes."""
    records: int
    """Number of offsets in the fetched batches; the number of records is lower where the log has gaps."""
    took_s: float
    """Time until the response, in seconds; a broker without records waits up to ``fetch_max_wait_ms``."""
    throttled_s: float
    """Delay that the broker imposed because of a quota, in seconds."""
    group_id: str | None = None
    by_partition: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    """Number of offsets in the fetched batches, for each partition that had records."""


class FetchFailed(Event):
    """A fetch failed. The fetch is retried after a backoff."""

    level = logging.WARNING
    repeated_s = 30.0
    repeated_fields = ("broker", "partition")
    broker: str
    """Name of the broker, such as ``broker 1``."""
    partition: TopicPartition | None
    """Partition that failed; None if the whole request failed."""
    error: str
    exception: BaseException | None = None
    """Exception of the request; None if the broker refused a single partition."""


class FetchInterrupted(Event):
    """A fetch failed with an error that is usual while a partition changes its leader. The fetch is repeated.

    After several of these failures in a row, ``FetchFailed`` is emitted instead.
    """

    broker: str
    """Name of the broker, such as ``broker 1``."""
    partition: TopicPartition | None
    """Partition that failed; None if the whole request failed."""
    error: str
    exception: BaseException | None = None
    """Exception of the request, as in ``FetchFailed``."""


class LogTruncated(Event):
    """The log was truncated to an offset before the position: a leader failed before its records were replicated.

    Reading continues at the first offset at which the new log differs.
    """

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    """Position before the truncation; None if it is unknown."""
    after: int
    """Position from which reading continues."""
    lost: int
    """Number of delivered offsets that the log no longer contains."""


class CorruptBatchFetched(Event):
    """A record batch has a wrong checksum or cannot be decoded.

    After three attempts, a consumer raises an error, and ``on_corrupt_batch`` of an app applies.
    """

    level = logging.ERROR
    partition: TopicPartition
    offset: int
    """Next offset to fetch, which is in or before the batch."""
    reason: str


class PartitionBlocked(Event):
    """A partition of an app waits at a record batch that cannot be read (``on_corrupt_batch="pause"``).

    The batch is fetched again at growing intervals, up to 30 seconds. Other partitions are read on. Emitted once for
    each batch and assignment.
    """

    level = logging.ERROR
    group_id: str | None
    partition: TopicPartition
    offset: int
    """First offset that is not delivered."""
    next_offset: int | None
    """Offset after the batch; None if it is unknown."""
    reason: str
    advice: str
    """Actions after which the partition is read on, among them a command that moves the group past the batch."""
    exception: BaseException | None = None


class PartitionUnblocked(Event):
    """A partition for which ``PartitionBlocked`` was emitted is read on, because the batch could be read."""

    group_id: str | None
    partition: TopicPartition
    offset: int
    """Offset at which the partition waited."""


class CorruptBatchSkipped(Event):
    """A record batch that cannot be read was skipped because of ``on_corrupt_batch="skip"``. Its records are lost."""

    level = logging.ERROR
    group_id: str | None
    partition: TopicPartition
    offset: int
    """First skipped offset."""
    next_offset: int
    """Offset at which reading continues."""
    reason: str
    exception: BaseException | None = None


class RecordUnreadable(Event):
    """A deserializer raised, and the record was skipped because of ``on_deserialize_error="skip"``."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    error: str
    exception: BaseException | None = None


# ---- Consumers and apps ----------------------------------------------------------------------------------------


class ConsumerStarted(Event):
    """A consumer started: a broker answers, and the topics exist."""

    client_id: str
    group_id: str | None
    topics: tuple[str, ...]
    """Topics that the consumer reads, sorted."""


class ConsumerStopped(Event):
    """A consumer stopped, and its connections are closed."""

    client_id: str
    group_id: str | None


class _Failure(Event):
    """Base class of events about the failure of a whole consumer or app."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = None
    """Exception that is logged with its traceback; None if ``start()`` raises it."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class ConsumerFailed(_Failure):
    """A consumer failed and cannot continue. The next call of one of its methods raises the error."""


class AppFailed(_Failure):
    """A started app ended without being stopped. ``stop()`` and ``run()`` raise the error."""


class ShutdownTimedOut(Event):
    """A stop hook or an app-scoped provider did not end in time while the app stopped.

    ``stop()`` and ``run()`` raise an error that names the hook or provider.
    """

    level = logging.ERROR
    step: str
    """Name of the hook or provider."""
    waited_s: float
    """Time that the hook or provider ran, in seconds."""
    is_abandoned: bool
    """True if the hook or provider ignored its cancellation, and the app ended nevertheless."""


class TelemetryFailed(Event):
    """A span or metric could not be recorded. The handling of records is not affected.

    Logged only for the first failure of each step. Hooks do not receive this event.
    """

    level = logging.ERROR
    step: str
    """Step of the telemetry that failed, such as ``starting a span``."""
    error: str
    exception: BaseException | None = None
    """Exception that caused the event, which is logged with its traceback."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class LoopBlocked(Event):
    """The event loop is blocked, so no heartbeats are sent. Emitted once for each block, in the watchdog's thread."""

    level = logging.WARNING
    seconds: float
    """Duration of the block so far, in seconds."""
    handler: str | None
    """Handler that blocks the loop; None if the code does not belong to a handler."""
    where: str
    """Innermost line of the user's code that blocks the loop."""
    stack: tuple[str, ...]
    """Stack frames of the code that blocks the loop, innermost last."""


class LoopUnblocked(Event):
    """The event loop runs again after ``LoopBlocked``. Emitted in the watchdog's thread."""

    level = logging.WARNING
    seconds: float
    """Duration of the block, in seconds."""


# ---- Handlers --------------------------------------------------------------------------------------------------


class _HandlerEvent(Event):
    """Base class of events about a handler and a record.

    If an event is about several records, ``partition`` and ``offset`` are those of the first record.
    """

    handler: str
    partition: TopicPartition
    offset: int


class HandlerFailed(_HandlerEvent):
    """A handler raised, or the value of its record could not be decoded. Emitted for each failed attempt."""

    level = logging.WARNING
    failures: int
    """Number of failed attempts so far."""
    error: str
    action: str
    """Action taken on the record, such as ``retried``."""
    where: str | None = None
    """Innermost line of the user's code in the traceback, such as ``billing.py:17 in charge``."""
    exception: BaseException | None = None


class HandlerFailedPermanently(HandlerFailed):
    """A handler failed for a record, and no attempt is left or the error is not retried. Logged with a traceback.

    Emitted once for each record, instead of ``HandlerFailed``. With ``on_failure="pause"``, the record is tried again
    at intervals, and ``HandlerFailed`` is emitted for the failures of these attempts.
    """

    level = logging.ERROR
    logged_exception: BaseException | None = None
    """Copy of the exception for the log; its traceback and those of its causes have only the user's frames."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback, with only the user's frames."""
        return _exc_info(self.logged_exception)


class BatchFailed(_HandlerEvent):
    """A batch handler raised, or records of its batch could not be decoded. Emitted for each failed attempt.

    ``partition``, ``offset``, ``error`` and ``exception`` are those of the first record that failed.
    """

    level = logging.WARNING
    failed: int
    """Number of records that failed."""
    records: int
    """Number of records in the attempt."""
    failures: int
    """Number of failed attempts so far."""
    error: str
    action: str
    """Actions taken on the failed records, such as ``2 retried``."""
    where: str | None = None
    """Innermost line of the user's code in the traceback, as in ``HandlerFailed``."""
    exception: BaseException | None = None


class BatchFailedPermanently(BatchFailed):
    """For records of a batch, no attempt is left or the error is not retried. Logged with a traceback.

    Emitted once for each batch, instead of ``BatchFailed``. ``partition``, ``offset``, ``error`` and ``exception`` are
    those of the first of these records.
    """

    level = logging.ERROR
    logged_exception: BaseException | None = None
    """Copy of the exception for the log, as in ``HandlerFailedPermanently``."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback, with only the user's frames."""
        return _exc_info(self.logged_exception)


class RecordDelayed(_HandlerEvent):
    """A failed record was published to a retry topic. The record is handled again after the delay."""

    level = logging.WARNING
    error: str
    retry_topic: str
    delay_s: float
    """Delay until the next attempt, in seconds."""
    exception: BaseException | None = None


class RecordDeadLettered(_HandlerEvent):
    """A record failed for good and was published to the dead-letter topic."""

    level = logging.ERROR
    error: str
    dead_letter: str
    """Dead-letter topic."""
    exception: BaseException | None = None


class RecordSkipped(_HandlerEvent):
    """A record without a dead-letter topic failed for good and was skipped because of ``on_failure="skip"``."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = None


class DeadLetterFailed(_HandlerEvent):
    """A failed record could not be published to its retry or dead-letter topic.

    The record is not skipped: the app tries again to publish it, and records that must be handled after it wait.
    """

    level = logging.ERROR
    topic: str
    """Retry topic or dead-letter topic."""
    error: str
    advice: str
    """Action that may help."""
    retry_s: float
    """Time until the next attempt, in seconds."""
    exception: BaseException | None = None


class RecordUnmatched(Event):
    """A record was skipped, because no handler's ``when=`` accepts it and ``unmatched="skip"`` is set."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int


class HandlerOverdue(_HandlerEvent):
    """A handler still runs a second after its ``timeout_ms``: it ignores its cancellation, or blocks its thread.

    The record fails when the handler ends. Until then, its offset is not committed, and records that must be handled
    after it wait.
    """

    level = logging.ERROR
    timeout_s: float
    """Timeout of the handler, in seconds."""


class HandlerAbandoned(_HandlerEvent):
    """A handler ignored its cancellation, and the app stopped without it. The record is delivered again."""

    level = logging.ERROR
    waited_s: float
    """Time for which the app waited after the cancellation, in seconds."""


class PartitionReadPaused(Event):
    """A partition is not read for now: too many of its records wait for an earlier record or for another attempt.

    Emitted at most once a minute for each partition.
    """

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    key: bytes | None
    """Key of one of the records that wait or have failed."""
    waiting: int
    """Number of records that wait in the lane of this record, or in the whole partition if records have failed.

    The number for the partition includes the failed records.
    """


class HandlersOverlap(Event):
    """Two handlers of a group read the same topic, and at least one of them has no ``when=``.

    Each record is handled only by the first handler that accepts it.
    """

    level = logging.ERROR
    group_id: str
    topic: str
    handlers: tuple[str, str]


# ---- Topics of an app ------------------------------------------------------------------------------------------


class TopicCreated(Event):
    """A missing retry, dead-letter or replay topic was created."""

    topic: str
    partitions: int
    """Number of partitions."""


class TopicMissing(Event):
    """A dead-letter topic, retry topic or topic of a ``publish=`` does not exist and was not created.

    Failed records wait until their dead-letter or retry topic exists. The app does not create the topic of a
    ``publish=``.
    """

    level = logging.ERROR
    topic: str
    error: str
    advice: str
    """Action that resolves the problem."""
    exception: BaseException | None = None
    """Error of the attempt to create the topic; None for the topic of a ``publish=``."""


class ReplayTopicMissing(Event):
    """The replay topic of a group does not exist, and this app could not create it.

    ``tailrace dead-letters replay`` also creates it. The app reads the topic at most ``metadata_max_age_ms`` later.
    """

    level = logging.WARNING
    topic: str
    error: str
    advice: str
    """Action that resolves the problem."""
    exception: BaseException | None = None


# ---- Worker processes ------------------------------------------------------------------------------------------


class WorkerStarted(Event):
    """A worker process was started or restarted."""

    worker: int
    """Number of the worker."""
    pid: int


class WorkerExited(Event):
    """A worker process ended unexpectedly, or failed during its stop."""

    level = logging.ERROR
    worker: int
    """Number of the worker."""
    exit_code: int
    """Exit code; if it is negative, the process was killed by the signal of this number."""
    error: str
    """Error that the process reported, or that its parent observed; empty if there is none."""
    restarts_after_s: float | None
    """Pause before the restart, in seconds; None if the process is not restarted."""


# ---- Spark -----------------------------------------------------------------------------------------------------


class CheckpointAbandoned(Event):
    """A Spark checkpoint cannot be read. A new checkpoint starts at the committed offsets of the group."""

    level = logging.ERROR
    group_id: str
    reason: str
    exception: BaseException | None = None


class SparkQueryFailed(Event):
    """A Spark query ended without being stopped. ``await_termination()`` and ``stop()`` raise the error."""

    level = logging.ERROR
    group_id: str
    handler: str
    error: str
    exception: BaseException | None = None
