"""What one consumer reads: topics, as a member of the group or by itself, or partitions of the user's own choice.

Rule of this file: one of the three at a time, or nothing. A change that fails has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.consumer.components import Components
from tailrace.consumer.group.coordinator import Coordinator
from tailrace.consumer.group.reconciler import AssignmentReconciler
from tailrace.consumer.offsets.committer import Committer
from tailrace.consumer.offsets.queries import TOPIC_GRACE_S, check_topics
from tailrace.consumer.positions.manual_assignment import ManualAssignment
from tailrace.consumer.standalone import StandaloneAssignment
from tailrace.consumer.topic_patterns import BrokerPattern, TopicPattern
from tailrace.core.group.membership import Identity
from tailrace.core.offsets.commits import Commits
from tailrace.core.positions.partition_spec import PartitionSpec
from tailrace.errors import ConsumerStateError, TailraceError

__all__ = ["SubscriptionState"]


class SubscriptionState:
    """What is read, and who commits for it.

    Args:
        consumer: what the user's callbacks are given.
        topics: to read from the start on, unless a pattern says it.
        optional: those of them that need not be there yet.
        on_failure: told the error that ends the membership.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a Consumer knows
        self,
        components: Components,
        consumer: object,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        optional: frozenset[str],
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self._components, self._cluster, self._consumer = components, components.cluster, consumer
        self.topics, self._pattern, self._optional = topics, pattern, optional
        self._on_failure = on_failure
        self.committer = self._new_committer() if components.config.group_id is not None else None
        self.coordinator: Coordinator | None = None
        self._solo: StandaloneAssignment | None = None
        self._is_first = True
        """Whether there was no membership yet."""
        self._is_assigned = False
        """Whether the partitions are of the user's own choice."""
        self._assigning = ManualAssignment(
            components.config,
            self._cluster,
            components.positions,
            components.reader,
            components.offset_queries,
            components.offset_resetter,
            components.start_positions,
            self.committer,
        )
        self.news = AutoResetEvent()
        """Set when there is something else to be a member of, or it is time to end."""
        self._left = asyncio.Event()
        if topics or pattern is not None:
            self._follow(topics, pattern)

    def _new_committer(self) -> Committer:
        config, components = self._components.config, self._components
        commits = Commits(components.positions, max_bytes=config.offset_metadata_max_bytes, writer=config.client_id)
        return Committer(
            config,
            self._cluster,
            commits,
            components.reader,
            components.observer,
            self._committing_as,
            self._commit_refused,
            components.start_positions.restart,
        )

    def _follow(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Read topics, as a member of the group or by ourselves."""
        self.topics, self._pattern = topics, pattern
        components = self._components
        if self.committer is not None:
            self.coordinator = self._new_membership(self.committer)
        else:
            assert not isinstance(pattern, BrokerPattern), "there is no broker that deals without a group"
            self._solo = StandaloneAssignment(
                components.start_positions,
                self._cluster,
                components.positions,
                components.reader,
                topics,
                pattern,
            )

    def _new_membership(self, committer: Committer) -> Coordinator:
        config, components = self._components.config, self._components
        ownership = AssignmentReconciler(
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
        return Coordinator(
            config,
            self._cluster,
            ownership,
            components.reader,
            components.observer,
            components.new_member(),
            self.topics,
            self._pattern,
            self._on_failure,
        )

    # ---- from the start to the end -----------------------------------------------------------------------------

    def watch(self) -> None:
        """Have the cluster keep what is read from the start on in its picture."""
        self._components.watch(self.topics if self._pattern is None else None)

    async def see_topics(self, timeout_s: float) -> None:
        """See that what is read from the start on exists.

        Raises:
            UnknownTopicError: a topic does not.
        """
        await self._see(self.topics - self._optional, self._pattern, timeout_s)

    async def _see(self, topics: frozenset[str], pattern: TopicPattern | None, timeout_s: float) -> None:
        """See that topics exist, and remember how large they are, or all that a pattern may match."""
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
        """Be a member of the group for as long as there is one to be a member of."""
        if self.coordinator is None:
            return
        try:
            await self.coordinator.run_membership()
        finally:
            self.coordinator = None
            self._left.set()

    def stop(self) -> None:
        """Give everything back."""
        if self.coordinator is not None:
            self.coordinator.stop()
        self.news.set()

    async def commit_assigned(self) -> None:
        """Commit what is done of partitions that nobody but the user takes away."""
        config = self._components.config
        if self._is_assigned and self.committer is not None and config.commits_automatically:
            await self.committer.commit_unasked(timeout_s=config.stop_timeout_ms / 2000, will_retry=False)

    # ---- changed by the user -----------------------------------------------------------------------------------

    async def subscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Read these topics, or what matches the pattern, in place of what was read before.

        Raises:
            ConsumerStateError: the partitions are of the user's own choice.
            UnknownTopicError: a topic does not exist; nothing has changed then.
        """
        if self._is_assigned:
            raise ConsumerStateError("the partitions are assigned by hand - unsubscribe() first, then subscribe()")
        await self._look_for(topics, pattern)
        self._optional = frozenset()
        is_other_kind = isinstance(pattern, BrokerPattern) or isinstance(self._pattern, BrokerPattern)
        if self.coordinator is not None and is_other_kind:
            await self.unsubscribe()
            self._components.watch(None if pattern is not None else topics)
        if self.coordinator is not None:
            self.topics, self._pattern = topics, pattern
            # The rebalance that revokes the other partitions may take seconds.
            self._components.reader.subscribe(_predicate_of(topics, pattern))
            self.coordinator.resubscribe(topics, pattern)
        elif self._solo is not None:
            assert not isinstance(pattern, BrokerPattern)
            self.topics, self._pattern = topics, pattern
            self._solo.resubscribe(topics, pattern)
        else:
            self._follow(topics, pattern)
            self.metadata_changed()
            self.news.set()

    async def _look_for(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """See that they exist, and keep them in the picture; if they do not, what was there before stays."""
        token, wanted = object(), None if pattern is not None else topics
        timeout_s = self._components.config.default_api_timeout_ms / 1000
        self._cluster.watch(token, wanted)
        try:
            # Also for a pattern: what it matches is not in the picture before.
            await self._cluster.retrying(self._cluster.refresh, timeout_s=timeout_s, what="looking for the topics")
            await self._see(topics, pattern, timeout_s)
            self._components.watch(wanted)
        finally:
            self._cluster.unwatch(token)

    async def unsubscribe(self) -> None:
        """Read nothing: leave the group, or let go what was assigned; what is done is committed.

        Raises:
            TailraceError: what has ended the consumer, before or meanwhile.
        """
        if self.coordinator is not None:
            self._left.clear()
            self.coordinator.stop()
            await self._left.wait()
        if self._components.reader.is_over():
            return
        if self._is_assigned:
            await self._assigning.prepare({})
            self._is_assigned = False
        self.topics, self._pattern, self._solo = frozenset(), None, None
        self._assigning.clear()
        self._components.reader.subscribe(None)
        self._components.watch(())

    async def assign(self, specs: Sequence[PartitionSpec]) -> None:
        """Read these partitions, and nothing else, without being a member of anything.

        Raises:
            ConsumerStateError: topics are subscribed to.
            UnknownTopicError: a topic or a partition does not exist; nothing has changed then.
            BrokerError: the committed offsets may not be read; nothing has changed then.
            BrokerConnectionError: nobody says in time what is committed; nothing has changed then.
        """
        if self.coordinator is not None or self._solo is not None:
            raise ConsumerStateError("this consumer subscribes to topics - unsubscribe() first, then assign()")
        chosen = await self._assigning.find(specs)
        if not chosen and not self._is_assigned:
            return
        committed = await self._assigning.prepare(chosen)
        self.topics = frozenset(partition.topic for partition in chosen)
        self._components.watch(self.topics)
        self._is_assigned = True
        await self._assigning.replace(chosen, committed)

    # ---- for those who look ------------------------------------------------------------------------------------

    @property
    def is_nothing(self) -> bool:
        """Whether nobody has said what to read."""
        return self.coordinator is None and self._solo is None and not self._is_assigned

    @property
    def subscription(self) -> frozenset[str]:
        """The topics that are read; with a pattern, those that match it and are ours to read."""
        if self._solo is not None:
            return self._solo.topics
        if self.coordinator is None:
            return frozenset()
        owned = {partition.topic for partition in self._components.positions.partitions}
        return self.coordinator.topics or frozenset(owned)

    def metadata_changed(self) -> None:
        """The cluster may look different."""
        if self._solo is not None:
            self._solo.metadata_changed()
        if self.coordinator is not None:
            self.coordinator.metadata_changed()
        self._components.metadata_changed()

    def _committing_as(self) -> Identity | None:
        if self.coordinator is not None:
            return self.coordinator.committing_as()
        # Whoever has a group for nothing but its offsets commits as nobody in particular.
        return Identity() if self._is_assigned else None

    def _commit_refused(self, code: int, identity: Identity) -> bool:
        if self.coordinator is not None:
            return self.coordinator.refused(code, identity)
        return self._is_assigned


def _predicate_of(topics: frozenset[str], pattern: TopicPattern | None) -> Callable[[str], object]:
    if pattern is None:
        return topics.__contains__
    assert not isinstance(pattern, BrokerPattern), "the broker resolves it"
    return pattern.fullmatch
