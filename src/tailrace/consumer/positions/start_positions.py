"""Start positions of partitions: after an assignment, a seek or an offset reset, and to read records again.

No other module of the consumer begins the epoch of a position. ``OffsetResetter`` only sets the offset that it has
looked up for a start point.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable
from typing import TypeAlias, TypeGuard

from tailrace.config import OffsetReset
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.partition_spec import RequestedStart, Start, StartPolicy
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.delivery.positions import Position
from tailrace.core.offset_map import decode_metadata
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.errors import ConfigurationError, OffsetOutOfRangeError
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["StartPositions", "Time", "is_offset", "now_ms", "start_at_time", "start_by_policy", "start_of"]

# ---- conversion of start points and times from the forms that users pass; the wall clock -----------------------------

Time: TypeAlias = int | dt.datetime | dt.timedelta
"""Milliseconds since 1970, a datetime with a time zone, or a timedelta before now."""


def now_ms() -> int:
    """Return the time of the wall clock in milliseconds since 1970."""
    return int(time.time() * 1000)


def start_by_policy(policy: OffsetReset) -> StartPoint:
    """Return the start point of ``auto_offset_reset``: "earliest", "latest", "none" or a time."""
    return StartPoint(StartFrom(policy)) if isinstance(policy, str) else start_at_time(policy)


def start_at_time(when: object) -> StartPoint:
    """Return the start point of a ``Time``.

    Raises:
        ConfigurationError: ``when`` is not a time.
    """
    if isinstance(when, dt.timedelta) and when >= dt.timedelta(0):
        return StartPoint(StartFrom.AGO, when // dt.timedelta(milliseconds=1))
    if isinstance(when, dt.datetime) and when.tzinfo is not None:
        when = int(when.timestamp() * 1000)
    if isinstance(when, int) and not isinstance(when, bool) and 0 <= when < 1 << 63:
        return StartPoint(StartFrom.TIME, when)
    raise ConfigurationError(
        f"a time must be milliseconds since 1970, a datetime with a time zone, or a timedelta before now, not {when!r}"
    )


def is_offset(given: object) -> TypeGuard[int]:
    """Return True if ``given`` is a valid offset: a non-negative integer of at most 63 bits."""
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


def start_of(given: object) -> RequestedStart:
    """Return the requested start for ``given``; None for "committed".

    Raises:
        ConfigurationError: ``given`` is not an offset, "earliest", "latest", "committed", a datetime with a time zone,
            or a non-negative timedelta.
    """
    if given is None or given == "committed":
        return None
    if isinstance(given, str) and given in {StartFrom.EARLIEST, StartFrom.LATEST}:
        return StartPoint(StartFrom(given))
    if isinstance(given, dt.datetime | dt.timedelta):
        return start_at_time(given)
    if is_offset(given):
        return given
    raise ConfigurationError(
        "a start must be an offset, 'earliest', 'latest', 'committed', a datetime with a time zone, or a timedelta"
        f" before now, not {given!r}"
    )


# ---- start positions of partitions -----------------------------------------------------------------------------------


class StartPositions:
    """Sets the start positions of one consumer's partitions.

    Callers of ``set_start`` and ``drop_and_set_start`` call ``ConsumerParts.changed`` after all positions are set.

    Attributes:
        policy: decides where a partition is read from.
    """

    def __init__(self, parts: ConsumerParts, reader: Reader, policy: StartPolicy) -> None:
        self._parts, self._positions, self._reader, self.policy = parts, parts.positions, reader, policy

    def set_start(self, position: Position, start: Start, before: int | None = None) -> None:
        """Read a partition from ``start`` on; the partition must have no buffered records.

        Args:
            position: position of an assigned partition.
            start: start of reading.
            before: former position, if it is out of range or its topic was recreated; the reset then emits an event.
        """
        if isinstance(start, StartPoint):
            position.reset(start, before)
        elif isinstance(start, OffsetAndMetadata):
            self._set_committed_start(position, start)
        else:
            position.begin(start)

    def drop_and_set_start(self, position: Position, start: Start, before: int | None = None) -> None:
        """Drop a partition's buffered records and records in flight, and read the partition from ``start`` on.

        An earlier commit of the user is no longer in force.
        """
        self._reader.drop([position.partition])
        position.move()
        self.set_start(position, start, before)

    def read_recreated(self, partitions: Iterable[TopicPartition]) -> None:
        """Read partitions of recreated topics: drop records of the old topics, and look up starts in the new topics."""
        for position in self._positions.of(partitions):
            self.drop_and_set_start(position, self.policy.start_of_added(position.partition), position.next_offset)
        self._parts.changed()

    def read_again(self, position: Position, committed: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map lists as finished.

        If the topic was recreated after the partition was last fetched, ignore the offset and call ``read_recreated``.
        """
        if is_other_log(position.topic_id, position.partition, self._parts.cluster.topology):
            self.read_recreated([position.partition])
        else:
            self.drop_and_set_start(position, committed)
            self._parts.changed()

    def require_seek(self, position: Position) -> None:
        """Deliver an error in place of records until the user seeks (``auto_offset_reset="none"``)."""
        error = OffsetOutOfRangeError(*position.partition, position.reset_from)
        self._reader.put(position.partition, BufferedBatch(0, error=error), 0)
        position.refuse()

    def _set_committed_start(self, position: Position, committed: OffsetAndMetadata) -> None:
        offset, metadata, leader_epoch = committed
        decoded, topic_id = decode_metadata(metadata, offset), position.fetched_topic_id
        position.begin(offset, -1 if leader_epoch is None else leader_epoch, decoded.offset_map)
        # The cluster metadata may be outdated, so a recreation of the topic may be unknown yet. The next fetch detects
        # it by the former topic id.
        position.fetched_topic_id = topic_id
        if position.has_stale_commit:
            # Otherwise, the user has committed an offset since the partition was assigned.
            position.note_committed(offset, decoded.user_text, decoded.offset_map)
        if not position.is_fetchable or decoded.problem:
            # A map that is used is reported after an assignment only, and not when records are read again.
            self._reader.maps.report_found(position, decoded)
