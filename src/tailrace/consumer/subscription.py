"""Subscription of a consumer: as a member of a group, without a group, or to partitions that the user assigns.

A subscription without a group assigns all partitions of the topics, also those that are created later. With ``assign``,
a ``group_id`` only names the group that stores the offsets. A change that fails leaves the subscription as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from tailrace.awaitables import AutoResetEvent
from tailrace.consumer.arguments import BrokerPattern, TopicPattern
from tailrace.consumer.group.membership import ConsumerMembership
from tailrace.consumer.group.rebalance import Assignment
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.offsets.queries import TOPIC_GRACE_S, OffsetQueries, check_topics
from tailrace.consumer.parts import ConsumerParts
from tailrace.consumer.positions.partition_spec import PartitionSpec, RequestedStart
from tailrace.consumer.positions.start_positions import OffsetResetter
from tailrace.core.group_requests import Identity
from tailrace.errors import ConsumerStateError, TailraceError
from tailrace.net.offsets import committed_offsets
from tailrace.records import OffsetAndMetadata, TopicPartition

__all__ = ["SubscribedTopics", "Subscription"]


@dataclass(frozen=True, slots=True)
class SubscribedTopics:
    """Topics to subscribe to.

    Attributes:
        names: names of the topics; empty with a pattern.
        pattern: pattern of topic names; None with names.
        optional: subset of ``names`` that need not exist at the start.
        own: topics to which the group itself publishes records. Without a committed offset, they are read from their
            first record on, whatever ``auto_offset_reset`` is.
    """

    names: frozenset[str] = frozenset()
    pattern: TopicPattern | None = None
    optional: frozenset[str] = frozenset()
    own: Container[str] = frozenset()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"of /{self.pattern.pattern}/"
        return ", ".join(sorted(self.names)) or "of nothing"

    def __bool__(self) -> bool:
        return bool(self.names) or self.pattern is not None

    @property
    def watched(self) -> frozenset[str] | None:
        """Topics whose metadata is kept up to date; None for all topics of the cluster."""
        return self.names if self.pattern is None else None

    def contains(self, topic: str) -> object:
        if self.pattern is None:
            return topic in self.names
        assert not isinstance(self.pattern, BrokerPattern), "subscribe() replaces the membership for such a pattern"
        return self.pattern.fullmatch(topic)


class Subscription:
    """Current subscription or manual assignment of a consumer, with its membership and committer.

    Args:
        consumer: the consumer, passed to the user's callbacks.
        topics: topics to subscribe to at the start.
        on_failure: called with the error that ends the membership.

    Attributes:
        committer: commits the group's offsets; None without a group.
        membership: current membership of the group; None if there is none.
        membership_changed: set when a new membership should run, or the consumer stops.
        first_assignment_done: cleared when a membership is created; set after its first assignment, at its end, and on
            failure and stop.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        offset_resetter: OffsetResetter,
        consumer: object,
        topics: SubscribedTopics,
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self._parts, self._cluster, self._partitions = parts, parts.cluster, parts.partitions
        self._offset_resetter, self._start_positions = offset_resetter, offset_resetter.start_positions
        self._reader, self._queries = offset_resetter.reader, OffsetQueries(parts)
        self._consumer, self._on_failure, self._topics = consumer, on_failure, topics
        self.committer: Committer | None = None
        if parts.config.group_id is not None:
            self.committer = Committer(parts, self._start_positions, self._commit_identity, self._handle_commit_error)
        self.membership: ConsumerMembership | None = None
        self._assigned_topics: frozenset[str] | None = None
        """Topics whose partitions are all assigned without a group; None in a group or with a manual assignment."""
        self._is_manual = False
        """True if the partitions were assigned by ``assign``."""
        self._resets_offsets = parts.config.reset_offset_on_start
        """True until ``reset_offset_on_start`` was applied, or passed on to the first membership."""
        self.membership_changed = AutoResetEvent()
        self._membership_ended = asyncio.Event()
        self.first_assignment_done = asyncio.Event()
        self.first_assignment_done.set()
        if topics:
            self._begin(topics)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.membership is None and self._assigned_topics is None and not self._is_manual

    @property
    def topics(self) -> frozenset[str]:
        """Topics of the subscription; empty with a manual assignment.

        With a pattern that the broker resolves, these are the topics of the assigned partitions.
        """
        if self._assigned_topics is not None:
            return self._assigned_topics
        if self.membership is None:
            return frozenset()
        return self.membership.topics or frozenset(one.topic for one in self._partitions.topic_partitions)

    @property
    def watched_topics(self) -> frozenset[str] | None:
        return self._topics.watched

    def metadata_changed(self) -> None:
        """Handle new cluster metadata: topics, partitions and leaders may have changed."""
        if self._assigned_topics is not None:
            self._assign_all()
        if self.membership is not None:
            self.membership.metadata_changed()
        self._parts.changed()

    def _commit_identity(self) -> Identity | None:
        if self.membership is not None:
            return self.membership.commit_identity()
        # A manual assignment commits without a member id (a "simple" consumer).
        return Identity() if self._is_manual else None

    def _handle_commit_error(self, code: int, identity: Identity) -> bool:
        """Handle the error code of a commit sent as ``identity``; return True if ``identity`` can commit now."""
        if self.membership is not None:
            return self.membership.handle_commit_error(code, identity)
        # The identity of a manual assignment never changes. False means that the membership has ended since.
        return self._is_manual

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    async def check_topics_exist(self, timeout_s: float) -> None:
        """Check that the topics to subscribe to at the start exist."""
        await self._check_topics(self._topics, timeout_s)

    async def run_membership(self) -> None:
        """Run the current membership until it ends; return at once if there is none."""
        if self.membership is None:
            return
        try:
            await self.membership.run()
        finally:
            self.membership = None
            self._membership_ended.set()
            self.first_assignment_done.set()

    def stop(self) -> None:
        """Stop the membership, and wake the task that waits for ``membership_changed``."""
        if self.membership is not None:
            self.membership.stop()
        self.membership_changed.set()

    async def commit_manual_assignment(self, timeout_s: float) -> None:
        """Commit the finished records of partitions assigned by ``assign``, if commits are automatic."""
        if self._is_manual and self.committer is not None and self._parts.config.commits_automatically:
            await self.committer.commit_automatically(timeout_s=timeout_s, will_retry=False)

    # ---- subscription to topics --------------------------------------------------------------------------------

    async def subscribe(self, topics: SubscribedTopics) -> None:
        """Replace the subscription."""
        if self._is_manual:
            raise ConsumerStateError("partitions are assigned by assign() - unsubscribe() first, then subscribe()")
        with self._cluster.watching(topics.watched):
            # Refresh for a pattern, too, because the metadata may lack topics that match the pattern.
            timeout_s = self._parts.default_timeout_s
            await self._cluster.retrying(self._cluster.refresh, timeout_s=timeout_s, what="looking for the topics")
            await self._check_topics(topics, timeout_s)
            self._cluster.watch(self._parts, topics.watched)
        # A pattern that the broker resolves is fixed for the lifetime of a membership.
        if self.membership is not None and (
            isinstance(topics.pattern, BrokerPattern) or isinstance(self._topics.pattern, BrokerPattern)
        ):
            await self.unsubscribe()
            self._cluster.watch(self._parts, topics.watched)
        self._topics = topics
        if self.membership is not None:
            # Stop delivering other topics now: the rebalance that revokes their partitions may take seconds.
            self._reader.subscribe(topics.contains)
            self.membership.resubscribe(topics.names, topics.pattern)
        elif self._assigned_topics is not None:
            self._assign_all()
            self._drop({one for one in self._partitions.topic_partitions if one.topic not in self._assigned_topics})
        else:
            self._begin(topics)
            self.metadata_changed()
            self.membership_changed.set()

    def _begin(self, topics: SubscribedTopics) -> None:
        """Begin to read topics, as a member of the group or without a group."""
        if self.committer is None:
            self._assigned_topics = topics.names
            return
        assignment = Assignment(self._parts, self._offset_resetter, self.committer, self._consumer)
        assignment.resets_offsets, self._resets_offsets = self._resets_offsets, False
        assignment.on_taken_over, assignment.on_failure = self.first_assignment_done.set, self._on_failure
        self.first_assignment_done.clear()
        self.membership = ConsumerMembership(
            self._parts, assignment, self._parts.new_name(), (topics.names, topics.pattern)
        )

    def _assign_all(self) -> None:
        """Assign the partitions of the subscribed topics that are new in the cluster's metadata."""
        topology, pattern = self._cluster.topology, self._topics.pattern
        assert not isinstance(pattern, BrokerPattern), "a broker resolves patterns only for a group"
        self._assigned_topics = self._topics.names if pattern is None else topology.matching(pattern)
        existing = (
            TopicPartition(name, number)
            for name in sorted(self._assigned_topics & topology.topics.keys())
            for number in sorted(topology.topics[name].partitions)
        )
        for partition in self._partitions.add(existing):
            start = self._start_positions.policy.start_of_subscribed(partition.topic_partition, topology)
            self._start_positions.set_start(partition, start)
            partition.is_fetchable = True
        self._parts.changed()

    async def _check_topics(self, topics: SubscribedTopics, timeout_s: float) -> None:
        """Check that topics exist, and report them, or all topics if there is a pattern, to the start policy.

        The policy compares them with later metadata to detect added partitions and recreated topics.
        """
        required = topics.names - topics.optional
        await self._cluster.retrying(
            lambda: check_topics(self._cluster, required),
            timeout_s=min(timeout_s, TOPIC_GRACE_S),
            what="looking for the topics",
        )
        found = self._cluster.topology.topics
        self._start_positions.policy.note_topics(
            found if topics.pattern is not None else {name: found[name] for name in required if name in found}
        )

    async def unsubscribe(self) -> None:
        """Leave the group or drop the assignment; with automatic commits, commit finished records before."""
        if self.membership is not None:
            self._membership_ended.clear()
            self.membership.stop()
            await self._membership_ended.wait()
        # ``is_over`` raises the error that has ended the consumer, if there is one.
        if self._reader.is_over():
            return
        await self.commit_manual_assignment(self._parts.default_timeout_s)
        self._is_manual, self._assigned_topics, self._topics = False, None, SubscribedTopics()
        self._drop(self._partitions.topic_partitions)
        self._reader.subscribe(None)
        self._cluster.watch(self._parts, ())

    # ---- partitions assigned by the user -----------------------------------------------------------------------

    async def assign(self, specs: Iterable[PartitionSpec]) -> None:
        """Replace the assignment by these partitions, without a group membership, and drop all fetched records.

        Each partition is read from its requested start, otherwise from its committed offset, otherwise from the start
        point of ``auto_offset_reset``. With ``reset_offset_on_start``, the first assignment ignores the committed
        offsets, and commits its start offsets.
        """
        if self.membership is not None or self._assigned_topics is not None:
            raise ConsumerStateError("this consumer is subscribed to topics - unsubscribe() first, then assign()")
        chosen = await self._resolve(specs)
        if not chosen and not self._is_manual:
            return
        timeout_s = self._parts.default_timeout_s
        await self.commit_manual_assignment(timeout_s)
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        if self.committer is not None and not self._resets_offsets:
            without_start = [topic_partition for topic_partition, start in chosen.items() if start is None]
            committed = await committed_offsets(
                self._cluster, self.committer.group_id, without_start, timeout_s=timeout_s
            )
        self._cluster.watch(self._parts, {one.topic for one in chosen})
        self._is_manual = True
        self._drop(self._partitions.topic_partitions)
        policy = self._start_positions.policy
        for partition in self._partitions.add(chosen):
            start = policy.start_of_assigned(
                chosen[partition.topic_partition], committed.get(partition.topic_partition)
            )
            self._start_positions.set_start(partition, start)
            partition.is_fetchable = True
        self._parts.changed()
        if self._resets_offsets and chosen and self.committer is not None:
            await self._offset_resetter.wait_until_found(self._partitions.of(chosen), timeout_s, skip_delayed=True)
            await self.committer.commit_automatically(timeout_s=timeout_s, will_retry=True)
        self._resets_offsets = self._resets_offsets and not chosen

    async def _resolve(self, specs: Iterable[PartitionSpec]) -> dict[TopicPartition, RequestedStart]:
        """Return the partitions of ``specs``, each with its requested start; the last spec of a partition wins."""
        wanted = list(specs)
        there = await self._queries.partitions_of({spec.topic for spec in wanted})
        found: dict[TopicPartition, RequestedStart] = {}
        for spec in wanted:
            for number in there.get(spec.topic, []) if spec.partition is None else [spec.partition]:
                found[TopicPartition(spec.topic, number)] = spec.start
        await self._queries.check_partitions(found)
        return found

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = frozenset(partitions)
        self._reader.drop(gone)
        self._partitions.remove(gone)
        self._parts.changed()
