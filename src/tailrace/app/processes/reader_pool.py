"""Reader processes of a ProcessPoolConsumer, and the messages exchanged with them.

``core.processes.merged_stream`` queues and finishes the records. This module tracks which process has which lease, and
commits. In a group, each process commits for itself, because only members can. With assigned partitions, the parent
commits.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import anyio

from tailrace.admin.offsets import commit_offsets, committed_offsets
from tailrace.admin.topics import partitions_of
from tailrace.app.health.checks import Check
from tailrace.app.processes.child import unpickled_error
from tailrace.app.processes.parent import MARGIN_S
from tailrace.app.processes.supervised_process import ProcessExit, SupervisedProcess
from tailrace.config import ConsumerConfig
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.core.processes.merged_stream import LeaseKey, MergedStream, PartitionLease
from tailrace.core.processes.messages import (
    CommitMessage,
    CommittedMessage,
    DoneMessage,
    FromChild,
    GoneMessage,
    HaltedMessage,
    LeftMessage,
    ReadyMessage,
    SliceMessage,
    records_of,
)
from tailrace.core.processes.worker_plan import assign_in_turn, is_outage, member_name, workers_for
from tailrace.error_codes import ErrorCode
from tailrace.errors import CommitFailedError, TailraceError, TopicRecreatedError, broker_error
from tailrace.net.cluster import Cluster
from tailrace.observe.events import CommitFailed, TopicRecreated
from tailrace.observe.hooks import Observer
from tailrace.protocol.committed_offsets import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import TopicPartition

__all__ = ["ReaderPlan", "ReaderPool"]

_MODULE = "tailrace.app.processes.reader_process"
_MAX_DEATHS = 5
"""Number of consecutive deaths of a reader after which the consumer fails."""
_ASSIGNED = -1
"""First part of lease keys, in place of the number of a start, if the parent assigns the partitions."""
_PROGRESS_INTERVAL_S = 0.5
"""Interval of progress messages to the processes, in addition to the message at the end of each slice."""

_pools = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class ReaderPlan:
    """Settings of a pool of readers."""

    topics: tuple[str, ...]
    options: Mapping[str, Any]
    """Options of the consumers, without hooks."""
    config: ConsumerConfig
    """Resolved ``options``."""
    workers: int
    partitions_per_worker: int | None
    is_assigned: bool
    """True if the parent assigns the partitions; False if the group does."""


class ReaderPool:
    """Pool of the reader processes of one consumer.

    Args:
        plan: settings of the pool.
        intake: merged stream that receives the records.
        observer: receives events.
        on_change: called when records may have arrived, or the pool has failed.

    Attributes:
        failure: error that ended the pool.
        processes: supervised processes, one per reader.
    """

    def __init__(
        self, plan: ReaderPlan, intake: MergedStream, observer: Observer, on_change: Callable[[], None]
    ) -> None:
        self._plan, self._intake, self._observer, self._on_change = plan, intake, observer, on_change
        self._config = plan.config
        self._cluster = Cluster(plan.config, observer)
        self._pool_id = f"{os.getpid()}.{next(_pools)}"
        self._supervisor: Supervisor | None = None
        self.failure: TailraceError | None = None
        self.processes: list[SupervisedProcess] = []
        self._shares: list[dict[TopicPartition, int | None]] = []
        self._overrides: dict[int, dict[TopicPartition, int]] = {}
        """Per worker, the first unfinished offsets when its process died.

        An offset is removed when the next slice of its partition arrives.
        """
        self._routes: dict[LeaseKey, tuple[int, int]] = {}
        """Number of the process start that has each lease, and the number of the lease in that process."""
        self._keys: dict[TopicPartition, LeaseKey] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._topic_ids: dict[LeaseKey, UUID] = {}
        """Id of the topic from which each lease's records were read."""
        self._read_topic_ids: dict[TopicPartition, UUID] = {}
        """Ids of the topics to which the offsets in the next process's spec belong."""
        self._recreated: dict[TopicPartition, UUID] = {}
        """Ids of deleted topics, whose offsets are no longer committed."""
        self._commits: dict[int, asyncio.Future[None]] = {}
        self._commit_numbers = itertools.count()
        self._commit_lock = asyncio.Lock()

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start the processes, keep them running until ``supervisor.stopping`` is set, and stop them."""
        self._supervisor = supervisor
        try:
            await self._plan_processes()
            async with anyio.create_task_group() as tasks:
                for one in self.processes:
                    tasks.start_soon(one.run)
                tasks.start_soon(self._ready_when_settled, supervisor)
                tasks.start_soon(self._run_progress)
                await supervisor.stopping.wait()
                await self._finish()
                for one in self.processes:
                    one.end()
                tasks.cancel_scope.deadline = anyio.current_time() + self.longest_stop_s
                async with anyio.create_task_group() as ends:
                    for one in self.processes:
                        ends.start_soon(one.ended.wait)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - a defect in tailrace must not look like a regular stop
            self._fail(as_tailrace_error(error))
        finally:
            self._cluster.close()
            supervisor.stopping.set()
            await asyncio.sleep(0)  # The sockets are closed in the next iteration of the loop.
        if self.failure is not None:
            raise self.failure

    @property
    def longest_stop_s(self) -> float:
        """Maximum time in seconds to stop all processes."""
        return self._config.stop_timeout_ms / 1000 + 2 * MARGIN_S

    def checks(self) -> list[Check]:
        """Return the health of each process."""
        return [one.check() for one in self.processes]

    async def _plan_processes(self) -> None:
        config, plan = self._config, self._plan
        timeout_s = config.start_timeout_ms / 1000
        await self._cluster.reach(timeout_s)
        self._cluster.watch(self, plan.topics)
        counts = await partitions_of(self._cluster, plan.topics, timeout_s=timeout_s)
        for name in plan.topics:
            if not counts.get(name):
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        partitions = [TopicPartition(name, number) for name in plan.topics for number in range(counts[name])]
        self._read_topic_ids = {one: self._cluster.topology.topic_id(one.topic) for one in partitions}
        workers = workers_for(len(partitions), plan.workers, plan.partitions_per_worker)
        if plan.is_assigned:
            await self._assign(partitions, workers)
        else:
            self._member_options(workers)
        starts = itertools.count().__next__
        self.processes = [SupervisedProcess(worker, _MODULE, self, self._observer, starts) for worker in range(workers)]
        for one in self.processes:
            one.stop_timeout_s = config.stop_timeout_ms / 1000

    async def _assign(self, partitions: list[TopicPartition], workers: int) -> None:
        group_id = self._config.group_id
        if group_id is not None and not self._config.reset_offset_on_start:
            timeout_s = self._config.default_api_timeout_ms / 1000
            found = await committed_offsets(self._cluster, group_id, partitions, stable=True, timeout_s=timeout_s)
            self._committed = {partition: one.offset for partition, one in found.items()}
        self._shares = [
            {one: self._committed.get(one) for one in share} for share in assign_in_turn(partitions, workers)
        ]
        self._member = {
            # Set explicitly, to override variables in the environment.
            "group_id": None,
            "group_instance_id": None,
            "group_protocol": "classic",
            "enable_auto_commit": False,
            "reset_offset_on_start": False,
            "auto_offset_reset": self._config.begins_at,
        }

    def _member_options(self, workers: int) -> None:
        given = self._plan.options.get("group_instance_id", os.environ.get("TAILRACE_GROUP_INSTANCE_ID"))
        self._member = {"group_instance_id": member_name(given, workers, self._pool_id)}
        if given is None and self._config.leave_on_stop is None:
            self._member["leave_on_stop"] = True

    async def _ready_when_settled(self, supervisor: Supervisor) -> None:
        for one in self.processes:
            await one.settled.wait()
        supervisor.ready.set()

    # ---- owner of the processes --------------------------------------------------------------------------------

    def spec(self, worker: int, start: int) -> Mapping[str, object]:  # noqa: ARG002 - part of the interface
        """Return the settings to send to a reader."""
        window = max(1, self._config.max_queued_records // len(self.processes))
        # A reader that was ready has reset its offsets already; its next process must not reset them again.
        again = {"reset_offset_on_start": False} if self.processes[worker].ready.is_set() else {}
        return {
            "topics": self._plan.topics,
            "options": {**self._plan.options, **self._member, **again},
            "overrides": self._overrides.get(worker, {}),
            "topic_ids": self._read_topic_ids,
            "partitions": self._share(worker) if self._plan.is_assigned else None,
            "dealt": frozenset(one for share in self._shares for one in share),
            "turn": (worker, len(self.processes)),
            "window": window,
        }

    def _share(self, worker: int) -> dict[TopicPartition, int | None]:
        """Return a worker's partitions, each with a start offset after the records already received."""
        came = {lease.partition: lease.received for lease in self._intake.leases()}
        dealt = {one for share in self._shares for one in share}
        later = {one: came[one] for one in came.keys() - dealt if one.partition % len(self.processes) == worker}
        return {**{one: came.get(one, begin) for one, begin in self._shares[worker].items()}, **later}

    def on_message(self, start: int, message: FromChild) -> None:
        """Process a message of a reader."""
        match message:
            case SliceMessage():
                self._take_slice(start, message)
            case ReadyMessage(begins=begins):
                for topic, number, offset in begins:
                    partition = TopicPartition(topic, number)
                    key = self._key(start, 0, partition)
                    if self._intake.open(key, partition, offset).received > offset:
                        # The topic was recreated between the end of one process and the start of the next.
                        self._forget(key)
                        self._intake.open(key, partition, offset)
            case HaltedMessage(lease=number):
                if (lease := self._intake.halt(self._key_of(start, number))) is not None:
                    self._send(start, LeftMessage(number, lease.next_offset))
            case GoneMessage(lease=number):
                self._forget(self._key_of(start, number))
            case CommittedMessage(number=number, error=error):
                if (waiting := self._commits.pop(number, None)) is not None and not waiting.done():
                    waiting.set_result(None) if error is None else waiting.set_exception(unpickled_error(error, ""))
            case _:
                pass

    def _forget(self, key: LeaseKey) -> None:
        if (lease := self._intake.end(key)) is not None:
            # A recreated topic may reach the same offset.
            self._committed.pop(lease.partition, None)
        self._routes.pop(key, None)
        self._topic_ids.pop(key, None)

    def _take_slice(self, start: int, message: SliceMessage) -> None:
        partition = TopicPartition(message.topic, message.partition)
        key = self._key(start, message.lease, partition)
        self._routes[key] = start, message.lease
        if message.topic_id is not None:
            self._topic_ids[key] = self._read_topic_ids[partition] = message.topic_id
        for done in self._overrides.values():
            done.pop(partition, None)
        self._intake.put(key, partition, message.end_offset, records_of(message))
        self._on_change()

    def on_exit(self, death: ProcessExit, pause_s: float) -> float | None:
        """Let a dead reader continue in a new process; fail the pool if the reader reported an error or keeps dying."""
        for waiting in self._commits.values():
            if not waiting.done():
                waiting.set_exception(CommitFailedError(f"reader {death.worker} died: {death}"))
        self._commits.clear()
        if (failure := self._failure_of(death)) is not None:
            self._fail(failure)
            return None
        if not self._plan.is_assigned:
            self._drop_leases(death)
        return pause_s

    def _drop_leases(self, death: ProcessExit) -> None:
        """End the leases of a dead process; the next process reads again from the first unfinished offset on."""
        done: dict[TopicPartition, int] = {}
        for key in [key for key, (start, _) in self._routes.items() if start == death.start]:
            del self._routes[key]
            if (lease := self._intake.end(key)) is not None:
                done[lease.partition] = lease.finished
        self._overrides.setdefault(death.worker, {}).update(done)

    # ---- called by the consumer --------------------------------------------------------------------------------

    def send_progress(self, lease: PartitionLease) -> None:
        """Report to the process of a lease which records are finished and how many have left the queue."""
        if (route := self._routes.get(lease.key)) is not None:
            start, number = route
            self._send(start, DoneMessage(number, lease.finished, lease.unreleased))

    async def commit(self, timeout_s: float) -> None:
        """Commit the finished records.

        Raises:
            CommitFailedError: not all offsets were committed.
            BrokerError: a broker refuses the commit.
            BrokerConnectionError: no broker answers in time.
        """
        async with self._commit_lock:
            if self._plan.is_assigned:
                await self._commit_assigned(timeout_s)
                return
            self._intake.report_all()
            loop = asyncio.get_running_loop()
            answers: list[asyncio.Future[None]] = []
            for one in self.processes:
                if one.child is not None:
                    number = next(self._commit_numbers)
                    answers.append(loop.create_future())
                    self._commits[number] = answers[-1]
                    one.child.send(CommitMessage(number))
            stopped = [one.worker for one in self.processes if one.child is None]
            _, silent = await asyncio.wait(answers, timeout=timeout_s) if answers else ((), ())
            if silent:
                raise CommitFailedError(f"not all readers have committed within {timeout_s:.1f} s")
            for refused in [error for one in answers if (error := one.exception()) is not None]:
                raise refused
            if stopped:
                raise CommitFailedError(f"reader {stopped[0]} is not running - commit again after its restart")

    async def _commit_assigned(self, timeout_s: float) -> None:
        group_id = self._config.group_id
        new = {}
        for lease in self._intake.leases():
            topic_id = self._topic_ids.get(lease.key, NO_TOPIC_ID)
            is_recreated = topic_id == self._recreated.get(lease.partition)
            if not is_recreated and self._committed.get(lease.partition) != lease.finished:
                new[lease.partition] = CommitOffset(*lease.partition, lease.finished, topic_id=topic_id)
        if group_id is None or not new:
            return
        what = f"committing for group {group_id!r}"
        try:
            codes = await commit_offsets(self._cluster, group_id, new.values(), timeout_s=timeout_s, what=what)
        except TopicRecreatedError as error:
            for partition in error.partitions:
                self._recreated[partition] = new[partition].topic_id
                self._committed.pop(partition, None)
                self._observer.emit(TopicRecreated(partition, new[partition].offset))
            raise
        for partition, code in codes.items():
            offset = new[partition].offset
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise CommitFailedError(
                    f"{what}: the group has members, and only they may commit - stop them, or use layout='group'"
                )
            if code:
                raise broker_error(code, f"{what}: {partition}")
            self._committed[partition] = offset

    # ---- inside ------------------------------------------------------------------------------------------------

    def _failure_of(self, death: ProcessExit) -> TailraceError | None:
        """Return the error that ends the pool after the death of a reader; None if the reader is restarted."""
        assert self._supervisor is not None
        if self._supervisor.ready.is_set() and (is_outage(death.error) or death.cause):
            # Like a consumer, the pool waits until brokers are reachable and system resources available again.
            return None
        deaths = self.processes[death.worker].restarts.deaths(asyncio.get_running_loop().time())
        if death.error is None and (death.cause or deaths >= _MAX_DEATHS):
            often = f" has died {deaths} times in a row, last" if deaths >= _MAX_DEATHS else ""
            return TailraceError(f"reader {death.worker}{often}: {death}")
        return death.error

    async def _run_progress(self) -> None:
        """Send progress to the processes at intervals, and commit when auto-commit is due and the parent commits."""
        loop = asyncio.get_running_loop()
        interval_ms, every = self._config.auto_commit_interval_ms, self._config.auto_commit_every_records
        interval_s = float("inf") if interval_ms is None else interval_ms / 1000
        commit_at = loop.time() + interval_s
        commits = self._plan.is_assigned and self._config.commits_automatically
        while True:
            await asyncio.sleep(min(_PROGRESS_INTERVAL_S, interval_s / 2))
            self._intake.report_all()
            new = sum(one.finished - self._committed.get(one.partition, 0) for one in self._intake.leases())
            if commits and (loop.time() >= commit_at or (every is not None and new >= every)):
                commit_at = loop.time() + interval_s
                await self._commit_or_fail(self._config.request_timeout_ms / 1000)

    async def _finish(self) -> None:
        """Send the last progress, and commit the finished records if the parent commits automatically."""
        self._intake.report_all()
        if self._plan.is_assigned and self._config.commits_automatically:
            await self._commit_or_fail(self._config.stop_timeout_ms / 2 / 1000)

    async def _commit_or_fail(self, timeout_s: float) -> None:
        try:
            await self.commit(timeout_s)
        except TailraceError as error:
            will_retry = is_outage(error)
            self._observer.emit(CommitFailed(self._config.group_id or "", str(error), will_retry, error))
            if not will_retry and not isinstance(error, TopicRecreatedError):
                self._fail(error)

    def _fail(self, error: TailraceError) -> None:
        self.failure = self.failure or error
        if self._supervisor is not None:
            self._supervisor.stopping.set()
        self._on_change()

    def _send(self, start: int, message: DoneMessage | LeftMessage) -> None:
        for one in self.processes:
            if one.start == start and one.child is not None:
                one.child.send(message)

    def _key(self, start: int, number: int, partition: TopicPartition) -> LeaseKey:
        """Return the key of a lease.

        In a group, a restarted process has new keys. With assigned partitions, a partition keeps its key over restarts.
        """
        if not self._plan.is_assigned:
            return start, number
        return self._keys.setdefault(partition, (_ASSIGNED, len(self._keys)))

    def _key_of(self, start: int, number: int) -> LeaseKey:
        return next((key for key, route in self._routes.items() if route == (start, number)), (start, number))
