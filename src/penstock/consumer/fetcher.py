"""Fetching: one loop for each broker that has partitions of ours, reading ahead as far as the buffer has room.

Rule of this file: what to fetch and what an answer means is decided in ``core.fetch_plan``; a loop asks, hands the
batches to the reader, and keeps the books. An answer counts only for the epoch its question was asked in, so what
comes after a seek or a rebalance is dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

import anyio
from anyio.abc import TaskGroup

from penstock.config import ConsumerConfig
from penstock.consumer.chunk import Chunk
from penstock.consumer.deserializing import deserializing
from penstock.consumer.picture import Picture
from penstock.consumer.policy import Policy
from penstock.consumer.reader import Reader
from penstock.consumer.strictness import forbidden
from penstock.consumer.wake import Wake
from penstock.core.backoff import Backoff
from penstock.core.buffer import Buffer
from penstock.core.fetch_plan import (
    FetchLimits,
    FetchPlan,
    Lane,
    Patience,
    Verdict,
    lane_of,
    make_plan,
    source_of,
    sources_change_at,
    verdict_on,
)
from penstock.core.fetch_session import FetchSession
from penstock.core.positions import Position, Positions
from penstock.core.starts import Start, Whence
from penstock.core.visibility import visible
from penstock.error_codes import name_of
from penstock.errors import (
    AuthenticationError,
    BrokerConnectionError,
    CorruptRecordError,
    LogTruncatedError,
    MalformedMessageError,
    broker_error,
)
from penstock.messages import FetchedPartition, FetchRequest, FetchResponse
from penstock.net.broker import Channel, ChannelKey
from penstock.net.cluster import Cluster
from penstock.observe.events import BatchRefused, FetchAnswered, FetchFailed, LogTruncated
from penstock.observe.hooks import Observer
from penstock.records import TopicPartition
from penstock.wire.batches import Batch, split

__all__ = ["Fetcher", "name_of_lane"]

_GRACE_S = 5.0
"""What a broker may need on top of the time it was told to hold a fetch."""
_REFUSALS = 3
"""So many times a batch is fetched anew before it is given up as corrupt."""


class _Line(NamedTuple):
    """One connection to one broker."""

    node_id: int
    lane: Lane


class Fetcher:
    """Fills the buffer."""

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        positions: Positions,
        buffer: Buffer[Chunk],
        reader: Reader,
        picture: Picture,
        observer: Observer,
        policy: Policy,
        on_reset: Callable[[], None],
        name: str = "",
    ) -> None:
        self._policy, self._on_reset = policy, on_reset
        self._cluster, self._positions = cluster, positions
        self._buffer, self._reader, self._picture, self._observer = buffer, reader, picture, observer
        self._name = name
        self.reconfigure(config)
        self._deserializing = deserializing(config, observer)
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._loop = asyncio.get_running_loop()
        self._fetched_records = 0
        """Since the last word to those who measure."""
        self._news = Wake()
        self._loops: dict[_Line, Wake] = {}
        self._crowded: set[Wake] = set()
        """Of loops that wait for room."""
        self._refusals: dict[TopicPartition, tuple[int, int]] = {}

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Take other options from the next fetch on."""
        self._config = config
        self._limits = FetchLimits(
            config.fetch_max_bytes, config.max_partition_fetch_bytes, config.fetch_max_wait_ms / 1000
        )

    def wake(self) -> None:
        """Something may be fetched that could not be, or from somewhere else: a position, a leader."""
        self._news.set()

    def room_made(self) -> None:
        """There is room in the buffer that there was not: who waits for that looks again, and nobody else."""
        for crowded in self._crowded:
            crowded.set()

    async def run_fetches(self) -> None:
        """Have one loop for each broker that has partitions of ours, for ever."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._begin_loops(tasks)
                await self._news.wait(sources_change_at(self._positions, self._loop.time()))
                for loop in self._loops.values():
                    loop.set()

    def _begin_loops(self, tasks: TaskGroup) -> None:
        now, topology = self._loop.time(), self._cluster.topology
        count = self._config.num_fetchers
        for node_id, number in {(source_of(p, topology, now), lane_of(p.partition, count)) for p in self._positions}:
            if node_id is None:
                self._picture.ask()
            elif (line := _Line(node_id, Lane(number, count))) not in self._loops:
                self._loops[line] = Wake()
                tasks.start_soon(self._run_line, line)

    async def _run_line(self, line: _Line) -> None:
        """Fetch from one broker, by one connection, for as long as it has partitions of ours for that."""
        news, session, patience, failures = self._loops[line], FetchSession(), Patience(self._limits.max_wait_s), 0
        node_id = line.node_id
        try:
            while True:
                plan = self._plan(line)
                if plan.is_idle:
                    # Its partitions may have another source now, whose loop has ended before, or waits.
                    self.wake()
                    return
                if not plan.partitions:
                    await self._wait(news, plan)
                    continue
                patience.longest_s = self._limits.max_wait_s
                wait_s = patience.wait_s(lacks_room=plan.lacks_room, taken_bytes=self._buffer.taken_bytes)
                asked_at = self._loop.time()
                try:
                    answer = await self._fetch(line, plan, session, wait_s)
                except AuthenticationError:
                    raise
                except (BrokerConnectionError, MalformedMessageError) as error:
                    session.lost()
                    failures += 1
                    await self._recover(node_id, plan, error, failures)
                    continue
                failures, took_s = 0, self._loop.time() - asked_at
                self._absorb(node_id, plan, session, answer)
                self._measure(node_id, answer, took_s)
                if self._crowded:
                    # Who waits for the room that this fetch has left has its turn before this one asks for it again.
                    await asyncio.sleep(0)
        finally:
            del self._loops[line]

    def _plan(self, line: _Line) -> FetchPlan:
        topology, now = self._cluster.topology, self._loop.time()
        plan = make_plan(line.node_id, self._positions, topology, self._buffer, self._limits, now, line.lane)
        has_room = self._cut(plan.overdrawn)
        for position in self._positions.of(plan.remade):
            self._start_over(position, self._policy.of_added(position.partition))
        if not has_room and not plan.remade:
            return plan
        return make_plan(line.node_id, self._positions, topology, self._buffer, self._limits, now, line.lane)

    def _cut(self, overdrawn: Iterable[TopicPartition]) -> bool:
        """Shares became smaller: what was read ahead beyond them is forgotten, to be fetched again in its time."""
        share, has_room = self._buffer.share_of(len(self._positions)), False
        for position in self._positions.of(overdrawn):
            # One that is not paused and has room left would be fetched again at once, to be cut again.
            last = self._buffer.cut(position.partition, share, 0 if position.is_paused else share)
            if last is not None:
                position.fetched, position.last_fetched_epoch = last.next_offset, last.leader_epoch
                has_room = True
            if position.is_paused and self._buffer.bytes_of(position.partition) > share:
                self._set_aside(position)
                has_room = True
        return has_room

    def _set_aside(self, position: Position) -> None:
        """Forget all that is not handed out: a broker gives a whole batch, however small the share.

        Only of a partition that is paused: another one would be fetched again at once, to be forgotten again.
        """
        self._reader.sync()
        self._buffer.drop(position.partition)
        position.fetched, position.last_fetched_epoch = position.delivered, position.delivered_epoch

    async def _wait(self, news: Wake, plan: FetchPlan) -> None:
        if plan.lacks_room:
            self._crowded.add(news)
        try:
            await news.wait(plan.retry_at)
        finally:
            self._crowded.discard(news)

    async def _fetch(self, line: _Line, plan: FetchPlan, session: FetchSession, wait_s: float) -> FetchResponse:
        asked = self._positions.of(plan.partitions)
        if any(one.high_watermark is None and session.knows(one.partition) for one in asked):
            # Assigned anew since it was asked for: where its log ends was told to the assignment before.
            session.lost()
        part = session.ask(plan.partitions)
        request = FetchRequest(
            max_wait_ms=round(wait_s * 1000),
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=plan.max_bytes,
            partitions=part.partitions,
            forgotten=part.forgotten,
            isolation_level=int(self._config.isolation_level == "read_committed"),
            session_id=part.session_id,
            session_epoch=part.session_epoch,
            rack_id=self._config.client_rack,
        )
        self._buffer.reserve(line, plan.max_bytes)
        try:
            timeout_s = max(self._config.request_timeout_ms / 1000, wait_s + _GRACE_S)
            key = ChannelKey(Channel.FETCH, name_of_lane(self._name, line.lane.number))
            return await self._cluster.broker(line.node_id).send(request, key=key, timeout_s=timeout_s)
        finally:
            self._buffer.unreserve(line)
            self.room_made()

    async def _recover(self, node_id: int, plan: FetchPlan, error: Exception, failures: int) -> None:
        """The broker does not answer: see whether somebody else leads its partitions now, after a pause."""
        self._observer.tell(FetchFailed(f"broker {node_id}", None, str(error)))
        for position in self._positions.of(plan.partitions):
            # A nearer replica that fails is left for the leader (KIP-392).
            position.read_replica = None
        self._picture.ask()
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311
        self.wake()

    def _measure(self, node_id: int, answer: FetchResponse, took_s: float) -> None:
        size = sum(len(one.records) for one in answer.partitions if one.records)
        self._observer.tell(
            FetchAnswered(f"broker {node_id}", size, self._fetched_records, took_s, answer.throttle_time_ms / 1000)
        )
        self._fetched_records = 0

    # ---- answers -----------------------------------------------------------------------------------------------

    def _absorb(self, node_id: int, plan: FetchPlan, session: FetchSession, answer: FetchResponse) -> None:
        if not session.answered(answer):
            return
        if answer.error_code:
            failure = broker_error(answer.error_code, f"broker {node_id} refused the whole fetch")
            self._observer.tell(FetchFailed(f"broker {node_id}", None, str(failure)))
            self._back_off(self._positions.of(plan.partitions))
            return
        names = plan.topic_names()
        for fetched in answer.partitions:
            topic = fetched.topic or names.get(fetched.topic_id, "")
            position = self._positions.get(TopicPartition(topic, fetched.partition))
            if position is not None and plan.counts(position):
                self._absorb_partition(node_id, position, fetched, plan.partitions[position.partition].topic_id)

    def _absorb_partition(self, node_id: int, position: Position, fetched: FetchedPartition, log_id: UUID) -> None:
        if fetched.error_code and position.read_replica == node_id:
            # It may lag behind, or not have the partition any more: only the leader's word counts.
            position.read_replica = None
            self._observer.tell(FetchFailed(f"broker {node_id}", position.partition, name_of(fetched.error_code)))
            self._back_off([position])
            self.wake()
            return
        match verdict_on(fetched.error_code):
            case Verdict.GOOD:
                self._accept(position, fetched, log_id)
                return
            case Verdict.RESET:
                self._start_over(position, self._policy.again(position.partition))
                return
            case Verdict.LOOK_AGAIN:
                self._cluster.learn_leader(
                    position.partition, fetched.current_leader.leader_id, fetched.current_leader.leader_epoch
                )
                self._picture.ask()
            case Verdict.REFUSED:
                self._reader.report(broker_error(fetched.error_code, f"{position.partition} cannot be fetched"))
            case Verdict.RETRY:
                pass
        self._observer.tell(FetchFailed(f"broker {node_id}", position.partition, name_of(fetched.error_code)))
        self._back_off([position])

    def _start_over(self, position: Position, at: Start) -> None:
        """The log does not have the position, or is another one."""
        if self._buffer.holds(position.partition) or self._reader.kept.holds(position):
            # What was fetched before is good; only when it is used up does the position matter.
            self._back_off([position])
            return
        position.reset(at, position.fetched)
        self._on_reset()

    def _go_back(self, position: Position, end_offset: int) -> None:
        """The log is not what was read before: what was fetched and not handed out may be of what is gone."""
        topic, number = position.partition
        before, (after, lost) = position.delivered, position.diverged(end_offset)
        if lost and self._policy.again(position.partition).whence is Whence.NONE:
            self._reader.put(
                position.partition, Chunk(0, error=LogTruncatedError(topic, number, before, end_offset)), 0
            )
            position.fetched = None
            return
        self._reader.drop([position.partition])
        position.begin(after)
        if lost:
            self._observer.tell(LogTruncated(position.partition, before, after, lost))
        self.wake()

    def _accept(self, position: Position, fetched: FetchedPartition, log_id: UUID) -> None:
        position.failures = 0
        if fetched.diverging_epoch.end_offset >= 0:
            self._reader.sync()
            self._go_back(position, fetched.diverging_epoch.end_offset)
            return
        position.log_id = log_id
        position.high_watermark, position.log_start = fetched.high_watermark, fetched.log_start_offset
        is_committed = self._config.isolation_level == "read_committed"
        stable = fetched.last_stable_offset if is_committed else -1
        position.readable_end = stable if stable >= 0 else fetched.high_watermark
        if fetched.preferred_read_replica >= 0:
            position.read_replica = fetched.preferred_read_replica
            position.read_replica_until = self._loop.time() + self._config.metadata_max_age_ms / 1000
            self.wake()
        if not fetched.records:
            return
        try:
            batches = split(fetched.records)
        except MalformedMessageError as error:
            self._refuse(position, str(error))
            return
        aborted = fetched.aborted_transactions if is_committed else None
        for batch, is_visible in visible(self._sound(position, batches), aborted):
            if (fault := forbidden(self._config, position, batch)) is not None:
                self._reader.put(position.partition, Chunk(batch.next_offset, error=fault), 0)
                position.fetched = None
                return
            chunk = Chunk(
                batch.next_offset,
                batch=batch if is_visible else None,
                leader_epoch=batch.leader_epoch,
                deserializing=self._deserializing,
            )
            self._reader.put(position.partition, chunk, batch.size if is_visible else 0)
            self._fetched_records += batch.next_offset - batch.base_offset if is_visible else 0
            position.fetched, position.last_fetched_epoch = batch.next_offset, batch.leader_epoch

    def _sound(self, position: Position, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches from the position on; one whose checksum does not hold ends them, to be fetched anew."""
        for batch in batches:
            if batch.next_offset <= (position.fetched or 0):
                continue
            # Before anything of it is read: a marker is read, too, to see what it marks.
            if self._config.check_crcs and not batch.checksum_holds():
                self._refuse(position, "its checksum does not hold", batch.next_offset)
                return
            self._refusals.pop(position.partition, None)
            yield batch

    def _refuse(self, position: Position, reason: str, behind: int | None = None) -> None:
        """Fetch a batch anew, since the network may have changed it; after some tries it is the log that is broken."""
        partition, offset = position.partition, position.fetched or 0
        refused_at, times = self._refusals.get(partition, (offset, 0))
        times = times + 1 if refused_at == offset else 1
        self._refusals[partition] = (offset, times)
        self._observer.tell(BatchRefused(partition, offset, reason))
        if times < _REFUSALS:
            self._back_off([position])
        else:
            error = CorruptRecordError(partition, offset, reason)
            self._reader.put(partition, Chunk(behind or offset + 1, error=error), 0)
            position.fetched = None

    def _back_off(self, positions: Iterable[Position]) -> None:
        now = self._loop.time()
        for position in positions:
            position.back_off(now + self._backoff.pause_s(position.failures + 1, random.random()))  # noqa: S311


def name_of_lane(name: str, number: int) -> str:
    """Whose connection it is that a lane fetches by: ``name`` is a consumer's on a cluster that others use, too."""
    return f"{name}{number}" if number else name
