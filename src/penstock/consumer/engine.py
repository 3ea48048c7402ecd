"""All of one consumer's rooms, put together and kept running between ``start`` and ``stop``."""

from __future__ import annotations

import asyncio
import itertools

import anyio

from penstock.config import ConsumerConfig
from penstock.consumer.beginnings import Beginnings
from penstock.consumer.chunk import Chunk
from penstock.consumer.committer import Committer
from penstock.consumer.coordinator import Coordinator
from penstock.consumer.fetcher import Fetcher
from penstock.consumer.map_watch import MapWatch
from penstock.consumer.ownership import Ownership
from penstock.consumer.patterns import BrokerPattern, TopicPattern
from penstock.consumer.picture import Picture
from penstock.consumer.reader import Reader
from penstock.consumer.solo import Solo
from penstock.consumer.supervisor import Supervisor
from penstock.core.buffer import Buffer
from penstock.core.commits import Commits
from penstock.core.membership import Identity
from penstock.core.positions import Positions
from penstock.error_codes import RETRIABLE, ErrorCode
from penstock.errors import ConsumerStateError, PenstockError, broker_error
from penstock.net.cluster import Cluster
from penstock.observe.events import ConsumerFailed, ConsumerStarted, ConsumerStopped
from penstock.observe.hooks import Observer

__all__ = ["Engine"]

_numbers = itertools.count(1)

_TOPIC_GRACE_S = 5.0
"""How long a topic that nobody knows may take to appear; it may have been made just now."""


class Engine:
    """What a Consumer starts and stops."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a Consumer knows
        self,
        config: ConsumerConfig,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        consumer: object,
        observer: Observer,
        optional: frozenset[str] = frozenset(),
    ) -> None:
        self.config, self.topics, self._pattern, self._observer = config, topics, pattern, observer
        self._optional = optional
        """Topics that need not be there yet."""
        self.failure: PenstockError | None = None
        self._failed = asyncio.Event()
        self.cluster = Cluster(config, observer)
        self.positions = Positions()
        self.buffer: Buffer[Chunk] = Buffer(config.max_buffered_bytes)
        self.picture = Picture(self.cluster, self._picture_changed)
        self.reader = Reader(
            self.positions,
            self.buffer,
            MapWatch(observer, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            is_acked_by_hand=config.ack == "manual",
            max_queued_records=config.max_queued_records,
            on_room=self._room_made,
        )
        self.beginnings = Beginnings(
            config, self.cluster, self.positions, self.reader, self.picture, observer, self.positions_changed
        )
        self.fetcher = Fetcher(
            config,
            self.cluster,
            self.positions,
            self.buffer,
            self.reader,
            self.picture,
            observer,
            self.beginnings.wake,
        )
        self.committer: Committer | None = None
        self.coordinator: Coordinator | None = None
        self._solo: Solo | None = None
        if config.group_id is None:
            assert not isinstance(pattern, BrokerPattern), "there is no broker that deals without a group"
            self._solo = Solo(config, self.cluster, self.positions, self.topics, pattern, self.positions_changed)
        else:
            self._join(config, consumer)

    def _join(self, config: ConsumerConfig, consumer: object) -> None:
        self.committer = Committer(
            config,
            self.cluster,
            Commits(self.positions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id),
            self.reader,
            self._observer,
            self._committing_as,
            self._commit_refused,
        )
        ownership = Ownership(
            config,
            self.cluster,
            self.positions,
            self.reader,
            self.committer,
            self._observer,
            consumer,
            self.positions_changed,
        )
        member = f"{config.client_id}-{next(_numbers)}"
        self.coordinator = Coordinator(
            config, self.cluster, ownership, self.reader, self._observer, member, self.topics, self._pattern, self.fail
        )

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self, supervisor: Supervisor) -> None:
        """Start, run until asked to stop or until that is impossible, then give everything back."""
        try:
            await self._open()
            self._observer.tell(
                ConsumerStarted(self.config.client_id, self.config.group_id, tuple(sorted(self.topics)))
            )
            supervisor.ready.set()
            await self._run_until(supervisor.stopping)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not look like a clean end
            self.fail(_told(error))
        finally:
            self.cluster.close()
            await asyncio.sleep(0)  # the sockets are closed in the loop's next turn
            self.reader.close(self.failure or ConsumerStateError("this consumer was stopped - make a new one"))
            self._observer.tell(ConsumerStopped(self.config.client_id, self.config.group_id))
        if self.failure is not None:
            raise self.failure

    async def _open(self) -> None:
        timeout_s = self.config.start_timeout_ms / 1000
        self.cluster.watch(self, self.topics if self._pattern is None else None)
        await self.cluster.retrying(self.cluster.bootstrap, timeout_s=timeout_s, what="reaching the cluster")
        await self.cluster.retrying(
            self._check_topics, timeout_s=min(timeout_s, _TOPIC_GRACE_S), what="looking for the topics"
        )

    async def _check_topics(self) -> None:
        topology = self.cluster.topology
        for name in self.topics - self._optional:
            code = topology.errors.get(name)
            if code is None and name not in topology.topics:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if code and code != ErrorCode.LEADER_NOT_AVAILABLE:
                if code in RETRIABLE:
                    await self.cluster.refresh()
                raise broker_error(code, f"topic {name!r}")

    async def _run_until(self, stopping: asyncio.Event) -> None:
        self._picture_changed()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.picture.run_refreshes)
            tasks.start_soon(self.fetcher.run_fetches)
            tasks.start_soon(self.beginnings.run_resets)
            if self.committer is not None:
                tasks.start_soon(self.committer.run_commits)
            if self.coordinator is None:
                await stopping.wait()
            else:
                await self._be_a_member(self.coordinator, stopping)
            tasks.cancel_scope.cancel()

    async def _be_a_member(self, coordinator: Coordinator, stopping: asyncio.Event) -> None:
        async with anyio.create_task_group() as tasks:

            async def stop_when_asked() -> None:
                await stopping.wait()
                coordinator.stop()

            tasks.start_soon(stop_when_asked)
            await coordinator.run_membership()
            tasks.cancel_scope.cancel()
        if self.failure is not None:
            raise self.failure

    def fail(self, error: PenstockError) -> None:
        """The consumer cannot go on; the next call raises ``error``."""
        if self.failure is None:
            self.failure = error
            self._observer.tell(ConsumerFailed(str(error)))
            self.reader.close(error)

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are read; with a pattern, those that match it and are ours to read."""
        if self._solo is not None:
            return self._solo.topics
        assert self.coordinator is not None
        owned = {partition.topic for partition in self.positions.partitions}
        return self.coordinator.topics or frozenset(owned)

    # ---- who has to know what ----------------------------------------------------------------------------------

    def positions_changed(self) -> None:
        """A partition came, went, or has another position."""
        self.fetcher.wake()
        self.beginnings.wake()
        self.reader.look_again()

    def _room_made(self) -> None:
        self.fetcher.wake()

    def _picture_changed(self) -> None:
        if self._solo is not None:
            self._solo.picture_changed()
        if self.coordinator is not None:
            self.coordinator.picture_changed()
        self.fetcher.wake()
        self.beginnings.wake()

    def _committing_as(self) -> Identity | None:
        return self.coordinator.committing_as() if self.coordinator is not None else None

    def _commit_refused(self, code: int, identity: Identity) -> bool:
        return self.coordinator is not None and self.coordinator.refused(code, identity)


def _told(error: BaseException) -> PenstockError:
    """The error to tell: the first of several that came together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, PenstockError):
        return error
    defect = PenstockError(f"a defect in penstock: {type(error).__name__}: {error} - please report it")
    defect.__cause__ = error
    return defect
