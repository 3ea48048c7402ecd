"""Look-up of start offsets at the partitions' leaders, for ``auto_offset_reset`` and for seeks."""

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
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.positions.start_point import StartFrom, StartPoint
from tailrace.error_codes import ErrorCode
from tailrace.errors import BrokerConnectionError, BrokerError, MalformedMessageError
from tailrace.net.cluster import Cluster
from tailrace.net.metadata_refresher import MetadataRefresher
from tailrace.observe.events import OffsetReset
from tailrace.observe.hooks import Observer
from tailrace.protocol.list_offsets import ListedOffset
from tailrace.records import TopicPartition

__all__ = ["OffsetResetter"]

_MAX_SERVER_ERRORS = 30
"""Number of failed requests in a row after which UNKNOWN_SERVER_ERROR is reported; the pauses are up to a second."""


class _LookUp:
    """Look-up of the start offset of one position."""

    def __init__(self, position: Position) -> None:
        assert position.reset_to is not None
        self.position, self.epoch = position, position.epoch
        self.start: StartPoint = position.reset_to.with_timestamp(now_ms())
        self.known: dict[int, ListedOffset] = {}
        """Answers of the leader by timestamp."""

    @property
    def next_timestamp(self) -> int | None:
        """Timestamp to request next; None if the start offset is known."""
        return self.start.next_timestamp(self.known)

    @property
    def is_current(self) -> bool:
        """True if the position was not assigned, sought or reset since the look-up began."""
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
        self._wakeup = AutoResetEvent()
        """Set when a position may wait for a start offset."""
        self._busy_leaders: set[int] = set()
        """Leaders with a request in flight, or in the pause after a failed request."""
        self._failures: dict[int, int] = {}
        """Number of consecutive failed requests to each leader."""
        self._found = asyncio.Event()
        """Event for any number of tasks that is set, and replaced by a new one, when a start offset may be known."""

    def reconfigure(self, config: ConsumerConfig) -> None:
        """Apply changed options."""
        self._isolation_level = int(config.isolation_level == "read_committed")

    def wake(self) -> None:
        """Look for positions that wait for a start offset, and wake the tasks in ``wait_until_found``."""
        self._wakeup.set()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._found.set()
        self._found = asyncio.Event()

    async def wait_until_found(self, positions: Iterable[Position], timeout_s: float) -> None:
        """Wait until the start offset of each position is known, for ``timeout_s`` seconds at most.

        Positions are not waited for if the partition was revoked, or if the user has to seek
        (``auto_offset_reset="none"``).
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for one in positions:
                    # In a rebalance callback, nothing else may have started the look-up yet.
                    self._wakeup.set()
                    while self._positions.get(one.partition) is one and one.delivered is None and not one.is_refused:
                        await self._found.wait()

    async def run_resets(self) -> None:
        """Look up start offsets until canceled; a leader that hangs delays only its own partitions."""
        async with anyio.create_task_group() as tasks:
            while True:
                missing = [p for p in self._positions if p.reset_to is not None]
                # A recreated topic has no position until the group assigns its new id.
                waiting = {p.partition: p for p in missing if not self._is_unassigned(p)}
                for position in waiting.values():
                    if position.reset_to is not None and position.reset_to.whence is StartFrom.NONE:
                        self._start_positions.require_seek(position)
                        self._wake_waiters()
                by_leader_id, leaderless = group_by_leader(
                    self._cluster, (p for p, at in waiting.items() if at.reset_to is not None)
                )
                if leaderless or len(waiting) < len(missing):
                    self._metadata_refresher.ask()
                for leader_id in by_leader_id.keys() - self._busy_leaders:
                    self._busy_leaders.add(leader_id)
                    tasks.start_soon(
                        self._look_up, leader_id, [waiting[partition] for partition in by_leader_id[leader_id]]
                    )
                await self._wakeup.wait()

    def _is_unassigned(self, position: Position) -> bool:
        return is_other_log(position.assigned_topic_id, position.partition, self._cluster.topology)

    async def _look_up(self, leader_id: int, waiting: list[Position]) -> None:
        """Request offsets from one leader until the start offsets are known; after a failure, pause and give up.

        The next round of ``run_resets`` looks up the missing start offsets.
        """
        # A seek may have set a position since this task was started.
        lookups = {position.partition: _LookUp(position) for position in waiting if position.reset_to is not None}
        refused: list[BrokerError] = []
        is_answered, is_found = True, False
        while is_answered and not refused and (wanted := _timestamps(lookups)):
            found: dict[TopicPartition, ListedOffset] = {}
            try:
                found, refused = await list_offsets(
                    self._cluster, leader_id, wanted, isolation_level=self._isolation_level
                )
            except (BrokerConnectionError, MalformedMessageError):
                is_answered = False
            for partition, offset in found.items():
                lookup = lookups[partition]
                lookup.known[wanted[partition]] = offset
                if lookup.next_timestamp is None and lookup.is_current:
                    self._set_position(lookup)
                    is_found = True
        if is_found:
            self._start_positions.on_changed()
        if refused or not is_answered:
            await self._pause(leader_id, refused)
        else:
            self._failures.pop(leader_id, None)
        self._busy_leaders.discard(leader_id)
        self.wake()

    async def _pause(self, leader_id: int, refused: list[BrokerError]) -> None:
        """Report errors that a retry does not resolve, request a refresh of the metadata, and pause."""
        failures = self._failures[leader_id] = self._failures.get(leader_id, 0) + 1
        for error in refused:
            has_recurred = error.code == ErrorCode.UNKNOWN_SERVER_ERROR and failures >= _MAX_SERVER_ERRORS
            if not error.retriable or has_recurred:
                self._reader.report(error)
        self._metadata_refresher.ask()
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311

    def _set_position(self, lookup: _LookUp) -> None:
        position, (offset, leader_epoch) = lookup.position, lookup.start.resolve(lookup.known)
        before, policy = position.reset_from, str(position.reset_to)
        position.resolve(offset, leader_epoch)
        if before is not None:
            lost = offset - before if offset > before else None
            self._observer.emit(OffsetReset(position.partition, before, offset, policy, lost))


def _timestamps(lookups: dict[TopicPartition, _LookUp]) -> dict[TopicPartition, int]:
    """Return the timestamp to request next of each partition whose start offset is not known."""
    timestamps = {partition: lookup.next_timestamp for partition, lookup in lookups.items()}
    return {partition: timestamp for partition, timestamp in timestamps.items() if timestamp is not None}
