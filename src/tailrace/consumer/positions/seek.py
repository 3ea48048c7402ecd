"""Seeks to an offset, to the beginning or end of a log, or to a timestamp.

A seek takes effect at once: fetched records are dropped, and no record is delivered until the new offset is known.
A canceled or timed-out call does not revert the seek.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from tailrace.consumer.partition import Partition, StartWait
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.start_positions import OffsetResetter, Start
from tailrace.core.start_point import StartFrom, StartPoint, shares_of
from tailrace.errors import ConfigurationError, ConsumerStateError, OffsetOutOfRangeError, RequestTimedOutError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["Seek", "SeekFrom", "seek_targets"]

# ---- targets of a seek -----------------------------------------------------------------------------------------------

SeekFrom: TypeAlias = Literal["offset", "earliest", "current", "latest"]
"""Meaning of a seek's ``offset``: an absolute offset ("offset"), or a number of records after the first record
("earliest"), the position ("current") or the end of the log ("latest"). A negative number counts backward.
"""


def seek_targets(
    positions: Mapping[TopicPartition, int], offset: object, whence: str, *, spread: bool
) -> dict[TopicPartition, int | StartPoint]:
    """Return the target of each partition.

    Args:
        positions: position of each partition.
        offset: offset or number of records; its meaning depends on ``whence``.
        whence: see ``SeekFrom``.
        spread: True if ``offset`` is a number of records of all partitions together, of which each has an equal share.

    Raises:
        ConfigurationError: an argument is invalid, or the arguments contradict each other.
    """
    if whence not in get_args(SeekFrom):
        raise ConfigurationError(f"whence={whence!r} is unknown; it must be one of {', '.join(get_args(SeekFrom))}")
    if not isinstance(offset, int) or isinstance(offset, bool) or not -(1 << 63) < offset < 1 << 63:
        raise ConfigurationError(f"offset={offset!r} is invalid; it must be an integer")
    if whence == "offset" and offset < 0:
        raise ConfigurationError(
            f"offset={offset!r} is invalid; it must be 0 or more - with whence='latest' or 'current' it may be negative"
        )
    if spread and whence not in {"earliest", "latest"}:
        raise ConfigurationError(f"spread=True needs whence='earliest' or 'latest', not {whence!r}")
    partitions: Sequence[TopicPartition] = sorted(positions)
    shares = shares_of(offset, len(partitions)) if spread and partitions else [offset] * len(partitions)
    return {one: _target(positions[one], share, whence) for one, share in zip(partitions, shares, strict=True)}


def _target(position: int, share: int, whence: str) -> int | StartPoint:
    match whence:
        case "offset":
            return share
        case "current":
            return StartPoint(StartFrom.OFFSET, max(0, position + share))
        case _:
            return StartPoint(StartFrom(whence), shift=share)


# ---- seeks to an offset, to the beginning or end of a log, or to a timestamp -----------------------------------------


class Seek:
    """Moves the positions of assigned partitions."""

    def __init__(self, parts: ConsumerParts, offset_resetter: OffsetResetter) -> None:
        self._parts, self._partitions = parts, parts.partitions
        self._start_positions, self._offset_resetter = offset_resetter.start_positions, offset_resetter

    def assigned(self, topic_partition: TopicPartition) -> Partition:
        """Return the state of an assigned partition.

        Raises:
            ConsumerStateError: the partition is not assigned.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            owned = ", ".join(sorted(map(str, self._partitions.topic_partitions))) or "none"
            raise ConsumerStateError(
                f"{topic_partition} is not assigned to this consumer; assigned partitions: {owned}"
            )
        return partition

    async def positions(
        self, partitions: Iterable[TopicPartition], *, skip_unassigned: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offset of the next record to deliver of each partition, within one timeout.

        With ``skip_unassigned``, partitions that are not assigned, or are revoked meanwhile, are left out.

        Raises:
            ConsumerStateError: a partition is not assigned.
            OffsetOutOfRangeError: a partition has no position, and ``auto_offset_reset="none"``.
            RequestTimedOutError: a leader did not return the start offset in time.
        """
        sought = [one for one in partitions if one in self._partitions or not skip_unassigned]
        wanted = [self.assigned(one) for one in sought]
        await self._offset_resetter.wait_until_found(wanted, self._parts.default_timeout_s)
        if skip_unassigned:
            sought = [one.topic_partition for one in wanted if self._partitions.get(one.topic_partition) is one]
        return {one: self._found_position(self.assigned(one)) for one in sought}

    async def seek(
        self, partitions: Iterable[TopicPartition], offset: object, whence: str, *, spread: bool
    ) -> dict[TopicPartition, int]:
        """Seek to ``offset``, counted from ``whence``, and return the new positions.

        Raises:
            ConsumerStateError: a partition is not assigned.
            ConfigurationError: ``offset`` or ``whence`` is invalid.
            RequestTimedOutError: a leader did not return its log's offsets in time.
        """
        sought = list(partitions)
        for one in sought:
            self.assigned(one)
        now = await self.positions(sought) if whence == "current" else dict.fromkeys(sought, 0)
        return await self.seek_to(seek_targets(now, offset, whence, spread=spread))

    async def to_committed(
        self,
        partitions: Iterable[TopicPartition],
        look_up: Callable[[Iterable[TopicPartition]], Awaitable[Mapping[TopicPartition, OffsetAndMetadata]]],
    ) -> dict[TopicPartition, int]:
        """Seek to the committed offsets that ``look_up`` returns, and return the new positions.

        A partition without a committed offset is sought to the start point of ``auto_offset_reset``. Records that the
        offset map lists as finished are not delivered again. A partition that is revoked or sought during the look-up
        is left unchanged, and is absent from the result.

        Raises:
            ConsumerStateError: a partition is not assigned.
            OffsetOutOfRangeError: a partition has no committed offset, and ``auto_offset_reset`` is "none".
            RequestTimedOutError: a leader does not return an offset in time.
        """
        before = {topic_partition: self.assigned(topic_partition).epoch for topic_partition in partitions}
        committed = await look_up(before)
        policy = self._start_positions.policy
        return await self.seek_to(
            {
                topic_partition: policy.start_of_assigned(None, committed.get(topic_partition))
                for topic_partition, epoch in before.items()
                if (partition := self._partitions.get(topic_partition)) is not None and partition.epoch == epoch
            }
        )

    async def seek_to(self, to: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """Seek to the given starts, and return the new positions.

        A partition that is revoked before its new position is known is left out, and so is one whose leader does not
        answer, if other partitions were moved (``StartOffsetDelayed``). Its seek takes effect when the leader answers.

        Raises:
            ConsumerStateError: a partition is not assigned.
            RequestTimedOutError: no leader returned its log's offsets in time.
        """
        moved = {topic_partition: self.assigned(topic_partition) for topic_partition in to}
        for topic_partition, partition in moved.items():
            self._start_positions.drop_and_set_start(partition, to[topic_partition])
        self._parts.changed()
        await self._offset_resetter.wait_until_found(moved.values(), self._parts.default_timeout_s, skip_delayed=True)
        owned = {one: partition for one, partition in moved.items() if self._partitions.get(one) is partition}
        delays = self._offset_resetter.delays
        found = {
            one: partition for one, partition in owned.items() if one not in delays or partition.delivered is not None
        }
        return {one: self._found_position(partition) for one, partition in (found or owned).items()}

    def _found_position(self, partition: Partition) -> int:
        if partition.is_refused:
            raise OffsetOutOfRangeError(*partition.topic_partition, partition.reset_from)
        if partition.next_offset is None:
            wait = partition.start_wait or StartWait(0.0)
            raise RequestTimedOutError(
                f"{partition.topic_partition} has no position yet, and is read once its leader returns the start"
                f" offset: {wait.reason} - check the partition's leader"
            )
        return partition.next_offset
