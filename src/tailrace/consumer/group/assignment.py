"""Assignment and revocation of partitions: start positions, rebalance callbacks, drain, last commit.

The order is guaranteed. Assignment: read the committed offsets, call the user's callbacks, apply the offsets that the
callbacks return or seek to, begin to fetch. Revocation: stop delivery, wait for records in flight, commit finished
records, call the user's callback, remove the partition. Meanwhile, another task sends heartbeats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from uuid import UUID

from tailrace.awaitables import resolve_call
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.group.machine import Partitions
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.start_positions import OffsetResetter, is_offset
from tailrace.context_managers import contextmanager
from tailrace.errors import RebalanceError
from tailrace.net.offsets import committed_offsets
from tailrace.observe.events import (
    DrainTimedOut,
    OffsetOverrideRejected,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsRevoked,
)
from tailrace.records import TopicPartition
from tailrace.user_exceptions import error_text

__all__ = ["AssignmentReconciler", "in_callback", "mark_callback"]


@dataclass(slots=True)
class _Callback:
    """Call of the user's callback by ``owner``."""

    owner: object
    """Consumer or GroupMember."""
    outer: _Callback | None
    """Callback of another owner, in which this callback is called; None if there is none."""
    is_over: bool = False
    """True once the callback has returned."""


_callback: ContextVar[_Callback | None] = ContextVar("tailrace_rebalance_callback", default=None)


def in_callback(owner: object) -> bool:
    """Return True in a rebalance callback of ``owner``, where waiting for records of ``owner`` would be a deadlock.

    In a task that the callback has started, return False once the callback has returned.
    """
    callback = _callback.get()
    while callback is not None and (callback.is_over or callback.owner is not owner):
        callback = callback.outer
    return callback is not None


@contextmanager
def mark_callback(owner: object) -> Iterator[None]:
    """Mark the code in the context as a callback of ``owner``, for ``in_callback``."""
    callback = _Callback(owner, _callback.get())
    token = _callback.set(callback)
    try:
        yield
    finally:
        callback.is_over = True
        _callback.reset(token)


class AssignmentReconciler:
    """Takeover and release of partitions for one membership of a consumer.

    Args:
        consumer: the consumer, which is passed to ``post_rebalance_callback``.

    Attributes:
        resets_offsets: set for the first membership with ``reset_offset_on_start``; False once the offsets of the first
            assignment were reset.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        reader: Reader,
        offset_resetter: OffsetResetter,
        committer: Committer,
        consumer: object,
    ) -> None:
        config = self._config = parts.config
        assert config.group_id is not None
        self._group_id = config.group_id
        self._parts, self._cluster, self._positions, self._observer = (
            parts,
            parts.cluster,
            parts.positions,
            parts.observer,
        )
        self.reader, self._committer = reader, committer
        self._start_positions, self._offset_resetter = offset_resetter.start_positions, offset_resetter
        self._consumer = consumer
        self.on_taken_over: Callable[[], None] = lambda: None
        """Called when a takeover is complete: callbacks have returned, and the offsets that they chose are applied."""
        self.resets_offsets = False
        self._positions_before: dict[TopicPartition, int | None] = {}
        """Position of each partition that was owned before the current rebalance."""
        self._reported: Partitions = frozenset()
        """Partitions whose assignment was reported to the user's rebalance listener."""
        self._released: dict[TopicPartition, tuple[UUID | None, int | None]] = {}
        """Topic id and committed offset of each partition when it was last revoked or lost."""

    # ---- assignment --------------------------------------------------------------------------------------------

    async def take_over(
        self, added: Partitions, kept: Partitions, topic_ids: Mapping[str, UUID] = MappingProxyType({})
    ) -> None:
        """Set the start positions of ``added`` partitions, call the callbacks, and make the partitions fetchable.

        Args:
            added: partitions to take over.
            kept: partitions that an earlier takeover has made fetchable.
            topic_ids: ids of assigned topics, by name; topics without an entry are assigned by name.

        Raises:
            RebalanceError: a callback raised, or did not return in time.
            BrokerError: the broker refuses to return the committed offsets.
        """
        self._note_positions(kept)
        self._positions.add(added)
        for position in self._positions.of(added):
            position.assigned_topic_id = topic_ids.get(position.topic_partition.topic)
        # Partitions that were reported to the listener already have start positions, even after a canceled takeover.
        unreported = added - self._reported
        committed = await committed_offsets(
            self._cluster, self._group_id, unreported, timeout_s=self._config.max_poll_interval_ms / 1000
        )
        for position in self._positions.of(unreported):
            # A seek of the user, or a takeover that was canceled, may have set a start.
            if not position.has_start:
                start = self._start_positions.policy.start_of_subscribed(
                    position.topic_partition,
                    self._cluster.topology,
                    committed.get(position.topic_partition),
                    self._released.pop(position.topic_partition, (None, None)),
                    ignores_committed=self.resets_offsets,
                )
                self._start_positions.set_start(position, start)
        if self.resets_offsets and unreported:
            await self._commit_reset_positions(unreported)
        self._observer.emit(PartitionsAssigned(self._group_id, added, kept))
        await self._report_assigned(unreported)
        await self._apply_overrides()
        for position in self._positions.of(added):
            position.is_fetchable = True
        self._positions_before.clear()
        self._parts.changed()
        self.on_taken_over()

    async def _report_assigned(self, added: Partitions) -> None:
        self._reported |= added
        try:
            await self._call_listener("on_partitions_assigned", added)
        except asyncio.CancelledError:
            # Another rebalance began before the listener returned. The takeover of that rebalance calls the listener
            # again for the partitions that are still assigned.
            self._reported -= added
            raise

    async def _commit_reset_positions(self, added: Partitions) -> None:
        """Commit the start positions of the first assignment, which replace the committed offsets."""
        self._parts.changed()
        timeout_s = self._config.max_poll_interval_ms / 1000
        await self._offset_resetter.wait_until_found(self._positions.of(added), timeout_s, skip_delayed=True)
        await self._committer.commit_automatically(added, timeout_s=self._commit_timeout_s, will_retry=True)
        self.resets_offsets = False

    async def _apply_overrides(self) -> None:
        callback = self._config.post_rebalance_callback
        if callback is None:
            return
        old = MappingProxyType(dict(self._positions_before))
        new = MappingProxyType({position.topic_partition: position.next_offset for position in self._positions})
        overrides = await self._call("post_rebalance_callback", callback, self._consumer, old, new)
        if overrides is not None and not isinstance(overrides, Mapping):
            raise RebalanceError(
                f"post_rebalance_callback returned {overrides!r} - return None or a mapping of partitions to offsets"
            )
        for partition, offset in (overrides or {}).items():
            self._override(partition, offset)

    def _override(self, partition: TopicPartition, offset: int) -> None:
        position = self._positions.get(partition)
        if position is None:
            self._reject_override(partition, offset, "the partition is not assigned to this consumer")
        elif not is_offset(offset):
            self._reject_override(partition, offset, "an offset must be an integer, 0 or more")
        else:
            # On a kept partition this is a seek.
            self._start_positions.drop_and_set_start(position, offset)

    def _reject_override(self, partition: TopicPartition, offset: object, reason: str) -> None:
        self._observer.emit(OffsetOverrideRejected(partition, offset, reason))

    # ---- revocation --------------------------------------------------------------------------------------------

    @property
    def may_commit(self) -> bool:
        """True if a stop may have to commit offsets.

        With automatic commits, this is the case if there is something to commit; otherwise if a commit is in flight, or
        a rebalance listener may commit.
        """
        if self._config.commits_automatically:
            return self._committer.has_uncommitted
        return self._committer.is_committing or self._config.rebalance_listener is not None

    @property
    def _may_commit_in_flight(self) -> bool:
        """True if a record in flight may be committed once it is finished: automatically or by the user.

        With an App or worker processes, this is always the case: they commit themselves.
        """
        config = self._config
        may_user_commit = config.rebalance_listener is not None or self._committer.has_user_committed
        return config.commits_automatically or may_user_commit or not self.reader.delivery.is_read_by_user

    async def release(self, partitions: Partitions, *, is_last: bool) -> None:
        """Release revoked partitions: await records in flight, commit, call the user's callback, remove the partitions.

        Records in flight are not awaited in the last release (``stop``), after which no poll would finish them, nor if
        no commit would follow. Otherwise they are awaited for ``rebalance_drain_ms`` at most. Unfinished records are
        delivered again.

        Raises:
            RebalanceError: a callback raised, or did not return in time.
        """
        if not partitions:
            return
        self.reader.halt(partitions)
        if not is_last and self._may_commit_in_flight:
            await self._drain(partitions)
        self._note_positions(partitions)
        if self._config.commits_automatically:
            # No other commit follows: if this commit fails, the next owner begins at an earlier committed offset.
            await self._committer.commit_automatically(partitions, timeout_s=self._commit_timeout_s, will_retry=False)
        else:
            # The user may have begun to commit the records that were in flight.
            await self._committer.wait(timeout_s=self._commit_timeout_s)
        reported = self._withdraw_report(partitions)
        try:
            await self._call_listener("on_partitions_revoked", reported)
        except asyncio.CancelledError:
            # The partitions were lost, or a stop began, before the listener returned. In both cases, the listener will
            # be called again for these partitions.
            self._reported |= reported
            raise
        except RebalanceError:
            self._remove(partitions)
            raise
        self._remove(partitions)
        self._observer.emit(PartitionsRevoked(self._group_id, partitions))

    async def lose(self, partitions: Partitions, reason: str) -> None:
        """Remove lost partitions, which other members may own already, then call the user's callback.

        Raises:
            RebalanceError: the callback raised, or did not return in time.
        """
        if not partitions:
            return
        self._note_positions(partitions)
        self._remove(partitions)
        self._observer.emit(PartitionsLost(self._group_id, partitions, reason))
        await self._call_listener("on_partitions_lost", self._withdraw_report(partitions))

    async def _drain(self, partitions: Partitions) -> None:
        """Wait until no record of ``partitions`` is in flight, for ``rebalance_drain_ms`` at most."""
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        held = await self.reader.delivery.drain(partitions, began_at + self._config.rebalance_drain_ms / 1000)
        if held:
            self._observer.emit(DrainTimedOut(held, loop.time() - began_at))

    @property
    def _commit_timeout_s(self) -> float:
        # If the cluster is unavailable for longer than half a session, the membership ends anyway. The rest of a stop
        # needs half of ``stop_timeout_ms``.
        return min(self._config.session_timeout_ms, self._config.stop_timeout_ms) / 2 / 1000

    def _withdraw_report(self, partitions: Partitions) -> Partitions:
        """Return those of ``partitions`` that were reported to the listener, and forget the report."""
        reported = partitions & self._reported
        self._reported -= partitions
        return reported

    def _note_positions(self, partitions: Iterable[TopicPartition]) -> None:
        """Store the positions of ``partitions`` for ``post_rebalance_callback``."""
        for position in self._positions.of(partitions):
            self._positions_before[position.topic_partition] = position.next_offset

    def _remove(self, partitions: Partitions) -> None:
        self.reader.drop(partitions)
        self._released |= {one.topic_partition: (one.topic_id, one.committed) for one in self._positions.of(partitions)}
        self._positions.remove(partitions)
        self._parts.changed()

    # ---- the user's code ---------------------------------------------------------------------------------------

    async def _call_listener(self, name: str, partitions: Partitions) -> None:
        callback = getattr(self._config.rebalance_listener, name, None)
        # An empty assignment is reported, because it tells the user that the member has joined. An empty revocation or
        # loss is not reported.
        if callback is not None and (partitions or name == "on_partitions_assigned"):
            await self._call(name, callback, partitions)

    async def _call(self, name: str, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        """Call the user's function, sync or async; raise RebalanceError if it raises or does not return in time."""
        deadline_s = self._config.max_poll_interval_ms / 1000
        deadline = asyncio.timeout(deadline_s)
        try:
            with mark_callback(self._consumer):
                async with deadline:
                    return await resolve_call(function(*arguments), name)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                raise RebalanceError(
                    f"{name} did not return within max_poll_interval_ms ({deadline_s:.0f} s) and was canceled"
                    " - shorten the callback, or raise max_poll_interval_ms"
                ) from error
            raise RebalanceError(f"{name} raised {error_text(error)}") from error


def _is_being_cancelled() -> bool:
    """Return True if the current task is being canceled, and not just a task that the user's code awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
