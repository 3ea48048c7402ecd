"""One consumer's life between ``start`` and ``stop``: its rooms are kept running, and given back whole.

Rule of this file: whatever ends a consumer, the user hears why, and what is done is committed if that can be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container

import anyio

from penstock.config import ConsumerConfig
from penstock.consumer.committer import Committer
from penstock.consumer.coordinator import Coordinator
from penstock.consumer.measuring import Measuring
from penstock.consumer.overview import ConsumerHealth, ConsumerStatistics
from penstock.consumer.patterns import TopicPattern
from penstock.consumer.pulse import Pulse
from penstock.consumer.rooms import Rooms
from penstock.consumer.subject import Subject
from penstock.consumer.supervisor import Supervisor
from penstock.core.metrics import MetricName
from penstock.errors import ConsumerStateError, PenstockError
from penstock.net.cluster import Cluster
from penstock.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from penstock.observe.hooks import Observer

__all__ = ["Engine"]


class Engine:
    """What a Consumer starts and stops.

    Attributes:
        subject: what is read.
        failure: what has ended it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a Consumer knows
        self,
        config: ConsumerConfig,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        consumer: object,
        observer: Observer,
        optional: frozenset[str] = frozenset(),
        shared: Cluster | None = None,
        whole: Container[str] = frozenset(),
    ) -> None:
        clock = asyncio.get_running_loop().time
        self._pulse = Pulse()
        self._measuring = Measuring(config.metric_group_prefix, config.client_id, config.group_id, clock)
        self._observer = observer.with_hooks(self._pulse, self._measuring)
        self.failure: PenstockError | None = None
        self._rooms = rooms = Rooms(config, self._observer, shared, whole, self._picture_changed)
        self.subject = Subject(rooms, consumer, topics, pattern, optional, self.fail)
        self.cluster, self.positions, self.reader = rooms.cluster, rooms.positions, rooms.reader
        self.asking, self.seeking, self.positions_changed = rooms.asking, rooms.seeking, rooms.positions_changed

    @property
    def config(self) -> ConsumerConfig:
        """The options as they are now."""
        return self._rooms.config

    @property
    def coordinator(self) -> Coordinator | None:
        """The membership of the group, if there is one now."""
        return self.subject.coordinator

    @property
    def committer(self) -> Committer | None:
        """Who commits; None without a group."""
        return self.subject.committer

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start, run until asked to stop or until that is impossible, then give everything back."""
        config = self.config
        try:
            await self._open()
            self._observer.tell(ConsumerStarted(config.client_id, config.group_id, tuple(sorted(self.subject.topics))))
            supervisor.ready.set()
            await self._run_until(supervisor.stopping)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a clean end
            self.fail(_told(error))
        finally:
            self._rooms.close()
            await asyncio.sleep(0)  # the sockets are closed in the loop's next turn
            self.reader.close(self.failure or ConsumerStateError("this consumer was stopped - make a new one"))
            self._observer.tell(ConsumerStopped(config.client_id, config.group_id))
        if self.failure is not None:
            raise self.failure

    async def _open(self) -> None:
        timeout_s = self.config.start_timeout_ms / 1000
        self.subject.watch()
        reach = self.cluster.refresh if self._rooms.is_shared else self.cluster.bootstrap
        await self.cluster.retrying(reach, timeout_s=timeout_s, what="reaching the cluster")
        await self.subject.see_topics(timeout_s)

    async def _run_until(self, stopping: asyncio.Event) -> None:
        self.subject.picture_changed()
        rooms = self._rooms
        beside = [rooms.picture.run_refreshes, rooms.fetcher.run_fetches, rooms.beginnings.run_resets]
        if self.committer is not None:
            beside.append(self.committer.run_commits)
        async with anyio.create_task_group() as tasks:
            for run in beside:
                tasks.start_soon(self._run_beside, run, stopping)
            tasks.start_soon(self._leave_when, stopping, tasks.cancel_scope)
            await self._be_whatever_is_asked(stopping)
            tasks.cancel_scope.cancel()

    async def _run_beside(self, run: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 - told to whoever reads
            # The user hears of it at once; what is done is committed all the same, and the group need not miss us.
            self.fail(_told(error))
            stopping.set()

    async def _leave_when(self, stopping: asyncio.Event, everything: anyio.CancelScope) -> None:
        await stopping.wait()
        self.subject.stop()
        await asyncio.sleep(self.config.stop_timeout_ms / 1000)
        everything.cancel()

    async def _be_whatever_is_asked(self, stopping: asyncio.Event) -> None:
        """Be a member of the group whenever there is one to be a member of; gives everything back in the end."""
        while True:
            await self.subject.run_membership()
            if self.failure is not None or stopping.is_set():
                break
            await self.subject.news.wait()
        await self.subject.commit_assigned()

    def fail(self, error: PenstockError) -> None:
        """The consumer cannot go on; the next call raises ``error``."""
        if self.failure is None:
            self.failure = error
            self._observer.tell(ConsumerFailed(str(error)))
            self.reader.close(error)

    def _picture_changed(self) -> None:
        self.subject.picture_changed()

    # ---- for those who look ------------------------------------------------------------------------------------

    def health(self) -> ConsumerHealth:
        """How the consumer is."""
        coordinator = self.coordinator
        age_s = None if coordinator is None else coordinator.heartbeat_age_s
        return self._pulse.health(self.failure, len(self.positions), age_s, is_member=coordinator is not None)

    def metrics(self) -> dict[MetricName, float]:
        """What was measured."""
        self.reader.sync()
        return self._measuring.snapshot(self.positions)

    def statistics(self) -> ConsumerStatistics:
        """What is held."""
        reader, buffer = self.reader, self._rooms.buffer
        return ConsumerStatistics(reader.queued_records, buffer.held_bytes, buffer.reserved_bytes, reader.maps.ignored)

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Take other options from now on."""
        self._rooms.reconfigure(config)


def _told(error: BaseException) -> PenstockError:
    """The error to tell: the first of several that came together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    defect = PenstockError(f"a defect in penstock: {type(error).__name__}: {error} - please report it")
    defect.__cause__ = error
    return defect
