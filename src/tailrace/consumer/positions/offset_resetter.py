"""Look-up of the offsets of start points at the partitions' leaders, for ``auto_offset_reset`` and for seeks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable

import anyio

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.offsets.requests import group_by_leader, list_offsets
from tailrace.consumer.positions.start_points import now_ms
from tailrace.consumer.positions.start_positions import StartPositions
from tailrace.core.backoff import Backoff
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.errors import BrokerConnectionError, BrokerError, MalformedMessageError
from tailrace.net.cluster import Cluster
from tailrace.net.metadata_refresher import MetadataRefresher
from tailrace.observe.events import OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.protocol.list_offsets import ListedOffset
from tailrace.records import TopicPartition

__all__ = ["OffsetResetter"]


class _Search:
    """Look-up of the start offset of one position."""

    def __init__(self, position: Position) -> None:
        assert position.reset_to is not None
        self.position, self.epoch = position, position.epoch
        self.start: StartPoint = position.reset_to.fixed(now_ms())
        self.known: dict[int, ListedOffset] = {}

    @property
    def question(self) -> int | None:
        return self.start.next_timestamp(self.known)

    @property
    def is_current(self) -> bool:
        """True if the position still waits for this start, and was not assigned, sought or reset meanwhile."""
        return self.position.epoch == self.epoch and self.position.reset_to is not None


class OffsetResetter:
    """Looks up the start offset of each position that waits for one (``Position.reset_to``)."""

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each part that a look-up reads or changes
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        positions: Positions,
        reader: Reader,
        start_positions: StartPositions,
        metadata_refresher: MetadataRefresher,
        observer: Observer,
    ) -> None:
        self._cluster, self._positions, self._reader = cluster, positions, reader
        self._start_positions, self._metadata_refresher, self._observer = start_positions, metadata_refresher, observer
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.reconfigure(config)
        self._news = AutoResetEvent()
        self._busy: set[int] = set()
        """Leaders with a request in flight, or in the pause after a failed request."""
        self._failures: dict[int, int] = {}
        """Number of consecutive failed requests to each leader."""
        self._round = asyncio.Event()
        """Set, and replaced by a new event, when a start may be known; any number of tasks wait for it."""

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self._isolation_level = int(config.isolation_level == "read_committed")

    def wake(self) -> None:
        """Look for positions that wait for a start, and wake the tasks that wait in ``found``."""
        self._news.set()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._round.set()
        self._round = asyncio.Event()

    async def wait_until_found(self, positions: Iterable[Position], timeout_s: float) -> None:
        """Wait, at most ``timeout_s``, until each position is known, released or left to the user."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for one in positions:
                    # A rebalance callback may wait here, before anything else has started the look-up.
                    self._news.set()
                    while self._positions.get(one.partition) is one and one.delivered is None and not one.is_refused:
                        await self._round.wait()

    async def run_resets(self) -> None:
        """Look up start points until canceled; a leader that hangs delays only its own partitions."""
        async with anyio.create_task_group() as tasks:
            while True:
                waiting = {p.partition: p for p in self._positions if p.reset_to is not None}
                for position in waiting.values():
                    if position.reset_to is not None and position.reset_to.whence is StartFrom.NONE:
                        self._start_positions.leave_to_user(position)
                        self._wake_waiters()
                by_leader_id, leaderless = group_by_leader(
                    self._cluster, (p for p, at in waiting.items() if at.reset_to is not None)
                )
                if leaderless:
                    self._metadata_refresher.ask()
                for leader_id in by_leader_id.keys() - self._busy:
                    self._busy.add(leader_id)
                    tasks.start_soon(
                        self._look_up, leader_id, [waiting[partition] for partition in by_leader_id[leader_id]]
                    )
                await self._news.wait()

    async def _look_up(self, leader_id: int, waiting: list[Position]) -> None:
        """List offsets at one leader until the starts are known; after a failure, pause before the next attempt."""
        # A seek may have set a position since this task was started.
        searches = {position.partition: _Search(position) for position in waiting if position.reset_to is not None}
        refused: list[BrokerError] = []
        is_answered, is_found = True, False
        while is_answered and not refused and (wanted := _questions(searches)):
            found: dict[TopicPartition, ListedOffset] = {}
            try:
                found, refused = await list_offsets(
                    self._cluster, leader_id, wanted, isolation_level=self._isolation_level
                )
            except (BrokerConnectionError, MalformedMessageError):
                is_answered = False
            for partition, offset in found.items():
                search = searches[partition]
                search.known[wanted[partition]] = offset
                if search.question is None and search.is_current:
                    self._set_position(search)
                    is_found = True
        if is_found:
            self._start_positions.on_changed()
        if refused or not is_answered:
            await self._try_later(leader_id, refused)
        else:
            self._failures.pop(leader_id, None)
        self._busy.discard(leader_id)
        self.wake()

    async def _try_later(self, leader_id: int, refused: list[BrokerError]) -> None:
        for error in refused:
            if not error.retriable:
                self._reader.report(error)
        self._metadata_refresher.ask()
        failures = self._failures[leader_id] = self._failures.get(leader_id, 0) + 1
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311

    def _set_position(self, search: _Search) -> None:
        position, (offset, leader_epoch) = search.position, search.start.resolve(search.known)
        before, policy = position.reset_from, str(position.reset_to)
        self._start_positions.place(position, offset, leader_epoch=leader_epoch)
        if before is not None:
            lost = offset - before if offset > before else None
            self._observer.emit(OffsetReset(position.partition, before, offset, policy, lost))


def _questions(searches: dict[TopicPartition, _Search]) -> dict[TopicPartition, int]:
    questions = {partition: search.question for partition, search in searches.items()}
    return {partition: question for partition, question in questions.items() if question is not None}
