"""Events of consumers, apps and worker processes.

Events are immutable values, which are passed to hooks and written to the log. No event is emitted for a record that is
handled successfully. Tests assert on events, not on log text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, TypeAlias

import msgspec

from tailrace.records import TopicPartition
from tailrace.values import Value

__all__ = [
    "AppFailed",
    "BatchFailed",
    "BatchFailedPermanently",
    "BrokerUnreachable",
    "BrokersUnavailable",
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
    "PartitionReadPaused",
    "PartitionsAssigned",
    "PartitionsLost",
    "PartitionsRevoked",
    "RebalanceStarted",
    "RecordDeadLettered",
    "RecordDelayed",
    "RecordSkipped",
    "RecordUnmatched",
    "RecordUnreadable",
    "ReplayTopicMissing",
    "SessionExpired",
    "ShutdownTimedOut",
    "SparkQueryFailed",
    "TelemetryFailed",
    "TopicCreated",
    "TopicMissing",
    "TopicRecreated",
    "TransactionAborted",
    "TransactionInDoubt",
    "TransactionalProducerReplaced",
    "TransactionsStalled",
    "WorkerExited",
    "WorkerStarted",
]

Partitions = frozenset[TopicPartition]

ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

_MEASUREMENT = 1
"""Log level of measurements, below DEBUG."""


class Event(Value):
    """Base class of all events."""

    level: ClassVar[int] = logging.INFO
    """Log level of the event."""

    @property
    def exception(self) -> BaseException | None:
        """Exception that caused the event; None if there is none. Events that may have one declare it as a field."""
        return None

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception to log with its traceback, in the form that ``logging`` accepts; None if there is none."""
        return None


def _exc_info(exception: BaseException | None) -> ExcInfo | None:
    return None if exception is None else (type(exception), exception, exception.__traceback__)


# ---- Brokers and connections -----------------------------------------------------------------------------------


class ConnectionOpened(Event):
    """A connection to a broker was opened: TCP, TLS, ApiVersions and SASL have succeeded."""

    level = logging.DEBUG
    address: str
    """Host and port of the broker."""
    channel: str
    """Purpose of the connection: ``main``, ``fetch``, ``offsets``, ``group`` or ``heartbeat``."""


class ConnectionLost(Event):
    """A connection failed or was closed by the broker. The connection is reopened when the next request needs it."""

    address: str
    """Host and port of the broker."""
    channel: str
    """Purpose of the connection, as in ``ConnectionOpened``."""
    reason: str
    exception: BaseException | None = None
    """The exception."""


class BrokerUnreachable(Event):
    """A connection to a broker could not be opened. The next attempt follows after a backoff.

    Not emitted for failed authentication, which raises ``AuthenticationError``.
    """

    level = logging.WARNING
    address: str
    """Host and port of the broker."""
    reason: str
    exception: BaseException | None = None
    """The exception."""


class CredentialsUnencrypted(Event):
    """A password or token is about to be sent without TLS."""

    level = logging.WARNING
    address: str
    """Hosts and ports of the brokers, or URLs of the schema registry."""
    advice: str
    """Change of configuration by which the credentials are encrypted."""


class MetadataRefreshFailed(Event):
    """None of the known brokers answered a Metadata request. ``bootstrap_servers`` are tried next."""

    level = logging.WARNING
    reason: str
    exception: BaseException | None = None
    """The exception."""


class ClusterRebootstrapped(Event):
    """The cluster was found again through ``bootstrap_servers``, after no known broker answered (KIP-899)."""

    level = logging.WARNING
    brokers: tuple[str, ...]
    """Addresses of the brokers."""


class BrokersUnavailable(Event):
    """An app with ``require_broker=False`` found no broker while starting. The app tries again after a pause."""

    level = logging.WARNING
    reason: str
    pause_s: float
    """Pause before the next attempt, in seconds."""
    exception: BaseException | None = None
    """The exception."""


# ---- Consumer group --------------------------------------------------------------------------------------------


class CoordinatorFound(Event):
    """The coordinator of the group was found."""

    group_id: str
    address: str
    """Host and port of the coordinator."""


class CoordinatorLost(Event):
    """The coordinator moved, failed or stopped answering. The next request to the group looks it up again."""

    group_id: str
    reason: str


class RebalanceStarted(Event):
    """The member joins a rebalance. Emitted once for each rebalance, however many joins it takes."""

    group_id: str
    reason: str


class GroupJoined(Event):
    """The member joined a generation of the group. Emitted before partitions are assigned."""

    group_id: str
    generation: int
    """Generation (classic protocol) or member epoch (KIP-848)."""
    member_id: str
    protocol: str
    """Assignment strategy of the group."""
    is_leader: bool
    """True if this member computes the assignment (classic protocol)."""


class PartitionsAssigned(Event):
    """The member's assignment changed. Emitted before the rebalance callbacks and before records are delivered."""

    group_id: str
    added: Partitions
    """Newly assigned partitions."""
    kept: Partitions
    """Partitions assigned before and after the rebalance."""


class PartitionsRevoked(Event):
    """Partitions were revoked, after the wait for records in flight, the commit and the rebalance listener."""

    group_id: str
    partitions: Partitions


class PartitionsLost(Event):
    """Partitions were lost without a commit, because the group no longer has this member."""

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
    """No heartbeat was acknowledged for a whole session timeout, so the group has removed this member."""

    level = logging.WARNING
    group_id: str
    silent_s: float
    """Time since the last acknowledged heartbeat, in seconds."""


class GroupRequestCompleted(Event):
    """The coordinator answered a request, which need not be repeated. Emitted for metrics, below DEBUG."""

    level = _MEASUREMENT
    group_id: str
    request: str
    """Kind of the request, such as ``Heartbeat``, ``GroupHeartbeat``, ``Join``, ``Sync`` or ``Commit``."""
    took_s: float
    """Time until the response, in seconds."""


class GroupRequestFailed(Event):
    """A request of the member to the coordinator failed."""

    group_id: str
    request: str
    """Kind of the request, as in ``GroupRequestCompleted``."""
    error: str
    reaction: str
    """Next step of the member, such as ``retrying``."""


class GroupLeft(Event):
    """The group acknowledged that the member leaves: by LeaveGroup (classic protocol) or a last heartbeat (KIP-848)."""

    group_id: str
    member_id: str


class LeaveGroupTimedOut(Event):
    """A stopping app ran out of time before it left a group. Records finished but not committed are delivered again."""

    level = logging.WARNING
    group_id: str


# ---- Offsets ---------------------------------------------------------------------------------------------------


class OffsetsCommitted(Event):
    """The coordinator acknowledged a commit, or the transaction that contains it was committed."""

    level = logging.DEBUG
    group_id: str
    offsets: Mapping[TopicPartition, int]
    """Committed offset of each partition: the next offset that a restart reads."""
    took_s: float | None = None
    """Duration of the commit in seconds, retries included; None if unknown."""


class CommitFailed(Event):
    """A commit was refused or not answered. Records after the last committed offset may be delivered again."""

    level = logging.WARNING
    group_id: str
    error: str
    will_retry: bool
    """False if this was the last attempt: at a stop, or because the membership, partition or topic is lost."""
    exception: BaseException | None = None
    """The exception."""
    took_s: float | None = None
    """Duration of the commit in seconds, with its retries and the wait for an earlier commit; None if unknown."""


class CommitCallbackFailed(Event):
    """``offset_commit_callback`` raised or timed out. The outcome of the commit does not change."""

    level = logging.ERROR
    group_id: str
    error: str
    exception: BaseException | None = None
    """The exception, which is logged with its traceback."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class CommitMetadataDropped(Event):
    """An offset was committed without its metadata, because the broker does not accept a text of this length."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    text_bytes: int
    """Size of the metadata, in bytes."""


class OffsetReset(Event):
    """A position was set by a reset policy, because nothing is committed or the log no longer has the offset."""

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    """Position before the reset; None if there was none."""
    after: int
    """Position after the reset."""
    policy: str
    """Policy that was applied: ``earliest``, ``latest``, a time or a duration."""
    lost: int | None
    """Number of offsets skipped unread; None if the position moved backwards or the number is unknown."""


class TopicRecreated(Event):
    """An offset was not committed, because its topic was deleted and recreated after the records were read.

    Fetched records of the old topic are dropped, and reading continues with the new topic's records.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Offset in the old topic that could not be committed."""


class OffsetMapFound(Event):
    """The committed offset of an assigned partition has an offset map. Records finished in the map are skipped."""

    partition: TopicPartition
    offset: int
    """Committed offset."""
    finished: int
    """Number of finished offsets after the committed offset, including offsets that never held a record."""
    writer: str
    """Client that wrote the map."""


class OffsetMapIgnored(Event):
    """The offset map of an earlier owner is unreadable or of another log. Its finished records are handled again."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    reason: str


class ForeignMetadataFound(Event):
    """The commit metadata of an assigned partition is a text of the user or of another client, not an offset map."""

    level = logging.DEBUG
    partition: TopicPartition
    offset: int
    """Committed offset."""


class FinishedRecordsSkipped(Event):
    """Records that an earlier owner had finished were not delivered. Emitted once, at the end of the offset map."""

    partition: TopicPartition
    records: int
    """Number of skipped records."""


class OffsetMapFull(Event):
    """The offset map of a partition is almost too large for a commit.

    New records of the partition wait until the lowest unfinished record is finished. ``OffsetMapRecovered`` follows
    when new records are delivered again.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Offset of the lowest unfinished record."""
    unfinished: int
    """Number of records in flight."""
    fill: float
    """Size of the map as a fraction of ``offset_metadata_max_bytes``; above 1, the map is left out of the commit."""


class OffsetMapRecovered(Event):
    """The offset map of a partition fits into a commit again, and new records of the partition are delivered."""

    partition: TopicPartition
    offset: int
    """Offset of the lowest unfinished record."""
    fill: float
    """Size of the map as a fraction of ``offset_metadata_max_bytes``."""


class OffsetMapDropped(Event):
    """An offset was committed without its offset map.

    If the member ends before the next commit with a map, records finished after the offset are delivered again.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Committed offset."""
    reason: str


# ---- Transactions ----------------------------------------------------------------------------------------------


class TransactionAborted(Event):
    """A transaction was aborted, with everything published in it. The consumed records are delivered again."""

    level = logging.WARNING
    group_id: str
    records: int
    """Number of consumed records in the transaction."""
    reason: str
    exception: BaseException | None = None
    """The exception."""


class TransactionInDoubt(Event):
    """EndTxn was sent but not answered. The request is repeated until the outcome is known."""

    level = logging.WARNING
    group_id: str
    reason: str
    exception: BaseException | None = None
    """The exception."""


class TransactionsStalled(Event):
    """A group has records, but could not commit a transaction for a long time. The app's health is degraded."""

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
    """The exception."""


# ---- Fetching --------------------------------------------------------------------------------------------------


class FetchCompleted(Event):
    """A broker answered a Fetch request. Emitted for metrics, below DEBUG."""

    level = _MEASUREMENT
    broker: str
    """Broker with its id, such as ``broker 1``."""
    size: int
    """Size of the fetched record sets, in bytes."""
    records: int
    """Number of offsets in the fetched batches; the number of records is lower where the log has gaps."""
    took_s: float
    """Time until the response, in seconds, including the broker's wait for records of up to ``fetch_max_wait_ms``."""
    throttled_s: float
    """Delay that the broker imposed by quota, in seconds."""
    group_id: str | None = None
    by_partition: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    """Number of offsets in the fetched batches of each partition that had records."""


class FetchFailed(Event):
    """A fetch failed. The fetch is retried after a backoff."""

    level = logging.WARNING
    broker: str
    """Broker with its id, such as ``broker 1``."""
    partition: TopicPartition | None
    """Partition that failed; None if the whole request failed."""
    error: str
    exception: BaseException | None = None
    """The exception; None if the broker refused a single partition."""


class FetchInterrupted(Event):
    """A fetch failed in a way that is usual while leadership moves. The fetch is repeated with new metadata.

    A fetch that fails several times in a row emits ``FetchFailed``.
    """

    broker: str
    """Broker with its id, such as ``broker 1``."""
    partition: TopicPartition | None
    """Partition that failed; None if the whole request failed."""
    error: str
    exception: BaseException | None = None
    """The exception, as in ``FetchFailed``."""


class LogTruncated(Event):
    """The log was truncated below the position after a leader was lost. Reading continues where the logs diverge."""

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    """Position before the truncation."""
    after: int
    """Position after the truncation."""
    lost: int
    """Number of delivered offsets that the log no longer has."""


class CorruptBatchFetched(Event):
    """A record batch failed its checksum or could not be read. The batch is fetched again before an error is raised."""

    level = logging.ERROR
    partition: TopicPartition
    offset: int
    """Next offset to read, at or before the first offset of the batch."""
    reason: str


class RecordUnreadable(Event):
    """A deserializer raised, and the record was skipped because ``on_deserialize_error="skip"`` is set."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    error: str
    exception: BaseException | None = None
    """The exception."""


# ---- Consumers and apps ----------------------------------------------------------------------------------------


class ConsumerStarted(Event):
    """A consumer started: the cluster answers and the topics exist."""

    client_id: str
    group_id: str | None
    topics: tuple[str, ...]
    """Subscribed topics."""


class ConsumerStopped(Event):
    """A consumer stopped, and its connections are closed."""

    client_id: str
    group_id: str | None


class _Failure(Event):
    """Base class of events about the failure of a whole consumer or app."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = None
    """The exception, which is logged with its traceback; None if ``start()`` raises it."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class ConsumerFailed(_Failure):
    """A consumer cannot continue. The next call of one of its methods raises the error."""


class AppFailed(_Failure):
    """A started app ended without being stopped. ``stop()`` and ``run()`` raise the error."""


class ShutdownTimedOut(Event):
    """A stop hook or app-scoped provider did not end in time while the app stopped. ``stop()`` and ``run()`` raise."""

    level = logging.ERROR
    step: str
    """Hook or provider."""
    waited_s: float
    """Time that the hook or provider ran, in seconds."""
    is_abandoned: bool
    """True if the hook or provider ignored its cancellation, and the app ended nevertheless."""


class TelemetryFailed(Event):
    """A span or metric could not be made; records are handled all the same.

    Logged once for each step; hooks do not receive it.
    """

    level = logging.ERROR
    step: str
    """Step that failed, such as ``starting a span``."""
    error: str
    exception: BaseException | None = None
    """The exception."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback."""
        return _exc_info(self.exception)


class LoopBlocked(Event):
    """The event loop is blocked, so no heartbeats are sent. Emitted once per block, from the watchdog's thread."""

    level = logging.WARNING
    seconds: float
    """Duration of the block so far, in seconds."""
    handler: str | None
    """Handler that blocks the loop; None if other code blocks the loop."""
    where: str
    """Innermost line of the user's code."""
    stack: tuple[str, ...]
    """Frames of the code that blocks the loop, innermost last."""


class LoopUnblocked(Event):
    """The event loop runs again after ``LoopBlocked``. Emitted from the watchdog's thread."""

    level = logging.WARNING
    seconds: float
    """Duration of the block, in seconds."""


# ---- Handlers --------------------------------------------------------------------------------------------------


class _HandlerEvent(Event):
    """Base class of events about a handler and a record; if about several records, ``offset`` is that of the first."""

    handler: str
    partition: TopicPartition
    offset: int


class HandlerFailed(_HandlerEvent):
    """A handler raised, or its record could not be decoded. Emitted for each failed attempt."""

    level = logging.WARNING
    failures: int
    """Number of failed attempts so far."""
    error: str
    action: str
    """Action for the record, such as ``retried``."""
    where: str | None = None
    """Innermost line of the user's code in the traceback, such as ``billing.py:17 in charge``."""
    exception: BaseException | None = None
    """The exception."""


class HandlerFailedPermanently(HandlerFailed):
    """A record failed permanently. Emitted in place of the last ``HandlerFailed`` and logged with the traceback."""

    level = logging.ERROR
    logged_exception: BaseException | None = None
    """Copy of the exception for the log; its traceback and those of its causes have only the user's frames."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """Exception and traceback, with only the user's frames."""
        return _exc_info(self.logged_exception)


class BatchFailed(_HandlerEvent):
    """A batch handler raised, or records of the batch could not be decoded. Emitted for each failed attempt.

    ``partition``, ``offset`` and ``error`` are those of the first record that failed.
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
    """Actions for the failed records, such as ``2 retried``."""
    where: str | None = None
    """Innermost line of the user's code in the traceback, as in ``HandlerFailed``."""
    exception: BaseException | None = None
    """The exception."""


class BatchFailedPermanently(BatchFailed):
    """Records of a batch failed permanently. Emitted in place of ``BatchFailed``; logged with the first traceback."""

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
    """The exception."""


class RecordDeadLettered(_HandlerEvent):
    """A record failed permanently and was published to the dead-letter topic."""

    level = logging.ERROR
    error: str
    dead_letter: str
    """Dead-letter topic."""
    exception: BaseException | None = None
    """The exception."""


class RecordSkipped(_HandlerEvent):
    """A record failed permanently and was skipped: it has no dead-letter topic, and ``on_failure="skip"`` is set."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = None
    """The exception."""


class DeadLetterFailed(_HandlerEvent):
    """A failed record could not be published to its retry or dead-letter topic.

    The record is not skipped: publishing is tried again, and the records that must be handled after it wait.
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
    """The exception."""


class RecordUnmatched(Event):
    """A record was skipped: no handler's ``when`` accepts it, and ``unmatched="skip"`` is set."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int


class HandlerOverdue(_HandlerEvent):
    """A handler still runs a second after its ``timeout_ms``: it ignored its cancellation, or blocks its thread.

    The record fails when the handler ends. Until then, the record is not committed, and the records that must be
    handled after it wait.
    """

    level = logging.ERROR
    timeout_s: float
    """Timeout of the handler, in seconds."""


class HandlerAbandoned(_HandlerEvent):
    """A handler ignored its cancellation while the app stopped. The app ends anyway; the record is delivered again."""

    level = logging.ERROR
    waited_s: float
    """Time allowed after the cancellation, in seconds."""


class PartitionReadPaused(Event):
    """Reading of a partition pauses, because too many of its records wait for earlier records or for another attempt.

    Emitted at most once a minute for each partition while too many records wait.
    """

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    key: bytes | None
    """Key of the record whose failure or wait reached the limit; for a failed batch, the key of its first record."""
    waiting: int
    """Number of records that wait for the same earlier record; after a failure, number of all that failed or wait."""


class HandlersOverlap(Event):
    """A topic has two handlers in one group, and at least one of them has no ``when=``.

    Each record goes to the first handler that accepts it.
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
    """A topic that handlers publish to does not exist and was not created.

    If a dead-letter topic is missing, records that fail permanently wait until the topic exists. The app never creates
    the topic of a ``publish=``.
    """

    level = logging.ERROR
    topic: str
    error: str
    advice: str
    """Action that resolves the problem."""
    exception: BaseException | None = None
    """The broker's error; None if the topic belongs to a ``publish=``."""


class ReplayTopicMissing(Event):
    """A replay topic does not exist, and this app may not create it.

    Once a replay has created the topic, the app reads its records after ``metadata_max_age_ms`` at the latest.
    """

    level = logging.WARNING
    topic: str
    error: str
    advice: str
    """Action that resolves the problem."""
    exception: BaseException | None = None
    """The exception."""


# ---- Worker processes ------------------------------------------------------------------------------------------


class WorkerStarted(Event):
    """A worker process was started or restarted."""

    worker: int
    """Number of the worker."""
    pid: int


class WorkerExited(Event):
    """A worker process ended without being stopped, or failed while it was being stopped."""

    level = logging.ERROR
    worker: int
    """Number of the worker."""
    exit_code: int
    """Exit code; if negative, the number of the signal that killed the process."""
    error: str
    """Error that the process reported or its parent observed; may be empty."""
    restarts_after_s: float | None
    """Pause before the restart, in seconds; None if the process is not restarted."""


# ---- Spark -----------------------------------------------------------------------------------------------------


class CheckpointAbandoned(Event):
    """A Spark checkpoint cannot be read. A new generation of the checkpoint starts at the group's committed offsets."""

    level = logging.ERROR
    group_id: str
    reason: str
    exception: BaseException | None = None
    """The exception."""


class SparkQueryFailed(Event):
    """A Spark query ended without being stopped. ``await_termination()`` and ``stop()`` raise the error."""

    level = logging.ERROR
    group_id: str
    handler: str
    error: str
    exception: BaseException | None = None
    """The exception."""
