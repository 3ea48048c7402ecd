"""Subscription of a consumer: to topics as a group member, to topics without a group, or to partitions by ``assign``.

Only one of these three is active at a time. A change that fails leaves the former subscription in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.consumer.components import Components
from tailrace.consumer.group.consumer_membership import ConsumerMembership
from tailrace.consumer.group.reconciler import AssignmentReconciler
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.offsets.queries import TOPIC_GRACE_S, check_topics
from tailrace.consumer.positions.manual_assignment import ManualAssignment
from tailrace.consumer.standalone import StandaloneAssignment
from tailrace.consumer.topic_patterns import BrokerPattern, TopicPattern
from tailrace.core.group.error_reactions import Identity
from tailrace.core.offsets.commits import Commits
from tailrace.core.positions.partition_spec import PartitionSpec
from tailrace.errors import ConsumerStateError, TailraceError

__all__ = ["SubscriptionState"]


class SubscriptionState:
    """Current subscription or manual assignment, with its membership and committer.

    Args:
        consumer: the consumer, passed to the user's callbacks.
        topics: topics to subscribe to at the start.
        pattern: pattern of topic names, in place of ``topics``.
        optional_topics: subset of ``topics`` that need not exist at the start.
        on_failure: called with the error that ends the membership.

    Attributes:
        topics: subscribed topics, or topics of the manual assignment; empty with a pattern.
        committer: commits the group's offsets; None without a group.
        membership: current membership of the group; None if there is none.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - a consumer's arguments
        self,
        components: Components,
        consumer: object,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        optional_topics: frozenset[str],
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self._components, self._cluster, self._consumer = components, components.cluster, consumer
        self.topics, self._pattern, self._optional_topics = topics, pattern, optional_topics
        self._on_failure = on_failure
        self.committer = self._new_committer() if components.config.group_id is not None else None
        self.membership: ConsumerMembership | None = None
        self._standalone: StandaloneAssignment | None = None
        self._is_first = True
        """True before the first membership."""
        self._is_manual = False
        """True if the partitions were assigned by ``assign``."""
        self._manual_assignment = ManualAssignment(
            components.config,
            self._cluster,
            components.positions,
            components.reader,
            components.offset_queries,
            components.offset_resetter,
            components.start_positions,
            self.committer,
        )
        self.membership_changed = AutoResetEvent()
        """Set when a new membership should run, or the consumer stops."""
        self._membership_ended = asyncio.Event()
        self.first_assignment_done = asyncio.Event()
        """Cleared when a membership is created; set after its first assignment, at its end, and on failure and stop."""
        self.first_assignment_done.set()
        if topics or pattern is not None:
            self._subscribe_to(topics, pattern)

    def _new_committer(self) -> Committer:
        config, components = self._components.config, self._components
        commits = Commits(components.positions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id)
        return Committer(
            config,
            self._cluster,
            commits,
            components.reader,
            components.observer,
            self._commit_identity,
            self._handle_commit_error,
            components.start_positions.read_recreated,
        )

    def _subscribe_to(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Begin to read topics, as a member of the group or without a group."""
        self.topics, self._pattern = topics, pattern
        components = self._components
        if self.committer is not None:
            self.membership = self._new_membership(self.committer)
        else:
            assert not isinstance(pattern, BrokerPattern), "a broker resolves patterns only for a group"
            self._standalone = StandaloneAssignment(
                components.start_positions,
                self._cluster,
                components.positions,
                components.reader,
                topics,
                pattern,
            )

    def _new_membership(self, committer: Committer) -> ConsumerMembership:
        config, components = self._components.config, self._components
        reconciler = AssignmentReconciler(
            config,
            self._cluster,
            components.positions,
            components.reader,
            committer,
            components.observer,
            components.start_positions,
            components.offset_resetter,
            self._consumer,
            is_first=self._is_first,
        )
        self._is_first = False
        self.first_assignment_done.clear()
        reconciler.on_taken_over = self.first_assignment_done.set
        return ConsumerMembership(
            config,
            self._cluster,
            reconciler,
            components.reader,
            components.observer,
            components.new_member_name(),
            self.topics,
            self._pattern,
            self._on_failure,
        )

    # ---- lifecycle ---------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Keep the metadata of the initial topics up to date."""
        self._components.watch(self.topics if self._pattern is None else None)

    async def check_topics_exist(self, timeout_s: float) -> None:
        """Check that the initial topics exist.

        Raises:
            UnknownTopicError: a topic does not exist.
        """
        await self._check_topics(self.topics - self._optional_topics, self._pattern, timeout_s)

    async def _check_topics(self, topics: frozenset[str], pattern: TopicPattern | None, timeout_s: float) -> None:
        """Check that topics exist, and report them, or all topics if there is a pattern, to the start policy.

        The policy compares them with later metadata to detect added partitions and recreated topics.
        """
        await self._cluster.retrying(
            partial(check_topics, self._cluster, topics),
            timeout_s=min(timeout_s, TOPIC_GRACE_S),
            what="looking for the topics",
        )
        found = self._cluster.topology.topics
        self._components.policy.note_topics(
            found if pattern is not None else {name: found[name] for name in topics if name in found}
        )

    async def run_membership(self) -> None:
        """Run the current membership until it ends; return at once if there is none."""
        if self.membership is None:
            return
        try:
            await self.membership.run_membership()
        finally:
            self.membership = None
            self._membership_ended.set()
            self.first_assignment_done.set()

    def stop(self) -> None:
        """Stop the membership, and wake the task that waits for ``membership_changed``."""
        if self.membership is not None:
            self.membership.stop()
        self.membership_changed.set()

    async def commit_manual_assignment(self) -> None:
        """Commit the finished records of partitions assigned by ``assign``, if commits are automatic."""
        config = self._components.config
        if self._is_manual and self.committer is not None and config.commits_automatically:
            await self.committer.commit_automatically(timeout_s=config.stop_timeout_ms / 2000, will_retry=False)

    # ---- changes by the user -----------------------------------------------------------------------------------

    async def subscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Replace the subscription by topics, or by the topics that match a pattern.

        Raises:
            ConsumerStateError: partitions are assigned by ``assign``.
            UnknownTopicError: a topic does not exist; the subscription is unchanged.
        """
        if self._is_manual:
            raise ConsumerStateError("partitions are assigned by assign() - unsubscribe() first, then subscribe()")
        await self._watch_topics(topics, pattern)
        self._optional_topics = frozenset()
        # A pattern that the broker resolves is fixed for the lifetime of a membership.
        needs_new_membership = isinstance(pattern, BrokerPattern) or isinstance(self._pattern, BrokerPattern)
        if self.membership is not None and needs_new_membership:
            await self.unsubscribe()
            self._components.watch(None if pattern is not None else topics)
        if self.membership is not None:
            self.topics, self._pattern = topics, pattern
            # Stop delivering other topics now: the rebalance that revokes their partitions may take seconds.
            self._components.reader.subscribe(_predicate_of(topics, pattern))
            self.membership.resubscribe(topics, pattern)
        elif self._standalone is not None:
            assert not isinstance(pattern, BrokerPattern)
            self.topics, self._pattern = topics, pattern
            self._standalone.resubscribe(topics, pattern)
        else:
            self._subscribe_to(topics, pattern)
            self.metadata_changed()
            self.membership_changed.set()

    async def _watch_topics(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Check that topics exist and keep their metadata up to date; on an error, keep watching the former topics."""
        token, wanted = object(), None if pattern is not None else topics
        timeout_s = self._components.config.default_api_timeout_ms / 1000
        self._cluster.watch(token, wanted)
        try:
            # Refresh for a pattern, too, because the metadata may lack topics that match the pattern.
            await self._cluster.retrying(self._cluster.refresh, timeout_s=timeout_s, what="looking for the topics")
            await self._check_topics(topics, pattern, timeout_s)
            self._components.watch(wanted)
        finally:
            self._cluster.unwatch(token)

    async def unsubscribe(self) -> None:
        """Leave the group or drop the assignment; with automatic commits, commit finished records before.

        Raises:
            TailraceError: an error has ended the consumer.
        """
        if self.membership is not None:
            self._membership_ended.clear()
            self.membership.stop()
            await self._membership_ended.wait()
        # ``is_over`` raises the error that has ended the consumer, if there is one.
        if self._components.reader.is_over():
            return
        if self._is_manual:
            await self._manual_assignment.commit_finished()
            self._is_manual = False
        self.topics, self._pattern, self._standalone = frozenset(), None, None
        self._manual_assignment.clear()
        self._components.reader.subscribe(None)
        self._components.watch(())

    async def assign(self, specs: Sequence[PartitionSpec]) -> None:
        """Replace the assignment by these partitions, without a group membership.

        Raises:
            ConsumerStateError: the consumer is subscribed to topics.
            UnknownTopicError: a topic or a partition does not exist; the assignment is unchanged.
            BrokerError: the committed offsets may not be read; the assignment is unchanged.
            BrokerConnectionError: the committed offsets could not be read in time; the assignment is unchanged.
        """
        if self.membership is not None or self._standalone is not None:
            raise ConsumerStateError("this consumer is subscribed to topics - unsubscribe() first, then assign()")
        chosen = await self._manual_assignment.resolve(specs)
        if not chosen and not self._is_manual:
            return
        await self._manual_assignment.commit_finished()
        committed = await self._manual_assignment.committed_starts(chosen)
        self.topics = frozenset(partition.topic for partition in chosen)
        self._components.watch(self.topics)
        self._is_manual = True
        await self._manual_assignment.replace(chosen, committed)

    # ---- state -------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if nothing is subscribed to or assigned."""
        return self.membership is None and self._standalone is None and not self._is_manual

    @property
    def subscription(self) -> frozenset[str]:
        """Topics of the subscription; empty with a manual assignment.

        With a pattern that the broker resolves, these are the topics of the assigned partitions.
        """
        if self._standalone is not None:
            return self._standalone.topics
        if self.membership is None:
            return frozenset()
        owned = {partition.topic for partition in self._components.positions.partitions}
        return self.membership.topics or frozenset(owned)

    def metadata_changed(self) -> None:
        """Handle new cluster metadata: topics, partitions and leaders may have changed."""
        if self._standalone is not None:
            self._standalone.metadata_changed()
        if self.membership is not None:
            self.membership.metadata_changed()
        self._components.metadata_changed()

    def _commit_identity(self) -> Identity | None:
        if self.membership is not None:
            return self.membership.commit_identity()
        # A manual assignment commits without a member id (a "simple" consumer).
        return Identity() if self._is_manual else None

    def _handle_commit_error(self, code: int, identity: Identity) -> bool:
        """Handle the error code of a commit sent as ``identity``; return True if ``identity`` is still current."""
        if self.membership is not None:
            return self.membership.handle_commit_error(code, identity)
        # The identity of a manual assignment never changes. False means that the membership has ended since.
        return self._is_manual


def _predicate_of(topics: frozenset[str], pattern: TopicPattern | None) -> Callable[[str], object]:
    if pattern is None:
        return topics.__contains__
    assert not isinstance(pattern, BrokerPattern), "subscribe() replaces the membership for such a pattern"
    return pattern.fullmatch
