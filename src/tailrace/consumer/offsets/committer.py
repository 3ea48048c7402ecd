"""Commits of finished records, automatic and by the user.

Only one commit is in flight at a time, so that an older commit never overwrites a newer one.
``consumer.offsets.commits`` decides which offsets to commit, and ``core.group_requests`` how to react to an error code.
A commit is retried while the group has no available coordinator. It fails at once if the membership has ended, because
other members may already own the partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NoReturn

from msgspec.structs import replace

from tailrace.awaitables import AutoResetEvent, resolve_call
from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.offsets.commits import CommitClock, Commits, CommitSnapshot
from tailrace.consumer.parts import ConsumerParts
from tailrace.context_managers import asynccontextmanager
from tailrace.core.cluster_metadata import is_other_log
from tailrace.core.group_requests import ErrorReactions, GroupReaction, GroupRequestKind, Identity, error_of
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    BrokerConnectionError,
    BrokerError,
    CommitFailedError,
    GroupError,
    TailraceError,
    TopicRecreatedError,
    broker_error,
)
from tailrace.net.offsets import commit_once
from tailrace.observe.events import (
    CommitCallbackFailed,
    CommitFailed,
    CommitMetadataDropped,
    GroupRequestCompleted,
    OffsetMapDropped,
    OffsetsCommitted,
    TopicRecreated,
)
from tailrace.protocol.groups import CommitOffset
from tailrace.protocol.message import NO_TOPIC_ID
from tailrace.records import OffsetAndMetadata, TopicPartition
from tailrace.user_exceptions import error_text

__all__ = ["Committer"]


class Committer:
    """Commits offsets of a group member, or of a manual assignment.

    Args:
        on_recreated: called with partitions whose topic was recreated after their records were read; may be empty.
        identity: called for each request; returns the member id and generation to commit with, or None while the member
            belongs to no generation of the group.
        on_error: called with the error code of a commit and the identity that the commit was sent with; returns True if
            that identity is still current.

    Attributes:
        has_user_committed: True if the user has called ``commit()``.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        reader: Reader,
        on_recreated: Callable[[Collection[TopicPartition]], None],
        identity: Callable[[], Identity | None],
        on_error: Callable[[int, Identity], bool],
    ) -> None:
        config = self._config = parts.config
        assert config.group_id is not None
        self.group_id = config.group_id
        self._cluster, self._observer, self._reader = parts.cluster, parts.observer, reader
        self._on_recreated = on_recreated
        self._commits = Commits(parts.positions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id)
        self._identity, self._on_error, self._reactions = (
            identity,
            on_error,
            ErrorReactions(config.group_error_reactions),
        )
        self._clock = _clock_of(config)
        self._is_over = self.has_user_committed = False
        self._out_of_retries: CommitFailedError | None = None
        """Error of the last commit that used up ``offset_commit_max_retries``."""
        self._lock = asyncio.Lock()
        """Locked while a commit is in flight."""
        self._wakeup = AutoResetEvent()
        """Set when the next automatic commit is due, or its time has changed."""
        self._map_dropped: set[TopicPartition] = set()
        """Partitions whose last commit had no room for the offset map."""

    async def run_commits(self) -> None:
        """Commit finished records whenever an automatic commit is due, until canceled."""
        loop, finished_counter = asyncio.get_running_loop(), self._reader.finished_counter
        finished_counter.on_due = self._wakeup.set
        self._restart_clock(loop.time(), finished_counter.finished)
        while True:
            await self._wakeup.wait(self._clock.next_at)
            if not self._clock.is_due(loop.time(), finished_counter.finished):
                continue
            self._restart_clock(loop.time(), finished_counter.finished)
            # The records of a failed commit are in the next commit, or are delivered to the partition's next owner.
            await self.commit_automatically(timeout_s=self._config.request_timeout_ms / 1000, will_retry=True)

    async def commit_automatically(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float, will_retry: bool
    ) -> None:
        """Commit finished records of all or some partitions, and report an error in an event.

        The next polling call raises the error as well if later commits would fail, too, or if the last of
        ``offset_commit_max_retries`` retries has failed.

        Args:
            partitions: partitions to commit; None for all assigned partitions.
            timeout_s: time limit in seconds, retries included.
            will_retry: True if another automatic commit follows.

        Raises:
            ConfigurationError: the user's ``group_error_reactions`` are invalid.
        """
        if self._is_over:
            return
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            await self._commit(partial(self._commits.snapshot, partitions), timeout_s)
        except (GroupError, BrokerError) as error:
            may_succeed = isinstance(error, CommitFailedError | BrokerError) and error.retriable
            took_s = loop.time() - began_at
            self._observer.emit(CommitFailed(self.group_id, str(error), will_retry and may_succeed, error, took_s))
            if not isinstance(error, CommitFailedError) or error is self._out_of_retries:
                self._reader.report(error)

    def end(self) -> None:
        """Send no more automatic commits."""
        self._is_over = True

    async def commit_finished(self, partitions: Iterable[TopicPartition] | None = None, *, timeout_s: float) -> None:
        """Commit finished records of all or some partitions; send no request if nothing is new.

        Raises:
            CommitFailedError: the offsets could not be committed in time, or this member may not commit them any more.
            FencedMemberError: another member has the same ``group_instance_id``.
            BrokerError: the broker refuses the commit, and a retry would not help.
        """
        self.has_user_committed = True
        await self._commit(partial(self._commits.snapshot, partitions, is_automatic=False), timeout_s)

    async def commit_chosen(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_s: float) -> None:
        """Commit offsets that the user has chosen; raise the same errors as ``commit_finished``."""
        self.has_user_committed = True
        await self._commit(partial(self._commits.snapshot_of, offsets), timeout_s)

    @property
    def is_committing(self) -> bool:
        """True while a commit is in flight."""
        return self._lock.locked()

    @property
    def has_uncommitted(self) -> bool:
        """True if a commit is in flight, or there is something to commit."""
        return self.is_committing or bool(self._commits.snapshot())

    async def wait(self, *, timeout_s: float) -> None:
        """Wait until no commit is in flight, for at most ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._lock:
                pass

    # ---- inside ------------------------------------------------------------------------------------------------

    async def _commit(self, take_snapshot: Callable[[], CommitSnapshot], timeout_s: float) -> None:
        """Wait until no commit is in flight, take a snapshot, commit it, and call the user's callback."""
        snapshot: CommitSnapshot | None = None
        try:
            async with self._turn(timeout_s) as deadline:
                snapshot = take_snapshot()
                if snapshot:
                    await self._send_until_done(snapshot, deadline)
        except TailraceError as error:
            await self._call_callback(snapshot, error)
            raise
        await self._call_callback(snapshot, None)

    async def _call_callback(self, snapshot: CommitSnapshot | None, error: TailraceError | None) -> None:
        """Call ``offset_commit_callback``; the next commit does not wait for the callback."""
        callback = self._config.offset_commit_callback
        if callback is None or not snapshot:
            return
        offsets = {
            partition: OffsetAndMetadata(
                one.offset,
                snapshot.notes[partition].user_text,
                one.leader_epoch if one.leader_epoch >= 0 else None,
            )
            for partition, one in snapshot.offsets.items()
        }
        try:
            async with asyncio.timeout(self._config.default_api_timeout_ms / 1000):
                await resolve_call(callback(offsets, error), "offset_commit_callback")
        except Exception as raised:  # noqa: BLE001 - the user's function may raise anything
            self._observer.emit(CommitCallbackFailed(self.group_id, error_text(raised), raised))

    def _restart_clock(self, now: float, finished: int) -> None:
        """Restart the interval and the record count of the next automatic commit."""
        self._clock.restart(now, finished)
        self._reader.finished_counter.set_due_at(self._clock.next_count)

    @asynccontextmanager
    async def _turn(self, timeout_s: float) -> AsyncIterator[float]:
        """Wait until no other commit is in flight, and yield the time of the loop at which this commit must end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._lock.acquire()
        except TimeoutError:
            raise CommitFailedError(
                f"an earlier commit did not complete within {timeout_s:.1f} s - commit again"
            ) from None
        try:
            finished = self._reader.finished_counter.finished
            yield deadline
            self._restart_clock(loop.time(), finished)
            self._wakeup.set()
        finally:
            self._lock.release()

    async def _send_until_done(self, snapshot: CommitSnapshot, deadline: float) -> None:
        """Commit the offsets of a snapshot, and retry after temporary errors until ``deadline``."""
        left = dict(snapshot.offsets)
        self._report_dropped_maps(snapshot)
        permanent: list[BrokerError] = []
        recreated: set[TopicPartition] = set()
        attempts, retries = 0, self._config.offset_commit_max_retries

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            try:
                await self._send(snapshot, left, recreated)
            except (BrokerConnectionError, BrokerError) as error:
                if isinstance(error, BrokerError) and not error.retriable:
                    permanent.append(error)
                elif retries is not None and attempts > retries:
                    self._out_of_retries = CommitFailedError(
                        f"{error}, after {attempts} attempts (offset_commit_max_retries={retries}) - the records since"
                        " the last commit may be delivered again"
                    )
                    raise self._out_of_retries from error
                raise

        loop = asyncio.get_running_loop()
        began_at = loop.time()
        timeout_s = deadline - began_at
        try:
            await self._cluster.retrying(attempt, timeout_s=timeout_s, what=f"committing {len(left)} offsets")
        except (BrokerConnectionError, BrokerError) as error:
            if error in permanent:
                raise
            # If this member were still in the group, it would have received a newer epoch with a heartbeat by now.
            is_stale = isinstance(error, BrokerError) and error.code == ErrorCode.STALE_MEMBER_EPOCH
            raise CommitFailedError(
                f"{error} - the records since the last commit may be delivered again", retriable=not is_stale
            ) from error
        gone = self._commits.released_since(snapshot) & left.keys()
        missing = gone | recreated
        committed = {partition: one.offset for partition, one in snapshot.offsets.items() if partition not in missing}
        if committed or not recreated:
            self._observer.emit(OffsetsCommitted(self.group_id, committed, loop.time() - began_at))
        if recreated:
            raise TopicRecreatedError(recreated)
        if gone:
            raise CommitFailedError(
                f"{', '.join(sorted(map(str, gone)))}: not committed, as the partitions were revoked meanwhile"
                " - their next owner continues at the last committed offset",
                retriable=False,
            )

    async def _send(
        self,
        snapshot: CommitSnapshot,
        left: dict[TopicPartition, CommitOffset],
        recreated: set[TopicPartition],
    ) -> None:
        """Send the offsets in ``left`` once, and remove those that the broker has accepted.

        Partitions of recreated topics are moved from ``left`` to ``recreated``. Revoked partitions are not sent.
        """
        gone = self._commits.released_since(snapshot)
        entries = {partition: entry for partition, entry in left.items() if partition not in gone}
        if not entries:
            return
        identity = self._identity()
        if identity is None:
            raise CommitFailedError(
                f"this consumer belongs to no generation of group {self.group_id!r}, so it cannot commit: the group is"
                " rebalancing, or has removed this member - commit again after the next assignment",
                retriable=False,
            )
        loop, topology = asyncio.get_running_loop(), self._cluster.topology
        await self._cluster.coordinator(self.group_id)
        sent_at = loop.time()
        codes = await commit_once(
            self._cluster,
            self.group_id,
            [
                one if one.topic_id != NO_TOPIC_ID else replace(one, topic_id=topology.topic_id(one.topic))
                for one in entries.values()
            ],
            identity,
        )
        self._observer.emit(GroupRequestCompleted(self.group_id, "Commit", loop.time() - sent_at))
        accepted = [partition for partition in entries if codes.get(partition) == ErrorCode.NONE]
        self._commits.note_stored(snapshot, accepted, {one for one in accepted if not left[one].metadata})
        for partition in accepted:
            del left[partition]
        unknown = [one for one in left if codes.get(one) in _UNKNOWN_TOPIC_CODES]
        await self._check_unknown_topics(unknown, snapshot, left, recreated)
        too_large = [one for one in left if codes.get(one) == ErrorCode.OFFSET_METADATA_TOO_LARGE]
        if shortened := [one for one in too_large if self._shorten_metadata(one, snapshot, left)]:
            raise _retriable(ErrorCode.OFFSET_METADATA_TOO_LARGE, shortened[0])
        for partition in entries.keys() & left.keys():
            self._raise_refusal(partition, codes.get(partition), identity)

    async def _check_unknown_topics(
        self,
        unknown: Collection[TopicPartition],
        snapshot: CommitSnapshot,
        left: dict[TopicPartition, CommitOffset],
        recreated: set[TopicPartition],
    ) -> None:
        """Refresh the metadata to check if topics were recreated or deleted that the coordinator does not know.

        Partitions of recreated topics are moved from ``left`` to ``recreated``. Partitions of other topics stay in
        ``left``, because the coordinator may not know a new topic yet.

        Raises:
            CommitFailedError: a topic or partition was deleted.
        """
        if not unknown:
            return
        token = object()
        # The user may commit offsets of topics that this consumer does not read.
        self._cluster.watch(token, {one.topic for one in unknown})
        try:
            await self._cluster.refresh()
        finally:
            self._cluster.unwatch(token)
        others = {one for one in unknown if is_other_log(left[one].topic_id, one, self._cluster.topology)}
        for partition in others:
            self._observer.emit(TopicRecreated(partition, left.pop(partition).offset))
        recreated |= others
        self._on_recreated(self._commits.unchanged_since(snapshot) & others)
        topics = self._cluster.topology.topics
        deleted = {
            one for one in unknown if one.topic not in topics or one.partition not in topics[one.topic].partitions
        }
        if deleted:
            raise CommitFailedError(
                f"{', '.join(sorted(map(str, deleted)))}: not committed, as the topic or partition no longer exists",
                retriable=False,
            )

    def _shorten_metadata(
        self, partition: TopicPartition, snapshot: CommitSnapshot, left: dict[TopicPartition, CommitOffset]
    ) -> bool:
        """Remove the offset map, else the user's metadata, from an entry that the broker refused as too large.

        Return False if neither can be removed.
        """
        bare = self._commits.without_map(left[partition], snapshot.notes[partition])
        if bare is None:
            return self._drop_metadata(partition, left)
        left[partition] = bare
        reason = "the broker's limit is lower: set offset_metadata_max_bytes to its offset.metadata.max.bytes"
        self._observer.emit(OffsetMapDropped(partition, bare.offset, reason))
        return True

    def _drop_metadata(self, partition: TopicPartition, left: dict[TopicPartition, CommitOffset]) -> bool:
        """Remove the user's metadata; return False if there is none, or if ``on_metadata_too_large`` is "raise"."""
        entry = left[partition]
        if self._config.on_metadata_too_large == "raise" or not entry.metadata:
            return False
        left[partition] = replace(entry, metadata="")
        self._observer.emit(CommitMetadataDropped(partition, entry.offset, len(entry.metadata.encode())))
        return True

    def _report_dropped_maps(self, snapshot: CommitSnapshot) -> None:
        """Emit an event for each offset map that does not fit, but none if the partition's previous map did not fit."""
        for partition, note in snapshot.notes.items():
            if not note.is_map_dropped:
                self._map_dropped.discard(partition)
            elif partition not in self._map_dropped:
                self._map_dropped.add(partition)
                reason = f"it does not fit into offset_metadata_max_bytes={self._config.offset_metadata_max_bytes}"
                self._observer.emit(OffsetMapDropped(partition, snapshot.offsets[partition].offset, reason))

    def _raise_refusal(self, partition: TopicPartition, code: int | None, identity: Identity) -> NoReturn:
        if code is None:
            raise broker_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{partition} is missing in the response to a commit"
            )
        match self._reactions.reaction_to(code, GroupRequestKind.COMMIT):
            case GroupReaction.FIND_COORDINATOR:
                self._cluster.forget_coordinator(self.group_id, name_of(code))
                raise broker_error(ErrorCode.NOT_COORDINATOR, f"{partition} was not committed")
            case GroupReaction.RETRY:
                if code == ErrorCode.STALE_MEMBER_EPOCH:
                    # The next heartbeat brings the newer epoch.
                    self._on_error(code, identity)
                raise _retriable(code, partition)
            case GroupReaction.REJOIN | GroupReaction.REJOIN_AS_NEW | GroupReaction.REJOIN_WITH_SAME_ID:
                if not self._on_error(code, identity):
                    # A rebalance has begun or ended since the request was sent. Offsets of partitions that are still
                    # owned are committed under the new generation.
                    raise _retriable(code, partition)
                raise CommitFailedError(
                    f"{partition} was not committed: the group continues without this member ({name_of(code)}), and the"
                    " new owner receives the records again - if handling takes long, raise session_timeout_ms or"
                    " max_poll_interval_ms",
                    retriable=False,
                )
            case GroupReaction.FAIL:
                if code != ErrorCode.FENCED_INSTANCE_ID:
                    raise broker_error(code, f"{partition} was not committed")
                if not self._on_error(code, identity):
                    # This member has joined again with a new member id since the request was sent.
                    raise _retriable(code, partition)
                raise error_of(code, GroupRequestKind.COMMIT)


_UNKNOWN_TOPIC_CODES = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


def _clock_of(config: ConsumerConfig) -> CommitClock:
    if not config.commits_automatically:
        return CommitClock(None)
    interval_ms = config.auto_commit_interval_ms
    return CommitClock(None if interval_ms is None else interval_ms / 1000, config.auto_commit_every_records)


def _retriable(code: int, partition: TopicPartition) -> BrokerError:
    error = broker_error(code, f"{partition} was not committed")
    # Some of these codes are not retriable in general, but they are retriable for a commit.
    error.retriable = True
    return error
