"""Refresh of the end offsets of partitions that are not fetched, for statistics and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import anyio

from tailrace.consumer.fetch.plan import FetchPlan
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.delivery.positions import Position
from tailrace.core.start_point import LATEST
from tailrace.errors import BrokerConnectionError, MalformedMessageError
from tailrace.net.offsets import group_by_leader, list_offsets_of_leader
from tailrace.records import TopicPartition

__all__ = ["EndOffsetRefresher", "positions_without_fetch"]

# ---- selection of the partitions whose end offsets have to be requested, because no fetch reports them ---------------


def positions_without_fetch(positions: Iterable[Position], in_flight: Iterable[FetchPlan]) -> list[Position]:
    """Return the positions of partitions that no fetch in flight includes, for example because they are paused.

    The answer to a fetch in flight reports the end offset of its partitions when it changes.
    """
    requested = {partition for plan in in_flight for partition in plan.partitions}
    return [one for one in positions if one.is_fetchable and one.partition not in requested]


# ---- refresh of the end offsets of partitions that are not fetched, for statistics and metrics -----------------------

_INTERVAL_S = 5.0
"""Interval of the requests for end offsets, in seconds."""


class EndOffsetRefresher:
    """Requests the end offsets of partitions that are not fetched, for example because they are paused.

    Responses to fetches contain the end offsets of all other partitions. Requests are sent every five seconds, but only
    if statistics or metrics were read since the last requests.

    Args:
        in_flight: returns the plans of the fetches in flight.
    """

    def __init__(self, parts: ConsumerParts, in_flight: Callable[[], Iterable[FetchPlan]]) -> None:
        self._parts, self._in_flight = parts, in_flight
        self._is_read = False

    def note_reading(self) -> None:
        """Note that statistics or metrics are read, so that end offsets are requested. Thread-safe."""
        self._is_read = True

    async def run_refreshes(self) -> None:
        """Request end offsets after each interval in which statistics or metrics were read, until canceled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._is_read:
                self._is_read = False
                await self._refresh(positions_without_fetch(self._parts.positions, self._in_flight()))

    async def _refresh(self, positions: Iterable[Position]) -> None:
        by_leader_id, _ = group_by_leader(self._parts.cluster, [one.partition for one in positions])
        async with anyio.create_task_group() as tasks:
            for leader_id, partitions in by_leader_id.items():
                tasks.start_soon(self._request, leader_id, partitions)

    async def _request(self, leader_id: int, partitions: list[TopicPartition]) -> None:
        before = {one.partition: (one.epoch, one.last_stable_offset) for one in self._parts.positions.of(partitions)}
        try:
            found, refused = await list_offsets_of_leader(
                self._parts.cluster,
                leader_id,
                dict.fromkeys(before, LATEST),
                isolation_level=self._parts.isolation_level,
            )
        except (BrokerConnectionError, MalformedMessageError):
            self._parts.metadata_refresher.ask()
            return  # The next interval repeats the request. Fetches from this broker report the failure.
        if refused:
            self._parts.metadata_refresher.ask()
        for position in self._parts.positions.of(found):
            # The answer is outdated if a fetch was answered meanwhile, or the partition was assigned again.
            if before[position.partition] == (position.epoch, position.last_stable_offset):
                position.last_stable_offset = found[position.partition].offset
