"""ProcessPoolConsumer: topics read by several processes, as one stream.

Rule of this file: what users call and read from; it is to them what ``Consumer`` is.
"""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast, overload

from typing_extensions import Unpack

from tailrace.app.health.checks import Check, Health
from tailrace.app.processes.child import pickled
from tailrace.app.processes.reader_pool import ReaderPlan, ReaderPool
from tailrace.auto_reset_event import AutoResetEvent
from tailrace.config import ConsumerOptions, check_names, resolve
from tailrace.consumer.arguments import checked_subscription
from tailrace.consumer.delivery.poll_timer import or_stop, within, within_timeout
from tailrace.consumer.supervisor import Supervisor
from tailrace.core.processes.merged_stream import MergedStream, PartitionLease
from tailrace.core.processes.worker_plan import check_count
from tailrace.errors import ConfigurationError, ConsumerStateError
from tailrace.observe.hooks import Hook, Observer
from tailrace.records import Record

__all__ = ["ProcessPoolConsumer"]

_NOT_OVER = ("post_rebalance_callback", "rebalance_listener")
"""Options that would be called where nobody waits for them."""

Layout = Literal["group", "assigned"]


class ProcessPoolConsumer:
    """Reads topics with several processes and hands out one stream of records.

    Fetching, checking, decompressing and decoding are done by the processes, each with an event loop and connections of
    its own. Records of a partition come in order. As with ``Consumer``, a record is done when the next one is asked
    for, and nothing that was not handed out and done is committed.

    Args:
        topics: names of the topics to read.
        workers: how many processes; never more than there are partitions.
        partitions_per_worker: or how many partitions each shall have; it goes before ``workers``.
        layout: ``"group"``: each process is a member of the group, which deals the partitions out, and one that dies
            has its own again. ``"assigned"``: this process deals them out evenly, no group is joined, and offsets are
            committed for ``group_id`` if there is one. The first with a ``group_id``, the second without, when nothing
            is said.
        options: those of ``Consumer``; ``hooks`` are told of the processes.

    Raises:
        ConfigurationError: an argument will not do.
    """

    def __init__(
        self,
        *topics: str,
        workers: int = 1,
        partitions_per_worker: int | None = None,
        layout: Layout | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        given = cast("dict[str, Any]", options)
        check_names(given)
        config = resolve(given)
        names, _ = checked_subscription(topics, None, config.group_protocol)
        check_count("workers", workers)
        check_count("partitions_per_worker", partitions_per_worker, or_none=True)
        if layout not in {None, "group", "assigned"}:
            raise ConfigurationError(f"layout={layout!r} will not do: it has to be 'group' or 'assigned'")
        if layout == "group" and config.group_id is None:
            raise ConfigurationError("layout='group' needs a group_id - there is no group to be members of")
        _check_options(given, ack=config.ack)
        self._observer = Observer(cast("tuple[Hook, ...]", tuple(given.pop("hooks", ()))), client_id=config.client_id)
        pickled(given)
        self._plan = ReaderPlan(
            topics=tuple(sorted(names)),
            options=given,
            config=config,
            workers=workers,
            partitions_per_worker=partitions_per_worker,
            is_dealt=layout == "assigned" or config.group_id is None,
        )
        self._intake = MergedStream(self._tell)
        self._readers: ReaderPool | None = None
        self._supervisor: Supervisor | None = None
        self._news: AutoResetEvent | None = None
        self._is_waiting = self._is_stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._is_stopped else "new" if self._readers is None else "started"
        return f"<ProcessPoolConsumer {', '.join(self._plan.topics)} group={self._plan.config.group_id} {state}>"

    # ---- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the processes, and wait until each reads.

        Raises:
            ConsumerStateError: it was started or stopped before.
            TailraceError: as ``Consumer.start`` does.
        """
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - make a new one")
        if self._readers is not None:
            raise ConsumerStateError("this consumer is started already")
        self._news = AutoResetEvent()
        self._readers = ReaderPool(self._plan, self._intake, self._observer, self._news.set)
        self._supervisor = Supervisor(self._readers.live, f"tailrace readers of {', '.join(self._plan.topics)}")
        try:
            await self._supervisor.start()
        except BaseException:
            self._is_stopped = True
            raise

    async def stop(self) -> None:
        """Commit what is done and end all processes; one that does not end within ``stop_timeout_ms`` is killed."""
        self._is_stopped = True
        self._intake.close()
        if self._news is not None:
            self._news.set()
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
        for record in self._intake.polled.slice:
            return record
        return await or_stop(self._next_record, self._plan.config, lambda: self._is_stopped)

    @overload
    async def getone(self, *, timeout_ms: None = None) -> Record: ...

    @overload
    async def getone(self, *, timeout_ms: int) -> Record | None: ...

    async def getone(self, *, timeout_ms: int | None = None) -> Record | None:
        """The next record, or None when none came in time; the one before is done.

        Args:
            timeout_ms: how long to wait; by default ``consumer_timeout_ms``, or for ever.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            ConsumerTimeoutError: no record came within ``consumer_timeout_ms``.
            TailraceError: what ended the reading.
        """
        _ = self._started
        for record in self._intake.polled.slice:
            return record
        if timeout_ms is None:
            return await within_timeout(self._next_record, self._plan.config.consumer_timeout_ms)
        return await within(self._next_record, timeout_ms)

    async def getmany(self, *, max_records: int | None = None, timeout_ms: int | None = None) -> list[Record]:
        """At least one record, and at most ``max_records`` of those that are there; the batch before is done.

        Args:
            max_records: ``max_queued_records`` when nothing is said.
            timeout_ms: how long to wait for the first; by default ``consumer_timeout_ms``, or for ever.

        Returns:
            The records, in order within each partition; an empty list when none came in time.

        Raises:
            ConsumerStateError: not started, stopped, or two tasks read at once.
            ConsumerTimeoutError: no record came within ``consumer_timeout_ms``.
            TailraceError: what ended the reading.
        """
        _ = self._started
        count = self._plan.config.max_queued_records if max_records is None else max_records
        check_count("max_records", count)
        wanted = partial(self._next_records, count)
        if timeout_ms is None:
            return await within_timeout(wanted, self._plan.config.consumer_timeout_ms)
        return await within(wanted, timeout_ms) or []

    def ack(self, record: Record) -> bool:
        """Say that a record in hand is done, and what came before it in its partition, without asking for the next."""
        _ = self._started
        return self._intake.acknowledge(record)

    async def commit(self) -> None:
        """Commit now what was handed out, including what is in hand.

        Raises:
            ConsumerStateError: not started, stopped, or without a group.
            CommitFailedError: not all of it was committed.
            TailraceError: it may not be, or what ended the reading.
        """
        readers = self._started
        if self._plan.config.group_id is None:
            raise ConsumerStateError("commit() needs a group_id - there is no group to commit for")
        if readers.failure is not None:
            raise readers.failure
        self._intake.finish()
        await readers.commit(self._plan.config.default_api_timeout_ms / 1000)

    # ---- looking -----------------------------------------------------------------------------------------------

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are there now."""
        kept = [] if self._readers is None else self._readers.kept
        return tuple(one.child.pid for one in kept if one.child is not None)

    @property
    def queued_records(self) -> int:
        """Records that are here and not handed out; with what is on the way at most about ``max_queued_records``."""
        return self._intake.queued_records

    def health(self) -> Health:
        """How the processes are; one that dies again and again is degraded, or still starting if it has never read."""
        readers = self._readers
        if readers is not None and readers.failure is not None:
            return Health.of([Check("readers", "failed", str(readers.failure))])
        if self._is_stopped:
            return Health.of([Check("readers", "stopping", "they read no more")])
        if readers is None or not readers.kept:
            return Health.of([Check("readers", "starting")])
        return Health.of(readers.checks())

    # ---- inside ------------------------------------------------------------------------------------------------

    @property
    def _started(self) -> ReaderPool:
        if self._is_stopped:
            raise ConsumerStateError("this consumer was stopped - make a new one")
        if self._readers is None:
            raise ConsumerStateError(
                "this consumer is not started - use `async with ProcessPoolConsumer(...)`, or await start() first"
            )
        return self._readers

    async def _next_record(self) -> Record:
        _ = self._started
        self._intake.finish()
        while not self._intake.polled.left and not self._intake.next_slice():
            await self._wait_for_news()
        return next(self._intake.polled.slice)

    async def _next_records(self, count: int) -> list[Record]:
        while not (taken := self._intake.take(count)):
            await self._wait_for_news()
        return taken

    async def _wait_for_news(self) -> None:
        readers = self._started
        assert self._news is not None
        if readers.failure is not None:
            raise readers.failure
        if self._is_waiting:
            raise ConsumerStateError(
                "two tasks read from this consumer at once - let one read and hand records to the other"
            )
        self._is_waiting = True
        try:
            await self._news.wait()
        finally:
            self._is_waiting = False
        _ = self._started

    def _tell(self, lease: PartitionLease) -> None:
        if self._readers is not None:
            self._readers.tell(lease)


def _check_options(given: dict[str, Any], *, ack: str) -> None:
    for name in _NOT_OVER:
        if given.get(name) is not None:
            raise ConfigurationError(f"{name} cannot be called here when another process reads - use Consumer for that")
    if ack == "manual":
        raise ConfigurationError("ack='manual' is not for several processes - use Consumer, or App")
