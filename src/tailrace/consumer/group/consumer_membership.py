"""Group membership of a consumer: its subscription, and the handling of its assignment."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import anyio

from tailrace.auto_reset_event import AutoResetEvent
from tailrace.config import ConsumerConfig
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.error_reactions import ErrorReactions
from tailrace.consumer.group.assignors.strategies import strategies_of
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.kip848 import Kip848Member
from tailrace.consumer.group.membership import MembershipLoop, member_settings, run_poll_interval_check
from tailrace.consumer.group.reconciler import AssignmentReconciler
from tailrace.consumer.group.requests import GroupRequests, event_of
from tailrace.consumer.group.vocabulary import (
    Membership,
    PartitionsChanged,
    Release,
    Resubscribed,
    StopMembership,
    TakeOver,
)
from tailrace.consumer.topic_patterns import BrokerPattern, TopicPattern
from tailrace.core.group_requests import GroupRequestKind, Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.hooks import Observer

__all__ = ["ConsumerMembership"]


class ConsumerMembership:
    """Membership of one consumer in its group.

    Args:
        member: name for this member's connections, unique in this process.
        topics: topics to subscribe to.
        pattern: pattern of topic names to subscribe to; None to subscribe to ``topics`` only.
        on_failure: called with the error that ends the membership.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each part of the consumer that it uses
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        reconciler: AssignmentReconciler,
        reader: Reader,
        observer: Observer,
        member: str,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        self.topics, self._pattern = topics, pattern
        self._cluster, self._reconciler, self._reader = cluster, reconciler, reader
        self._max_wait_s = config.max_poll_interval_ms / 1000
        self._on_failure = on_failure
        self._reactions = ErrorReactions(config)
        self._uses_kip848 = config.group_protocol == "consumer"
        self._newer_metadata = AutoResetEvent()
        self._requests = GroupRequests(config, cluster, observer, member)
        machine = _state_machine(config, topics, pattern)
        self._membership_loop = MembershipLoop(config, machine, self._requests, cluster, observer, self)

    @property
    def identity(self) -> Identity:
        """Member id and generation (or member epoch)."""
        return self._membership_loop.identity

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return self._membership_loop.heartbeat_age_s

    def commit_identity(self) -> Identity | None:
        """Return the identity for commits; None while the member is in no generation of the group."""
        return self._membership_loop.identity if self._membership_loop.is_member else None

    def resubscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Change the subscription."""
        self.topics, self._pattern = topics, pattern
        self._membership_loop.receive(Resubscribed(topics))
        self.metadata_changed()

    def stop(self) -> None:
        """Begin to release all partitions and leave the group; ``run_membership`` returns when both are done."""
        self._membership_loop.receive(StopMembership(self._reconciler.may_commit))

    def handle_commit_error(self, code: int, identity: Identity) -> bool:
        """Handle the error code of a commit sent as ``identity``; return True if ``identity`` is still current."""
        is_current = self._membership_loop.is_current(identity)
        if is_current:
            self._membership_loop.receive(event_of(code, GroupRequestKind.COMMIT, self._reactions.overrides(code)))
        return is_current

    def metadata_changed(self) -> None:
        """Update the topics that match the pattern, and report partition counts; call this after a metadata refresh."""
        topology = self._cluster.topology
        if self._pattern is not None and not isinstance(self._pattern, BrokerPattern):
            matching = topology.matching(self._pattern)
            if matching != self.topics:
                self.topics = matching
                self._membership_loop.receive(Resubscribed(matching))
        counts = {name: len(topic.partitions) for name, topic in topology.topics.items()}
        missing = {name: 0 for name, code in topology.errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        self._membership_loop.receive(PartitionsChanged({**missing, **counts}))
        self._newer_metadata.set()

    async def run_membership(self) -> None:
        """Join the group, and return when the membership has ended after ``stop`` or an error."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_poll_interval_check, self._reader, self._max_wait_s, self._membership_loop.receive)
                if self._uses_kip848:
                    tasks.start_soon(self._watch_session_timeout)
                await self._membership_loop.run()
                tasks.cancel_scope.cancel()
        finally:
            self._requests.close()

    async def _watch_session_timeout(self) -> None:
        """Look up the group's session timeout now and after each metadata update, because it may change."""
        while True:
            if (session := await self._requests.session_timeout()) is not None:
                self._membership_loop.receive(session)
            await self._newer_metadata.wait()

    # ---- AssignmentOwner ---------------------------------------------------------------------------------------

    async def take_over(self, effect: TakeOver) -> None:
        """Make the assigned partitions ready for fetching."""
        await self._reconciler.take_over(effect.added, effect.kept, effect.topic_ids)

    async def release(self, effect: Release) -> None:
        """Release revoked partitions, or drop lost partitions."""
        if effect.is_lost:
            await self._reconciler.lose(effect.partitions, effect.reason)
        else:
            await self._reconciler.release(effect.partitions, is_last=effect.is_last)

    def report(self, error: TailraceError) -> None:
        """Let the user's next poll raise the error."""
        self._reader.report(error)

    def fail(self, error: TailraceError) -> None:
        """Call ``on_failure`` with the error that ends the membership."""
        self._on_failure(error)


def _state_machine(config: ConsumerConfig, topics: frozenset[str], pattern: TopicPattern | None) -> Membership:
    if config.group_protocol == "consumer":
        expression = pattern.pattern if isinstance(pattern, BrokerPattern) else None
        return Kip848Member(member_settings(config, topics, expression), str(uuid.uuid4()), random.random)
    strategies = strategies_of(config.partition_assignment_strategy)
    return ClassicMember(member_settings(config, topics), strategies, random.random)
