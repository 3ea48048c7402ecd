"""Fetching from brokers: one loop for each connection to a broker, reading ahead as far as the buffer has room.

A response is split into batches, which are checked and put into the queues of their partitions
(``Fetcher._put_batches``). There, ``Reader`` finds them. ``EndOffsetRefresher`` requests what no fetch reports.

A broker holds a fetch until there are records, and answers the requests of a connection in order. A partition that is
sought, resumed or assigned while a fetch is in flight (an *added* partition) would have to wait for the answer. Instead
it is fetched on a second connection, without a fetch session, until the answer arrives.

``consumer.fetch.plan`` decides what to fetch and what an error code means. A partition's records are used only in the
epoch in which they were requested: they are dropped after a seek, and if the partition was revoked. A partition that a
member keeps in a rebalance keeps its epoch, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import anyio
from anyio.abc import TaskGroup

from tailrace.awaitables import AutoResetEvent
from tailrace.batches.record_batch import batches_of
from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.buffered_batch import BufferedBatch, Decoding
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.fetch.plan import (
    FETCH_REACTIONS,
    AddedWait,
    FetchConnection,
    FetchErrorAction,
    FetchLimits,
    FetchPlan,
    FetchSession,
    FetchSources,
    FetchWait,
    SessionPart,
    is_interruption,
    make_plan,
    slot_of,
    sources_change_at,
    without_session,
)
from tailrace.consumer.partition import Partition
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.start_positions import StartPositions
from tailrace.core.backoff import Backoff
from tailrace.core.start_point import LATEST, StartFrom, StartPoint
from tailrace.error_codes import name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    CorruptRecordError,
    LogTruncatedError,
    MalformedMessageError,
    NodeNotConnectedError,
    RecordTooLargeError,
    RequestTimedOutError,
    TailraceError,
    broker_error,
)
from tailrace.net.broker import Channel, ChannelKey
from tailrace.net.offsets import group_by_leader, list_offsets_of_leader
from tailrace.observe.events import CorruptBatchFetched, FetchCompleted, FetchFailed, FetchInterrupted, LogTruncated
from tailrace.protocol.records import (
    ISOLATION_LEVELS,
    AbortedTransaction,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
)
from tailrace.records import TopicPartition

if TYPE_CHECKING:
    from tailrace.batches.record_batch import RecordBatch

__all__ = [
    "AbortedTransactions",
    "BatchHeader",
    "EndOffsetRefresher",
    "Fetcher",
    "FetchesInFlight",
    "connection_name",
    "fault_of",
    "partitions_without_fetch",
    "size_error",
]

# ---- refresh of the end offsets of partitions that are not fetched, for statistics and metrics -----------------------


def partitions_without_fetch(partitions: Iterable[Partition], in_flight: Iterable[FetchPlan]) -> list[Partition]:
    """Return the partitions that no fetch in flight includes, for example because they are paused.

    The answer to a fetch in flight reports the end offset of its partitions when it changes.
    """
    requested = {topic_partition for plan in in_flight for topic_partition in plan.partitions}
    return [one for one in partitions if one.is_fetchable and one.topic_partition not in requested]


_INTERVAL_S = 5.0
"""Interval of the requests for end offsets, in seconds."""


class EndOffsetRefresher:
    """Requests the end offsets of partitions that are not fetched, for example because they are paused.

    Responses to fetches contain the end offsets of all other partitions. Requests are sent every five seconds, but only
    if statistics or metrics were read since the last requests.

    Args:
        in_flight: returns the plans of the fetches in flight.
    """

    def __init__(self, parts: ConsumerParts, in_flight: Callable[[], Iterable[FetchPlan]]) -> None:
        self._parts, self._in_flight = parts, in_flight
        self._is_read = False

    def note_reading(self) -> None:
        """Note that statistics or metrics are read, so that end offsets are requested. Thread-safe."""
        self._is_read = True

    async def run_refreshes(self) -> None:
        """Request end offsets after each interval in which statistics or metrics were read, until canceled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._is_read:
                self._is_read = False
                await self._refresh(partitions_without_fetch(self._parts.partitions, self._in_flight()))

    async def _refresh(self, partitions: Iterable[Partition]) -> None:
        by_leader_id, _ = group_by_leader(self._parts.cluster, [one.topic_partition for one in partitions])
        async with anyio.create_task_group() as tasks:
            for leader_id, topic_partitions in by_leader_id.items():
                tasks.start_soon(self._request, leader_id, topic_partitions)

    async def _request(self, leader_id: int, topic_partitions: list[TopicPartition]) -> None:
        before = {
            one.topic_partition: (one.epoch, one.last_stable_offset)
            for one in self._parts.partitions.of(topic_partitions)
        }
        try:
            found, refused = await list_offsets_of_leader(
                self._parts.cluster,
                leader_id,
                dict.fromkeys(before, LATEST),
                isolation_level=self._parts.config.isolation_level,
            )
        except (BrokerConnectionError, MalformedMessageError):
            self._parts.metadata_refresher.ask()
            return  # The next interval repeats the request. Fetches from this broker report the failure.
        if refused:
            self._parts.metadata_refresher.ask()
        for partition in self._parts.partitions.of(found):
            # The answer is outdated if a fetch was answered meanwhile, or the partition was assigned again.
            if before[partition.topic_partition] == (partition.epoch, partition.last_stable_offset):
                partition.last_stable_offset = found[partition.topic_partition].offset


# ---- visibility of fetched batches -----------------------------------------------------------------------------------


class BatchHeader(Protocol):
    """Header fields of a batch that decide whether its records are delivered."""

    @property
    def next_offset(self) -> int: ...

    @property
    def is_control(self) -> bool: ...

    @property
    def producer_id(self) -> int | None: ...

    def is_abort_marker(self) -> bool: ...


class AbortedTransactions:
    """Aborted transactions of one fetched partition, whose records are not delivered.

    Args:
        listed: list from the broker.
    """

    def __init__(self, listed: Sequence[AbortedTransaction]) -> None:
        self._pending = [(one.first_offset, one.producer_id) for one in listed]
        heapq.heapify(self._pending)
        self._producers: set[int] = set()
        """Producers with an aborted transaction at the current batch."""

    def hides(self, batch: BatchHeader) -> bool:
        """Return True if the records of ``batch`` are not delivered; pass each batch of the partition, in order."""
        while self._pending and self._pending[0][0] < batch.next_offset:
            self._producers.add(heapq.heappop(self._pending)[1])
        if not batch.is_control:
            return batch.producer_id in self._producers
        if batch.producer_id is not None and batch.is_abort_marker():
            self._producers.discard(batch.producer_id)
        return True


# ---- state of the two loops that fetch for one connection to a broker ------------------------------------------------


@dataclass(slots=True)
class FetchesInFlight:
    """Fetches of one connection slot: of the main loop, and of the loop of added partitions on a second connection.

    Added partitions are those that become fetchable while the main loop's fetch is in flight.
    """

    wakeup: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set when the main loop must plan its next fetch again."""
    added_wakeup: AutoResetEvent = field(default_factory=AutoResetEvent)
    """Set when there may be added partitions, and when the main loop ends."""
    sent_plan: FetchPlan | None = None
    """Plan of the main loop's fetch in flight; None without one."""
    held_until: float = 0.0
    """Time of the event loop until which the broker may hold the main loop's fetch in flight."""
    held_added: FetchPlan | None = None
    """Plan of the fetch of added partitions that is in flight, if the broker may hold it for long; otherwise None."""
    added_scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancel scope of the latest fetch of added partitions."""


# ---- checks of fetched batches before they are decoded ---------------------------------------------------------------


def fault_of(config: ConsumerConfig, batch: RecordBatch) -> str | None:
    """Return the reason why ``batch`` cannot be read; None if it can be read.

    The marker of a control batch is decoded, too, so that ``is_abort_marker`` cannot raise an error later.
    """
    # The checksum is verified before any byte that it covers is interpreted.
    if config.check_crcs and not batch.checksum_holds():
        return "the checksum of the batch is wrong"
    if batch.next_offset <= batch.base_offset:
        return f"the last offset of the batch, {batch.next_offset - 1}, is below its first, {batch.base_offset}"
    if batch.is_control:
        try:
            batch.is_abort_marker()
        except MalformedMessageError as error:
            return str(error)
    return None


def size_error(partition: Partition, batch: RecordBatch, limit: int) -> TailraceError:
    """Return the error to deliver in place of a batch that is larger than ``max_batch_bytes``."""
    return RecordTooLargeError(
        partition.topic_partition,
        batch.base_offset,
        batch.next_offset,
        f"a batch of {batch.size} bytes is larger than max_batch_bytes={limit}",
        "raise the limit",
    )


# ---- fetching from brokers -------------------------------------------------------------------------------------------

_GRACE_S = 5.0
"""Time in seconds that a broker may need in addition to the ``max_wait_ms`` of a fetch."""
_SMALL_FETCH_BYTES = 64 << 10
"""Maximum size in bytes of a response that a waiting reader gets before the next fetch is sent."""
_CORRUPT_ATTEMPTS = 3
"""Number of attempts to fetch a corrupt batch before the error is delivered."""


class Fetcher:
    """Fetches records of the assigned partitions into the buffer.

    Args:
        name: prefix of the names of connections; see ``connection_name``.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        reader: Reader,
        start_positions: StartPositions,
        name: str = "",
    ) -> None:
        self._parts, self._start_positions, self._policy = parts, start_positions, start_positions.policy
        self._cluster, self._partitions, self._sources = parts.cluster, parts.partitions, FetchSources(parts.partitions)
        self._space, self._reader, self._observer = parts.partitions.space, reader, parts.observer
        self._name = name
        self._decoding = Decoding(parts)
        self._backoff = Backoff.of_ms(parts.config.retry_backoff_ms, parts.config.retry_backoff_max_ms)
        self._loop = asyncio.get_running_loop()
        self._wakeup = AutoResetEvent()
        self._loops: dict[FetchConnection, FetchesInFlight] = {}
        parts.wake_on_change(self.wake)

    @property
    def _limits(self) -> FetchLimits:
        config = self._parts.config
        return FetchLimits(config.fetch_max_bytes, config.max_partition_fetch_bytes, config.fetch_max_wait_ms / 1000)

    def wake(self) -> None:
        """Plan fetches again, because a position or a leader has changed."""
        self._wakeup.set()

    def in_flight(self) -> list[FetchPlan]:
        """Return the plans of the fetches in flight, except short fetches of added partitions (``AddedWait``)."""
        plans = [plan for flight in self._loops.values() for plan in (flight.sent_plan, flight.held_added)]
        return [plan for plan in plans if plan is not None]

    async def run_fetches(self) -> None:
        """Run a loop for each connection to a broker that has partitions to fetch, until canceled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._start_loops(tasks)
                await self._wakeup.wait(sources_change_at(self._partitions, self._loop.time()))
                for connection, flight in self._loops.items():
                    flight.wakeup.set()
                    flight.added_wakeup.set()
                    # A fetch in flight that lacks an added partition is canceled, so that the next fetch includes it.
                    if (
                        flight.held_added
                        and self._added_plan(connection, flight).added_to(flight.held_added).partitions
                    ):
                        flight.added_scope.cancel()

    def _start_loops(self, tasks: TaskGroup) -> None:
        now, count = self._loop.time(), self._parts.config.num_fetchers
        sources = self._sources.at(self._cluster.topology)
        for node_id, number in {(one.node_id(now), slot_of(one.partition.topic_partition, count)) for one in sources}:
            if node_id is None:
                self._parts.metadata_refresher.ask()
            elif (connection := FetchConnection(node_id, number, count)) not in self._loops:
                flight = self._loops[connection] = FetchesInFlight()
                tasks.start_soon(self._run_connection, connection, flight)
                tasks.start_soon(self._run_added, connection, flight)

    async def _run_connection(self, connection: FetchConnection, flight: FetchesInFlight) -> None:
        """Run the main loop of a connection until no partition is left to fetch on it."""
        session, fetch_wait, failures = FetchSession(), FetchWait(self._limits.max_wait_s), 0
        node_id = connection.node_id
        try:
            while True:
                plan = self._prepare_plan(connection)
                if plan.is_idle:
                    # The partitions may be fetched from another broker now: start or wake the loop of that broker.
                    self.wake()
                    return
                if not plan.partitions:
                    await self._wait(flight.wakeup, plan)
                    continue
                fetch_wait.longest_s = self._limits.max_wait_s
                wait_s = fetch_wait.wait_s(lacks_room=plan.lacks_room, taken_bytes=self._space.taken_bytes)
                sent_at = self._loop.time()
                try:
                    flight.sent_plan, flight.held_until = plan, sent_at + wait_s
                    part = self._in_session(session, plan)
                    name = connection_name(self._name, connection.number)
                    answer = await self._fetch(connection, plan, part, wait_s, name)
                except AuthenticationError:
                    raise
                except (BrokerConnectionError, MalformedMessageError) as error:
                    session.restart()
                    failures += 1
                    await self._recover(node_id, plan, error, failures)
                    continue
                finally:
                    flight.sent_plan = None
                    if flight.held_added:
                        flight.added_scope.cancel()
                failures, took_s = 0, self._loop.time() - sent_at
                size = _size_of(answer)
                is_awaited = not self._space.held_bytes and size <= _SMALL_FETCH_BYTES
                counts = self._handle_response(node_id, plan, session, answer)
                if is_awaited or self._reader.waiting_for_room:
                    # Let the reader run, which probably waits for these few records. Let the loops that wait for room
                    # run, too: otherwise the next fetch of this loop would reserve the room that was just released.
                    await asyncio.sleep(0)
                    if self._reader.delivery.sink is not None:
                        # Handlers run one iteration of the event loop later than the task that reads for them.
                        await asyncio.sleep(0)
                self._report_completed(node_id, answer, size, took_s, counts)
        finally:
            del self._loops[connection]
            flight.added_wakeup.set()

    async def _run_added(self, connection: FetchConnection, flight: FetchesInFlight) -> None:
        """Fetch added partitions on the second connection while a fetch of the main loop is in flight.

        The coroutine ends when the main loop of the connection has ended.
        """
        name = connection_name(self._name, connection.number, is_for_added=True)
        added_wait = AddedWait()
        while self._loops.get(connection) is flight:
            plan, sent_at = self._added_plan(connection, flight), self._loop.time()
            rest_s = flight.held_until - sent_at
            wait_s = added_wait.wait_s(plan, self._limits.max_wait_s, rest_s) if plan.partitions else None
            if wait_s is None:
                await flight.added_wakeup.wait()
                continue
            flight.held_added = plan if added_wait.is_long(plan) else None
            with anyio.CancelScope() as flight.added_scope:
                try:
                    answer = await self._fetch(connection, plan, without_session(plan.partitions), wait_s, name)
                except AuthenticationError:
                    raise
                except (BrokerConnectionError, MalformedMessageError):
                    # No retry: if the main loop's fetch does not fail, too, the next one includes these partitions.
                    await flight.added_wakeup.wait()
                    continue
                finally:
                    flight.held_added = None
            if flight.added_scope.cancelled_caught:
                # The broker reads no other request of this connection until it has answered the canceled fetch.
                with contextlib.suppress(NodeNotConnectedError):  # the broker is no longer in the metadata
                    self._cluster.broker(connection.node_id).close_owned(name)
                continue
            added_wait.note_answer(plan, is_empty=not any(one.records for one in answer.partitions))
            took_s, counts = (
                self._loop.time() - sent_at,
                self._handle_response(connection.node_id, plan, FetchSession(), answer),
            )
            self._report_completed(connection.node_id, answer, _size_of(answer), took_s, counts)

    def _added_plan(self, connection: FetchConnection, flight: FetchesInFlight) -> FetchPlan:
        """Return a plan of the partitions that the main loop's fetch in flight lacks; empty without such a fetch."""
        plan = self._new_plan(connection)
        return plan.added_to(flight.sent_plan or plan)

    def _new_plan(self, connection: FetchConnection) -> FetchPlan:
        sources = self._sources.at(self._cluster.topology)
        return make_plan(connection, sources, self._space, self._limits, self._loop.time())

    def _prepare_plan(self, connection: FetchConnection) -> FetchPlan:
        """Return a plan, after making room in the buffer and resetting positions of recreated topics if necessary.

        A recreated topic that is not assigned yet is not read: the group may assign it to another member.
        """
        plan = self._new_plan(connection)
        made_room = self._drop_excess_batches(plan.overdrawn)
        for partition in self._partitions.of(plan.recreated):
            self._reset_position(partition, self._policy.start_of_added(partition.topic_partition))
        if plan.unassigned:
            self._back_off(self._partitions.of(plan.unassigned))
            self._parts.metadata_refresher.ask()
        if not made_room and not plan.recreated and not plan.unassigned:
            return plan
        return self._new_plan(connection)

    def _drop_excess_batches(self, overdrawn: Iterable[TopicPartition]) -> bool:
        """Drop batches of partitions that hold more than their share of the buffer; return True if any were dropped.

        The dropped batches are fetched again when their partition has room.
        """
        share, made_room = self._space.share_of(len(self._partitions)), False
        for partition in self._partitions.of(overdrawn):
            # A partition that is not paused keeps batches of its share, because they would be fetched again at once.
            if partition.cut(share, 0 if partition.is_paused else share):
                made_room = True
            # ``cut`` keeps the oldest batch, which may be larger than the share.
            if partition.is_paused and partition.buffered_bytes > share:
                partition.drop_batches()
                partition.fetch_again()
                made_room = True
        return made_room

    async def _wait(self, wakeup: AutoResetEvent, plan: FetchPlan) -> None:
        """Wait for ``wakeup``, for room in the buffer if the plan lacks it, or for the end of a backoff."""
        if plan.lacks_room:
            self._reader.waiting_for_room.add(wakeup)
        try:
            await wakeup.wait(plan.retry_at)
        finally:
            self._reader.waiting_for_room.discard(wakeup)

    def _in_session(self, session: FetchSession, plan: FetchPlan) -> SessionPart:
        requested = self._partitions.of(plan.partitions)
        if any(one.high_watermark is None and session.knows(one.topic_partition) for one in requested):
            # The partition was reassigned after it was added to the session. In a session the broker sends a high
            # watermark only when it changes; in a new session, it sends all of them at once.
            session.restart()
        return session.next_request(plan.partitions)

    async def _fetch(
        self, connection: FetchConnection, plan: FetchPlan, part: SessionPart, wait_s: float, name: str
    ) -> FetchResponse:
        request = FetchRequest(
            max_wait_ms=round(wait_s * 1000),
            min_bytes=self._parts.config.fetch_min_bytes,
            max_bytes=plan.max_bytes,
            partitions=part.partitions,
            forgotten=part.forgotten,
            isolation_level=ISOLATION_LEVELS[self._parts.config.isolation_level],
            session_id=part.session_id,
            session_epoch=part.session_epoch,
            rack_id=self._parts.config.client_rack,
        )
        self._space.reserved_bytes += plan.max_bytes
        try:
            timeout_s = max(self._parts.config.request_timeout_ms / 1000, wait_s + _GRACE_S)
            key = ChannelKey(Channel.FETCH, name)
            return await self._cluster.broker(connection.node_id).send(request, key=key, timeout_s=timeout_s)
        finally:
            self._space.reserved_bytes -= plan.max_bytes
            if self._reader.waiting_for_room:
                self._reader.note_room()

    async def _recover(self, node_id: int, plan: FetchPlan, error: Exception, failures: int) -> None:
        """Report a fetch without a valid answer, request a refresh of the metadata, and pause."""
        is_connected = isinstance(error, RequestTimedOutError | MalformedMessageError)
        action = FetchErrorAction.RETRY if is_connected else FetchErrorAction.REFRESH_METADATA
        self._report_failure(node_id, None, error, action, failures - 1)
        for partition in self._partitions.of(plan.partitions):
            # If a preferred replica fails, the partition is fetched from the leader again (KIP-392).
            partition.preferred_read_replica = None
        self._parts.metadata_refresher.ask()
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311
        self.wake()

    def _report_completed(
        self, node_id: int, answer: FetchResponse, size: int, took_s: float, fetched: Counter[TopicPartition]
    ) -> None:
        self._observer.emit(
            FetchCompleted(
                f"broker {node_id}",
                size,
                fetched.total(),
                took_s,
                answer.throttle_time_ms / 1000,
                self._parts.config.group_id,
                fetched,
            )
        )

    # ---- answers -----------------------------------------------------------------------------------------------

    def _handle_response(
        self, node_id: int, plan: FetchPlan, session: FetchSession, answer: FetchResponse
    ) -> Counter[TopicPartition]:
        """Handle the answer to a fetch, and return the number of offsets fetched of each partition."""
        counts: Counter[TopicPartition] = Counter()
        if not session.handle_answer(answer):
            return counts
        if answer.error_code:
            failure = broker_error(answer.error_code, f"broker {node_id} refused the whole fetch")
            self._observer.emit(FetchFailed(f"broker {node_id}", None, str(failure), failure))
            self._back_off(self._partitions.of(plan.partitions))
            return counts
        # A UUID is slow to hash, so the id of a topic is hashed once, and not for each partition.
        ids = {fetch.topic: fetch.topic_id for fetch in plan.partitions.values()}
        names = {topic_id: topic for topic, topic_id in ids.items()}
        for fetched in answer.partitions:
            topic = fetched.topic or names.get(fetched.topic_id, "")
            partition = self._partitions.get(TopicPartition(topic, fetched.partition))
            if partition is None or not plan.is_valid_for(partition):
                continue
            if fetched.error_code:
                self._handle_error(node_id, partition, fetched)
            elif fetched.diverging_epoch.end_offset >= 0:
                partition.failures = 0
                self._handle_truncation(partition, fetched.diverging_epoch.end_offset)
            else:
                self._accept(node_id, partition, fetched, ids[topic])
                if fetched.records:
                    self._put_batches(partition, fetched, counts)
        return counts

    def _handle_error(self, node_id: int, partition: Partition, fetched: FetchedPartition) -> None:
        if partition.preferred_read_replica == node_id:
            # The follower may lag, or have lost the partition. Only an error of the leader is final.
            partition.preferred_read_replica = None
            error = name_of(fetched.error_code)
            self._report_failure(
                node_id, partition.topic_partition, error, FetchErrorAction.REFRESH_METADATA, partition.failures
            )
            self._back_off([partition])
            self.wake()
            return
        match action := FETCH_REACTIONS.reaction_to(fetched.error_code):
            case FetchErrorAction.RESET:
                self._reset_position(partition, self._policy.start_after_reset(partition.topic_partition))
                return
            case FetchErrorAction.REFRESH_METADATA:
                self._cluster.learn_leader(
                    partition.topic_partition, fetched.current_leader.leader_id, fetched.current_leader.leader_epoch
                )
                self._parts.metadata_refresher.ask()
            case FetchErrorAction.RAISE:
                self._reader.report(broker_error(fetched.error_code, f"{partition.topic_partition} cannot be fetched"))
            case FetchErrorAction.RETRY | FetchErrorAction.ACCEPT:
                pass
        self._report_failure(
            node_id, partition.topic_partition, name_of(fetched.error_code), action, partition.failures
        )
        self._back_off([partition])

    def _report_failure(
        self,
        node_id: int,
        topic_partition: TopicPartition | None,
        error: str | Exception,
        action: FetchErrorAction,
        failures: int,
    ) -> None:
        kind = FetchInterrupted if is_interruption(action, failures) else FetchFailed
        exception = error if isinstance(error, Exception) else None
        self._observer.emit(kind(f"broker {node_id}", topic_partition, str(error), exception))

    def _reset_position(self, partition: Partition, at: StartPoint) -> None:
        """Reset a position that is out of range, or whose topic was recreated, to the start point ``at``.

        While fetched records are unfinished, only let the partition back off.
        """
        if partition.batches or partition.finished != partition.delivered:
            # Records that are already fetched are valid. When all of them are finished, a later fetch leads here again.
            self._back_off([partition])
            return
        self._start_positions.set_start(partition, at, before=partition.fetched)
        self._parts.changed()

    def _handle_truncation(self, partition: Partition, end_offset: int) -> None:
        """Continue at the lowest unfinished offset, or at the end of the truncated log if that is lower (KIP-320).

        If delivered records were lost, emit an event, or with ``auto_offset_reset="none"`` deliver an error instead.
        """
        topic, number = partition.topic_partition
        before, (after, lost) = partition.next_offset, partition.after_truncation(end_offset)
        if lost and self._policy.start_after_reset(partition.topic_partition).whence is StartFrom.NONE:
            partition.put(BufferedBatch(0, error=LogTruncatedError(topic, number, before, end_offset)))
            self._reader.wakeup.set()
            return
        self._start_positions.drop_and_set_start(partition, after)
        if lost:
            self._observer.emit(LogTruncated(partition.topic_partition, before, after, lost))
        self._parts.changed()

    def _accept(self, node_id: int, partition: Partition, fetched: FetchedPartition, topic_id: UUID) -> None:
        """Store the state of the log that an answer without an error reports."""
        partition.failures, partition.fetched_topic_id = 0, topic_id
        partition.high_watermark, partition.log_start = fetched.high_watermark, fetched.log_start_offset
        if partition.has_known_map and partition.preferred_read_replica != node_id:
            # Only the end offset of the leader is compared, because a follower's log may end before the records of the
            # offset map.
            leadership = self._cluster.topology.leader(partition.topic_partition)
            self._reader.maps.check_log(
                partition, fetched.high_watermark, -1 if leadership is None else leadership.epoch
            )
        stable = fetched.last_stable_offset if self._parts.config.isolation_level == "read_committed" else -1
        partition.last_stable_offset = stable if stable >= 0 else fetched.high_watermark
        if fetched.preferred_read_replica >= 0:
            partition.preferred_read_replica = fetched.preferred_read_replica
            partition.preferred_read_replica_until = self._loop.time() + self._parts.config.metadata_max_age_ms / 1000
            self.wake()

    def _put_batches(self, partition: Partition, fetched: FetchedPartition, counts: Counter[TopicPartition]) -> None:
        """Put the fetched batches of a partition into its queue, from the next offset to fetch on.

        The reader, which is woken, takes them from there (``Reader._slice_in_turn``). At a batch that cannot be read,
        stop, and fetch it again or put an error in its place.
        """
        config, records, topic_partition = self._parts.config, fetched.records, partition.topic_partition
        assert records is not None
        aborted = self._aborted_in(fetched)
        batches, batch, last = batches_of(records), None, None
        self._reader.wakeup.set()
        try:
            for batch in batches:
                # Until the batch is checked, its offsets may be corrupt, too.
                if (fault := fault_of(config, batch)) is not None:
                    self._handle_corrupt(partition, fault, _end_of_corrupt(partition, batch, batches))
                    return
                if batch.next_offset <= (partition.fetched or 0):
                    continue
                if config.max_batch_bytes is not None and batch.size > config.max_batch_bytes:
                    error = size_error(partition, batch, config.max_batch_bytes)
                    partition.put(BufferedBatch(batch.next_offset, error=error))
                    return
                if partition.has_known_map:
                    self._reader.maps.check_batch(partition, batch.base_offset, batch.leader_epoch)
                is_visible = not (batch.is_control if aborted is None else aborted.hides(batch))
                if is_visible:
                    counts[topic_partition] += batch.next_offset - batch.base_offset
                if is_visible and last is not None and last.add(batch):
                    partition.enlarge_last(batch.size)
                    continue
                last = BufferedBatch(
                    batch.next_offset,
                    batch=batch if is_visible else None,
                    leader_epoch=batch.leader_epoch,
                    decoding=self._decoding,
                )
                partition.put(last)
        except MalformedMessageError as error:
            self._handle_corrupt(partition, str(error))
            return
        if batch is None:
            # The broker leaves out an incomplete batch only after a complete one, or sends no records (KIP-74).
            self._handle_corrupt(partition, f"{len(records)} bytes of records contain no complete record batch")

    def _aborted_in(self, fetched: FetchedPartition) -> AbortedTransactions | None:
        if fetched.aborted_transactions and self._parts.config.isolation_level == "read_committed":
            return AbortedTransactions(fetched.aborted_transactions)
        return None

    def _handle_corrupt(self, partition: Partition, reason: str, next_offset: int | None = None) -> None:
        """Fetch a corrupt batch again, because the network may have damaged it; after three attempts, deliver an error.

        ``next_offset`` is the offset after the batch; None if it is unknown.
        """
        topic_partition, offset = partition.topic_partition, partition.fetched or 0
        corrupt_at, count = partition.corrupt
        count = count + 1 if corrupt_at == offset else 1
        partition.corrupt = offset, count
        self._observer.emit(CorruptBatchFetched(topic_partition, offset, reason))
        if count < _CORRUPT_ATTEMPTS:
            self._back_off([partition])
        else:
            error = CorruptRecordError(topic_partition, offset, next_offset, reason)
            partition.put(BufferedBatch(next_offset or offset + 1, error=error))

    def _back_off(self, partitions: Iterable[Partition]) -> None:
        now = self._loop.time()
        for partition in partitions:
            partition.back_off(now + self._backoff.pause_s(partition.failures + 1, random.random()))  # noqa: S311


def _end_of_corrupt(partition: Partition, batch: RecordBatch, following: Iterator[RecordBatch]) -> int | None:
    """Return the offset after a corrupt batch; None if it is unknown.

    The batch may claim any offset as its last. The claim is used only if it lies between the position and the next
    batch, or the end of the log.
    """
    after = None
    with contextlib.suppress(MalformedMessageError):
        # The first offset of a compressed batch of format 0 or 1 is not in its header.
        after = next((one.base_offset for one in following if one.first_timestamp is not None), None)
    fetched, end = partition.fetched or 0, partition.high_watermark if after is None else after
    if end is None or end <= fetched:
        return None
    return batch.next_offset if fetched < batch.next_offset <= end else after


def connection_name(name: str, number: int, *, is_for_added: bool = False) -> str:
    """Return the name of a connection for fetches.

    Args:
        name: name of the consumer, if it shares the cluster with other consumers; otherwise empty.
        number: number of the connection, less than ``num_fetchers``.
        is_for_added: True for the second connection, which fetches added partitions.
    """
    return f"{name}{number or ''}{'-added' if is_for_added else ''}"


def _size_of(answer: FetchResponse) -> int:
    size = 0
    for one in answer.partitions:
        size += len(one.records or b"")
    return size
