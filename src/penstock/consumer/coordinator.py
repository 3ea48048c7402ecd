"""The group: performs what the membership decides, and tells it what came of it.

Rule of this file: it decides nothing. ``run_membership`` takes effects from the machine and has each performed by a
task of its own, so that heartbeats go out while a join is held, a callback runs or a record is drained. Each outcome
comes back as an event, if the machine still waits for it.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from penstock.config import ConsumerConfig
from penstock.consumer.group_requests import GroupRequests, Question, outcome_of
from penstock.consumer.ownership import Ownership
from penstock.consumer.patterns import BrokerPattern, TopicPattern
from penstock.consumer.reactions import Reactions
from penstock.consumer.reader import Reader
from penstock.consumer.stall_watch import run_stall_watch
from penstock.consumer.wake import Wake
from penstock.core.backoff import Backoff
from penstock.core.classic import ClassicMember
from penstock.core.group_errors import Asked
from penstock.core.membership import MemberSettings, Membership
from penstock.core.membership_effects import (
    Effect,
    Fail,
    FindPartitions,
    ForgetCoordinator,
    NameTopics,
    Release,
    SendGroupHeartbeat,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    TakeOver,
    Tell,
)
from penstock.core.membership_events import (
    Beat,
    CoordinatorGone,
    Failed,
    GroupEvent,
    Identity,
    NotNow,
    PartitionsChanged,
    Released,
    Resubscribed,
    Start,
    Stop,
    TakenOver,
)
from penstock.core.reconciling import ReconcilingMember
from penstock.core.strategies import strategies_of
from penstock.error_codes import ErrorCode
from penstock.errors import PenstockError
from penstock.net.cluster import Cluster
from penstock.observe.events import GroupJoined, GroupRequestFailed, RebalanceStarted, SessionExpired
from penstock.observe.hooks import Observer

__all__ = ["Coordinator"]

_FINISHING_SHARE = 0.25
"""Of the time that stopping may take, so much is for a rebalance to end, before which nothing can be committed."""


class Coordinator:
    """One consumer's membership of its group.

    Args:
        member: a name for this member's connections, of its own in this process.
        topics: what to subscribe to.
        pattern: or the topics whose names match it.
        on_failure: told the error that ends the membership.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        ownership: Ownership,
        reader: Reader,
        observer: Observer,
        member: str,
        topics: frozenset[str],
        pattern: TopicPattern | None,
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        assert config.group_id is not None
        self._group_id, self._member, self.topics, self._pattern = config.group_id, member, topics, pattern
        self._cluster, self._ownership, self._reader, self._observer = cluster, ownership, reader, observer
        self._patience_s = config.max_poll_interval_ms / 1000
        self._on_failure = on_failure
        self._requests = GroupRequests(config, cluster, observer, member)
        self._reactions = Reactions(config)
        self._is_brokers_choice = config.group_protocol == "consumer"
        self._machine = _machine(config, topics, pattern)
        self._loop = asyncio.get_running_loop()
        self._news = Wake()
        self._newer_picture = Wake()
        self._is_joining = False
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._own_work: anyio.CancelScope | None = None
        """The takeover or release that is going on; a later one ends it."""
        self._working = asyncio.Lock()

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker."""
        return self._machine.identity

    @property
    def heartbeat_age_s(self) -> float:
        """How long ago the group has last said that it knows us."""
        return self._machine.heartbeat_age_s(self._loop.time())

    def committing_as(self) -> Identity | None:
        """Who commits; None while the group counts us in no generation."""
        return self._machine.identity if self._machine.is_member else None

    def resubscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Ask the group for other topics."""
        self.topics, self._pattern = topics, pattern
        self._receive(Resubscribed(topics))
        self.picture_changed()

    # ---- being told --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give everything back and leave."""
        self._receive(Stop(self._ownership.is_owing))

    def refused(self, code: int, identity: Identity) -> bool:
        """A commit was refused as if the group had gone on without us; whether that counts."""
        counts = self._machine.is_current(identity)
        if counts:
            self._receive(self._reactions.event_of(code, Asked.COMMIT))
        return counts

    def picture_changed(self) -> None:
        """The cluster may have other topics and partitions than before."""
        topology = self._cluster.topology
        if self._pattern is not None and not isinstance(self._pattern, BrokerPattern):
            matching = topology.matching(self._pattern)
            if matching != self.topics:
                self.topics = matching
                self._receive(Resubscribed(matching))
        counts = {name: len(topic.partitions) for name, topic in topology.topics.items()}
        gone = {name: 0 for name, code in topology.errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        self._receive(PartitionsChanged({**gone, **counts}))
        self._newer_picture.set()

    def _receive(self, event: GroupEvent) -> None:
        self._machine.receive(event, self._loop.time())
        self._news.set()

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def run_membership(self) -> None:
        """Be a member until ``stop``, or until that is not possible any more."""
        self._receive(Start())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_stall_watch, self._reader, self._patience_s, self._receive)
            if self._is_brokers_choice:
                tasks.start_soon(self._learn_sessions)
            while not self._machine.is_over:
                self._look_at_the_clock()
                for effect in self._machine.effects():
                    self._perform(effect, tasks)
                await self._news.wait(self._machine.next_deadline())
            for effect in self._machine.effects():
                self._perform(effect, tasks)
            # What was sent before the end is not waited for, but partitions are given back whole.
            while self._own_work is not None:
                await self._news.wait()
            tasks.cancel_scope.cancel()

    def _look_at_the_clock(self) -> None:
        now = self._loop.time()
        was_member, silent_s = self._machine.is_member, self._machine.heartbeat_age_s(now)
        self._machine.handle_timer(now)
        if was_member and not self._machine.is_member:
            self._observer.tell(SessionExpired(self._group_id, silent_s))

    def _perform(self, effect: Effect, tasks: TaskGroup) -> None:
        match effect:
            case SendJoin() | SendSync() | SendGroupHeartbeat() | FindPartitions() | NameTopics() | SendLeave():
                tasks.start_soon(self._report, effect)
            case SendHeartbeat():
                tasks.start_soon(self._beat, effect)
            case TakeOver() | Release():
                if self._own_work is not None:
                    self._own_work.cancel()
                scope = self._own_work = anyio.CancelScope()
                tasks.start_soon(self._work, effect, scope)
            case ForgetCoordinator():
                self._cluster.forget_coordinator(self._group_id, effect.reason)
            case Tell():
                self._reader.report(effect.error)
            case Fail():
                self._on_failure(effect.error)
            case _:
                assert_never(effect)

    async def _learn_sessions(self) -> None:
        """Ask how long the group waits for us, and again with each picture: it may be set anew at any time."""
        while True:
            if (session := await self._requests.session()) is not None:
                self._receive(session)
            await self._newer_picture.wait()

    async def _report(self, effect: Question) -> None:
        """Ask, and tell the machine what came of it, if it still waits for that."""
        if isinstance(effect, SendJoin):
            self._note_rebalance(effect.reason)
        event = await self._requests.outcome(effect)
        if self._machine.awaits(effect):
            self._note(effect, event)
            self._receive(event)

    async def _beat(self, effect: SendHeartbeat) -> None:
        event = await self._requests.outcome(effect)
        if self._machine.is_current(effect.identity):
            self._note(effect, event)
        self._receive(Beat(effect.identity, event))

    async def _work(self, effect: TakeOver | Release, scope: anyio.CancelScope) -> None:
        """Take partitions over or give them back; whoever comes later waits for the end of the one before."""
        with scope:
            async with self._working:
                work = self._take_over(effect) if isinstance(effect, TakeOver) else self._release(effect)
                event = await outcome_of(work)
            if self._own_work is scope:
                self._own_work = None
            if self._machine.awaits(effect) or isinstance(event, Failed):
                self._receive(event)
        self._news.set()

    # ---- effects -----------------------------------------------------------------------------------------------

    async def _take_over(self, effect: TakeOver) -> GroupEvent:
        self._is_joining, me = False, effect.identity
        self._observer.tell(GroupJoined(self._group_id, me.generation, me.member_id, effect.protocol, effect.is_leader))
        failures = 0
        while isinstance(event := await outcome_of(self._own(effect)), CoordinatorGone | NotNow):
            # Heartbeats go well, so the group deals nothing anew: nobody else would begin this again.
            self._note(effect, event)
            failures += 1
            await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311
            if not self._machine.awaits(effect):
                break
        return event

    async def _own(self, effect: TakeOver) -> GroupEvent:
        await self._ownership.take_over(effect.added, effect.kept)
        return TakenOver()

    async def _release(self, effect: Release) -> GroupEvent:
        if self._is_brokers_choice and not effect.is_last:
            self._note_rebalance(effect.reason)
        if effect.is_lost:
            await self._ownership.lose(effect.partitions, effect.reason)
        else:
            await self._ownership.release(effect.partitions, is_last=effect.is_last)
        return Released()

    def _note_rebalance(self, reason: str) -> None:
        """Tell of a rebalance once, however many rounds it takes."""
        if not self._is_joining:
            self._is_joining = True
            self._observer.tell(RebalanceStarted(self._group_id, reason))

    def _note(self, effect: Effect, event: GroupEvent) -> None:
        """Tell of what did not go well."""
        if isinstance(event, CoordinatorGone | NotNow):
            what = type(effect).__name__.removeprefix("Send")
            self._observer.tell(GroupRequestFailed(self._group_id, what, event.reason, "trying again"))


def _machine(config: ConsumerConfig, topics: frozenset[str], pattern: TopicPattern | None) -> Membership:
    """The machine of the protocol that is asked for."""
    if config.group_protocol == "consumer":
        return ReconcilingMember(_settings(config, topics, pattern), str(uuid.uuid4()), random.random)
    strategies = strategies_of(config.partition_assignment_strategy)
    return ClassicMember(_settings(config, topics, None), strategies, random.random)


def _settings(config: ConsumerConfig, topics: frozenset[str], pattern: TopicPattern | None) -> MemberSettings:
    assert config.group_id is not None
    return MemberSettings(
        group_id=config.group_id,
        topics=topics,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        rebalance_timeout_s=config.max_poll_interval_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
        leaves_on_stop=config.leaves_on_stop,
        stop_patience_s=config.stop_timeout_ms * _FINISHING_SHARE / 1000,
        instance_id=config.group_instance_id,
        rack=config.client_rack or None,
        pattern=pattern.pattern if isinstance(pattern, BrokerPattern) else None,
        remote_assignor=config.group_remote_assignor,
    )
