"""Where to begin when no position is good: by policy, from what the partitions' leaders say of their logs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import anyio

from penstock.config import ConsumerConfig
from penstock.consumer.chunk import Chunk
from penstock.consumer.offsets import EARLIEST, LATEST, by_leader, list_offsets
from penstock.consumer.picture import Picture
from penstock.consumer.reader import Reader
from penstock.consumer.wake import Wake
from penstock.core.backoff import Backoff
from penstock.core.positions import Position, Positions
from penstock.errors import BrokerConnectionError, BrokerError, OffsetOutOfRangeError
from penstock.messages import ListedOffset
from penstock.net.cluster import Cluster
from penstock.observe.events import OffsetReset
from penstock.observe.hooks import Observer
from penstock.records import TopicPartition

__all__ = ["Beginnings"]

_TIME_OF = {"earliest": EARLIEST, "latest": LATEST}


class Beginnings:
    """Finds beginnings for positions that wait for one (``Position.reset_to``)."""

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        positions: Positions,
        reader: Reader,
        picture: Picture,
        observer: Observer,
        on_found: Callable[[], None],
    ) -> None:
        self._cluster, self._positions, self._reader = cluster, positions, reader
        self._picture, self._observer, self._on_found = picture, observer, on_found
        self._isolation_level = int(config.isolation_level == "read_committed")
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._news = Wake()
        self._busy: set[int] = set()
        """Leaders that are being asked, or wait out a pause."""
        self._failures: dict[int, int] = {}
        self._round = asyncio.Event()
        """Set when something was found, and then replaced, for any number of those who wait."""

    def wake(self) -> None:
        """A position may be waiting, or one may be good that was not."""
        self._news.set()
        self._round.set()
        self._round = asyncio.Event()

    async def found(self, position: Position) -> None:
        """Wait until a position is good again, or gone."""
        while position.delivered is None and self._positions.get(position.partition) is position:
            await self._round.wait()

    async def run_resets(self) -> None:
        """Find beginnings, for ever; a leader that hangs keeps nobody but its own partitions waiting."""
        async with anyio.create_task_group() as tasks:
            while True:
                waiting = {p.partition: p for p in self._positions if p.reset_to is not None}
                for position in waiting.values():
                    if position.reset_to == "none":
                        self._refuse(position)
                led, leaderless = by_leader(self._cluster, (p for p, at in waiting.items() if at.reset_to is not None))
                if leaderless:
                    self._picture.ask()
                for leader_id in led.keys() - self._busy:
                    self._busy.add(leader_id)
                    tasks.start_soon(self._look_up, leader_id, [waiting[partition] for partition in led[leader_id]])
                await self._news.wait()

    def _refuse(self, position: Position) -> None:
        """The policy is to ask the user, who is told in place of the next record, and again, until he seeks."""
        topic, partition = position.partition
        error = OffsetOutOfRangeError(topic, partition, position.reset_from)
        self._reader.put(position.partition, Chunk(0, error=error), 0)
        position.reset_to = None

    async def _look_up(self, leader_id: int, waiting: list[Position]) -> None:
        """Ask one leader; after a failure, not again before a pause."""
        asked = {position.partition: (position, position.epoch) for position in waiting}
        wanted = {partition: _TIME_OF[position.reset_to or "latest"] for partition, (position, _) in asked.items()}
        found: dict[TopicPartition, ListedOffset] = {}
        refused: list[BrokerError] = []
        is_answered = True
        try:
            found, refused = await list_offsets(self._cluster, leader_id, wanted, isolation_level=self._isolation_level)
        except BrokerConnectionError:
            is_answered = False
        for partition, offset in found.items():
            position, epoch = asked[partition]
            if position.epoch == epoch and position.reset_to is not None:
                self._begin(position, offset)
        if found:
            self._on_found()
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
        self._picture.ask()
        failures = self._failures[leader_id] = self._failures.get(leader_id, 0) + 1
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311

    def _begin(self, position: Position, found: ListedOffset) -> None:
        before, policy = position.reset_from, position.reset_to or ""
        position.begin(found.offset, found.leader_epoch)
        if before is not None or position.committed is not None:
            lost = found.offset - before if before is not None and found.offset > before else None
            self._observer.tell(OffsetReset(position.partition, before, found.offset, policy, lost))
