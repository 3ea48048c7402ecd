"""ProcessPoolConsumer: consumer that reads with several processes."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast, overload
from uuid import UUID

import anyio
from typing_extensions import Unpack

from tailrace.admin.offsets import commit_offsets, committed_offsets
from tailrace.admin.topics import partitions_of
from tailrace.app.health.checks import Check, Health
from tailrace.app.processes.merged_stream import LeaseKey, MergedStream, PartitionLease
from tailrace.app.processes.messages import (
    CommitMessage,
    CommittedMessage,
    FromChild,
    HaltRequest,
    HaltResponse,
    LeaseEndedMessage,
    ProgressMessage,
    ReadyMessage,
    SliceMessage,
    records_of,
)
from tailrace.app.processes.supervised_process import (
    MARGIN_S,
    ProcessExit,
    SupervisedProcess,
    pickled,
    set_ready_when_settled,
    unpickled_error,
)
from tailrace.app.processes.worker_plan import assign_in_turn, check_count, instance_id_template, is_outage, workers_for
from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig, ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.delivery.reader import poll_or_stop, poll_within, poll_within_timeout
from tailrace.consumer.supervisor import Supervisor, as_tailrace_error
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    CommitFailedError,
    ConfigurationError,
    ConsumerStateError,
    TailraceError,
    TopicRecreatedError,
    broker_error,
)
from tailrace.net.cluster import Cluster
from tailrace.observe.events import CommitFailed, TopicRecreated
from tailrace.observe.hooks import Hook, Observer
from tailrace.protocol.groups import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import Record, TopicPartition
from tailrace.values import robust_repr

__all__ = ["ProcessPoolConsumer", "ReaderPlan", "ReaderPool"]

_UNSUPPORTED_CALLBACKS = ("post_rebalance_callback", "rebalance_listener")
"""Options that are not supported, because their callbacks would be called in another process."""

Layout = Literal["group", "assigned"]


class ProcessPoolConsumer:
    """Consumer that reads topics with several processes, and delivers one stream of records.

    The processes fetch, check, decompress and decode the records. Each process has its own event loop and connections.
    Records of a partition are delivered in order. As with ``Consumer``, a record is finished when the next record is
    requested, and only the offsets of finished records are committed.

    Args:
        topics: names of the topics to read.
        workers: number of processes; at most one process per partition is started.
        partitions_per_worker: number of partitions per process; takes precedence over ``workers``.
        layout: ``"group"`` or ``"assigned"``. With ``"group"``, the default if ``group_id`` is set, each process is a
            member of the group, and a restarted process gets its partitions back. With ``"assigned"``, the default
            without ``group_id``, the processes join no group: this process assigns the partitions evenly to them, and
            commits the offsets for ``group_id`` if it is set.
        options: options of ``Consumer``; ``hooks`` are called in this process, with events about the processes.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        *topics: str,
        workers: int = 1,
        partitions_per_worker: int | None = None,
        layout: Layout | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        options = hide_secrets(options)
        consumer_options = cast("dict[str, Any]", options)
        check_names(consumer_options)
        config = resolve(consumer_options)
        names, _ = checked_subscription(topics, None, config.group_protocol)
        check_count("workers", workers)
        check_count("partitions_per_worker", partitions_per_worker, or_none=True)
        if layout not in {None, "group", "assigned"}:
            raise ConfigurationError(f"layout must be 'group' or 'assigned', not {layout!r}")
        if layout == "group" and config.group_id is None:
            raise ConfigurationError("layout='group' needs a group_id - set it, or use layout='assigned'")
        _check_supported(consumer_options, ack=config.ack)
        hooks = cast("tuple[Hook, ...]", tuple(consumer_options.pop("hooks", ())))
        self._observer = Observer(hooks, client_id=config.client_id)
        pickled(consumer_options)  # This raises if the options cannot be sent to the processes.
        self._plan = ReaderPlan(
            topics=tuple(sorted(names)),
            options=consumer_options,
            config=config,
            workers=workers,
            partitions_per_worker=partitions_per_worker,
            is_assigned=layout == "assigned" or config.group_id is None,
        )
        self._stream = MergedStream()
        self._readers: ReaderPool | None = None
        self._supervisor: Supervisor | None = None
        self._wakeup: AutoResetEvent | None = None
        self._is_waiting = self._is_stopped = False

    @robust_repr
    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self._readers is None else "started"
        return f"<ProcessPoolConsumer {', '.join(self._plan.topics)} group={self._plan.config.group_id} {state}>"

    # ---- start and stop ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the processes, and wait until each of them can read records or has died once.

        Raises:
            ConsumerStateError: the consumer is started already, or was stopped.
            TailraceError: see ``Consumer.start``.
        """
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - create a new consumer")
        if self._readers is not None:
            raise ConsumerStateError("this consumer is started already")
        self._wakeup = AutoResetEvent()
        self._readers = ReaderPool(self._plan, self._stream, self._observer, self._wakeup.set)
        self._supervisor = Supervisor(self._readers.run, f"tailrace readers of {', '.join(self._plan.topics)}")
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise

    async def stop(self) -> None:
        """Commit the finished records and stop all processes.

        Processes that still run five seconds after ``stop_timeout_ms`` are killed.
        """
        self._is_stopped = True
        self._stream.close()
        if self._wakeup is not None:
            self._wakeup.set()
        if self._supervisor is not None and self._readers is not None:
            await self._supervisor.stop(self._readers.longest_stop_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ---- reading -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        _ = self._started
        return self

    async def __anext__(self) -> Record:
        for record in self._stream.polled.remaining:
            return record
        return await poll_or_stop(self._next_record, self._plan.config, lambda: self._is_stopped)

    @overload
    async def getone(self, *, timeout_ms: None = None) -> Record: ...

    @overload
    async def getone(self, *, timeout_ms: int) -> Record | None: ...

    async def getone(self, *, timeout_ms: int | None = None) -> Record | None:
        """Finish the previous record, and return the next record; None if no record arrives within ``timeout_ms``.

        Args:
            timeout_ms: time to wait in milliseconds. By default, ``consumer_timeout_ms`` limits the wait and raises an
                error; if that is None, too, there is no limit.

        Raises:
            ConsumerStateError: the consumer is not started, was stopped, or is read by two tasks at once.
            ConsumerTimeoutError: no record arrived within ``consumer_timeout_ms``.
            TailraceError: the readers failed.
        """
        _ = self._started
        for record in self._stream.polled.remaining:
            return record
        if timeout_ms is None:
            return await poll_within_timeout(self._next_record, self._plan.config.consumer_timeout_ms)
        return await poll_within(self._next_record, timeout_ms)

    async def getmany(self, *, max_records: int | None = None, timeout_ms: int | None = None) -> list[Record]:
        """Finish the previous batch, and return the queued records as soon as there is at least one.

        Args:
            max_records: maximum number of records to return; by default ``max_queued_records``.
            timeout_ms: time to wait for the first record in milliseconds. By default, ``consumer_timeout_ms`` limits
                the wait and raises an error; if that is None, too, there is no limit.

        Returns:
            The records, in order within each partition; an empty list if none arrives within ``timeout_ms``.

        Raises:
            ConsumerStateError: the consumer is not started, was stopped, or is read by two tasks at once.
            ConsumerTimeoutError: no record arrived within ``consumer_timeout_ms``.
            TailraceError: the readers failed.
        """
        _ = self._started
        count = self._plan.config.max_queued_records if max_records is None else max_records
        check_count("max_records", count)
        read = partial(self._next_records, count)
        if timeout_ms is None:
            return await poll_within_timeout(read, self._plan.config.consumer_timeout_ms)
        return await poll_within(read, timeout_ms) or []

    def ack(self, record: Record) -> bool:
        """Finish a record in flight and all earlier records of its partition, without requesting the next record.

        Returns:
            False if the record is not in flight.

        Raises:
            ConsumerStateError: the consumer is not started, or was stopped.
        """
        _ = self._started
        return self._stream.acknowledge(record)

    async def commit(self) -> None:
        """Finish all delivered records, including those in flight, and commit their offsets.

        Raises:
            ConsumerStateError: the consumer is not started, was stopped, or has no group.
            CommitFailedError: not all offsets were committed.
            TailraceError: the broker refuses the commit, or the readers failed.
        """
        readers = self._started
        if self._plan.config.group_id is None:
            raise ConsumerStateError("commit() needs a group_id - set it when creating the consumer")
        if readers.failure is not None:
            raise readers.failure
        self._stream.finish()
        await readers.commit(self._plan.config.default_api_timeout_ms / 1000)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the running processes."""
        processes = [] if self._readers is None else self._readers.processes
        return tuple(one.child.pid for one in processes if one.child is not None)

    @property
    def queued_records(self) -> int:
        """Number of records that this process has received and not delivered yet.

        ``max_queued_records`` limits these records together with the records that are being sent to this process.
        """
        return self._stream.queued_records

    def health(self) -> Health:
        """Return the health of the processes.

        The status of a process that keeps dying is "degraded", or "starting" if the process was never ready.
        """
        readers = self._readers
        if readers is not None and readers.failure is not None:
            return Health.of([Check("readers", "failed", str(readers.failure))])
        if self._is_stopped:
            return Health.of([Check("readers", "stopping", "no more records are read")])
        if readers is None or not readers.processes:
            return Health.of([Check("readers", "starting")])
        return Health.of(one.check() for one in readers.processes)

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ReaderPool:
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - create a new consumer")
        if self._readers is None:
            raise ConsumerStateError(
                "this consumer is not started - use `async with ProcessPoolConsumer(...)`, or await start() first"
            )
        return self._readers

    async def _next_record(self) -> Record:
        _ = self._started
        self._stream.finish()
        while not self._stream.polled.count_left and not self._stream.next_slice():
            await self._wait_for_change()
        return next(self._stream.polled.remaining)

    async def _next_records(self, count: int) -> list[Record]:
        while not (taken := self._stream.take(count)):
            await self._wait_for_change()
        return taken

    async def _wait_for_change(self) -> None:
        readers = self._started
        assert self._wakeup is not None
        if readers.failure is not None:
            raise readers.failure
        if self._is_waiting:
            raise ConsumerStateError(
                "two tasks read from this consumer at once - read in one task, and pass records to the other"
            )
        self._is_waiting = True
        try:
            await self._wakeup.wait()
        finally:
            self._is_waiting = False
        _ = self._started


def _check_supported(options: dict[str, Any], *, ack: str) -> None:
    for name in _UNSUPPORTED_CALLBACKS:
        if options.get(name) is not None:
            raise ConfigurationError(
                f"{name} cannot be called, because other processes read the records - use Consumer"
            )
    for name in ("key_deserializer", "value_deserializer"):
        if options.get(name) is not None:
            raise ConfigurationError(
                f"{name} cannot be used with several processes, which exchange bytes - decode in the loop, or use"
                " Consumer"
            )
    if ack == "manual":
        raise ConfigurationError("ack='manual' is not supported with several processes - use Consumer, or App")


# ---- reader processes of a ProcessPoolConsumer, and the messages exchanged with them ---------------------------------

_MODULE = "tailrace.app.processes.reader_process"
_MAX_DEATHS = 5
"""Number of consecutive deaths of a reader after which the consumer fails."""
_ASSIGNED = -1
"""First number of each lease key if the parent assigns the partitions; in a group, it is that of a process start."""
_PROGRESS_INTERVAL_S = 0.5
"""Seconds between progress messages to the processes; a process also gets a message at the end of each slice."""

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
    """Number of processes, unless ``partitions_per_worker`` is set."""
    partitions_per_worker: int | None
    is_assigned: bool
    """True if the parent assigns the partitions; False if the group does."""


class ReaderPool:
    """Pool of the reader processes of one consumer.

    Args:
        plan: settings of the pool.
        stream: merged stream that receives the records.
        observer: receives events.
        on_change: called when records have arrived or the pool has failed.

    Attributes:
        failure: error that ended the pool, or None.
        processes: supervised processes, one per reader.
    """

    def __init__(
        self, plan: ReaderPlan, stream: MergedStream, observer: Observer, on_change: Callable[[], None]
    ) -> None:
        self._plan, self._stream, self._observer, self._on_change = plan, stream, observer, on_change
        self._config = plan.config
        self._cluster = Cluster(plan.config, observer)
        self._pool_id = f"{os.getpid()}.{next(_pools)}"
        self._supervisor: Supervisor | None = None
        stream.on_progress = self._send_progress
        self.failure: TailraceError | None = None
        self.processes: list[SupervisedProcess] = []
        self._assignments: list[dict[TopicPartition, int | None]] = []
        """Partitions that the parent assigned to each worker at the start, with their committed offsets."""
        self._overrides: dict[int, dict[TopicPartition, int]] = {}
        """First unfinished offsets of the partitions of a dead process, by worker: the index that restarts keep.

        An offset is removed when the next slice of its partition arrives.
        """
        self._keys: dict[TopicPartition, LeaseKey] = {}
        """Key of the lease of each partition, if the parent assigns the partitions."""
        self._committed: dict[TopicPartition, int] = {}
        """Committed offset of each partition, if the parent assigns the partitions."""
        self._read_topic_ids: dict[TopicPartition, UUID] = {}
        """Id of the topic from which each partition was last read; start offsets for a new process belong to it."""
        self._recreated: dict[TopicPartition, UUID] = {}
        """Id of the deleted topic of each recreated partition; offsets of the deleted topic are not committed."""
        self._commits: dict[int, asyncio.Future[None]] = {}
        """Futures of the answers to the CommitMessages that were sent, by number."""
        self._commit_numbers = itertools.count()
        self._commit_lock = asyncio.Lock()

    # ---- run ---------------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start the processes, keep them running until ``supervisor.stopping`` is set, and stop them."""
        self._supervisor = supervisor
        try:
            await self._plan_processes()
            async with anyio.create_task_group() as tasks:
                for one in self.processes:
                    tasks.start_soon(one.run)
                tasks.start_soon(set_ready_when_settled, self.processes, supervisor)
                tasks.start_soon(self._run_progress)
                await supervisor.stopping.wait()
                await self._finish_progress()
                for one in self.processes:
                    one.end()
                tasks.cancel_scope.deadline = anyio.current_time() + self.longest_stop_s
                async with anyio.create_task_group() as ends:
                    for one in self.processes:
                        ends.start_soon(one.ended.wait)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - any error must end the pool as a failure
            self._fail(as_tailrace_error(error))
        finally:
            self._cluster.close()
            supervisor.stopping.set()
            await asyncio.sleep(0)  # The event loop closes the sockets in its next iteration.
        if self.failure is not None:
            raise self.failure

    @property
    def longest_stop_s(self) -> float:
        """Maximum time in seconds to stop all processes."""
        return self._config.stop_timeout_ms / 1000 + 2 * MARGIN_S

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
            self._set_member_options(workers)
        self.processes = [SupervisedProcess(worker, _MODULE, self, self._observer) for worker in range(workers)]
        for one in self.processes:
            one.stop_timeout_s = config.stop_timeout_ms / 1000

    async def _assign(self, partitions: list[TopicPartition], workers: int) -> None:
        group_id = self._config.group_id
        if group_id is not None and not self._config.reset_offset_on_start:
            timeout_s = self._config.default_api_timeout_ms / 1000
            found = await committed_offsets(self._cluster, group_id, partitions, stable=True, timeout_s=timeout_s)
            self._committed = {partition: one.offset for partition, one in found.items()}
        self._assignments = [
            {one: self._committed.get(one) for one in share} for share in assign_in_turn(partitions, workers)
        ]
        self._consumer_overrides = {
            # The options are set even to their defaults, to override environment variables.
            "group_id": None,
            "group_instance_id": None,
            "group_protocol": "classic",
            "enable_auto_commit": False,
            "reset_offset_on_start": False,
            "auto_offset_reset": self._config.begins_at,
        }

    def _set_member_options(self, workers: int) -> None:
        instance_id = self._plan.options.get("group_instance_id", os.environ.get("TAILRACE_GROUP_INSTANCE_ID"))
        self._consumer_overrides = {"group_instance_id": instance_id_template(instance_id, workers, self._pool_id)}
        if instance_id is None and self._config.leave_on_stop is None:
            self._consumer_overrides["leave_on_stop"] = True

    # ---- called by the processes -------------------------------------------------------------------------------

    def spec(self, worker: int, start: int) -> Mapping[str, object]:  # noqa: ARG002 - part of the interface
        """Return the settings to send to a reader."""
        window = max(1, self._config.max_queued_records // len(self.processes))
        # A reader that was ready has reset its offsets already, so its next process must not reset them again.
        restart_options = {"reset_offset_on_start": False} if self.processes[worker].ready.is_set() else {}
        return {
            "topics": self._plan.topics,
            "options": {**self._plan.options, **self._consumer_overrides, **restart_options},
            "overrides": self._overrides.get(worker, {}),
            "topic_ids": self._read_topic_ids,
            "partitions": self._start_offsets(worker) if self._plan.is_assigned else None,
            "assigned_at_start": frozenset(self._assigned_at_start()),
            "round_robin": (worker, len(self.processes)),
            "window": window,
        }

    def _assigned_at_start(self) -> set[TopicPartition]:
        return {partition for assignment in self._assignments for partition in assignment}

    def _start_offsets(self, worker: int) -> dict[TopicPartition, int | None]:
        """Return the partitions of a worker with their start offsets; None to start at ``auto_offset_reset``.

        The start offset is the offset after the records that have arrived or, if none have, the committed offset.
        Partitions that were added to a topic later are included once records of them have arrived.
        """
        received = {lease.partition: lease.received for lease in self._stream.leases()}
        added = received.keys() - self._assigned_at_start()
        added_offsets = {one: received[one] for one in added if one.partition % len(self.processes) == worker}
        start_offsets = {one: received.get(one, committed) for one, committed in self._assignments[worker].items()}
        return {**start_offsets, **added_offsets}

    def on_message(self, start: int, message: FromChild) -> None:
        """Process a message of a reader."""
        match message:
            case SliceMessage():
                self._add_slice(start, message)
            case ReadyMessage(start_offsets=start_offsets):
                for topic, number, offset in start_offsets:
                    partition = TopicPartition(topic, number)
                    key = self._key(start, 0, partition)
                    if self._stream.open(key, partition, offset).received > offset:
                        # The topic was recreated after the previous process had ended.
                        self._forget(key)
                        self._stream.open(key, partition, offset)
            case HaltRequest(lease=number):
                if (lease := self._stream.halt(self._current_key(start, number))) is not None:
                    self._send(start, HaltResponse(number, lease.next_offset))
            case LeaseEndedMessage(lease=number):
                self._forget(self._current_key(start, number))
            case CommittedMessage(number=number, error=error):
                if (waiting := self._commits.pop(number, None)) is not None and not waiting.done():
                    waiting.set_result(None) if error is None else waiting.set_exception(unpickled_error(error, ""))
            case _:
                pass

    def _forget(self, key: LeaseKey) -> None:
        if (lease := self._stream.end(key)) is not None:
            # If the topic was recreated, the same offset must be committed again.
            self._committed.pop(lease.partition, None)

    def _add_slice(self, start: int, message: SliceMessage) -> None:
        partition = TopicPartition(message.topic, message.partition)
        key = self._key(start, message.lease, partition)
        lease = self._stream.put(key, partition, message.end_offset, records_of(message))
        lease.route = start, message.lease
        if message.topic_id is not None:
            lease.topic_id = self._read_topic_ids[partition] = message.topic_id
        for offsets in self._overrides.values():
            offsets.pop(partition, None)
        self._on_change()

    def on_exit(self, death: ProcessExit, pause_s: float) -> float | None:
        """Return the pause before a dead reader is restarted; otherwise fail the pool and return None."""
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
        """End the leases of a dead process, whose successor reads from their first unfinished offsets."""
        unfinished: dict[TopicPartition, int] = {}
        for lease in self._stream.leases():
            if lease.route is not None and lease.route[0] == death.start:
                self._stream.end(lease.key)
                unfinished[lease.partition] = lease.finished
        self._overrides.setdefault(death.worker, {}).update(unfinished)

    # ---- called by the consumer --------------------------------------------------------------------------------

    def _send_progress(self, lease: PartitionLease) -> None:
        """Report to the process of a lease the first unfinished offset, and how many records have left the queue."""
        if lease.route is not None:
            start, number = lease.route
            self._send(start, ProgressMessage(number, lease.finished, lease.unreleased))

    async def commit(self, timeout_s: float) -> None:
        """Commit the offsets of the finished records, within ``timeout_s`` seconds."""
        async with self._commit_lock:
            if self._plan.is_assigned:
                await self._commit_assigned(timeout_s)
                return
            self._stream.report_all()
            loop = asyncio.get_running_loop()
            answers: list[asyncio.Future[None]] = []
            for one in self.processes:
                if one.child is not None:
                    number = next(self._commit_numbers)
                    answers.append(loop.create_future())
                    self._commits[number] = answers[-1]
                    one.child.send(CommitMessage(number))
            not_running = [one.worker for one in self.processes if one.child is None]
            _, unanswered = await asyncio.wait(answers, timeout=timeout_s) if answers else ((), ())
            if unanswered:
                raise CommitFailedError(f"not all readers have committed within {timeout_s:.1f} s - commit again")
            for error in filter(None, (answer.exception() for answer in answers)):
                raise error
            if not_running:
                raise CommitFailedError(f"reader {not_running[0]} is not running - commit again after its restart")

    async def _commit_assigned(self, timeout_s: float) -> None:
        group_id = self._config.group_id
        new = {}
        for lease in self._stream.leases():
            topic_id = lease.topic_id or NO_TOPIC_ID
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
                    f"{what}: the group has members, and only its members may commit - stop them, or use layout='group'"
                )
            if code:
                raise broker_error(code, f"{what}: {partition}")
            self._committed[partition] = offset

    # ---- inside ------------------------------------------------------------------------------------------------

    def _failure_of(self, death: ProcessExit) -> TailraceError | None:
        """Return the error that ends the pool after the death of a reader; None if the reader is restarted."""
        assert self._supervisor is not None
        if self._supervisor.ready.is_set() and (is_outage(death.error) or death.cause):
            # Like a consumer, the pool waits until brokers are reachable and system resources are available again.
            return None
        deaths = self.processes[death.worker].restarts.deaths(asyncio.get_running_loop().time())
        if death.error is None and (death.cause or deaths >= _MAX_DEATHS):
            often = f" has died {deaths} times in a row, the last time" if deaths >= _MAX_DEATHS else ""
            return TailraceError(f"reader {death.worker}{often}: {death}")
        return death.error

    async def _run_progress(self) -> None:
        """Send progress to the processes at intervals; with ``layout="assigned"``, also commit automatically."""
        loop = asyncio.get_running_loop()
        interval_ms, every = self._config.auto_commit_interval_ms, self._config.auto_commit_every_records
        interval_s = float("inf") if interval_ms is None else interval_ms / 1000
        commit_at = loop.time() + interval_s
        commits = self._plan.is_assigned and self._config.commits_automatically
        while True:
            await asyncio.sleep(min(_PROGRESS_INTERVAL_S, interval_s / 2))
            self._stream.report_all()
            new = sum(one.finished - self._committed.get(one.partition, 0) for one in self._stream.leases())
            if commits and (loop.time() >= commit_at or (every is not None and new >= every)):
                commit_at = loop.time() + interval_s
                await self._commit_or_fail(self._config.request_timeout_ms / 1000)

    async def _finish_progress(self) -> None:
        """Send the last progress; with ``layout="assigned"``, also commit automatically."""
        self._stream.report_all()
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

    def _send(self, start: int, message: ProgressMessage | HaltResponse) -> None:
        for one in self.processes:
            if one.start == start and one.child is not None:
                one.child.send(message)

    def _key(self, start: int, number: int, partition: TopicPartition) -> LeaseKey:
        """Return the key of a lease.

        In a group, the leases of a restarted process get new keys. With ``layout="assigned"``, a partition keeps its
        key when its process is restarted.
        """
        if not self._plan.is_assigned:
            return start, number
        return self._keys.setdefault(partition, (_ASSIGNED, len(self._keys)))

    def _current_key(self, start: int, number: int) -> LeaseKey:
        route = start, number
        return next((lease.key for lease in self._stream.leases() if lease.route == route), route)
