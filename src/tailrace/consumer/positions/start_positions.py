"""Start positions of partitions: after an assignment, a seek or an offset reset, and to read records again.

``StartPolicy`` chooses the start of a partition. ``StartPositions`` sets it, which begins a new epoch of the partition.
If the start is a point that only the leader can resolve, ``OffsetResetter`` looks up the offset, and sets it in the
same epoch.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import time
from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias, TypeGuard
from uuid import UUID

import anyio

from tailrace.awaitables import AutoResetEvent
from tailrace.config import OffsetReset as ResetPolicy
from tailrace.consumer.delivery.buffered_batch import BufferedBatch
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.partition import Partition, StartWait
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.partition_spec import RequestedStart
from tailrace.core.backoff import Backoff
from tailrace.core.cluster_metadata import ClusterMetadata, TopicInfo, is_other_log
from tailrace.core.offset_map import decode_metadata
from tailrace.core.start_point import StartFrom, StartPoint
from tailrace.error_codes import ErrorCode
from tailrace.errors import (
    BrokerConnectionError,
    BrokerError,
    ConfigurationError,
    MalformedMessageError,
    OffsetOutOfRangeError,
    TailraceError,
)
from tailrace.net.offsets import group_by_leader, list_offsets_of_leader
from tailrace.observe.events import OffsetReset, StartOffsetDelayed, StartOffsetFound
from tailrace.protocol.records import ListedOffset
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = [
    "OffsetResetter",
    "Start",
    "StartPolicy",
    "StartPositions",
    "Time",
    "is_offset",
    "now_ms",
    "start_at_time",
    "start_by_policy",
    "start_of",
]

# ---- conversion of start points and times from the forms that users pass; the wall clock -----------------------------

Time: TypeAlias = int | dt.datetime | dt.timedelta
"""Milliseconds since 1970, a datetime with a time zone, or a timedelta before now."""


def now_ms() -> int:
    """Return the time of the wall clock in milliseconds since 1970."""
    return int(time.time() * 1000)


def start_by_policy(policy: ResetPolicy) -> StartPoint:
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


# ---- choice of the start of each partition ---------------------------------------------------------------------------

_EARLIEST = StartPoint(StartFrom.EARLIEST)

Start: TypeAlias = int | StartPoint | OffsetAndMetadata
"""An offset, a start point that only the leader can resolve, or a committed offset with its offset map."""


class StartPolicy:
    """Decides where a partition is read from.

    If ``auto_offset_reset`` is "latest", partitions that were added and topics that were recreated after the
    subscription are read from their first record, since their records were written while the consumer was subscribed.

    Args:
        reset: start point that ``auto_offset_reset`` names.
        own_topics: topics to which the group itself publishes records. Without a committed offset, they are read from
            their first record, whatever ``auto_offset_reset`` is.
    """

    def __init__(self, reset: StartPoint, own_topics: Container[str] = frozenset()) -> None:
        self.reset, self._own_topics = reset, own_topics
        self._subscribed: dict[str, tuple[UUID, int]] = {}
        """Topic id and number of partitions of each topic at the time of the subscription."""
        self._has_subscribed = False

    def note_topics(self, topics: Mapping[str, TopicInfo]) -> None:
        """Store topics that exist when the consumer subscribes; topics that are already stored stay unchanged."""
        self._has_subscribed = True
        found = {name: (one.topic_id, len(one.partitions)) for name, one in topics.items()}
        self._subscribed = found | self._subscribed

    def start_of_assigned(self, requested: RequestedStart, committed: OffsetAndMetadata | None) -> Start:
        if requested is not None:
            return requested
        return self.reset if committed is None else committed

    def start_of_subscribed(
        self,
        topic_partition: TopicPartition,
        topology: ClusterMetadata,
        committed: OffsetAndMetadata | None = None,
        last_release: tuple[UUID | None, int | None] = (None, None),
        *,
        ignores_committed: bool = False,
    ) -> Start:
        """Return the start of a partition of a subscribed topic.

        Args:
            topic_partition: partition that is about to be read.
            topology: newest metadata of the cluster.
            committed: offset committed by the group; None if there is none.
            last_release: topic id and committed offset of the partition when it was last taken from this member; None
                where unknown. Kafka stores offsets by topic name. So if the topic was recreated since and the committed
                offset is unchanged, the offset belongs to the deleted topic and is ignored.
            ignores_committed: True if ``reset_offset_on_start`` applies.
        """
        if ignores_committed and self._uses_reset(topic_partition):
            return self.reset
        topic_id, offset = last_release
        if committed is None or (committed.offset == offset and is_other_log(topic_id, topic_partition, topology)):
            return self._start_without_commit(topic_partition, topology)
        return committed

    def start_of_added(self, topic_partition: TopicPartition) -> StartPoint:
        """Return the start of a partition that was added, or whose topic was recreated, after the subscription."""
        return _EARLIEST if self.reset.whence is StartFrom.LATEST else self.start_after_reset(topic_partition)

    def start_after_reset(self, topic_partition: TopicPartition) -> StartPoint:
        """Return the start of a partition that has no position, or whose log does not contain its position."""
        return self.reset if self._uses_reset(topic_partition) else _EARLIEST

    def _start_without_commit(self, topic_partition: TopicPartition, topology: ClusterMetadata) -> StartPoint:
        topic_id, count = self._subscribed.get(topic_partition.topic, (None, 0))
        is_added = topic_partition.partition >= count or is_other_log(topic_id, topic_partition, topology)
        return (
            self.start_of_added(topic_partition)
            if self._has_subscribed and is_added
            else self.start_after_reset(topic_partition)
        )

    def _uses_reset(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic not in self._own_topics


# ---- start positions of partitions -----------------------------------------------------------------------------------


class StartPositions:
    """Sets the start positions of one consumer's partitions.

    Callers of ``set_start`` and ``drop_and_set_start`` call ``ConsumerParts.changed`` after all positions are set.

    Attributes:
        policy: decides where a partition is read from.
    """

    def __init__(self, parts: ConsumerParts, reader: Reader, policy: StartPolicy) -> None:
        self._parts, self._partitions, self.reader, self.policy = parts, parts.partitions, reader, policy

    def set_start(self, partition: Partition, start: Start, before: int | None = None) -> None:
        """Read a partition from ``start`` on; the partition must have no buffered records.

        Args:
            partition: an assigned partition.
            start: start of reading.
            before: former position, if it is out of range or its topic was recreated; the reset then emits an event.
        """
        if isinstance(start, StartPoint):
            partition.reset(start, before)
        elif isinstance(start, OffsetAndMetadata):
            self._set_committed_start(partition, start)
        else:
            partition.begin(start)

    def drop_and_set_start(self, partition: Partition, start: Start, before: int | None = None) -> None:
        """Drop a partition's buffered records and records in flight, and read the partition from ``start`` on.

        An earlier commit of the user is no longer in force.
        """
        self.reader.drop([partition.topic_partition])
        partition.move()
        self.set_start(partition, start, before)

    def read_recreated(self, partitions: Iterable[TopicPartition]) -> None:
        """Read partitions of recreated topics: drop records of the old topics, and look up starts in the new topics."""
        for partition in self._partitions.of(partitions):
            self.drop_and_set_start(
                partition, self.policy.start_of_added(partition.topic_partition), partition.next_offset
            )
        self._parts.changed()

    def read_again(self, partition: Partition, committed: OffsetAndMetadata) -> None:
        """Read from a committed offset on, without records that the offset map lists as finished.

        If the topic was recreated after the partition was last fetched, ignore the offset and call ``read_recreated``.
        """
        if is_other_log(partition.topic_id, partition.topic_partition, self._parts.cluster.topology):
            self.read_recreated([partition.topic_partition])
        else:
            self.drop_and_set_start(partition, committed)
            self._parts.changed()

    def require_seek(self, partition: Partition) -> None:
        """Deliver an error in place of records until the user seeks (``auto_offset_reset="none"``)."""
        error = OffsetOutOfRangeError(*partition.topic_partition, partition.reset_from)
        partition.put(BufferedBatch(0, error=error))
        partition.refuse()
        self.reader.wakeup.set()

    def _set_committed_start(self, partition: Partition, committed: OffsetAndMetadata) -> None:
        offset, metadata, leader_epoch = committed
        decoded, topic_id = decode_metadata(metadata, offset), partition.fetched_topic_id
        partition.begin(offset, -1 if leader_epoch is None else leader_epoch, decoded.offset_map)
        # The cluster metadata may be outdated, so a recreation of the topic may be unknown yet. The next fetch detects
        # it by the former topic id.
        partition.fetched_topic_id = topic_id
        if partition.has_stale_commit:
            # Otherwise, the user has committed an offset since the partition was assigned.
            partition.note_committed(offset, decoded.user_text, decoded.offset_map)
        if not partition.is_fetchable or decoded.problem:
            # A map that is used is reported after an assignment only, and not when records are read again.
            self.reader.maps.report_found(partition, decoded)


# ---- look-up of start offsets at the partitions' leaders, for ``auto_offset_reset`` and for seeks --------------------

_MAX_SERVER_ERRORS = 30
"""Number of failed requests in a row after which UNKNOWN_SERVER_ERROR is reported; the pauses are up to a second."""


_DELAYED_S = 3.0
"""Time in seconds without a start offset after which an event is emitted."""


class _LookUp:
    """Look-up of the start offset of one partition."""

    def __init__(self, partition: Partition) -> None:
        assert partition.reset_to is not None
        self.partition, self.epoch = partition, partition.epoch
        self.start: StartPoint = partition.reset_to.with_timestamp(now_ms())
        self.known: dict[int, ListedOffset] = {}
        """Answers of the leader by timestamp."""

    @property
    def next_timestamp(self) -> int | None:
        return self.start.next_timestamp(self.known)

    @property
    def is_current(self) -> bool:
        """True if the partition was not assigned, sought or reset since the look-up began."""
        return self.partition.epoch == self.epoch and self.partition.reset_to is not None


class OffsetResetter:
    """Looks up the start offset of each partition that waits for one (``Partition.reset_to``)."""

    def __init__(self, parts: ConsumerParts, start_positions: StartPositions) -> None:
        self._parts, self.start_positions, self.reader = parts, start_positions, start_positions.reader
        self._cluster, self._partitions, self._observer = parts.cluster, parts.partitions, parts.observer
        self._backoff = Backoff.of_ms(parts.config.retry_backoff_ms, parts.config.retry_backoff_max_ms)
        self._wakeup = AutoResetEvent()
        """Set when a partition may wait for a start offset."""
        self._busy_leaders: set[int] = set()
        """Leaders with a request in flight, or in the pause after a failed request."""
        self._failures: dict[int, int] = {}
        """Number of consecutive failed requests to each leader."""
        self._found = asyncio.Event()
        """Event for any number of tasks that is set, and replaced by a new one, when a start offset may be known."""
        parts.wake_on_change(self.wake)

    def wake(self) -> None:
        """Look for partitions that wait for a start offset, and wake the tasks in ``wait_until_found``."""
        self._wakeup.set()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._found.set()
        self._found = asyncio.Event()

    @property
    def delays(self) -> Mapping[TopicPartition, str]:
        """Partitions for which ``StartOffsetDelayed`` was emitted and that still wait, with the reason."""
        waits = ((one.topic_partition, one.start_wait) for one in self._partitions)
        return {partition: wait.reason for partition, wait in waits if wait is not None and wait.is_reported}

    async def wait_until_found(
        self, partitions: Iterable[Partition], timeout_s: float, *, skip_delayed: bool = False
    ) -> None:
        """Wait until the start offset of each partition is known, for ``timeout_s`` seconds at most.

        Partitions are not waited for if they were revoked, if the user has to seek
        (``auto_offset_reset="none"``), or if the leader has refused to return the offset for good.

        With ``skip_delayed``, partitions for which ``StartOffsetDelayed`` was emitted are not waited for if the start
        offset of another partition is known.
        """
        wanted = list(partitions)

        def is_awaited(one: Partition) -> bool:
            if self._partitions.get(one.topic_partition) is not one or one.delivered is not None or one.is_refused:
                return False
            wait = one.start_wait
            if wait is None or not (wait.is_refused or (skip_delayed and wait.is_reported)):
                return True
            return not wait.is_refused and all(other.delivered is None for other in wanted)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # In a rebalance callback, nothing else may have started the look-up yet.
                self._wakeup.set()
                while any(map(is_awaited, wanted)):
                    await self._found.wait()

    async def run_resets(self) -> None:
        """Look up start offsets until canceled; a leader that hangs delays only its own partitions."""
        async with anyio.create_task_group() as tasks:
            while True:
                missing = [p for p in self._partitions if p.reset_to is not None]
                # A recreated topic has no position until the group assigns its new id.
                waiting = {p.topic_partition: p for p in missing if not self._is_unassigned(p)}
                for partition in waiting.values():
                    if partition.reset_to is not None and partition.reset_to.whence is StartFrom.NONE:
                        self.start_positions.require_seek(partition)
                        self._wake_waiters()
                self._note_waits()
                by_leader_id, leaderless = group_by_leader(
                    self._cluster, (p for p, at in waiting.items() if at.reset_to is not None)
                )
                for partition in self._partitions.of(leaderless):
                    if partition.start_wait is not None:
                        partition.start_wait.reason = "the partition has no leader"
                if leaderless or len(waiting) < len(missing):
                    self._parts.metadata_refresher.ask()
                for leader_id in by_leader_id.keys() - self._busy_leaders:
                    self._busy_leaders.add(leader_id)
                    tasks.start_soon(
                        self._look_up,
                        leader_id,
                        [waiting[topic_partition] for topic_partition in by_leader_id[leader_id]],
                    )
                await self._wakeup.wait(self._report_delays())

    def _note_waits(self) -> None:
        now = asyncio.get_running_loop().time()
        for partition in self._partitions:
            wait = partition.start_wait
            if partition.reset_to is not None:
                partition.start_wait = wait or StartWait(now)
            elif wait is not None:
                partition.start_wait = None
                if wait.is_reported and partition.delivered is not None:
                    self._observer.emit(
                        StartOffsetFound(partition.topic_partition, partition.delivered, now - wait.since)
                    )

    def _report_delays(self) -> float | None:
        """Emit an event for each partition that has waited for long; return the time at which the next one is due."""
        now = asyncio.get_running_loop().time()
        next_at: float | None = None
        for partition in self._partitions:
            wait = partition.start_wait
            if wait is None:
                continue
            if not wait.is_reported and now >= wait.since + _DELAYED_S:
                wait.is_reported = True
                self._observer.emit(
                    StartOffsetDelayed(
                        partition.topic_partition, str(partition.reset_to), wait.reason, now - wait.since
                    )
                )
                # The leader may hang, and another broker may be the leader meanwhile.
                self._parts.metadata_refresher.ask()
                self._wake_waiters()
            due_at = (now if wait.is_reported else wait.since) + _DELAYED_S
            next_at = due_at if next_at is None else min(next_at, due_at)
        return next_at

    def _is_unassigned(self, partition: Partition) -> bool:
        return is_other_log(partition.assigned_topic_id, partition.topic_partition, self._cluster.topology)

    async def _look_up(self, leader_id: int, waiting: list[Partition]) -> None:
        """Request offsets from one leader until the start offsets are known; after a failure, pause and give up.

        The next round of ``run_resets`` looks up the missing start offsets.
        """
        # A seek may have set a position since this task was started.
        lookups = {
            partition.topic_partition: _LookUp(partition) for partition in waiting if partition.reset_to is not None
        }
        refused: dict[TopicPartition, BrokerError] = {}
        is_answered, is_found = True, False
        while is_answered and (wanted := _timestamps(lookups)):
            found: dict[TopicPartition, ListedOffset] = {}
            try:
                found, errors = await list_offsets_of_leader(
                    self._cluster, leader_id, wanted, isolation_level=self._parts.config.isolation_level
                )
            except (BrokerConnectionError, MalformedMessageError) as error:
                is_answered, errors = False, {}
                self._note_reasons(dict.fromkeys(wanted, error))
            refused |= errors
            self._note_reasons(errors)
            for topic_partition in errors:
                del lookups[topic_partition]
            for topic_partition, offset in found.items():
                lookup = lookups[topic_partition]
                lookup.known[wanted[topic_partition]] = offset
                if lookup.next_timestamp is None and lookup.is_current:
                    self._set_position(lookup)
                    is_found = True
        if is_found:
            self._parts.changed()
        if refused or not is_answered:
            await self._pause(leader_id, refused)
        else:
            self._failures.pop(leader_id, None)
        self._busy_leaders.discard(leader_id)
        self.wake()

    def _note_reasons(self, errors: Mapping[TopicPartition, TailraceError]) -> None:
        """Note why partitions have no start offset, for events and errors."""
        for partition in self._partitions.of(errors):
            if (wait := partition.start_wait) is not None:
                error = errors[partition.topic_partition]
                wait.reason, wait.is_refused = str(error), isinstance(error, BrokerError) and not error.retriable

    async def _pause(self, leader_id: int, refused: Mapping[TopicPartition, BrokerError]) -> None:
        """Report errors that a retry does not resolve, request a refresh of the metadata, and pause."""
        failures = self._failures[leader_id] = self._failures.get(leader_id, 0) + 1
        for error in refused.values():
            has_recurred = error.code == ErrorCode.UNKNOWN_SERVER_ERROR and failures >= _MAX_SERVER_ERRORS
            if not error.retriable or has_recurred:
                self.reader.report(error)
        self._wake_waiters()
        self._parts.metadata_refresher.ask()
        await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311

    def _set_position(self, lookup: _LookUp) -> None:
        partition, (offset, leader_epoch) = lookup.partition, lookup.start.resolve(lookup.known)
        before, policy = partition.reset_from, str(partition.reset_to)
        partition.resolve(offset, leader_epoch)
        if before is not None:
            lost = offset - before if offset > before else None
            self._observer.emit(OffsetReset(partition.topic_partition, before, offset, policy, lost))


def _timestamps(lookups: dict[TopicPartition, _LookUp]) -> dict[TopicPartition, int]:
    timestamps = {partition: lookup.next_timestamp for partition, lookup in lookups.items()}
    return {partition: timestamp for partition, timestamp in timestamps.items() if timestamp is not None}
