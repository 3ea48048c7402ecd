"""Commits of finished records, automatic and by the user.

``Committer.run_commits`` is a task of the consumer. It wakes when the interval is over, or when ``DeliveryProgress``
(``consumer.delivery``) counts the record that makes a commit due; a finished record calls nothing else here.
Only one commit is in flight at a time, so that an older commit never overwrites a newer one.
``consumer.offsets.commits`` decides which offsets to commit, and ``core.group_requests`` how to react to an error code.
A commit is retried while the group has no available coordinator. It fails at once if the membership has ended, because
other members may already own the partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from msgspec.structs import replace

from tailrace.awaitables import AutoResetEvent, resolve_call
from tailrace.consumer.offsets.commits import CommitClock, Commits, CommitSnapshot
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.start_positions import StartPositions
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


@dataclass(slots=True)
class _Commit:
    """One commit, through all its attempts."""

    snapshot: CommitSnapshot
    left: dict[TopicPartition, CommitOffset]
    """Offsets that the broker has not accepted yet."""
    recreated: set[TopicPartition] = field(default_factory=set)
    """Partitions of topics that were recreated since their records were read."""
    attempts: int = 0
    refusal: BrokerError | None = None
    """Error after which no attempt follows."""


class Committer:
    """Commits offsets of a group member, or of a manual assignment.

    Args:
        identity: called for each request; returns the member id and generation to commit with, or None while the member
            belongs to no generation of the group (``Subscription``, which asks ``ConsumerMembership``).
        on_error: called with the error code of a commit and the identity that the commit was sent with; returns True if
            the error concerns the membership, which it may end (``ConsumerMembership.handle_commit_error``).

    Attributes:
        has_user_committed: True if the user has called ``commit()``.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        start_positions: StartPositions,
        identity: Callable[[], Identity | None],
        on_error: Callable[[int, Identity], bool],
    ) -> None:
        config = self._config = parts.config
        assert config.group_id is not None
        self.group_id = config.group_id
        self._cluster, self._observer = parts.cluster, parts.observer
        self._start_positions, self._reader = start_positions, start_positions.reader
        self._commits = Commits(parts.partitions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id)
        self._identity, self._on_error = identity, on_error
        self._reactions = ErrorReactions(config.group_error_reactions)
        interval_ms = config.auto_commit_interval_ms if config.commits_automatically else None
        self._clock = CommitClock(
            None if interval_ms is None else interval_ms / 1000,
            config.auto_commit_every_records if config.commits_automatically else None,
        )
        self._is_over = self.has_user_committed = False
        self._out_of_retries: CommitFailedError | None = None
        """Error of the last commit that used up ``offset_commit_max_retries``."""
        self._lock = asyncio.Lock()
        """Locked while a commit is in flight."""
        self._wakeup = AutoResetEvent()
        """Set when the next automatic commit is due, or its time has changed."""
        self._map_dropped: set[TopicPartition] = set()
        """Partitions whose last commit had no room for the offset map."""

    # ---- when --------------------------------------------------------------------------------------------------

    async def run_commits(self) -> None:
        """Commit finished records whenever an automatic commit is due, until canceled."""
        loop, delivery = asyncio.get_running_loop(), self._reader.delivery
        delivery.on_due = self._wakeup.set
        self._restart_clock(loop.time(), delivery.finished)
        while True:
            await self._wakeup.wait(self._clock.next_at)
            if not self._clock.is_due(loop.time(), delivery.finished):
                continue
            self._restart_clock(loop.time(), delivery.finished)
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

    def _restart_clock(self, now: float, finished: int) -> None:
        """Restart the interval and the record count of the next automatic commit."""
        self._clock.restart(now, finished)
        self._reader.delivery.due_at = self._clock.next_count

    # ---- one commit, with its retries --------------------------------------------------------------------------

    async def _commit(self, take_snapshot: Callable[[], CommitSnapshot], timeout_s: float) -> None:
        """Wait until no commit is in flight, take a snapshot, commit it, and call the user's callback."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        snapshot: CommitSnapshot | None = None
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._lock.acquire()
            except TimeoutError:
                raise CommitFailedError(
                    f"an earlier commit did not complete within {timeout_s:.1f} s - commit again"
                ) from None
            try:
                finished = self._reader.delivery.finished
                if snapshot := take_snapshot():
                    await self._send_until_done(_Commit(snapshot, dict(snapshot.offsets)), deadline)
                self._restart_clock(loop.time(), finished)
                self._wakeup.set()
            finally:
                self._lock.release()
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

    async def _send_until_done(self, commit: _Commit, deadline: float) -> None:
        """Send a commit, and retry after temporary errors until ``deadline``.

        Emit an event for each offset map that does not fit, but none if the partition's previous map did not fit.
        """
        for partition, note in commit.snapshot.notes.items():
            if not note.is_map_dropped:
                self._map_dropped.discard(partition)
            elif partition not in self._map_dropped:
                self._map_dropped.add(partition)
                reason = f"it does not fit into offset_metadata_max_bytes={self._config.offset_metadata_max_bytes}"
                offset = commit.snapshot.offsets[partition].offset
                self._observer.emit(OffsetMapDropped(partition, offset, reason))
        loop, offsets = asyncio.get_running_loop(), commit.snapshot.offsets
        began_at = loop.time()
        try:
            await self._cluster.retrying(
                partial(self._attempt, commit),
                timeout_s=deadline - began_at,
                what=f"committing {len(offsets)} offsets",
            )
        except (BrokerConnectionError, BrokerError) as error:
            if error is commit.refusal:
                raise
            # If this member were still in the group, it would have received a newer epoch with a heartbeat by now.
            is_stale = isinstance(error, BrokerError) and error.code == ErrorCode.STALE_MEMBER_EPOCH
            raise CommitFailedError(
                f"{error} - the records since the last commit may be delivered again", retriable=not is_stale
            ) from error
        gone = self._commits.released_since(commit.snapshot) & commit.left.keys()
        missing = gone | commit.recreated
        committed = {partition: one.offset for partition, one in offsets.items() if partition not in missing}
        if committed or not commit.recreated:
            self._observer.emit(OffsetsCommitted(self.group_id, committed, loop.time() - began_at))
        if commit.recreated:
            raise TopicRecreatedError(commit.recreated)
        if gone:
            raise CommitFailedError(
                f"{', '.join(sorted(map(str, gone)))}: not committed, as the partitions were revoked meanwhile"
                " - their next owner continues at the last committed offset",
                retriable=False,
            )

    async def _attempt(self, commit: _Commit) -> None:
        """Send the offsets that are left once; count the attempts of ``offset_commit_max_retries``."""
        commit.attempts += 1
        retries = self._config.offset_commit_max_retries
        try:
            await self._send(commit)
        except (BrokerConnectionError, BrokerError) as error:
            if isinstance(error, BrokerError) and not error.retriable:
                commit.refusal = error
            elif retries is not None and commit.attempts > retries:
                self._out_of_retries = CommitFailedError(
                    f"{error}, after {commit.attempts} attempts (offset_commit_max_retries={retries}) - the records"
                    " since the last commit may be delivered again"
                )
                raise self._out_of_retries from error
            raise

    async def _send(self, commit: _Commit) -> None:
        """Send the offsets that are left, except of revoked partitions, and remove those that the broker accepts."""
        gone = self._commits.released_since(commit.snapshot)
        topology, entries = self._cluster.topology, {}
        for partition, entry in commit.left.items():
            if partition not in gone:
                topic_id = topology.topic_id(entry.topic) if entry.topic_id == NO_TOPIC_ID else entry.topic_id
                entries[partition] = replace(entry, topic_id=topic_id)
        if not entries:
            return
        identity = self._identity()
        if identity is None:
            raise CommitFailedError(
                f"this consumer belongs to no generation of group {self.group_id!r}, so it cannot commit: the group is"
                " rebalancing, or has removed this member - commit again after the next assignment",
                retriable=False,
            )
        loop = asyncio.get_running_loop()
        # Look up the coordinator now, so that the time of the event is that of the commit alone.
        await self._cluster.coordinator(self.group_id)
        sent_at = loop.time()
        codes = await commit_once(self._cluster, self.group_id, entries.values(), identity)
        self._observer.emit(GroupRequestCompleted(self.group_id, "Commit", loop.time() - sent_at))
        accepted = [partition for partition in entries if codes.get(partition) == ErrorCode.NONE]
        without_text = {one for one in accepted if not commit.left[one].metadata}
        self._commits.note_stored(commit.snapshot, accepted, without_text)
        for partition in accepted:
            del commit.left[partition]
        if unknown := [one for one in commit.left if codes.get(one) in _UNKNOWN_TOPIC_CODES]:
            await self._check_unknown_topics(commit, unknown)
        too_large = [one for one in commit.left if codes.get(one) == ErrorCode.OFFSET_METADATA_TOO_LARGE]
        if shortened := [one for one in too_large if self._shorten_metadata(commit, one)]:
            raise _retriable(ErrorCode.OFFSET_METADATA_TOO_LARGE, shortened[0])
        for partition in entries.keys() & commit.left.keys():
            self._raise_refusal(partition, codes.get(partition), identity)

    # ---- reactions to refused offsets --------------------------------------------------------------------------

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
                    # A join is in flight, or the identity has changed since the request was sent. Offsets of
                    # partitions that are still owned are committed under the new generation.
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
                    # This member is joining, or has joined again with a new member id since the request was sent.
                    raise _retriable(code, partition)
                raise error_of(code, GroupRequestKind.COMMIT)

    async def _check_unknown_topics(self, commit: _Commit, unknown: Collection[TopicPartition]) -> None:
        """Refresh the metadata to check if topics were recreated or deleted that the coordinator does not know.

        Partitions of recreated topics are moved to ``commit.recreated``. Partitions of other topics stay in
        ``commit.left``, because the coordinator may not know a new topic yet.

        Raises:
            CommitFailedError: a topic or partition was deleted.
        """
        # The user may commit offsets of topics that this consumer does not read.
        with self._cluster.watching({one.topic for one in unknown}):
            await self._cluster.refresh()
        topology = self._cluster.topology
        others = {one for one in unknown if is_other_log(commit.left[one].topic_id, one, topology)}
        for partition in others:
            self._observer.emit(TopicRecreated(partition, commit.left.pop(partition).offset))
        commit.recreated |= others
        self._start_positions.read_recreated(self._commits.unchanged_since(commit.snapshot) & others)
        if deleted := [one for one in unknown if topology.leader(one) is None]:
            raise CommitFailedError(
                f"{', '.join(sorted(map(str, deleted)))}: not committed, as the topic or partition no longer exists",
                retriable=False,
            )

    def _shorten_metadata(self, commit: _Commit, partition: TopicPartition) -> bool:
        """Remove the offset map, else the user's metadata, from an entry that the broker refused as too large.

        Return False if neither can be removed: there is none, or ``on_metadata_too_large`` is "raise".
        """
        entry = commit.left[partition]
        if (bare := self._commits.without_map(entry, commit.snapshot.notes[partition])) is not None:
            commit.left[partition] = bare
            reason = "the broker's limit is lower: set offset_metadata_max_bytes to its offset.metadata.max.bytes"
            self._observer.emit(OffsetMapDropped(partition, bare.offset, reason))
        elif self._config.on_metadata_too_large == "raise" or not entry.metadata:
            return False
        else:
            commit.left[partition] = replace(entry, metadata="")
            self._observer.emit(CommitMetadataDropped(partition, entry.offset, len(entry.metadata.encode())))
        return True


_UNKNOWN_TOPIC_CODES = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}


def _retriable(code: int, partition: TopicPartition) -> BrokerError:
    error = broker_error(code, f"{partition} was not committed")
    # Some of these codes are not retriable in general, but they are retriable for a commit.
    error.retriable = True
    return error
