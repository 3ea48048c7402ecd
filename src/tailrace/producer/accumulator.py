"""Undelivered records of a producer: batches by partition, the requests to send next, and reactions to answers.

Pure: no clock, IO or logging.

Each record has exactly one outcome: the broker has stored it, or it has failed. Within a partition, records are stored
in the order in which they were appended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from tailrace.core.backoff import Backoff
from tailrace.core.error_reactions import ReactionTable
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import PublishError, PublishTooLargeError, TailraceError, broker_error
from tailrace.producer.partition_queue import PartitionQueue
from tailrace.producer.pending_batch import BatchContent, DeliveredBatch, FailedBatch, Outcome, PendingBatch
from tailrace.producer.vocabulary import ProducerId
from tailrace.records import TopicPartition

__all__ = [
    "Appended",
    "ErrorAnswer",
    "ProduceReaction",
    "ProducerSettings",
    "RecordAccumulator",
    "publish_error",
    "reaction_to",
]

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


class ErrorAnswer(NamedTuple):
    """Answer of a broker that has not stored a batch."""

    code: int
    detail: str
    refused_records: Sequence[int]
    """Indices of the records that the broker named; empty if the broker named none."""


class RecordAccumulator:
    """Undelivered records of all partitions.

    Args:
        settings: limits.
        new_content: returns an empty batch.
        chance: returns a number in [0, 1) for jitter.

    Attributes:
        producer: newest producer id.
        buffered_bytes: size of the undelivered records.
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

    def append(  # noqa: PLR0913, PLR0917 - the fields of a record
        self,
        partition: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
        ticket: object,
        now: float,
        deadline: float,
    ) -> Appended:
        """Append a record to the open batch of its partition, or to a new batch.

        Args:
            partition: partition of the record.
            key: key; None for a record without a key.
            value: value; None for a tombstone.
            headers: headers.
            timestamp_ms: timestamp; None for the current time.
            ticket: object that identifies the record in the outcome.
            now: time.
            deadline: time at which the record fails; used if the record opens a batch.

        Raises:
            MalformedMessageError: the record cannot be encoded; nothing has changed.
        """
        queue = self._active.get(partition)
        batch = None if queue is None else queue.open_batch
        if batch is not None and (size := batch.content.append(key, value, headers, timestamp_ms)):
            batch.tickets.append(ticket)
            batch.size += size
            self.buffered_bytes += size
            return _JOINED
        content = self._new_content()
        size = content.append(key, value, headers, timestamp_ms)
        if queue is None:
            queue = self._active[partition] = self._queues.get(partition) or self._new_queue(partition, now)
        queue.close_open()
        queue.open_batch = fresh = PendingBatch(partition, content, [ticket], queue.next_order(), now, deadline)
        fresh.size = size
        self.buffered_bytes += size
        return Appended.OPENED if batch is None else Appended.FILLED

    def _new_queue(self, partition: TopicPartition, now: float) -> PartitionQueue:
        if now >= self._forget_at:
            self._forget_at = now + _FORGOTTEN_AFTER_S
            self._forget_idle(now - _FORGOTTEN_AFTER_S)
        first = self.producer
        if first.id == self._forgotten.id:
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

    def handle_answer(  # noqa: PLR0913, PLR0917 - the fields of an answer
        self,
        batch: PendingBatch,
        code: int,
        base_offset: int,
        now: float,
        detail: str = "",
        refused_records: Sequence[int] = (),
    ) -> list[Outcome]:
        """React to the answer about a batch, and return the outcomes.

        Args:
            batch: batch in flight.
            code: error code.
            base_offset: offset of the first record; -1 if unknown.
            now: time.
            detail: error message of the broker; empty if there is none.
            refused_records: indices of the records that the broker named as the cause; empty if it named none.
        """
        queue = self._queues[batch.partition]
        reaction = reaction_to(code)
        if reaction is not ProduceReaction.STORED:
            self._last_errors[batch.partition] = f"{name_of(code)}{detail and f': {detail}'}"
        match reaction:
            case ProduceReaction.STORED:
                queue.remove_stored(batch, now)
                self._last_errors.pop(batch.partition, None)
                return self._outcomes(queue, [DeliveredBatch(batch, base_offset)])
            case ProduceReaction.RETRY | ProduceReaction.LOOK_UP:
                # The leader may have stored the batch before it gave up waiting for the replicas.
                batch.is_uncertain = True
                self.needs_leaders |= reaction is ProduceReaction.LOOK_UP
                self._pause(queue, now)
                queue.send_again(batch)
            case ProduceReaction.WAIT_FOR_EARLIER if queue.has_earlier(batch):
                batch.is_uncertain = False
                queue.send_again(batch)
            case _:
                return self._not_stored(queue, batch, ErrorAnswer(code, detail, refused_records), now)
        return self._outcomes(queue, [])

    def _not_stored(self, queue: PartitionQueue, batch: PendingBatch, answer: ErrorAnswer, now: float) -> list[Outcome]:
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
                error = self._timeout_error(queue)
                outcomes += self._outcomes(queue, [FailedBatch(batch, error) for batch in expired])
        return outcomes

    def fail_all(self, error: TailraceError) -> list[Outcome]:
        """Fail all undelivered records, and return the outcomes."""
        outcomes: list[Outcome] = []
        for queue in list(self._active.values()):
            outcomes += self._outcomes(queue, [FailedBatch(batch, error) for batch in queue.expire(float("inf"))])
        return outcomes

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
        return [outcome for outcome in found if self._release_bytes(outcome.batch)]

    def _release_bytes(self, batch: PendingBatch) -> bool:
        """Subtract a batch from ``buffered_bytes``; return False if it was subtracted with an earlier outcome."""
        if not batch.size:
            return False
        self.buffered_bytes -= batch.size
        batch.size = 0
        return True

    def _timeout_error(self, queue: PartitionQueue) -> PublishError:
        last_error = self._last_errors.get(queue.partition)
        cause = f"; last error: {last_error}" if last_error else ""
        return PublishError(
            f"{queue.partition.topic}: no acknowledgement within {self._settings.delivery_timeout_s:.0f} s - check that"
            f" the partition has a leader and enough in-sync replicas{cause}"
        )
