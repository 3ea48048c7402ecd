"""Rebalance of a consumer: the order in which an ``Assignment`` takes over, revokes and loses partitions.

The order is guaranteed, and each of ``take_over``, ``revoke`` and ``lose`` shows the whole of one order. ``Membership``
(``consumer.group.membership``) calls ``take_over`` and ``release`` when the machine emits the effect of that name.
Meanwhile, another task sends heartbeats. A later takeover or release cancels the one in progress.
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
from tailrace.consumer.group.group_machine import Partitions, Release, TakeOver
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.start_positions import OffsetResetter, is_offset
from tailrace.context_managers import contextmanager
from tailrace.errors import RebalanceError, TailraceError
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

__all__ = ["Assignment", "in_callback", "mark_callback"]


class Assignment:
    """Partitions that the group assigns to one membership of a consumer.

    Args:
        consumer: the consumer, which is passed to ``post_rebalance_callback``.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        offset_resetter: OffsetResetter,
        committer: Committer,
        consumer: object,
    ) -> None:
        assert parts.config.group_id is not None
        self._group_id, self._config = parts.config.group_id, parts.config
        self._parts, self._partitions, self._observer = parts, parts.partitions, parts.observer
        self.reader, self._committer, self._consumer = offset_resetter.reader, committer, consumer
        self._start_positions, self._offset_resetter = offset_resetter.start_positions, offset_resetter
        self.on_taken_over: Callable[[], None] = lambda: None
        """Called when a takeover is complete: callbacks have returned, and the offsets that they chose are applied."""
        self.on_failure: Callable[[TailraceError], None] = lambda _error: None
        """Called with the error that ends the membership."""
        self.resets_offsets = False
        """True for the first membership with ``reset_offset_on_start``, until its first assignment."""
        self._positions_before: dict[TopicPartition, int | None] = {}
        """Position of each partition that was owned before the current rebalance, for ``post_rebalance_callback``."""
        self._reported: Partitions = frozenset()
        """Partitions whose assignment was reported to the user's rebalance listener."""
        self._released: dict[TopicPartition, tuple[UUID | None, int | None]] = {}
        """Topic id and committed offset of each partition when it was last revoked or lost."""

    # ---- the order of a rebalance --------------------------------------------------------------------------------

    async def take_over(self, effect: TakeOver) -> None:
        """Find start positions, call the callbacks, apply the offsets that they chose, and begin to fetch.

        All of this concerns ``effect.added``. Partitions in ``effect.kept`` are fetched and delivered throughout; only
        ``post_rebalance_callback`` may move them.

        Raises:
            RebalanceError: a callback raised, or did not return in time.
            BrokerError: the broker refuses to return the committed offsets.
        """
        added = effect.added
        self._note_positions(effect.kept)
        self._partitions.add(added)
        for partition in self._partitions.of(added):
            partition.assigned_topic_id = effect.topic_ids.get(partition.topic_partition.topic)
        # Partitions that were reported to the listener already have start positions, even after a canceled takeover.
        unreported = added - self._reported
        await self._start_at_committed_offsets(unreported)
        if self.resets_offsets and unreported:
            # The start positions of the first assignment replace the committed offsets.
            self._parts.changed()
            timeout_s = self._config.max_poll_interval_ms / 1000
            await self._offset_resetter.wait_until_found(self._partitions.of(unreported), timeout_s, skip_delayed=True)
            await self._committer.commit_automatically(unreported, timeout_s=self._commit_timeout_s, will_retry=True)
            self.resets_offsets = False
        self._observer.emit(PartitionsAssigned(self._group_id, added, effect.kept))
        self._reported |= unreported
        try:
            await self._call_listener("on_partitions_assigned", unreported)
        except asyncio.CancelledError:
            # Another rebalance began before the listener returned. The takeover of that rebalance calls the listener
            # again for the partitions that are still assigned.
            self._reported -= unreported
            raise
        await self._call_post_rebalance_callback()
        for partition in self._partitions.of(added):
            partition.is_fetchable = True
        self._positions_before.clear()
        self._parts.changed()
        self.on_taken_over()

    async def release(self, effect: Release) -> None:
        """Revoke partitions, or remove lost partitions.

        Raises:
            RebalanceError: a callback raised, or did not return in time.
        """
        if effect.partitions and effect.is_lost:
            await self.lose(effect.partitions, effect.reason)
        elif effect.partitions:
            await self.revoke(effect.partitions, is_last=effect.is_last)

    async def revoke(self, partitions: Partitions, *, is_last: bool) -> None:
        """Stop delivery, await records in flight, commit, call the user's callback, and remove the partitions.

        Records in flight are not awaited in the last release (``stop``): no poll would finish them, and an App has
        awaited or canceled its handlers before. Nor are they if no commit would follow. Otherwise they are awaited for
        ``rebalance_drain_ms`` at most. Unfinished records are delivered again.
        """
        self.reader.halt(partitions)
        if not is_last and self._may_commit_in_flight:
            began_at = asyncio.get_running_loop().time()
            held = await self.reader.delivery.drain(partitions, began_at + self._config.rebalance_drain_ms / 1000)
            if held:
                self._observer.emit(DrainTimedOut(held, asyncio.get_running_loop().time() - began_at))
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
        """Remove lost partitions, which other members may own already, then call the user's callback."""
        self._note_positions(partitions)
        self._remove(partitions)
        self._observer.emit(PartitionsLost(self._group_id, partitions, reason))
        await self._call_listener("on_partitions_lost", self._withdraw_report(partitions))

    def report(self, error: TailraceError, *, is_fatal: bool) -> None:
        """Let the user's next poll raise the error, which ends the membership if it is fatal."""
        if is_fatal:
            self.on_failure(error)
        else:
            self.reader.report(error)

    @property
    def may_commit(self) -> bool:
        """True if a stop may have to commit offsets.

        With automatic commits, this is the case if there is something to commit; otherwise if a commit is in flight, or
        a rebalance listener may commit.
        """
        if self._config.commits_automatically:
            return self._committer.has_uncommitted
        return self._committer.is_committing or self._config.rebalance_listener is not None

    # ---- parts of the order --------------------------------------------------------------------------------------

    async def _start_at_committed_offsets(self, partitions: Partitions) -> None:
        committed = await committed_offsets(
            self._parts.cluster, self._group_id, partitions, timeout_s=self._config.max_poll_interval_ms / 1000
        )
        for partition in self._partitions.of(partitions):
            # A seek of the user, or a takeover that was canceled, may have set a start.
            if not partition.has_start:
                start = self._start_positions.policy.start_of_subscribed(
                    partition.topic_partition,
                    self._parts.cluster.topology,
                    committed.get(partition.topic_partition),
                    self._released.pop(partition.topic_partition, (None, None)),
                    ignores_committed=self.resets_offsets,
                )
                self._start_positions.set_start(partition, start)

    @property
    def _may_commit_in_flight(self) -> bool:
        """True if a record in flight may be committed once it is finished: automatically or by the user.

        With an App or worker processes, this is always the case: they commit themselves.
        """
        config = self._config
        may_user_commit = config.rebalance_listener is not None or self._committer.has_user_committed
        return config.commits_automatically or may_user_commit or not self.reader.delivery.is_read_by_user

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
        for partition in self._partitions.of(partitions):
            self._positions_before[partition.topic_partition] = partition.next_offset

    def _remove(self, partitions: Partitions) -> None:
        self.reader.drop(partitions)
        self._released |= {
            one.topic_partition: (one.topic_id, one.committed) for one in self._partitions.of(partitions)
        }
        self._partitions.remove(partitions)
        self._parts.changed()

    # ---- the user's callbacks ------------------------------------------------------------------------------------

    async def _call_post_rebalance_callback(self) -> None:
        """Call ``post_rebalance_callback``, and apply the offsets that it returns."""
        callback = self._config.post_rebalance_callback
        if callback is None:
            return
        old = MappingProxyType(dict(self._positions_before))
        new = MappingProxyType({partition.topic_partition: partition.next_offset for partition in self._partitions})
        overrides = await self._call("post_rebalance_callback", callback, self._consumer, old, new)
        if overrides is not None and not isinstance(overrides, Mapping):
            raise RebalanceError(
                f"post_rebalance_callback returned {overrides!r} - return None or a mapping of partitions to offsets"
            )
        for topic_partition, offset in (overrides or {}).items():
            if (partition := self._partitions.get(topic_partition)) is None:
                reason = "the partition is not assigned to this consumer"
            elif not is_offset(offset):
                reason = "an offset must be an integer, 0 or more"
            else:
                # On a kept partition this is a seek.
                self._start_positions.drop_and_set_start(partition, offset)
                continue
            self._observer.emit(OffsetOverrideRejected(topic_partition, offset, reason))

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


# ---- code that runs in a rebalance callback --------------------------------------------------------------------------


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
