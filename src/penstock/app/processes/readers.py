"""The processes that read for a ProcessPoolConsumer, and what they and it say to each other.

Rule of this file: it decides nothing about records; that is ``core.intake``'s. Here it is known which process has which
lease, and who commits: in a group each process for itself, as a member may; where partitions are dealt out, this one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from penstock.admin.asking import ask_coordinator
from penstock.admin.offsets import committed_offsets
from penstock.admin.topics import partitions_of
from penstock.app.health import Check
from penstock.app.processes.child import unpickled
from penstock.app.processes.kept import Death, Kept
from penstock.app.processes.parent import MARGIN_S
from penstock.config import ConsumerConfig
from penstock.consumer.supervisor import Supervisor
from penstock.core.intake import Intake, Lease, LeaseKey
from penstock.core.process_messages import (
    Commit,
    Committed,
    Done,
    FromChild,
    Gone,
    Halted,
    Left,
    Ready,
    Slice,
    records_of,
)
from penstock.core.worker_plan import deal, is_outage, member_name, workers_for
from penstock.error_codes import ErrorCode
from penstock.errors import CommitFailedError, PenstockError, broker_error
from penstock.messages import CommitOffset, OffsetCommitRequest
from penstock.net.cluster import Cluster
from penstock.observe.events import CommitFailed
from penstock.observe.hooks import Observer
from penstock.records import TopicPartition

__all__ = ["ReaderPlan", "Readers"]

_MODULE = "penstock.app.processes.reading_worker"
_MOST_DEATHS = 5
"""Who has died so often in a row will not read any more."""
_DEALT = -1
_TELL_S = 0.5
"""How often processes are told what is done, beside the end of each slice."""

_pools = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class ReaderPlan:
    """What a pool of readers is for."""

    topics: tuple[str, ...]
    options: Mapping[str, Any]
    """The consumers', without hooks."""
    config: ConsumerConfig
    """The same, resolved."""
    workers: int
    partitions_per_worker: int | None
    is_dealt: bool
    """Whether this process deals the partitions out, rather than the group."""


class Readers:
    """Keeps the processes.

    Args:
        on_news: told when there may be records, or an error.
    """

    def __init__(self, plan: ReaderPlan, intake: Intake, observer: Observer, on_news: Callable[[], None]) -> None:
        self._plan, self._intake, self._observer, self._on_news = plan, intake, observer, on_news
        self._config = plan.config
        self._cluster = Cluster(plan.config, observer)
        self._life = f"{os.getpid()}.{next(_pools)}"
        self._supervisor: Supervisor | None = None
        self.failure: PenstockError | None = None
        self.kept: list[Kept] = []
        self._shares: list[dict[TopicPartition, int | None]] = []
        self._overrides: dict[int, dict[TopicPartition, int]] = {}
        """By worker, what was done when a process of it died, until another process reads on from there."""
        self._routes: dict[LeaseKey, tuple[int, int]] = {}
        """Which start of a process has a lease now, and under which number."""
        self._keys: dict[TopicPartition, LeaseKey] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._commits: dict[int, asyncio.Future[None]] = {}
        self._commit_numbers = itertools.count()
        self._one_commit = asyncio.Lock()

    # ---- life --------------------------------------------------------------------------------------------------

    async def live(self, supervisor: Supervisor) -> None:
        """Start the processes, keep them until asked to stop, end them."""
        self._supervisor = supervisor
        try:
            await self._plan_processes()
            async with anyio.create_task_group() as tasks:
                for one in self.kept:
                    tasks.start_soon(one.run)
                tasks.start_soon(self._ready_when_settled, supervisor)
                tasks.start_soon(self._run_tells)
                await supervisor.stopping.wait()
                await self._finish()
                for one in self.kept:
                    one.end()
                tasks.cancel_scope.deadline = anyio.current_time() + self.longest_stop_s
                async with anyio.create_task_group() as ends:
                    for one in self.kept:
                        ends.start_soon(one.ended.wait)
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a clean end
            self._fail(_told(error))
        finally:
            self._cluster.close()
            supervisor.stopping.set()
            await asyncio.sleep(0)  # the sockets are closed in the loop's next turn
        if self.failure is not None:
            raise self.failure

    @property
    def longest_stop_s(self) -> float:
        """How long ending all of them may take."""
        return self._config.stop_timeout_ms / 1000 + 2 * MARGIN_S

    def checks(self) -> list[Check]:
        """How they are."""
        return [one.check() for one in self.kept]

    async def _plan_processes(self) -> None:
        config, plan = self._config, self._plan
        timeout_s = config.start_timeout_ms / 1000
        await self._cluster.retrying(self._cluster.bootstrap, timeout_s=timeout_s, what="reaching the cluster")
        self._cluster.watch(self, plan.topics)
        counts = await partitions_of(self._cluster, plan.topics, timeout_s=timeout_s)
        for name in plan.topics:
            if not counts.get(name):
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
        partitions = [TopicPartition(name, number) for name in plan.topics for number in range(counts[name])]
        workers = workers_for(len(partitions), plan.workers, plan.partitions_per_worker)
        if plan.is_dealt:
            await self._deal(partitions, workers)
        else:
            self._member_options(workers)
        starts = itertools.count().__next__
        self.kept = [Kept(worker, _MODULE, self, self._observer, starts) for worker in range(workers)]
        for one in self.kept:
            one.stop_timeout_s = config.stop_timeout_ms / 1000

    async def _deal(self, partitions: list[TopicPartition], workers: int) -> None:
        group_id = self._config.group_id
        if group_id is not None and not self._config.reset_offset_on_start:
            timeout_s = self._config.default_api_timeout_ms / 1000
            found = await committed_offsets(self._cluster, group_id, partitions, stable=True, timeout_s=timeout_s)
            self._committed = {partition: one.offset for partition, one in found.items()}
        self._shares = [{one: self._committed.get(one) for one in share} for share in deal(partitions, workers)]
        self._member = {
            # Set and not left out: there may be variables of theirs in the environment.
            "group_id": None,
            "group_instance_id": None,
            "group_protocol": "classic",
            "enable_auto_commit": False,
            "reset_offset_on_start": False,
            "auto_offset_reset": self._config.begins_at,
        }

    def _member_options(self, workers: int) -> None:
        given = self._plan.options.get("group_instance_id", os.environ.get("PENSTOCK_GROUP_INSTANCE_ID"))
        self._member = {"group_instance_id": member_name(given, workers, self._life)}
        if given is None and self._config.leave_on_stop is None:
            self._member["leave_on_stop"] = True

    async def _ready_when_settled(self, supervisor: Supervisor) -> None:
        for one in self.kept:
            await one.settled.wait()
        supervisor.ready.set()

    # ---- as the processes' owner -------------------------------------------------------------------------------

    def spec(self, worker: int, start: int) -> Mapping[str, object]:  # noqa: ARG002 - as its kind is told
        """What a reader has to do."""
        window = max(1, self._config.max_queued_records // len(self.kept))
        # What has begun anew once goes on from there.
        again = {"reset_offset_on_start": False} if self.kept[worker].ready.is_set() else {}
        return {
            "topics": self._plan.topics,
            "options": {**self._plan.options, **self._member, **again},
            "overrides": self._overrides.get(worker, {}),
            "partitions": self._share(worker) if self._plan.is_dealt else None,
            "dealt": frozenset(one for share in self._shares for one in share),
            "turn": (worker, len(self.kept)),
            "window": window,
        }

    def _share(self, worker: int) -> dict[TopicPartition, int | None]:
        """A worker's partitions, and where it has to begin: behind what has come already."""
        came = {lease.partition: lease.received for lease in self._intake.leases()}
        dealt = {one for share in self._shares for one in share}
        later = {one: came[one] for one in came.keys() - dealt if one.partition % len(self.kept) == worker}
        return {**{one: came.get(one, begin) for one, begin in self._shares[worker].items()}, **later}

    def take(self, start: int, message: FromChild) -> None:
        """A process said something."""
        match message:
            case Slice():
                partition = TopicPartition(message.topic, message.partition)
                key = self._key(start, message.lease, partition)
                self._routes[key] = start, message.lease
                for done in self._overrides.values():
                    done.pop(partition, None)
                self._intake.put(key, partition, message.behind, records_of(message))
                self._on_news()
            case Ready(begins=begins):
                for topic, number, offset in begins:
                    partition = TopicPartition(topic, number)
                    self._intake.open(self._key(start, 0, partition), partition, offset)
            case Halted(lease=number):
                if (lease := self._intake.halt(self._key_of(start, number))) is not None:
                    self._send(start, Left(number, lease.delivered))
            case Gone(lease=number):
                self._intake.end(gone := self._key_of(start, number))
                self._routes.pop(gone, None)
            case Committed(number=number, error=error):
                if (waiting := self._commits.pop(number, None)) is not None and not waiting.done():
                    waiting.set_result(None) if error is None else waiting.set_exception(unpickled(error, ""))
            case _:
                pass

    def died(self, death: Death, pause_s: float) -> float | None:
        """Start it again where it was; one that says why, or dies again and again, ends the reading."""
        for waiting in self._commits.values():
            if not waiting.done():
                waiting.set_exception(CommitFailedError(f"reader {death.worker} has died: {death}"))
        self._commits.clear()
        if (failure := self._failure_of(death)) is not None:
            self._fail(failure)
            return None
        if not self._plan.is_dealt:
            self._drop_leases(death)
        return pause_s

    def _drop_leases(self, death: Death) -> None:
        """What it had read and nobody has taken is read again, and what was done is known to the next."""
        done: dict[TopicPartition, int] = {}
        for key in [key for key, (start, _) in self._routes.items() if start == death.start]:
            del self._routes[key]
            if (lease := self._intake.end(key)) is not None:
                done[lease.partition] = lease.done
        self._overrides.setdefault(death.worker, {}).update(done)

    # ---- for its user ------------------------------------------------------------------------------------------

    def tell(self, lease: Lease) -> None:
        """Have a process know what has become of its records."""
        if (route := self._routes.get(lease.key)) is not None:
            start, number = route
            self._send(start, Done(number, lease.done, lease.unreleased))

    async def commit(self, timeout_s: float) -> None:
        """Commit what is done.

        Raises:
            CommitFailedError: not all of it was.
            BrokerError: it may not be.
            BrokerConnectionError: nobody answers in time.
        """
        async with self._one_commit:
            if self._plan.is_dealt:
                await self._commit_dealt(timeout_s)
                return
            self._intake.tell_all()
            loop = asyncio.get_running_loop()
            asked: list[asyncio.Future[None]] = []
            for one in self.kept:
                if one.child is not None:
                    number = next(self._commit_numbers)
                    asked.append(loop.create_future())
                    self._commits[number] = asked[-1]
                    one.child.send(Commit(number))
            away = [one.worker for one in self.kept if one.child is None]
            _, silent = await asyncio.wait(asked, timeout=timeout_s) if asked else ((), ())
            if silent:
                raise CommitFailedError(f"not all readers have committed within {timeout_s:.1f} s")
            for refused in [error for one in asked if (error := one.exception()) is not None]:
                raise refused
            if away:
                raise CommitFailedError(f"reader {away[0]} is not started again yet, and commits what is done then")

    async def _commit_dealt(self, timeout_s: float) -> None:
        group_id = self._config.group_id
        done = {lease.partition: lease.done for lease in self._intake.leases()}
        new = {partition: offset for partition, offset in done.items() if self._committed.get(partition) != offset}
        if group_id is None or not new:
            return
        what = f"committing for group {group_id!r}"
        answer = await ask_coordinator(
            self._cluster,
            group_id,
            OffsetCommitRequest(group_id, tuple(CommitOffset(*one, offset) for one, offset in new.items())),
            lambda answer: [one.error_code for one in answer.partitions],
            timeout_s=timeout_s,
            what=what,
        )
        codes = {TopicPartition(one.topic, one.partition): one.error_code for one in answer.partitions}
        for partition, offset in new.items():
            code = codes.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise CommitFailedError(
                    f"{what}: the group has members, who alone may commit for it - stop them, or say layout='group'"
                )
            if code:
                raise broker_error(code, f"{what}: {partition}")
            self._committed[partition] = offset

    # ---- inside ------------------------------------------------------------------------------------------------

    def _failure_of(self, death: Death) -> PenstockError | None:
        """Why a death ends the reading; None when it does not."""
        assert self._supervisor is not None
        if self._supervisor.ready.is_set() and (is_outage(death.error) or death.trouble):
            # Brokers that are away, and a system without room for a process, are waited for, as a consumer waits.
            return None
        deaths = self.kept[death.worker].restarts.deaths(asyncio.get_running_loop().time())
        if death.error is None and (death.trouble or deaths >= _MOST_DEATHS):
            often = f" has died {deaths} times in a row, last" if deaths >= _MOST_DEATHS else ""
            return PenstockError(f"reader {death.worker}{often}: {death}")
        return death.error

    async def _run_tells(self) -> None:
        """Have the processes, or the broker, know now and then what is done."""
        loop = asyncio.get_running_loop()
        interval_ms, every = self._config.auto_commit_interval_ms, self._config.auto_commit_every_records
        interval_s = float("inf") if interval_ms is None else interval_ms / 1000
        commit_at = loop.time() + interval_s
        commits = self._plan.is_dealt and self._config.commits_automatically
        while True:
            await asyncio.sleep(min(_TELL_S, interval_s / 2))
            self._intake.tell_all()
            new = sum(one.done - self._committed.get(one.partition, 0) for one in self._intake.leases())
            if commits and (loop.time() >= commit_at or (every is not None and new >= every)):
                commit_at = loop.time() + interval_s
                await self._commit_or_fail(self._config.request_timeout_ms / 1000)

    async def _finish(self) -> None:
        """What is done is known to whoever commits it."""
        self._intake.tell_all()
        if self._plan.is_dealt and self._config.commits_automatically:
            await self._commit_or_fail(self._config.stop_timeout_ms / 2 / 1000)

    async def _commit_or_fail(self, timeout_s: float) -> None:
        try:
            await self.commit(timeout_s)
        except PenstockError as error:
            will_retry = is_outage(error)
            self._observer.tell(CommitFailed(self._config.group_id or "", str(error), will_retry))
            if not will_retry:
                self._fail(error)

    def _fail(self, error: PenstockError) -> None:
        self.failure = self.failure or error
        if self._supervisor is not None:
            self._supervisor.stopping.set()
        self._on_news()

    def _send(self, start: int, message: Done | Left) -> None:
        for one in self.kept:
            if one.start == start and one.child is not None:
                one.child.send(message)

    def _key(self, start: int, number: int, partition: TopicPartition) -> LeaseKey:
        """In a group a lease is one process's; where partitions are dealt out it outlives its processes."""
        if not self._plan.is_dealt:
            return start, number
        return self._keys.setdefault(partition, (_DEALT, len(self._keys)))

    def _key_of(self, start: int, number: int) -> LeaseKey:
        return next((key for key, route in self._routes.items() if route == (start, number)), (start, number))


def _told(error: BaseException) -> PenstockError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    defect = PenstockError(f"a defect in penstock: {type(error).__name__}: {error} - please report it")
    defect.__cause__ = error
    return defect
