"""Every event that tailrace tells of: the one list.

Rule of this file: an event is a frozen dataclass named after what happened, with what one needs at 3 a.m. to know
what to do. Its docstring says when it is told. Tests assert on these and never on log text. Nothing is told for
single records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, TypeAlias

from tailrace.records import TopicPartition

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
    "LaneFull",
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

_MEASURED = 1
"""Below what any log writes."""


@dataclass(frozen=True, slots=True)
class Event:
    """The root of all events; ``level`` is where it stands in a log."""

    level: ClassVar[int] = logging.INFO

    @property
    def exc_info(self) -> ExcInfo | None:
        """The error whose traceback the log has, as ``logging`` takes it."""
        return None


def _exc_info(exception: BaseException | None, traceback: TracebackType | None) -> ExcInfo | None:
    return None if exception is None else (type(exception), exception, traceback)


# ---- connections and the cluster -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConnectionOpened(Event):
    """A connection to a broker stands: TCP, TLS, versions and SASL."""

    level = logging.DEBUG
    address: str
    channel: str


@dataclass(frozen=True, slots=True)
class CredentialsUnencrypted(Event):
    """A password or token is sent without TLS: anyone on the way can read it."""

    level = logging.WARNING
    address: str
    advice: str


@dataclass(frozen=True, slots=True)
class ConnectionLost(Event):
    """A connection broke or was closed by the broker; it is opened again when it is needed."""

    address: str
    channel: str
    reason: str


@dataclass(frozen=True, slots=True)
class BrokerUnreachable(Event):
    """A broker could not be connected to; another try follows after a pause."""

    level = logging.WARNING
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataRefreshFailed(Event):
    """No broker that is known answered what the cluster looks like."""

    level = logging.WARNING
    reason: str


@dataclass(frozen=True, slots=True)
class BrokersUnavailable(Event):
    """An app with ``require_broker=False`` found no broker to begin with, and tries again after a pause."""

    level = logging.WARNING
    reason: str
    pause_s: float


@dataclass(frozen=True, slots=True)
class ClusterRebootstrapped(Event):
    """All known brokers were gone; the cluster was found again by ``bootstrap_servers`` (KIP-899)."""

    level = logging.WARNING
    brokers: tuple[str, ...]


# ---- the group -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CoordinatorFound(Event):
    """The broker that coordinates the group is known."""

    group_id: str
    address: str


@dataclass(frozen=True, slots=True)
class CoordinatorLost(Event):
    """The coordinator moved, died or stopped answering; it is looked up again."""

    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RebalanceStarted(Event):
    """This member takes part in a rebalance."""

    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupRequestCompleted(Event):
    """The coordinator has answered a member. It is told for whoever measures, and never written to a log."""

    level = _MEASURED
    group_id: str
    request: str
    """``Heartbeat``, ``GroupHeartbeat``, ``Join``, ``Sync``, ``Commit`` and the like."""
    took_s: float


@dataclass(frozen=True, slots=True)
class GroupJoined(Event):
    """This member is in a generation of the group."""

    group_id: str
    generation: int
    member_id: str
    protocol: str
    is_leader: bool


@dataclass(frozen=True, slots=True)
class PartitionsAssigned(Event):
    """Partitions are this member's now; told before any of their records is handed out."""

    group_id: str
    added: Partitions
    kept: Partitions


@dataclass(frozen=True, slots=True)
class PartitionsRevoked(Event):
    """Partitions were given back in order: drained, committed, released."""

    group_id: str
    partitions: Partitions


@dataclass(frozen=True, slots=True)
class PartitionsLost(Event):
    """Partitions are gone without a chance to commit: the group went on without this member."""

    level = logging.WARNING
    group_id: str
    partitions: Partitions
    reason: str


@dataclass(frozen=True, slots=True)
class DrainTimedOut(Event):
    """A record was still in hand when ``rebalance_drain_ms`` was over; it will be delivered again elsewhere."""

    level = logging.WARNING
    partitions: Partitions
    waited_s: float


@dataclass(frozen=True, slots=True)
class OffsetOverrideRejected(Event):
    """A rebalance callback gave an offset that cannot be: not this member's partition, or no offset at all."""

    level = logging.WARNING
    partition: TopicPartition
    offset: object
    reason: str


@dataclass(frozen=True, slots=True)
class SessionExpired(Event):
    """No heartbeat was acknowledged for a whole session: the group has given this member up."""

    level = logging.WARNING
    group_id: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class GroupRequestFailed(Event):
    """A request of the membership failed; what follows is in ``reaction``."""

    group_id: str
    request: str
    error: str
    reaction: str


@dataclass(frozen=True, slots=True)
class GroupLeft(Event):
    """This member told the group that it goes."""

    group_id: str
    member_id: str


# ---- offsets ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetsCommitted(Event):
    """The broker acknowledged a commit."""

    level = logging.DEBUG
    group_id: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetMapFound(Event):
    """A partition was taken over of which more is finished than the commit says; that is not handed out again."""

    partition: TopicPartition
    offset: int
    finished: int
    """So many offsets behind the commit; some of them may never have had a record."""
    writer: str


@dataclass(frozen=True, slots=True)
class OffsetMapIgnored(Event):
    """The offset map of an earlier owner is unreadable or not of this log; the records it covers are handled again."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignMetadataFound(Event):
    """A partition was taken over whose commit metadata are a plain text, the user's own or another client's."""

    level = logging.DEBUG
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class FinishedRecordsSkipped(Event):
    """So many records were not handed out, as an owner before had finished them; told when all of them are passed."""

    partition: TopicPartition
    records: int


@dataclass(frozen=True, slots=True)
class OffsetMapFull(Event):
    """So much is finished out of order that it hardly fits beside a commit: no new records until the lowest is done."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    """Of the lowest record that is not finished."""
    unfinished: int
    fill: float
    """Of the room in the commit metadata; above 1, what is finished out of order is left out of the commit."""


@dataclass(frozen=True, slots=True)
class OffsetMapRecovered(Event):
    """New records of the partition are begun again."""

    partition: TopicPartition
    offset: int
    fill: float


@dataclass(frozen=True, slots=True)
class OffsetMapDropped(Event):
    """A commit went without saying what is finished behind it: that would be done again if this member ended now."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointAbandoned(Event):
    """A Spark checkpoint cannot be read: a new generation of it begins at the group's committed offsets."""

    level = logging.ERROR
    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SparkQueryFailed(Event):
    """A query on Spark ended without being stopped; ``await_termination()`` and ``stop()`` raise the error."""

    level = logging.ERROR
    group_id: str
    handler: str
    error: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception itself."""


@dataclass(frozen=True, slots=True)
class TransactionAborted(Event):
    """A transaction was taken back, with all that was published in it; its records are delivered again."""

    level = logging.WARNING
    group_id: str
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionInDoubt(Event):
    """A transaction's end was sent and not answered; it is asked again until it is known."""

    level = logging.WARNING
    group_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionsStalled(Event):
    """A group has records, and for long none of its transactions could be committed; the app's health is degraded."""

    level = logging.ERROR
    group_id: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionalProducerReplaced(Event):
    """The producer of transactions could not go on and was made anew, under the same name."""

    level = logging.WARNING
    group_id: str
    transactional_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class CommitFailed(Event):
    """A commit was refused or not answered; the records may be delivered again."""

    level = logging.WARNING
    group_id: str
    error: str
    will_retry: bool
    """False when the last attempt was made: at a stop, or when membership, partition or topic are lost."""


@dataclass(frozen=True, slots=True)
class TopicRecreated(Event):
    """A topic was deleted and recreated while it was read; ``offset`` of the old topic was not committed.

    Fetched records of the old topic are dropped, and reading continues with the new topic's records.
    """

    level = logging.WARNING
    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class CommitCallbackFailed(Event):
    """The user's ``offset_commit_callback`` raised or took too long; what it was told of is as it was."""

    level = logging.ERROR
    group_id: str
    error: str


@dataclass(frozen=True, slots=True)
class CommitMetadataDropped(Event):
    """The broker does not take a text so long beside an offset; the offset was committed without it."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    text_bytes: int


@dataclass(frozen=True, slots=True)
class OffsetReset(Event):
    """A position was chosen by policy: nothing was committed, or the log does not have it any more.

    ``lost`` counts the offsets that were passed over unread, where that is known.
    """

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    after: int
    policy: str
    lost: int | None


# ---- fetching --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogTruncated(Event):
    """A log was cut, since a leader was lost with what only it had; reading goes on where it is what it was."""

    level = logging.WARNING
    partition: TopicPartition
    before: int | None
    after: int
    lost: int
    """Records that were handed out and are not in the log any more."""


@dataclass(frozen=True, slots=True)
class FetchCompleted(Event):
    """A broker has answered a fetch. It is told for whoever measures, and never written to a log."""

    level = _MEASURED
    broker: str
    size: int
    """Bytes of records."""
    records: int
    """As the batches' offsets have it: where a log has gaps there are fewer."""
    took_s: float
    throttled_s: float


@dataclass(frozen=True, slots=True)
class FetchFailed(Event):
    """A fetch from a partition (or from all of a broker's) failed; it is tried again after a pause."""

    level = logging.WARNING
    broker: str
    partition: TopicPartition | None
    error: str


@dataclass(frozen=True, slots=True)
class FetchInterrupted(Event):
    """A fetch failed as fetches do while leadership moves; it is repeated with new metadata.

    A fetch that fails several times in a row emits ``FetchFailed``.
    """

    broker: str
    partition: TopicPartition | None
    error: str


@dataclass(frozen=True, slots=True)
class RecordUnreadable(Event):
    """A record's key or value could not be read by the user's function, and was left out, as he says."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int
    error: str


@dataclass(frozen=True, slots=True)
class CorruptBatchFetched(Event):
    """A record batch did not pass its checksum or could not be read; it is fetched again before it is given up."""

    level = logging.ERROR
    partition: TopicPartition
    offset: int
    reason: str


# ---- the event loop --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoopBlocked(Event):
    """Something keeps the event loop from turning, and heartbeats with it; told once, while it still does.

    ``where`` is the innermost line of the user's own code, ``stack`` all that the loop runs, the innermost last. It is
    told from the watchdog's thread, as the loop cannot.
    """

    level = logging.WARNING
    seconds: float
    handler: str | None
    where: str
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoopUnblocked(Event):
    """The event loop turns again, after ``seconds``; told from the watchdog's thread."""

    level = logging.WARNING
    seconds: float


# ---- life ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaveGroupTimedOut(Event):
    """A group was left without good-byes, as there was no time left: what was not committed by then comes again."""

    level = logging.WARNING
    group_id: str


@dataclass(frozen=True, slots=True)
class ConsumerStarted(Event):
    """``start()`` is through: the cluster answers and the topics exist."""

    client_id: str
    group_id: str | None
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShutdownTimedOut(Event):
    """A stop hook or an app-scoped provider did not end in time as the app stopped; ``stop()`` and ``run()`` raise."""

    level = logging.ERROR
    step: str
    waited_s: float
    is_abandoned: bool
    """True if it went on after it was canceled, and the app ended without it."""


@dataclass(frozen=True, slots=True)
class AppFailed(Event):
    """A started app ended without being stopped; ``stop()`` and ``run()`` raise the error."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception itself; the log has its traceback."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """The error and its traceback."""
        return _exc_info(self.exception, getattr(self.exception, "__traceback__", None))


@dataclass(frozen=True, slots=True)
class ConsumerFailed(Event):
    """The consumer cannot go on; the error is raised by the next call."""

    level = logging.ERROR
    error: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception itself, from the end of ``start()`` on; the log has its traceback."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """The error and its traceback."""
        return _exc_info(self.exception, getattr(self.exception, "__traceback__", None))


@dataclass(frozen=True, slots=True)
class ConsumerStopped(Event):
    """``stop()`` is through."""

    client_id: str
    group_id: str | None


# ---- handlers --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised, or its record could not be decoded; ``then`` says what is done about it."""

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    offset: int
    failures: int
    error: str
    then: str
    where: str | None = None
    """The line of the user's own code that the error came through last, such as ``billing.py:17 in charge``."""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The error itself, for hooks."""


@dataclass(frozen=True, slots=True)
class HandlerFailedPermanently(HandlerFailed):
    """A record failed for good; told in the place of its last ``HandlerFailed``, with the traceback."""

    level = logging.ERROR
    logged_exception: BaseException | None = field(default=None, repr=False, compare=False)
    """Copy of the error for the log: it and its causes have the user's frames alone."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """The error, with the user's frames."""
        return _exc_info(self.logged_exception, getattr(self.logged_exception, "__traceback__", None))


@dataclass(frozen=True, slots=True)
class HandlerAbandoned(Event):
    """A handler was cut short as the app ends, and goes on; the app ends without it, and its record comes again."""

    level = logging.ERROR
    handler: str
    partition: TopicPartition
    offset: int
    waited_s: float


@dataclass(frozen=True, slots=True)
class HandlerOverdue(Event):
    """A handler still runs a second after its ``timeout_ms``: it swallowed its cancellation, or blocks its thread.

    Its record has failed as soon as it ends, and is not committed until then; later records of its lane wait.
    """

    level = logging.ERROR
    handler: str
    partition: TopicPartition
    offset: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class BatchFailed(Event):
    """A batch handler raised, or some of its records could not be decoded; told once for each attempt."""

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    """Of the first record that failed."""
    offset: int
    """The same."""
    failed: int
    """How many records failed."""
    records: int
    """Of how many that were tried."""
    failures: int
    error: str
    """The first record's."""
    then: str
    where: str | None = None
    """Where that came from, as ``HandlerFailed`` has it."""
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The error itself, for hooks."""


@dataclass(frozen=True, slots=True)
class BatchFailedPermanently(BatchFailed):
    """Records of a batch failed for good; told in the place of ``BatchFailed``, with the first traceback."""

    level = logging.ERROR
    logged_exception: BaseException | None = field(default=None, repr=False, compare=False)
    """Copy of the error for the log: it and its causes have the user's frames alone."""

    @property
    def exc_info(self) -> ExcInfo | None:
        """The error, with the user's frames."""
        return _exc_info(self.logged_exception, getattr(self.logged_exception, "__traceback__", None))


@dataclass(frozen=True, slots=True)
class RecordSkipped(Event):
    """A record failed for good, nobody takes it, and ``on_failure="skip"`` says to go on."""

    level = logging.ERROR
    handler: str
    partition: TopicPartition
    offset: int
    error: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The error itself, for hooks."""


@dataclass(frozen=True, slots=True)
class RecordDeadLettered(Event):
    """A record failed for good and stands among the dead letters."""

    level = logging.ERROR
    handler: str
    partition: TopicPartition
    offset: int
    error: str
    dead_letter: str
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The error itself, for hooks."""


@dataclass(frozen=True, slots=True)
class RecordDelayed(Event):
    """A record failed and stands in a retry topic; it is tried again when ``delay_s`` are over."""

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    offset: int
    error: str
    retry_topic: str
    delay_s: float
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    """The error itself, for hooks."""


@dataclass(frozen=True, slots=True)
class DeadLetterFailed(Event):
    """A record that failed can be written neither to its retry topic nor to its dead letters, and is not passed over.

    Its lane waits, and it is tried again in ``retry_s``; ``advice`` says what may help.
    """

    level = logging.ERROR
    handler: str
    partition: TopicPartition
    offset: int
    topic: str
    error: str
    advice: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class LaneFull(Event):
    """So many records wait that no more are taken of their partition until one is done.

    They wait behind one of the lane of ``key``; or they failed, the last one with that key, and wait for their next
    attempts. Told once a minute of a partition at most, while it goes on.
    """

    level = logging.WARNING
    handler: str
    partition: TopicPartition
    key: bytes | None
    waiting: int


@dataclass(frozen=True, slots=True)
class HandlersOverlap(Event):
    """A topic is matched by two handlers of one group, and not both say ``when=``: the first one has its records."""

    level = logging.ERROR
    group_id: str
    topic: str
    handlers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class TopicCreated(Event):
    """A topic of the group's own was not there and was made: for dead letters, or for records to be tried later."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicMissing(Event):
    """A topic that handlers publish to does not exist, told at the start.

    A dead-letter topic may not be created by this app: records that fail for good wait until it exists. The topic of a
    ``publish=`` is never created by the app.
    """

    level = logging.ERROR
    topic: str
    error: str
    advice: str


@dataclass(frozen=True, slots=True)
class ReplayTopicMissing(Event):
    """A replay topic does not exist and may not be created by this app.

    Once a replay has created it, its records are read after ``metadata_max_age_ms`` at the latest.
    """

    level = logging.WARNING
    topic: str
    error: str
    advice: str


@dataclass(frozen=True, slots=True)
class RecordUnmatched(Event):
    """No handler's ``when`` takes a record, and ``unmatched="skip"`` says to go on."""

    level = logging.WARNING
    partition: TopicPartition
    offset: int


# ---- processes -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """A worker's process was started, for the first time or again."""

    worker: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerExited(Event):
    """A worker's process has ended and nobody had asked for it, or not in good order when it was asked to.

    It is started again after a pause, if at all.
    """

    level = logging.ERROR
    worker: int
    exit_code: int
    """Below 0 the number of the signal that killed it."""
    error: str
    restarts_after_s: float | None
