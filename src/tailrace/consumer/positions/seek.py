"""Going on somewhere else: at an offset at once, at either end or a time when the leader has said where that is.

Rule of this file: a seek counts from the moment it is asked for. What was fetched is dropped then, and until the leader
has answered nothing of the partition is handed out; a call that is cancelled or runs out of time takes nothing back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.positions.offset_resetter import OffsetResetter
from tailrace.consumer.positions.start_positions import StartPositions
from tailrace.core.delivery.positions import Position, Positions
from tailrace.core.positions.seek import seeks
from tailrace.core.positions.start_point import StartPoint
from tailrace.errors import ConsumerStateError, OffsetOutOfRangeError, RequestTimedOutError
from tailrace.records import TopicPartition

__all__ = ["Seek"]


class Seek:
    """Moves the positions of assigned partitions.

    Args:
        timeout_s: how long a leader may take to say where its log begins or ends.
    """

    def __init__(
        self,
        positions: Positions,
        reader: Reader,
        start_positions: StartPositions,
        offset_resetter: OffsetResetter,
        timeout_s: float,
    ) -> None:
        self._positions, self._reader, self._timeout_s = positions, reader, timeout_s
        self._start_positions, self._offset_resetter = start_positions, offset_resetter

    def assigned(self, partition: TopicPartition) -> Position:
        """The position of a partition.

        Raises:
            ConsumerStateError: it is not assigned.
        """
        position = self._positions.get(partition)
        if position is None:
            owned = ", ".join(sorted(map(str, self._positions.partitions))) or "none"
            raise ConsumerStateError(f"{partition} is not assigned to this consumer (assigned now: {owned})")
        return position

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record to be handed out.

        Raises:
            ConsumerStateError: the partition is not assigned.
            OffsetOutOfRangeError: it is the user's to say where to begin.
            RequestTimedOutError: its leader does not say in time where to begin.
        """
        return (await self.positions([partition]))[partition]

    async def positions(
        self, partitions: Iterable[TopicPartition], *, may_go: bool = False
    ) -> dict[TopicPartition, int]:
        """The same of several, in the time of one; those that ``may_go`` are left out when they are given back.

        Raises:
            ConsumerStateError: one of them is not assigned.
            OffsetOutOfRangeError: of one it is the user's to say where to begin.
            RequestTimedOutError: a leader does not say in time where to begin.
        """
        among = [one for one in partitions if one in self._positions or not may_go]
        wanted = [self.assigned(partition) for partition in among]
        await self._offset_resetter.found(wanted, self._timeout_s)
        if may_go:
            among = [one.partition for one in wanted if self._positions.get(one.partition) is one]
        return {partition: _known(self.assigned(partition)) for partition in among}

    async def seek(
        self, partitions: Iterable[TopicPartition], offset: object, whence: str, *, spread: bool
    ) -> dict[TopicPartition, int]:
        """Go on at ``offset``, counted from ``whence``; gives where that is.

        Raises:
            ConsumerStateError: one of the partitions is not assigned.
            ConfigurationError: that is no place in a log.
            RequestTimedOutError: a leader does not say in time where its log begins and ends.
        """
        among = list(partitions)
        for partition in among:
            self.assigned(partition)
        now = await self.positions(among) if whence == "current" else dict.fromkeys(among, 0)
        return await self.go(seeks(now, offset, whence, spread=spread))

    async def go(self, to: Mapping[TopicPartition, int | StartPoint]) -> dict[TopicPartition, int]:
        """Go on at these places; gives where they are. A partition that is given back meanwhile is left out.

        Raises:
            ConsumerStateError: one of the partitions is not assigned.
            RequestTimedOutError: a leader does not say in time where its log begins and ends.
        """
        moved = {partition: self.assigned(partition) for partition in to}
        for partition, position in moved.items():
            self._start_positions.move(position, to[partition])
        self._start_positions.on_changed()
        await self._offset_resetter.found(moved.values(), self._timeout_s)
        return {one: _known(position) for one, position in moved.items() if self._positions.get(one) is position}


def _known(position: Position) -> int:
    if position.is_refused:
        raise OffsetOutOfRangeError(*position.partition, position.reset_from)
    if position.next_offset is None:
        raise RequestTimedOutError(
            f"no position of {position.partition} yet - its leader does not say where the log begins"
        )
    return position.next_offset
