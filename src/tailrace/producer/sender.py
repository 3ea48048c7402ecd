"""Sender of a producer's records: sends batches to the leaders of their partitions, and completes futures of records.

A record has a ``ticket``: a future of its partition and offset, or None if the caller does not wait for them.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain, count, repeat
from typing import NamedTuple, NoReturn, cast

from tailrace.batches.batch_writer import BatchWriter
from tailrace.core.metrics import DurationMeter
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    AuthenticationError,
    BufferFullError,
    ConfigurationError,
    MalformedMessageError,
    PublishError,
    TailraceError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.broker import Channel, ChannelKey
from tailrace.net.cluster import Cluster, MetadataRefresher
from tailrace.net.connection import Connection
from tailrace.observe.events import PublishDelayed
from tailrace.observe.hooks import Observer
from tailrace.observe.statistics import ProducerStatistics
from tailrace.producer.accumulator import (
    MAX_IN_FLIGHT,
    Appended,
    BatchAnswer,
    DeliveredBatch,
    Outcome,
    PendingBatch,
    ProducerSettings,
    RecordAccumulator,
)
from tailrace.producer.publisher import OutgoingRecord, Published
from tailrace.producer.transaction_machine import ProducerId
from tailrace.protocol.records import ProducedPartition, ProduceRequest, ProduceResponse, RecordsToProduce
from tailrace.protocol.transactions import InitProducerIdRequest
from tailrace.records import TopicPartition

__all__ = ["RecordSender"]

_NO_TRANSACTION_MS = -1
_PERMANENT_ERRORS = (AuthenticationError, UnsupportedVersionError, ConfigurationError)
_DELAYED_S = 3.0
"""Seconds without a stored batch after which PublishDelayed reports a topic: more than a usual change of leaders."""
_DELAY_CHECK_S = 1.0
_RECORDS = ChannelKey(Channel.MAIN, "records")
"""Connections for Produce requests only, so that other requests do not wait for their responses."""


class _WaitingRecord(NamedTuple):
    """Record that waits while ``buffer_memory`` is undelivered; it is then appended to a batch."""

    partition: TopicPartition
    record: OutgoingRecord
    ticket: asyncio.Future[Published] | None
    deadline: float
    """Time by the event loop's clock at which the record fails."""
    until: float
    """Time at which the record no longer waits for memory."""
    appended: asyncio.Future[None]
    """Future that completes when the record is appended to a batch."""


class _SentRequest:
    """Request that was sent and not answered yet.

    Attributes:
        leader: node id of the broker.
        batches: batches in the request.
        at: time at which it was sent.
    """

    __slots__ = ("at", "batches", "leader")

    def __init__(self, leader: int, batches: list[PendingBatch], at: float) -> None:
        self.leader, self.batches, self.at = leader, batches, at


class RecordSender:
    """Sender of the records of one producer.

    Args:
        cluster: connections to the brokers.
        accumulator: undelivered records, in batches.
        settings: limits of the producer.
        transactional_id: id of a transactional producer; None for an idempotent producer.

    Attributes:
        observer: receives events; by default that of the cluster.
        transaction_version: version of the open transaction, from which the version of Produce follows (KIP-890).
        on_batch: called with the topic of a batch when the batch is sent or full.
        on_progress: called each time the sender has checked for batches to send, for example after a response.
        is_batch_due: True if a batch was filled since the last ``yield_to_batch``.
        first_error: error of the first failed record without a ticket; None if there is none.
        abandoned: number of records that were not acknowledged when the sender ended.
        end_cause: error that later calls of ``append`` raise after the sender has ended; None before.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: RecordAccumulator,
        settings: ProducerSettings,
        transactional_id: str | None = None,
    ) -> None:
        self._cluster, self._settings, self._accumulator = cluster, settings, accumulator
        self._transactional_id, self._max_buffered_bytes = transactional_id, settings.max_buffered_bytes
        self._loop = asyncio.get_running_loop()
        self._new_future = _future_factory(self._loop)
        self._refresher = MetadataRefresher(cluster, self.wake)
        self._request_timeout_s = min(cluster.config.request_timeout_ms / 1000, settings.delivery_timeout_s)
        self._request_timeout_ms = round(self._request_timeout_s * 1000)
        self._permanent_error_pause_s = 1.2 * cluster.config.reconnect_backoff_max_ms / 1000
        self._connections: dict[int, Connection] = {}
        self._waiting: deque[_WaitingRecord] = deque()
        self._flushes: list[tuple[float, asyncio.Future[None]]] = []
        self._context = contextvars.copy_context()
        self._is_woken = True
        """True if ``_check`` is about to be called, or ``run`` has not begun."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._failure: asyncio.Future[NoReturn] = self._loop.create_future()
        """Future that gets the error of a defect, and is canceled with the task that awaits it in ``run``."""
        self._tasks = asyncio.TaskGroup()
        self._sent: set[_SentRequest] = set()
        self._none_sent: asyncio.Future[None] | None = None
        """Future for ``discard`` that completes when ``_sent`` is empty."""
        self._writes: dict[asyncio.Task[None], int] = {}
        """Tasks of requests that wait for a connection, or to which no answer is expected."""
        self._is_renewing = False
        """True while another producer id is requested."""
        self.observer: Observer = cluster.observer
        self.transaction_version = 1
        self.on_batch: Callable[[str], None] = lambda _topic: None
        self.on_progress: Callable[[], None] = lambda: None
        self.is_batch_due = False
        self.first_error: TailraceError | None = None
        self.end_cause: TailraceError | None = None
        self.abandoned = self._published_records = self._published_bytes = self._failed_records = 0
        self._published_batches = self._uncompressed_bytes = 0
        self._requests, self._queue_times = DurationMeter(), DurationMeter()
        self._throttled_s = 0.0

    def __repr__(self) -> str:
        return f"<RecordSender {self._accumulator!r}>"

    # ---- life --------------------------------------------------------------------------------------------------

    async def initialize(self, timeout_s: float) -> None:
        """Request a producer id (KIP-98).

        Raises:
            BrokerError: the brokers give no producer id.
            BrokerConnectionError: no broker answered in time.
        """
        self._accumulator.producer = await self._cluster.retrying(
            self._new_producer_id, timeout_s=timeout_s, what="requesting a producer id"
        )

    @property
    def is_empty(self) -> bool:
        """True if no record is undelivered."""
        return self._accumulator.is_empty and not self._waiting

    async def run(self, *background: Callable[[], Coroutine[object, object, None]]) -> None:
        """Send records, and run the functions ``background``, until canceled; undelivered records then fail."""
        try:
            async with self._tasks:
                for function in (self._keep_metadata, self._report_delays, *background):
                    self._tasks.create_task(function())
                self._is_woken = False
                self.wake()
                await self._failure
        except Exception as error:
            self._end(PublishError(f"the producer has failed: {error!r} - start another"))
            raise
        finally:
            self._end(PublishError("the producer was closed"))

    async def flush(self) -> None:
        """Wait until every record that was appended before this call is acknowledged or has failed."""
        self._accumulator.flush()
        flushed: asyncio.Future[None] = self._loop.create_future()
        self._flushes.append((self._loop.time(), flushed))
        self._accumulator.is_flushing = True
        self._complete_flushes()
        self.wake()
        await flushed

    async def discard(self, error: TailraceError, timeout_s: float = 0) -> None:
        """Fail all records, wait up to ``timeout_s`` seconds for the requests in flight, and cancel the rest."""
        self._fail_waiting(error)
        self._report(self._accumulator.fail_all(error))
        if timeout_s and (self._writes or self._sent):
            self._none_sent = self._loop.create_future()
            self._note_none_sent()
            await asyncio.wait((*self._writes, self._none_sent), timeout=timeout_s)
        self._abandon_sent()
        for write in self._writes:
            write.cancel()
        if self._writes:
            await asyncio.wait(self._writes)

    def _abandon_sent(self) -> None:
        """Ignore the answers to the requests in flight."""
        while self._sent:
            sent = self._sent.pop()
            self._handle_no_answer(sent.batches, "the request was canceled", was_sent=True)
            self._accumulator.end_request(sent.leader)
        self._note_none_sent()

    def _note_none_sent(self) -> None:
        if not self._sent and self._none_sent is not None and not self._none_sent.done():
            self._none_sent.set_result(None)

    # ---- records -----------------------------------------------------------------------------------------------

    async def append(
        self,
        topic_partition: TopicPartition,
        record: OutgoingRecord,
        ticket: asyncio.Future[Published] | None,
        deadline: float,
        until: float,
    ) -> None:
        """Wait until less than ``buffer_memory`` is undelivered, and append a record to a batch of its partition.

        The record fails at ``deadline``, and waits for memory until ``until``, both times by the event loop's clock.

        Raises:
            BufferFullError: ``buffer_memory`` was undelivered until ``until``.
            PublishError: the record cannot be encoded, or the sender has ended.
        """
        if self.is_full:
            await self._wait_for_memory(
                _WaitingRecord(topic_partition, record, ticket, deadline, until, self._loop.create_future())
            )
            return
        self._append(topic_partition, record, ticket, deadline)
        if self.is_batch_due:
            await self.yield_to_batch()

    def append_now(
        self, topic_partition: TopicPartition, record: OutgoingRecord, timeout_s: float
    ) -> asyncio.Future[Published] | None:
        """Append a record as ``append`` does, and return its future; return None if it has to wait for memory.

        The record fails after ``timeout_s`` seconds. The caller awaits ``yield_to_batch()`` if ``is_batch_due``.

        Raises:
            PublishError: the record cannot be encoded, or the sender has ended.
        """
        accumulator = self._accumulator
        if accumulator.buffered_bytes >= self._max_buffered_bytes or self._waiting:
            return None
        future = self._new_future()
        try:
            if accumulator.join(topic_partition, record, future, timeout_s):
                return future
        except MalformedMessageError as error:
            raise PublishError(f"{record.topic}: {error}") from error
        self._append(topic_partition, record, future, self._loop.time() + timeout_s)
        return future

    async def yield_to_batch(self) -> None:
        """Let a full batch be sent while the caller fills the next batch."""
        self.is_batch_due = False
        await asyncio.sleep(0)

    @property
    def is_full(self) -> bool:
        """True if a record has to wait for memory."""
        return self._accumulator.is_full or bool(self._waiting)

    def _append(
        self,
        topic_partition: TopicPartition,
        record: OutgoingRecord,
        ticket: asyncio.Future[Published] | None,
        deadline: float,
    ) -> None:
        if self.end_cause is not None:
            raise copy.copy(self.end_cause)
        try:
            batch_change = self._accumulator.append(topic_partition, record, ticket, self._loop.time(), deadline)
        except MalformedMessageError as error:
            raise PublishError(f"{record.topic}: {error}") from error
        if batch_change is Appended.JOINED:
            return
        self.wake()
        if batch_change is Appended.FILLED:
            self.on_batch(record.topic)
            self.is_batch_due = True

    async def _wait_for_memory(self, waiting: _WaitingRecord) -> None:
        if self.end_cause is not None:
            raise copy.copy(self.end_cause)
        since = self._loop.time()
        if waiting.until <= since:
            raise self._full(waiting.record.topic, 0.0)
        self._waiting.append(waiting)
        self.wake()
        try:
            async with asyncio.timeout_at(min(waiting.until, waiting.deadline)):
                await waiting.appended
        except TimeoutError:
            if not waiting.appended.cancelled():
                # The record was appended or refused just before the timeout.
                waiting.appended.result()
                return
            raise self._full(waiting.record.topic, self._loop.time() - since) from None

    def _full(self, topic: str, waited_s: float) -> BufferFullError:
        return BufferFullError(
            f"{topic}: the record was not sent, because the undelivered records took up all of buffer_memory for"
            f" {waited_s:.1f} s - check that the partitions have leaders and enough in-sync replicas, or raise"
            " buffer_memory or max_block_ms"
        )

    def _append_waiting(self) -> None:
        """Append waiting records until ``buffer_memory`` is undelivered."""
        while self._waiting and not self._accumulator.is_full:
            partition, record, ticket, deadline, _, appended = self._waiting.popleft()
            if appended.done():
                continue
            try:
                batch_change = self._accumulator.append(partition, record, ticket, self._loop.time(), deadline)
            except MalformedMessageError as error:
                appended.set_exception(PublishError(f"{record.topic}: {error}"))
                continue
            if batch_change is Appended.FILLED:
                self.on_batch(record.topic)
            appended.set_result(None)

    # ---- sending -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the sender check again, in the next turn of the event loop, which batches may be sent."""
        if not self._is_woken:
            self._is_woken = True
            # In the sender's context: the spans and variables of the caller do not concern later records.
            self._loop.call_soon(self._check, context=self._context)

    def _check(self) -> None:
        self._is_woken = False
        if self._failure.done():
            return
        try:
            self._send_due_batches()
        except Exception as error:  # noqa: BLE001 - run() raises it
            self._failure.set_exception(error)

    def _send_due_batches(self) -> None:
        accumulator, now = self._accumulator, self._loop.time()
        self._report(accumulator.expire(now))
        for leader, batches in accumulator.take_requests(now, self._leader_of, self._max_requests):
            for batch in batches:
                self.on_batch(batch.partition.topic)
                if batch.sent_at == now:
                    self._queue_times.note(now - batch.opened_at)
            if not self._post(leader, batches):
                write = self._tasks.create_task(self._write(leader, batches))
                self._writes[write] = leader
                write.add_done_callback(self._writes.pop)
        if accumulator.needs_leaders:
            accumulator.needs_leaders = False
            self._refresher.ask()
        if accumulator.needs_producer_id and not self._is_renewing:
            self._is_renewing = True
            self._tasks.create_task(self._renew_producer_id())
        self.on_progress()
        due_at = accumulator.next_deadline(now)
        # An earlier timer remains: it costs less to check once too often than to replace the timer for each batch.
        if due_at is not None and (self._timer is None or due_at < self._timer_at):
            self._cancel_timer()
            self._timer, self._timer_at = self._loop.call_at(due_at, self._on_timer), due_at

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leader_of(self, partition: TopicPartition) -> int:
        """Return the node id of the leader; -1 if it is unknown."""
        leadership = self._cluster.topology.leader(partition)
        return -1 if leadership is None else leadership.leader_id

    def _max_requests(self, leader: int) -> int:
        """Return the maximum number of requests in flight to ``leader``."""
        # The first request waits for the connection, or until the broker no longer throttles. Another could overtake
        # it; the other batches wait, and can take more records.
        connection = self._connections.get(leader)
        if connection is None or not connection.may_send or (self._settings.acks and leader in self._writes.values()):
            return 1
        return MAX_IN_FLIGHT

    # ---- requests ----------------------------------------------------------------------------------------------

    def _post(self, leader: int, batches: list[PendingBatch]) -> bool:
        """Send a request over an open connection; return False if only ``_write`` can, which may wait or fail."""
        if not self._settings.acks:
            return False
        try:
            connection = self._cluster.broker(leader).open_connection(_RECORDS)
            if connection is None:
                return False
            self._connections[leader] = connection
            sent = _SentRequest(leader, batches, self._loop.time())
            if not connection.post(self._request(batches), self._request_timeout_s, partial(self._on_answer, sent)):
                return False
        except TailraceError:
            return False
        self._sent.add(sent)
        return True

    def _request(self, batches: list[PendingBatch]) -> ProduceRequest:
        return ProduceRequest(
            self._transactional_id,
            self._settings.acks,
            self._request_timeout_ms,
            tuple([RecordsToProduce(*batch.partition, _content(batch)) for batch in batches]),
            self.transaction_version,
        )

    def _on_answer(self, sent: _SentRequest, answer: ProduceResponse | TailraceError) -> None:
        if sent not in self._sent or self._failure.done():
            return
        self._sent.discard(sent)
        try:
            if isinstance(answer, _PERMANENT_ERRORS):
                self._tasks.create_task(self._refuse(sent.leader, sent.batches, answer))
            else:
                if isinstance(answer, TailraceError):
                    outcomes = self._handle_no_answer(sent.batches, str(answer), was_sent=True)
                else:
                    self._note_answer(sent.at, answer)
                    outcomes = self._handle_answers(sent.batches, answer.partitions)
                self._report(outcomes)
                self._end_request(sent.leader)
        except Exception as error:  # noqa: BLE001 - run() raises it
            if not self._failure.done():
                self._failure.set_exception(error)
        self._note_none_sent()

    def _note_answer(self, since: float, answer: ProduceResponse) -> None:
        self._requests.note(self._loop.time() - since)
        self._throttled_s += answer.throttle_time_ms / 1000

    def _end_request(self, leader: int) -> None:
        self._accumulator.end_request(leader)
        if self._accumulator.is_empty and not self._accumulator.needs_leaders:
            self.on_progress()
        else:
            self.wake()

    async def _write(self, leader: int, batches: list[PendingBatch]) -> None:
        try:
            self._report(await self._exchange(leader, batches))
        except _PERMANENT_ERRORS as error:
            await self._refuse(leader, batches, error)
            return
        except BaseException:
            self._accumulator.end_request(leader)
            raise
        self._end_request(leader)

    async def _refuse(self, leader: int, batches: list[PendingBatch], error: TailraceError) -> None:
        """Fail batches because of an error that another attempt would meet, too."""
        try:
            failure = PublishError(f"{batches[0].partition.topic}: {error}")
            self._report([one for batch in batches for one in self._accumulator.fail_batch(batch, failure)])
            self.wake()
            # Until the backoff of the connection is over, every request would fail with the same error.
            await asyncio.sleep(self._permanent_error_pause_s)
        finally:
            self._accumulator.end_request(leader)
        self.wake()

    async def _exchange(self, leader: int, batches: list[PendingBatch]) -> list[Outcome]:
        was_sent = False
        try:
            connection = await self._cluster.broker(leader).connection_for(_RECORDS)
            self._connections[leader] = connection
            request = self._request(batches)
            was_sent = True
            if not self._settings.acks:
                await connection.send_only(request, self._request_timeout_s)
                return self._stored_unseen(batches)
            since = self._loop.time()
            answer = await connection.send(request, self._request_timeout_s)
            self._note_answer(since, answer)
        except _PERMANENT_ERRORS:
            raise
        except asyncio.CancelledError:
            self._handle_no_answer(batches, "the request was canceled", was_sent=was_sent)
            raise
        except TailraceError as error:
            return self._handle_no_answer(batches, str(error), was_sent=was_sent)
        return self._handle_answers(batches, answer.partitions)

    def _handle_no_answer(self, batches: Iterable[PendingBatch], reason: str, *, was_sent: bool) -> list[Outcome]:
        now = self._loop.time()
        outcomes = (self._accumulator.handle_no_answer(batch, reason, now, was_sent=was_sent) for batch in batches)
        return list(chain.from_iterable(outcomes))

    def _stored_unseen(self, batches: Iterable[PendingBatch]) -> list[Outcome]:
        """Return the outcomes of batches that were sent without acknowledgments."""
        now = self._loop.time()
        outcomes = (self._accumulator.handle_answer(batch, BatchAnswer(ErrorCode.NONE), now) for batch in batches)
        return list(chain.from_iterable(outcomes))

    def _handle_answers(self, batches: list[PendingBatch], answers: Sequence[ProducedPartition]) -> list[Outcome]:
        by_partition = {(answer.topic, answer.partition): answer for answer in answers}
        now, outcomes = self._loop.time(), []
        for batch in batches:
            answer = by_partition.get(batch.partition)
            if answer is None:
                outcomes += self._handle_no_answer([batch], "the response lacks the partition", was_sent=True)
                continue
            leader = answer.current_leader
            if leader.leader_id >= 0:
                self._cluster.learn_leader(batch.partition, leader.leader_id, leader.leader_epoch)
            errors = answer.record_errors
            detail = next((one.message for one in errors if one.message), answer.error_message) or ""
            refused = [one.batch_index for one in errors]
            result = BatchAnswer(answer.error_code, answer.base_offset, detail, refused, answer.log_append_time_ms)
            outcomes += self._accumulator.handle_answer(batch, result, now)
        return outcomes

    # ---- outcomes ----------------------------------------------------------------------------------------------

    def _report(self, outcomes: Sequence[Outcome]) -> None:
        """Complete the tickets of the batches, append waiting records, and complete calls of ``flush``."""
        for outcome in outcomes:
            tickets = cast("list[asyncio.Future[Published] | None]", outcome.batch.tickets)
            if isinstance(outcome, DeliveredBatch):
                content = cast("BatchWriter", outcome.batch.content)
                self._published_records += len(tickets)
                self._published_bytes += content.encoded_size
                self._uncompressed_bytes += content.size
                self._published_batches += 1
                _complete(tickets, outcome)
                continue
            self._failed_records += len(tickets)
            # asyncio logs each exception that is not retrieved: of a batch, this is one; of a transaction, none,
            # because commit() raises the error, too.
            is_reported = self._transactional_id is not None
            for ticket in tickets:
                if ticket is None:
                    self.first_error = self.first_error or outcome.error
                elif not ticket.done():
                    ticket.set_exception(copy.copy(outcome.error))
                    if is_reported:
                        ticket.exception()
                    is_reported = True
        if outcomes:
            self._append_waiting()
            self._complete_flushes()

    def statistics(self) -> ProducerStatistics:
        """Return the counters since the start, and the state of the buffer."""
        return ProducerStatistics(
            client_id=self._cluster.config.client_id,
            buffered_records=sum(len(batch.tickets) for batch in self._accumulator.batches()),
            buffered_bytes=self._accumulator.buffered_bytes,
            waiting_records=len(self._waiting),
            requests_in_flight=len(self._writes) + len(self._sent),
            buffer_memory=self._settings.max_buffered_bytes,
            published_records=self._published_records,
            published_bytes=self._published_bytes,
            uncompressed_bytes=self._uncompressed_bytes,
            published_batches=self._published_batches,
            failed_records=self._failed_records,
            retried_batches=self._accumulator.retries,
            requests=self._requests.durations,
            queue_times=self._queue_times.durations,
            throttled_s=self._throttled_s,
        )

    def _complete_flushes(self) -> None:
        if not self._flushes:
            return
        oldest = min((batch.opened_at for batch in self._accumulator.batches()), default=float("inf"))
        for since, flushed in self._flushes:
            if oldest > since and not flushed.done():
                flushed.set_result(None)
        self._flushes = [one for one in self._flushes if not one[1].done()]
        self._accumulator.is_flushing = bool(self._flushes)

    def _end(self, cause: TailraceError) -> None:
        if self.end_cause is not None:
            return
        self.end_cause = cause
        self._cancel_timer()
        self._abandon_sent()
        self.abandoned = sum(len(batch.tickets) for batch in self._accumulator.batches()) + len(self._waiting)
        for _, flushed in self._flushes:
            if not flushed.done():
                flushed.set_exception(copy.copy(cause))
        # Before memory becomes free, for which they wait.
        self._fail_waiting(PublishError(f"{cause}; the record was not sent"))
        unacknowledged = PublishError(f"{cause}; the record was not acknowledged, and may be stored")
        self._report(self._accumulator.fail_all(unacknowledged))
        self.on_progress()

    def _fail_waiting(self, error: TailraceError) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.appended.done():
                waiting.appended.set_exception(copy.copy(error))

    # ---- metadata and producer id ------------------------------------------------------------------------------

    async def _keep_metadata(self) -> NoReturn:
        while True:
            try:
                await self._refresher.run_refreshes()
            except AuthenticationError:
                # Records fail with this error when they are sent. Try again, because the credentials may become valid.
                await asyncio.sleep(self._settings.backoff.longest_s)

    async def _report_delays(self) -> None:
        """Report the topics whose records wait, once until one of them is stored; end with a shared cluster."""
        while True:
            await asyncio.sleep(_DELAY_CHECK_S)
            if self._cluster.is_closed:
                self._end(
                    PublishError("the shared cluster was stopped before this producer - stop its producers first")
                )
                return
            by_topic: defaultdict[str, list[str]] = defaultdict(list)
            for partition, error in self._accumulator.take_delays(self._loop.time() - _DELAYED_S):
                cause = error or ("it has no leader" if self._leader_of(partition) < 0 else "no answer yet")
                by_topic[partition.topic].append(f"partition {partition.partition}: {cause}")
            for topic, found in by_topic.items():
                how_many = f"; {len(found)} partitions wait" if len(found) > 1 else ""
                self.observer.emit(PublishDelayed(topic, f"{found[0]}{how_many}"))

    async def _renew_producer_id(self) -> None:
        try:
            await self.initialize(self._settings.delivery_timeout_s)
        except TailraceError:
            # Records that wait for a producer id fail at their deadline. A later record causes another request.
            await asyncio.sleep(self._settings.backoff.longest_s)
        finally:
            self._is_renewing = False
        self.wake()

    async def _new_producer_id(self) -> ProducerId:
        answer = await self._cluster.send_to_any(InitProducerIdRequest(None, _NO_TRANSACTION_MS))
        if answer.error_code:
            raise broker_error(answer.error_code, "InitProducerId was refused")
        return ProducerId(answer.producer_id, answer.producer_epoch)


def _content(batch: PendingBatch) -> memoryview:
    return cast("BatchWriter", batch.content).encode(*batch.producer, batch.sequence)


def _future_factory(loop: asyncio.AbstractEventLoop) -> Callable[[], asyncio.Future[Published]]:
    """Return a function like ``loop.create_future``, without asyncio's Python function in between."""
    if type(loop).create_future is asyncio.BaseEventLoop.create_future:
        return partial(asyncio.Future, loop=loop)
    return loop.create_future


_new_published = partial(tuple.__new__, Published)


def _complete(tickets: Sequence[asyncio.Future[Published] | None], stored: DeliveredBatch) -> None:
    """Complete the tickets of a stored batch; a negative base offset, for unknown, is the offset of each record."""
    (topic, partition), offset, append_time_ms = stored.batch.partition, stored.base_offset, stored.append_time_ms
    content = cast("BatchWriter", stored.batch.content)
    assert len(tickets) == content.count
    timestamps: Iterable[int] = content.timestamps
    if append_time_ms >= 0:
        timestamps = repeat(append_time_ms)
    places = zip(repeat(topic), repeat(partition), count(offset, 0 if offset < 0 else 1), timestamps)
    for ticket, place in zip(tickets, map(_new_published, places), strict=False):
        if ticket is not None and not ticket.done():
            ticket.set_result(place)
