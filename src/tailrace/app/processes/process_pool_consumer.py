"""ProcessPoolConsumer: consumer that reads with several processes."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast, overload

from typing_extensions import Unpack

from tailrace.app.health.checks import Check, Health
from tailrace.app.processes.child import pickled
from tailrace.app.processes.merged_stream import MergedStream, PartitionLease
from tailrace.app.processes.reader_pool import ReaderPlan, ReaderPool
from tailrace.app.processes.worker_plan import check_count
from tailrace.auto_reset_event import AutoResetEvent
from tailrace.config import ConsumerOptions, check_names, hide_secrets, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.delivery.reader import poll_or_stop, poll_within, poll_within_timeout
from tailrace.consumer.supervisor import Supervisor
from tailrace.errors import ConfigurationError, ConsumerStateError
from tailrace.observe.hooks import Hook, Observer
from tailrace.records import Record
from tailrace.values import robust_repr

__all__ = ["ProcessPoolConsumer"]

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
        self._stream = MergedStream(self._send_progress)
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
        return Health.of(readers.checks())

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

    def _send_progress(self, lease: PartitionLease) -> None:
        if self._readers is not None:
            self._readers.send_progress(lease)


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
