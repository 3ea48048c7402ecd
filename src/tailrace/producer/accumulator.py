"""Undelivered records of a producer: batches by partition, the requests to send next, and reactions to answers.

Pure: no clock, IO or logging.

Each record has exactly one outcome: the broker has stored it, or it has failed. Within a partition, records are stored
in the order in which they were appended.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from itertools import chain
from typing import NamedTuple, Protocol, Self, TypeAlias

from tailrace.core.backoff import Backoff
from tailrace.core.capabilities import ClusterVersions
from tailrace.error_codes import ErrorCode, ReactionTable, name_of
from tailrace.errors import PublishError, PublishTimeoutError, PublishTooLargeError, TailraceError, broker_error
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.transaction_machine import (
    MustAbort,
    ProducerId,
    TransactionEvent,
    TransactionFailed,
    timeout_error,
)
from tailrace.producer.transaction_reactions import TransactionRequestKind, event_of, worst_of
from tailrace.protocol.transactions import IDEMPOTENCE
from tailrace.records import TopicPartition

__all__ = [
    "MAX_IN_FLIGHT",
    "Appended",
    "BatchAnswer",
    "BatchContent",
    "DeliveredBatch",
    "FailedBatch",
    "Outcome",
    "PartitionQueue",
    "PendingBatch",
    "ProduceReaction",
    "ProducerSettings",
    "RecordAccumulator",
    "TransactionAccumulator",
    "idempotence_obstacle",
    "publish_error",
    "reaction_to",
]

# ---- batch of records that are not delivered yet ---------------------------------------------------------------------


class BatchContent(Protocol):
    """Encoded records of a batch."""

    @property
    def count(self) -> int:
        """Number of records."""

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a record and return its size in bytes; append nothing and return 0 if the batch is full."""

    def selected(self, indices: Sequence[int]) -> Self:
        """Return a new batch with the records at ``indices``."""


class PendingBatch:
    """Batch of one partition, from its first record until its outcome.

    Attributes:
        partition: partition of the records.
        content: records, encoded.
        tickets: one object for each record, which identifies the record to the caller in the outcome.
        order: sort key of the batch among the batches of the partition.
        size: bytes of the records, before compression; 0 once the batch has an outcome.
        opened_at: time at which the first record was appended.
        sent_at: time of the first attempt to send the batch; None before.
        deadline: time at which the batch fails if it is not stored before.
        timeout_s: time in seconds from ``opened_at`` to ``deadline``; only records with the same timeout join.
        producer: producer id and epoch with which the batch was last sent.
        sequence: sequence number of the first record; -1 if the batch was not sent in the partition's current epoch, or
            is sent without idempotence.
        is_uncertain: True if the broker may have stored the batch in an attempt whose result is unknown.
        has_failed: True if the records have failed while the batch was in flight.
    """

    __slots__ = (
        "content",
        "deadline",
        "has_failed",
        "is_uncertain",
        "opened_at",
        "order",
        "partition",
        "producer",
        "sent_at",
        "sequence",
        "size",
        "tickets",
        "timeout_s",
    )

    def __init__(
        self,
        partition: TopicPartition,
        content: BatchContent,
        order: tuple[int, ...],
        opened_at: float,
        deadline: float,
    ) -> None:
        self.partition, self.content, self.order = partition, content, order
        self.opened_at, self.deadline, self.timeout_s = opened_at, deadline, deadline - opened_at
        self.sent_at: float | None = None
        self.tickets: list[object] = []
        self.size = 0
        self.producer = ProducerId()
        self.sequence = -1
        self.is_uncertain = self.has_failed = False

    def __repr__(self) -> str:
        return f"<PendingBatch {self.partition} {len(self.tickets)} records, sequence {self.sequence}>"

    @property
    def was_sent(self) -> bool:
        """True if the batch was sent in the current epoch of its partition, so that it has a sequence number.

        Always False without idempotence.
        """
        return self.sequence >= 0

    def split(self, *groups: Sequence[int]) -> list[PendingBatch]:
        """Return one batch for each group of record indices, in order; the sum of the sizes stays the same."""
        parts = []
        for number, indices in enumerate(groups):
            content, order = self.content.selected(indices), (*self.order, number)
            part = PendingBatch(self.partition, content, order, self.opened_at, self.deadline)
            part.tickets = [self.tickets[index] for index in indices]
            part.sent_at = self.sent_at
            part.size = self.size * len(indices) // len(self.tickets)
            parts.append(part)
        parts[0].size += self.size - sum(part.size for part in parts)
        return parts


class DeliveredBatch(NamedTuple):
    """Batch that the broker has stored."""

    batch: PendingBatch
    base_offset: int
    """Offset of the first record; -1 if the broker no longer knows the offset."""
    append_time_ms: int = -1
    """Time of the broker that is the timestamp of the records; -1 if they have their own."""


class FailedBatch(NamedTuple):
    """Batch whose records have failed."""

    batch: PendingBatch
    error: TailraceError


Outcome: TypeAlias = DeliveredBatch | FailedBatch


# ---- reactions of a producer to the error codes of batches in Produce responses --------------------------------------


class ProduceReaction(StrEnum):
    """Reaction to the error code of a batch.

    If no earlier batch of the partition is in flight or waiting, WAIT_FOR_EARLIER is treated as RENEW_EPOCH.
    """

    STORED = "report the records as delivered"
    RETRY = "send the batch again after a backoff"
    LOOK_UP = "look up the leader, then send the batch again"
    WAIT_FOR_EARLIER = "send the batch again after the earlier batches of the partition"
    RENEW_EPOCH = "send the batch again with a new producer epoch"
    ISOLATE = "split the batch to find the refused records, fail these, and send the others again"
    FAIL = "fail the records"


_REACTIONS: ReactionTable[ProduceReaction, ProduceReaction] = ReactionTable(
    {
        ErrorCode.NONE: ProduceReaction.STORED,
        # The batch is in the log, but older than the five batches whose offsets the broker remembers, so the response
        # contains no offset.
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ProduceReaction.STORED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ProduceReaction.LOOK_UP,
        ErrorCode.LEADER_NOT_AVAILABLE: ProduceReaction.LOOK_UP,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: ProduceReaction.LOOK_UP,
        ErrorCode.REPLICA_NOT_AVAILABLE: ProduceReaction.LOOK_UP,
        ErrorCode.KAFKA_STORAGE_ERROR: ProduceReaction.LOOK_UP,
        ErrorCode.FENCED_LEADER_EPOCH: ProduceReaction.LOOK_UP,
        ErrorCode.UNKNOWN_LEADER_EPOCH: ProduceReaction.LOOK_UP,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ProduceReaction.WAIT_FOR_EARLIER,
        # KIP-360: the partition's log no longer contains the producer's earlier records.
        ErrorCode.UNKNOWN_PRODUCER_ID: ProduceReaction.RENEW_EPOCH,
        ErrorCode.INVALID_PRODUCER_EPOCH: ProduceReaction.RENEW_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProduceReaction.RENEW_EPOCH,
        ErrorCode.MESSAGE_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.RECORD_LIST_TOO_LARGE: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_RECORD: ProduceReaction.ISOLATE,
        ErrorCode.INVALID_TIMESTAMP: ProduceReaction.ISOLATE,
        ErrorCode.POLICY_VIOLATION: ProduceReaction.ISOLATE,
    },
    retriable=ProduceReaction.RETRY,
    final=ProduceReaction.FAIL,
)

_SIZE_LIMITS: Mapping[int, str] = {
    ErrorCode.MESSAGE_TOO_LARGE: "max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "segment.bytes",
}
"""Topic setting that limits the size of a batch, by the error code that the broker returns above the limit."""


def reaction_to(code: int) -> ProduceReaction:
    """Return the reaction to the error code of a batch."""
    return _REACTIONS.reaction_to(code)


def publish_error(topic: str, code: int, detail: str = "") -> PublishError:
    """Return the error of records that the broker refused with ``code``; ``detail`` is the broker's message."""
    if (setting := _SIZE_LIMITS.get(code)) is not None:
        error = broker_error(code, "larger than the topic allows")
        return PublishTooLargeError(
            f"{topic}: {error} - raise {setting} of the topic, or publish smaller records", setting=setting
        )
    return PublishError(f"{topic}: {broker_error(code, detail or 'refused by the broker', permission='WRITE')}")


# ---- idempotence -----------------------------------------------------------------------------------------------------


def idempotence_obstacle(versions: ClusterVersions, *, asked: bool | None) -> str:
    """Return the reason why a producer publishes without idempotence; empty if it is idempotent.

    Args:
        versions: versions that the brokers offer.
        asked: option ``enable_idempotence``; None for idempotence where all brokers offer it.

    Raises:
        UnsupportedVersionError: the option is True, and a broker does not offer idempotence.
    """
    if asked is False:
        return "enable_idempotence=False"
    if asked:
        versions.check(IDEMPOTENCE)
    return versions.lacks(IDEMPOTENCE)


# ---- undelivered records of a producer -------------------------------------------------------------------------------


class Appended(Enum):
    """Batch to which a record was appended."""

    JOINED = auto()
    """The open batch."""
    OPENED = auto()
    """A new batch, as there was no open batch."""
    FILLED = auto()
    """A new batch, as the open batch was full."""


_JOINED = Appended.JOINED

_SAME_TIMEOUT_S = 1.0
"""Difference of timeouts in seconds up to which records share a batch."""
_FORGOTTEN_AFTER_S = 3_600.0
"""Seconds without records after which the state of a partition is forgotten."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Limits of a producer; times in seconds."""

    linger_s: float
    """Time for which a batch waits for more records."""
    delivery_timeout_s: float
    """Time after which a record fails, for error messages; the caller of ``append`` computes the deadline."""
    max_buffered_bytes: int
    """Size of the undelivered records from which on ``RecordAccumulator.is_full`` is True."""
    backoff: Backoff
    max_request_bytes: int = 1_048_576
    """Size from which on no batch is added to a request."""
    acks: int = -1
    """Replicas that must have a batch before the broker answers: -1 for all, 1 for the leader; with 0, no answer."""


class BatchAnswer(NamedTuple):
    """Answer of a broker about one batch."""

    code: int
    base_offset: int = -1
    """Offset of the first record; -1 if unknown."""
    detail: str = ""
    """Error message of the broker; empty if there is none."""
    refused_records: Sequence[int] = ()
    """Indices of the records that the broker named as the cause; empty if it named none."""
    append_time_ms: int = -1
    """Time of the broker that is the timestamp of the records; -1 if they have their own."""


class RecordAccumulator:
    """Undelivered records of all partitions.

    Without a producer id, batches have no sequence numbers: a batch that is sent again may be stored twice. Their order
    is kept, because one batch of a partition is in flight at a time.

    Args:
        settings: limits.
        new_content: returns an empty batch.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        producer: newest producer id; ``ProducerId()`` without idempotence.
        buffered_bytes: size of the undelivered records.
        retries: number of batches that were sent again.
        is_flushing: True while batches are sent without waiting for more records.
        needs_leaders: True if the leader of a partition has to be looked up; reset by the caller.
    """

    def __init__(
        self, settings: ProducerSettings, new_content: Callable[[], BatchContent], chance: Callable[[], float]
    ) -> None:
        self._settings, self._new_content, self._chance = settings, new_content, chance
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        """Queues that have batches; the next request begins with the first queues."""
        self._requests: defaultdict[int, int] = defaultdict(int)
        """Number of requests in flight by broker."""
        self._last_errors: dict[TopicPartition, str] = {}
        self._forgotten = ProducerId()
        """Newest producer id that forgotten partitions have used, and its highest epoch among them."""
        self._forget_at = 0.0
        self.producer = ProducerId()
        self.buffered_bytes = 0
        self.retries = 0
        self.is_flushing = self.needs_leaders = False

    def __repr__(self) -> str:
        return f"<RecordAccumulator {self.buffered_bytes} bytes for {len(self._active)} partitions>"

    @property
    def is_full(self) -> bool:
        """True if the undelivered records take ``max_buffered_bytes`` or more."""
        return self.buffered_bytes >= self._settings.max_buffered_bytes

    @property
    def is_empty(self) -> bool:
        """True if no batch is in flight, waiting or open."""
        return not self._active

    @property
    def needs_producer_id(self) -> bool:
        """True if a partition waits for a new producer id."""
        return any(queue.needs_producer_id for queue in self._active.values())

    def batches(self) -> Iterator[PendingBatch]:
        """Yield all batches without an outcome."""
        return (batch for queue in self._active.values() for batch in queue.batches() if not batch.has_failed)

    # ---- records -----------------------------------------------------------------------------------------------

    def append(
        self, partition: TopicPartition, record: OutgoingRecord, ticket: object, now: float, deadline: float
    ) -> Appended:
        """Append a record to the open batch of its partition, or to a new batch.

        Args:
            partition: partition of the record.
            record: record, whose own ``partition`` is ignored.
            ticket: object that identifies the record in the outcome.
            now: time.
            deadline: time at which the record fails; used if the record opens a batch. A record joins a batch whose
                timeout differs by less than a second, so that it fails neither much earlier nor much later.

        Raises:
            MalformedMessageError: the record cannot be encoded; nothing has changed.
        """
        if self.join(partition, record, ticket, deadline - now):
            return _JOINED
        content = self._new_content()
        size = content.append(record.key, record.value, record.headers, record.timestamp_ms)
        queue = self._active.get(partition)
        if queue is None:
            queue = self._active[partition] = self._queues.get(partition) or self._new_queue(partition, now)
        was_open = queue.open_batch is not None
        queue.close_open()
        queue.open_batch = fresh = PendingBatch(partition, content, queue.next_order(), now, deadline)
        fresh.tickets.append(ticket)
        fresh.size = size
        self.buffered_bytes += size
        return Appended.FILLED if was_open else Appended.OPENED

    def join(self, partition: TopicPartition, record: OutgoingRecord, ticket: object, timeout_s: float) -> bool:
        """Append a record to the open batch of its partition; return False if ``append`` must open another batch.

        ``timeout_s`` is the time in seconds after which the record fails; other arguments as for ``append``.

        Raises:
            MalformedMessageError: the record cannot be encoded; nothing has changed.
        """
        queue = self._active.get(partition)
        if queue is None or (batch := queue.open_batch) is None:
            return False
        if not -_SAME_TIMEOUT_S < timeout_s - batch.timeout_s < _SAME_TIMEOUT_S:
            return False
        size = batch.content.append(record.key, record.value, record.headers, record.timestamp_ms)
        if not size:
            return False
        batch.tickets.append(ticket)
        batch.size += size
        self.buffered_bytes += size
        return True

    def _new_queue(self, partition: TopicPartition, now: float) -> PartitionQueue:
        if now >= self._forget_at:
            self._forget_at = now + _FORGOTTEN_AFTER_S
            self._forget_idle(now - _FORGOTTEN_AFTER_S)
        first = self.producer
        if first.id >= 0 and first.id == self._forgotten.id:
            first = ProducerId(first.id, max(first.epoch, self._forgotten.epoch + 1))
        queue = self._queues[partition] = PartitionQueue(partition, first)
        return queue

    def _forget_idle(self, before: float) -> None:
        """Forget the partitions without records since ``before``.

        If records are appended to such a partition later, the partition begins with an epoch above those of all
        forgotten partitions.
        """
        for partition, queue in list(self._queues.items()):
            if queue.is_empty and queue.may_be_forgotten(before):
                del self._queues[partition]
                if queue.producer.id == self.producer.id:
                    self._forgotten = max(self._forgotten, queue.producer)

    def flush(self) -> None:
        """Close all open batches, so that no records are appended to them."""
        for queue in self._active.values():
            queue.close_open()

    # ---- requests ----------------------------------------------------------------------------------------------

    def take_requests(
        self, now: float, leader_of: Callable[[TopicPartition], int], most_requests: Callable[[int], int]
    ) -> list[tuple[int, list[PendingBatch]]]:
        """Return the requests to send now, and count their batches as in flight.

        Each request is the id of a broker and its batches, at most one of each partition.

        Args:
            now: time.
            leader_of: returns the leader of a partition; -1 if it is not known.
            most_requests: returns the maximum number of requests in flight to a broker.
        """
        requests: list[tuple[int, list[PendingBatch]]] = []
        linger_s = 0.0 if self.is_flushing or self.is_full else self._settings.linger_s
        candidates = self._sendable()
        while candidates:
            by_leader: dict[int, list[PendingBatch]] = {}
            sizes: defaultdict[int, int] = defaultdict(int)
            again = []
            for queue in candidates:
                leader = leader_of(queue.partition)
                if leader < 0:
                    self.needs_leaders = True
                    continue
                if self._requests[leader] >= most_requests(leader):
                    continue
                if sizes[leader] >= self._settings.max_request_bytes:
                    again.append(queue)
                    continue
                batch = queue.take(now, linger_s, self.producer)
                if batch is not None:
                    by_leader.setdefault(leader, []).append(batch)
                    sizes[leader] += batch.size
                    if queue.waiting or queue.open_batch is not None:
                        again.append(queue)
                    # Move the partition to the end, so that all other partitions come first in the next request.
                    self._active[queue.partition] = self._active.pop(queue.partition)
            for leader, batches in by_leader.items():
                self._requests[leader] += 1
                requests.append((leader, batches))
            candidates = again if by_leader else []
        return requests

    def _sendable(self) -> Sequence[PartitionQueue]:
        """Return the partitions whose batches may be sent: all that have undelivered records."""
        return list(self._active.values())

    def end_request(self, leader: int) -> None:
        """Note that a request to a broker is no longer in flight, whether or not it was answered."""
        self._requests[leader] -= 1

    # ---- answers -----------------------------------------------------------------------------------------------

    def handle_answer(self, batch: PendingBatch, answer: BatchAnswer, now: float) -> list[Outcome]:
        """React to the answer about a batch in flight, and return the outcomes."""
        queue = self._queues[batch.partition]
        reaction = reaction_to(answer.code)
        if reaction is not ProduceReaction.STORED:
            self._last_errors[batch.partition] = f"{name_of(answer.code)}{answer.detail and f': {answer.detail}'}"
        match reaction:
            case ProduceReaction.STORED:
                queue.remove_stored(batch, now)
                self._last_errors.pop(batch.partition, None)
                return self._outcomes(queue, [DeliveredBatch(batch, answer.base_offset, answer.append_time_ms)])
            case ProduceReaction.RETRY | ProduceReaction.LOOK_UP:
                self.retries += 1
                # The leader may have stored the batch before it gave up waiting for the replicas.
                batch.is_uncertain = True
                self.needs_leaders |= reaction is ProduceReaction.LOOK_UP
                self._pause(queue, now)
                queue.send_again(batch)
            case ProduceReaction.WAIT_FOR_EARLIER if queue.has_earlier(batch):
                batch.is_uncertain = False
                queue.send_again(batch)
            case _:
                return self._not_stored(queue, batch, answer, now)
        return self._outcomes(queue, [])

    def _not_stored(self, queue: PartitionQueue, batch: PendingBatch, answer: BatchAnswer, now: float) -> list[Outcome]:
        """React to an answer after which the batch cannot be sent again unchanged."""
        match reaction_to(answer.code):
            case ProduceReaction.ISOLATE:
                error = publish_error(batch.partition.topic, answer.code, answer.detail)
                return self._isolate(queue, batch, error, answer.refused_records)
            case ProduceReaction.FAIL:
                error = publish_error(batch.partition.topic, answer.code, answer.detail)
                queue.replace(batch, [])
                return self._outcomes(queue, [FailedBatch(batch, error)])
        # The log has lost acknowledged batches, or the broker no longer knows the producer id or its epoch.
        batch.is_uncertain = False
        queue.needs_new_epoch = True
        self._pause(queue, now)
        queue.send_again(batch)
        return self._outcomes(queue, [])

    def handle_no_answer(self, batch: PendingBatch, reason: str, now: float, *, was_sent: bool) -> list[Outcome]:
        """Queue a batch again after its request was not answered; the returned list is empty.

        ``was_sent`` is False if no byte of the request was written.
        """
        queue = self._queues[batch.partition]
        self.retries += was_sent
        self._last_errors[batch.partition] = reason
        batch.is_uncertain |= was_sent
        self.needs_leaders = True
        self._pause(queue, now)
        queue.send_again(batch)
        return self._outcomes(queue, [])

    def fail_batch(self, batch: PendingBatch, error: TailraceError) -> list[Outcome]:
        """Fail a batch in flight, because another attempt would fail, too; return the outcomes."""
        queue = self._queues[batch.partition]
        queue.replace(batch, [])
        return self._outcomes(queue, [FailedBatch(batch, error)])

    def expire(self, now: float) -> list[Outcome]:
        """Fail the batches whose deadline has passed, and return the outcomes."""
        outcomes: list[Outcome] = []
        for queue in list(self._active.values()):
            if expired := queue.expire(now):
                outcomes += self._outcomes(
                    queue, [FailedBatch(batch, self._timeout_error(queue, batch)) for batch in expired]
                )
        return outcomes

    def fail_all(self, error: TailraceError) -> list[Outcome]:
        """Fail all undelivered records, and return the outcomes."""
        outcomes: list[Outcome] = []
        for queue in list(self._active.values()):
            outcomes += self._outcomes(queue, [FailedBatch(batch, error) for batch in queue.expire(float("inf"))])
        return outcomes

    def take_delays(self, before: float) -> list[tuple[TopicPartition, str]]:
        """Return partitions with a batch that has waited since ``before``, while no batch was stored.

        Each is returned once until a batch is stored, with its last error, or an empty string if there is none.
        """
        delayed = [queue for queue in self._active.values() if queue.is_delayed(before, self._settings.linger_s)]
        for queue in delayed:
            queue.is_delay_reported = True
        return [(queue.partition, self._last_errors.get(queue.partition, "")) for queue in delayed]

    def next_deadline(self, now: float) -> float | None:
        """Return the next time after ``now`` at which a batch expires or may be sent; None if there is none."""
        linger_s = 0.0 if self.is_flushing else self._settings.linger_s
        times = [time for queue in self._active.values() for time in (queue.first_deadline(), queue.due_at(linger_s))]
        return min((time for time in times if time is not None and time > now), default=None)

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def _isolate(
        self, queue: PartitionQueue, batch: PendingBatch, error: TailraceError, refused_records: Sequence[int]
    ) -> list[Outcome]:
        count = len(batch.tickets)
        named = set(refused_records) & set(range(count))
        if batch.has_failed or count == 1 or len(named) == count:
            queue.replace(batch, [])
            return self._outcomes(queue, [FailedBatch(batch, error)])
        if not named:
            # The broker named no record, so each half is sent as a batch. A half that is refused again is split again.
            queue.replace(batch, batch.split(range(count // 2), range(count // 2, count)))
            return self._outcomes(queue, [])
        refused, accepted = batch.split(sorted(named), [index for index in range(count) if index not in named])
        queue.replace(batch, [accepted])
        return self._outcomes(queue, [FailedBatch(refused, error)])

    def _pause(self, queue: PartitionQueue, now: float) -> None:
        # Batches that were in flight together fail together, so their failures count once.
        if now >= queue.retry_at:
            queue.failures += 1
            queue.retry_at = now + self._settings.backoff.pause_s(queue.failures, self._chance())

    def _outcomes(self, queue: PartitionQueue, found: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes in ``found``, except of batches that had one before; forget the queue if it is empty."""
        if queue.is_empty:
            self._active.pop(queue.partition, None)
            self._last_errors.pop(queue.partition, None)
            queue.is_delay_reported = False
        return [outcome for outcome in found if self._release_bytes(outcome.batch)]

    def _release_bytes(self, batch: PendingBatch) -> bool:
        """Subtract a batch from ``buffered_bytes``; return False if it was subtracted with an earlier outcome."""
        if not batch.size:
            return False
        self.buffered_bytes -= batch.size
        batch.size = 0
        return True

    def _timeout_error(self, queue: PartitionQueue, batch: PendingBatch) -> PublishError:
        last_error = self._last_errors.get(queue.partition)
        # A batch that is in flight has no connection yet, or its answer is missing.
        may_be_stored = batch.is_uncertain or batch.has_failed
        result = "may be stored" if may_be_stored else "was not sent, and is not stored"
        cause = f"; last error: {last_error}" if last_error else ""
        return PublishTimeoutError(
            f"{queue.partition.topic}: no acknowledgement within {round(batch.timeout_s, 1):g} s; the record {result} -"
            f" check that partition {queue.partition.partition} has a leader and enough in-sync replicas{cause}",
            may_be_stored=may_be_stored,
        )


# ---- batches of one partition that have no outcome yet ---------------------------------------------------------------

MAX_IN_FLIGHT = 5
"""Maximum number of batches of a partition in flight: a broker remembers the sequence numbers of five batches."""

_EPOCH_KNOWN_FOR_S = 60.0
"""Seconds after a stored batch for which the broker certainly knows the epoch of the batch.

This is far less than ``producer.id.expiration.ms``.
"""

_LAST_EPOCH = 2**15 - 1
_LAST_SEQUENCE = 2**31 - 1


class PartitionQueue:
    """Batches of one partition that have no outcome yet, and failed batches that are still in flight.

    Each partition has its own producer epoch, since brokers check epoch and sequence by partition. A batch that fails
    or is split leaves a gap in the sequence numbers, and brokers refuse the batches after a gap. So the partition gets
    a new epoch, and its remaining batches are numbered from zero (KIP-360). Before this, each batch that the broker may
    have stored is sent again unchanged until its result is known. Brokers refuse late requests with the old epoch.

    Attributes:
        open_batch: batch to which records are appended; None if there is none.
        waiting: closed batches that are not in flight, in order.
        in_flight: batches that were sent and not answered.
        producer: current producer id and epoch of the partition; ``ProducerId()`` without idempotence.
        needs_new_epoch: True if the remaining batches need a new epoch, for example because the sequence numbers
            have a gap.
        needs_producer_id: True if a new epoch is needed, but the epoch of the producer id cannot be raised any more.
        retry_at: time before which no batch is sent; 0 if no attempt has failed since the last success.
        failures: number of consecutive failed attempts.
        is_delay_reported: True if ``RecordAccumulator.take_delays`` has returned the partition since its last success.
    """

    def __init__(self, partition: TopicPartition, producer: ProducerId) -> None:
        self.partition, self.producer = partition, producer
        self.open_batch: PendingBatch | None = None
        self.waiting: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.needs_new_epoch = self.needs_producer_id = False
        self.retry_at = 0.0
        self.failures = 0
        self.is_delay_reported = False
        self._stored_at = 0.0
        self._sequence = 0
        self._count = 0
        self._epoch_known_until = 0.0

    def __repr__(self) -> str:
        return f"<PartitionQueue {self.partition} {len(self.waiting)} waiting, {len(self.in_flight)} in flight>"

    @property
    def is_empty(self) -> bool:
        """True if no batch is in flight, waiting or open."""
        return not (self.in_flight or self.waiting or self.open_batch)

    @property
    def is_idempotent(self) -> bool:
        """True if batches have sequence numbers, by which the broker recognizes a batch that is sent again."""
        return self.producer.id >= 0

    def batches(self) -> Iterator[PendingBatch]:
        """Yield all batches: in flight, waiting, and open."""
        return chain(self.in_flight, self.waiting, () if self.open_batch is None else (self.open_batch,))

    def next_order(self) -> tuple[int]:
        """Return the sort key for a new batch, which follows those of all earlier batches."""
        self._count += 1
        return (self._count,)

    def close_open(self) -> None:
        """Close the open batch; the next record opens another batch."""
        if self.open_batch is not None:
            self.waiting.append(self.open_batch)
            self.open_batch = None

    def may_be_forgotten(self, before: float) -> bool:
        """Return True if the last batch was stored a minute or more before ``before``, and the epoch can be raised."""
        return self._epoch_known_until < before and self.producer.epoch < _LAST_EPOCH

    # ---- sending -----------------------------------------------------------------------------------------------

    def take(self, now: float, linger_s: float, latest: ProducerId) -> PendingBatch | None:
        """Move the next batch to send to ``in_flight`` and return it; None if no batch may be sent now.

        Args:
            now: time.
            linger_s: time for which an open batch waits for more records; it also waits while a batch is in flight.
            latest: newest producer id, and the epoch with which partitions begin to use it.
        """
        in_flight, waiting = self.in_flight, self.waiting
        # A broker that does not know the epoch accepts any sequence number, so it could store a later batch first.
        # Until the broker certainly knows the epoch, and always without idempotence, only one batch is in flight.
        if now < self.retry_at or len(in_flight) >= (MAX_IN_FLIGHT if now < self._epoch_known_until else 1):
            return None
        if (
            self.needs_new_epoch
            and not (waiting and waiting[0].is_uncertain)
            and (in_flight or not self._begin_new_epoch(latest))
        ):
            return None
        if waiting:
            # A batch that is sent again waits until no batch is in flight, so that the batches stay in order.
            if in_flight and waiting[0].was_sent:
                return None
            batch = waiting.popleft()
        elif self.open_batch is not None and not in_flight and now >= self.open_batch.opened_at + linger_s:
            batch, self.open_batch = self.open_batch, None
        else:
            return None
        if self.is_idempotent and not batch.was_sent:
            batch.producer, batch.sequence = self.producer, self._sequence
            self._sequence = (self._sequence + len(batch.tickets)) & _LAST_SEQUENCE
        if batch.sent_at is None:
            batch.sent_at = now
        in_flight.append(batch)
        return batch

    def due_at(self, linger_s: float) -> float | None:
        """Return the time at which a batch may be sent; None if this does not depend on time, as before an answer."""
        if self.in_flight or self.needs_producer_id:
            return None
        if self.waiting:
            return self.retry_at
        return None if self.open_batch is None else max(self.retry_at, self.open_batch.opened_at + linger_s)

    def _begin_new_epoch(self, latest: ProducerId) -> bool:
        """Change to a new epoch, with sequence numbers from zero; return False if there is no further epoch.

        Without idempotence, there are no epochs, and the remaining batches are sent as they are.
        """
        if self.producer.id != latest.id or not self.is_idempotent:
            self.producer = latest
        elif self.producer.epoch < _LAST_EPOCH:
            self.producer = ProducerId(self.producer.id, self.producer.epoch + 1)
        else:
            self.needs_producer_id = True
            return False
        self.needs_producer_id = self.needs_new_epoch = False
        self._sequence, self._epoch_known_until = 0, 0.0
        # No waiting batch is stored: the first is not, and the broker refuses the batches after a gap.
        for batch in self.waiting:
            batch.sequence, batch.is_uncertain = -1, False
        return True

    # ---- answers -----------------------------------------------------------------------------------------------

    def remove_stored(self, batch: PendingBatch, now: float) -> None:
        """Remove a batch that the broker has stored."""
        self.in_flight.remove(batch)
        self._stored_at, self.is_delay_reported = now, False
        if self.is_idempotent:
            self._epoch_known_until = now + _EPOCH_KNOWN_FOR_S
        self.failures, self.retry_at = 0, 0.0

    def send_again(self, batch: PendingBatch) -> None:
        """Move a batch that is in flight back to the waiting batches; remove it instead if its records have failed."""
        self.in_flight.remove(batch)
        if batch.has_failed:
            self.needs_new_epoch = True
        else:
            self._insert(batch)

    def replace(self, batch: PendingBatch, parts: list[PendingBatch]) -> None:
        """Remove ``batch``, which was in flight, and queue ``parts`` in its place unless its records have failed.

        This leaves a gap in the sequence numbers, so a new epoch is needed.
        """
        self.in_flight.remove(batch)
        self.needs_new_epoch = True
        if not batch.has_failed:
            for part in parts:
                self._insert(part)

    def has_earlier(self, batch: PendingBatch) -> bool:
        """Return True if a batch before ``batch`` is in flight or waiting."""
        return any(other.order < batch.order for other in chain(self.in_flight, self.waiting))

    def expire(self, now: float) -> list[PendingBatch]:
        """Remove the batches whose deadline has passed, and return them.

        A batch in flight is not removed, but marked as failed, and returned once.
        """
        expired = [batch for batch in self.in_flight if batch.deadline <= now and not batch.has_failed]
        for batch in expired:
            batch.has_failed = True
        while self.waiting and self.waiting[0].deadline <= now:
            batch = self.waiting.popleft()
            self.needs_new_epoch |= batch.was_sent
            expired.append(batch)
        if self.open_batch is not None and self.open_batch.deadline <= now:
            expired.append(self.open_batch)
            self.open_batch = None
        return expired

    def first_deadline(self) -> float | None:
        """Return the earliest deadline of the batches that have not failed; None if there is no such batch."""
        return min((batch.deadline for batch in self.batches() if not batch.has_failed), default=None)

    def is_delayed(self, before: float, linger_s: float) -> bool:
        """Return True if a batch was sent or due at ``before``, none was stored since, and this was not reported."""
        if self.is_delay_reported or self._stored_at > before:
            return False
        return any(
            (batch.opened_at + linger_s if batch.sent_at is None else batch.sent_at) <= before
            for batch in self.batches()
            if not batch.has_failed
        )

    def _insert(self, batch: PendingBatch) -> None:
        index = 0
        while index < len(self.waiting) and self.waiting[index].order < batch.order:
            index += 1
        self.waiting.insert(index, batch)


# ---- undelivered records of a transaction. Pure: no clock, IO or logging ---------------------------------------------


class TransactionAccumulator(RecordAccumulator):
    """Undelivered records of the current transaction of one producer.

    A batch is sent only after its partition has become part of the transaction. If a batch cannot be stored, the
    transaction fails: no more batches are sent, and the caller has to discard the records with ``fail_all``. (The base
    class instead fails only the records of the batch, or sends the batch again in a new epoch.)

    Args:
        settings: limits.
        new_content: returns an empty batch.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        failure: event because of which the transaction cannot be committed; None while it can.
    """

    def __init__(
        self, settings: ProducerSettings, new_content: Callable[[], BatchContent], chance: Callable[[], float]
    ) -> None:
        super().__init__(settings, new_content, chance)
        self._added: set[TopicPartition] = set()
        self._had_unanswered_requests = False
        self.failure: TransactionEvent | None = None

    @property
    def new_partitions(self) -> tuple[TopicPartition, ...]:
        """Partitions with undelivered records that are not yet part of the transaction."""
        return tuple(sorted(self._active.keys() - self._added))

    @property
    def needs_new_epoch(self) -> bool:
        """True if the sequence numbers of a partition have a gap, or a batch may still arrive at a broker."""
        return self._had_unanswered_requests or any(queue.needs_new_epoch for queue in self._queues.values())

    # ---- transactions ------------------------------------------------------------------------------------------

    def adopt(self, producer: ProducerId) -> None:
        """Use another producer id or epoch, with sequence numbers from zero; all records must have an outcome."""
        self.producer, self._had_unanswered_requests = producer, False
        self._queues.clear()

    def begin(self) -> None:
        """Begin a transaction, which has no partitions yet."""
        self._added.clear()
        self.failure, self.is_flushing = None, False

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Let batches of ``partitions`` be sent, because the partitions have become part of the transaction."""
        self._added.update(partitions)

    def finish(self) -> None:
        """Let all batches be sent without waiting for more records."""
        self.flush()
        self.is_flushing = True

    # ---- failures ----------------------------------------------------------------------------------------------

    def handle_no_answer(self, batch: PendingBatch, reason: str, now: float, *, was_sent: bool) -> list[Outcome]:
        """Queue a batch again after its request was not answered; ``needs_new_epoch`` is True if ``was_sent``."""
        self._had_unanswered_requests |= was_sent
        return super().handle_no_answer(batch, reason, now, was_sent=was_sent)

    def fail_batch(self, batch: PendingBatch, error: TailraceError) -> list[Outcome]:
        """Set a ``failure`` that stops the producer: neither another attempt nor a later transaction would succeed."""
        return self._fail_with_batch(batch, TransactionFailed(error))

    def expire(self, now: float) -> list[Outcome]:
        """Set ``failure`` if the deadline of a batch has passed; the returned list is empty."""
        for queue in self._active.values():
            deadline = queue.first_deadline()
            if deadline is not None and deadline <= now:
                last_error = self._last_errors.get(queue.partition, "no answer")
                self._fail(MustAbort(timeout_error(f"{queue.partition}: {last_error}")))
        return []

    def _not_stored(
        self, _queue: PartitionQueue, batch: PendingBatch, answer: BatchAnswer, _now: float
    ) -> list[Outcome]:
        detail = f"{batch.partition} ({answer.detail})" if answer.detail else str(batch.partition)
        event = event_of(answer.code, TransactionRequestKind.PRODUCE, detail)
        assert event is not None
        return self._fail_with_batch(batch, event)

    def _fail_with_batch(self, batch: PendingBatch, event: TransactionEvent) -> list[Outcome]:
        """Set ``failure``; the batch waits for ``fail_all``, as no more batches are sent."""
        queue = self._queues[batch.partition]
        queue.needs_new_epoch = True
        queue.send_again(batch)
        self._fail(event)
        return self._outcomes(queue, [])

    def _fail(self, event: TransactionEvent) -> None:
        self.failure = event if self.failure is None else worst_of((self.failure, event))

    def _forget_idle(self, before: float) -> None:
        """Do nothing: all partitions of a transactional producer share one epoch, and ``adopt`` forgets them."""

    def _sendable(self) -> Sequence[PartitionQueue]:
        if self.failure is not None:
            return ()
        return [queue for partition, queue in self._active.items() if partition in self._added]
