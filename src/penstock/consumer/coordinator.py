"""The group: performs what the membership decides, and tells it what came of it.

Rule of this file: it decides nothing. ``run_membership`` takes effects from the machine and has each performed by a
task of its own, so that heartbeats go out while a join is held, a callback runs or a record is drained. Each outcome
comes back as an event, if the machine still waits for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import assert_never

import anyio
from anyio.abc import TaskGroup

from penstock.config import ConsumerConfig
from penstock.consumer.ownership import Ownership
from penstock.consumer.wake import Wake
from penstock.core.assignors import ASSIGNORS
from penstock.core.classic import ClassicMember
from penstock.core.group_errors import Asked, event_of
from penstock.core.membership import (
    CoordinatorGone,
    Effect,
    Fail,
    Failed,
    FindPartitions,
    ForgetCoordinator,
    GroupEvent,
    HeartbeatAnswered,
    Identity,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdGiven,
    MemberSettings,
    NotNow,
    PartitionsChanged,
    PartitionsFound,
    Release,
    Released,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    Start,
    Stop,
    Synced,
    TakenOver,
    TakeOver,
)
from penstock.error_codes import ErrorCode
from penstock.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    MalformedMessageError,
    PenstockError,
    UnsupportedVersionError,
)
from penstock.messages import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)
from penstock.net.broker import Broker, Channel, ChannelKey
from penstock.net.cluster import Cluster
from penstock.observe.events import GroupJoined, GroupLeft, GroupRequestFailed, RebalanceStarted
from penstock.observe.hooks import Observer
from penstock.wire.members import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

__all__ = ["Coordinator"]

_PROTOCOL_TYPE = "consumer"
_LEAVE_ATTEMPTS = 2


class Coordinator:
    """One consumer's membership of its group.

    Args:
        member: a name for this member's connections, of its own in this process.
        topics: what to subscribe to.
        on_failure: told the error that ends the membership.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the rooms it stands between
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        ownership: Ownership,
        observer: Observer,
        member: str,
        topics: frozenset[str],
        on_failure: Callable[[PenstockError], None],
    ) -> None:
        assert config.group_id is not None
        self._group_id, self._member = config.group_id, member
        self._config, self._cluster, self._ownership, self._observer = config, cluster, ownership, observer
        self._on_failure = on_failure
        self._machine = ClassicMember(_settings(config, topics), ASSIGNORS, random.random)
        self._loop = asyncio.get_running_loop()
        self._news = Wake()
        self._is_joining = False
        self._own_work: anyio.CancelScope | None = None
        """The takeover or release that is going on; a later one ends it."""

    @property
    def identity(self) -> Identity:
        """Who this member is to the broker."""
        return self._machine.identity

    def committing_as(self) -> Identity | None:
        """Who commits; None while the group counts us in no generation."""
        identity = self._machine.identity
        return identity if self._machine.is_current(identity) else None

    # ---- being told --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Give everything back and leave."""
        self._receive(Stop())

    def refused(self, code: int, identity: Identity) -> None:
        """A commit was refused as if the group had gone on without us."""
        if self._machine.is_current(identity):
            self._receive(event_of(code, Asked.COMMIT))

    def picture_changed(self) -> None:
        """The cluster may have other partitions than before."""
        topology = self._cluster.topology
        counts = {name: len(topic.partitions) for name, topic in topology.topics.items()}
        gone = {name: 0 for name, code in topology.errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        self._receive(PartitionsChanged({**gone, **counts}))

    def _receive(self, event: GroupEvent) -> None:
        self._machine.receive(event, self._loop.time())
        self._news.set()

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def run_membership(self) -> None:
        """Be a member until ``stop``, or until that is not possible any more."""
        self._receive(Start())
        async with anyio.create_task_group() as tasks:
            while not self._machine.is_over:
                self._machine.handle_timer(self._loop.time())
                for effect in self._machine.effects():
                    self._perform(effect, tasks)
                await self._news.wait(self._machine.next_deadline())
            for effect in self._machine.effects():
                self._perform(effect, tasks)
            # What was sent before the end is not waited for, but partitions are given back whole.
            while self._own_work is not None:
                await self._news.wait()
            tasks.cancel_scope.cancel()

    def _perform(self, effect: Effect, tasks: TaskGroup) -> None:
        match effect:
            case SendJoin() | SendSync() | FindPartitions() | SendLeave():
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
            case Fail():
                self._on_failure(effect.error)
            case _:
                assert_never(effect)

    async def _report(self, effect: SendJoin | SendSync | FindPartitions | SendLeave) -> None:
        """Ask, and tell the machine what came of it, if it still waits for that."""
        event = await _outcome(self._ask(effect))
        if self._machine.awaits(effect):
            self._note(effect, event)
            self._receive(event)

    async def _ask(self, effect: SendJoin | SendSync | FindPartitions | SendLeave) -> GroupEvent:
        match effect:
            case SendJoin():
                return await self._join(effect)
            case SendSync():
                return await self._sync(effect)
            case FindPartitions():
                return await self._find_partitions(effect)
            case SendLeave():
                return await self._leave(effect)

    async def _work(self, effect: TakeOver | Release, scope: anyio.CancelScope) -> None:
        """Take partitions over or give them back; whoever comes later waits for the end of the one before."""
        with scope:
            event = await _outcome(self._take_over(effect) if isinstance(effect, TakeOver) else self._release(effect))
            if self._own_work is scope:
                self._own_work = None
            if self._machine.awaits(effect) or isinstance(event, Failed):
                self._receive(event)
        self._news.set()

    # ---- effects -----------------------------------------------------------------------------------------------

    async def _take_over(self, effect: TakeOver) -> GroupEvent:
        self._is_joining, me = False, effect.identity
        self._observer.tell(GroupJoined(self._group_id, me.generation, me.member_id, effect.protocol, effect.is_leader))
        await self._ownership.take_over(effect.added, effect.kept)
        return TakenOver()

    async def _release(self, effect: Release) -> GroupEvent:
        if effect.is_lost:
            await self._ownership.lose(effect.partitions, effect.reason)
        else:
            await self._ownership.release(effect.partitions, is_last=effect.is_last)
        return Released()

    async def _find_partitions(self, effect: FindPartitions) -> GroupEvent:
        self._cluster.watch((self._member, "group"), effect.topics)
        await self._cluster.refresh()
        return PartitionsFound(self._cluster.topology.partitions_of(effect.topics))

    async def _join(self, effect: SendJoin) -> GroupEvent:
        if not self._is_joining:
            self._is_joining = True
            self._observer.tell(RebalanceStarted(self._group_id, effect.reason))
        coordinator = await self._coordinator()
        request = JoinGroupRequest(
            self._group_id,
            self._config.session_timeout_ms,
            self._config.max_poll_interval_ms,
            effect.member_id,
            _PROTOCOL_TYPE,
            tuple(JoinGroupProtocol(name, encode_subscription(said)) for name, said in effect.subscriptions),
            self._config.group_instance_id,
            effect.reason,
        )
        answer = await coordinator.send(request, member=self._member, timeout_s=effect.timeout_s)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return MemberIdGiven(answer.member_id)
        if answer.error_code:
            return event_of(answer.error_code, Asked.JOIN)
        return _joined(answer)

    async def _sync(self, effect: SendSync) -> GroupEvent:
        coordinator = await self._coordinator()
        request = SyncGroupRequest(
            self._group_id,
            effect.identity.generation,
            effect.identity.member_id,
            effect.identity.instance_id,
            _PROTOCOL_TYPE,
            effect.protocol,
            tuple(SyncGroupAssignment(m, encode_assignment(given)) for m, given in effect.assignments.items()),
        )
        answer = await coordinator.send(request, member=self._member, timeout_s=effect.timeout_s)
        if answer.error_code:
            return event_of(answer.error_code, Asked.SYNC)
        return Synced(decode_assignment(answer.assignment))

    async def _leave(self, effect: SendLeave) -> GroupEvent:
        leaving = LeavingMember(effect.identity.member_id, effect.identity.instance_id, effect.reason)
        for _ in range(_LEAVE_ATTEMPTS):
            event = await _outcome(self._say_goodbye(leaving))
            if not isinstance(event, CoordinatorGone | NotNow):
                break
            self._cluster.forget_coordinator(self._group_id, event.reason)
        # Whatever came of it: the session ends by itself.
        return LeaveAnswered()

    async def _say_goodbye(self, leaving: LeavingMember) -> GroupEvent:
        coordinator = await self._coordinator()
        # Not behind a join that may still be held on the group's connection.
        key = ChannelKey(Channel.HEARTBEAT, self._member)
        answer = await coordinator.send(LeaveGroupRequest(self._group_id, leaving), key=key)
        codes = [answer.error_code, *(member.error_code for member in answer.members)]
        if code := next((code for code in codes if code), ErrorCode.NONE):
            return event_of(code, Asked.LEAVE)
        self._observer.tell(GroupLeft(self._group_id, leaving.member_id))
        return LeaveAnswered()

    async def _beat(self, effect: SendHeartbeat) -> None:
        """Heartbeats have a connection of their own and a short wait, so that one may be lost in a session."""
        request = HeartbeatRequest(
            self._group_id, effect.identity.generation, effect.identity.member_id, effect.identity.instance_id
        )

        async def beat() -> GroupEvent:
            coordinator = await self._coordinator()
            answer = await coordinator.send(request, member=self._member, timeout_s=effect.timeout_s)
            return event_of(answer.error_code, Asked.HEARTBEAT) if answer.error_code else HeartbeatAnswered()

        with anyio.move_on_after(effect.timeout_s) as deadline:
            event = await _outcome(beat())
        if deadline.cancelled_caught:
            event = CoordinatorGone(f"no heartbeat was acknowledged within {effect.timeout_s:.1f} s")
        if self._machine.is_current(effect.identity):
            self._note(effect, event)
            self._answered(event)

    def _answered(self, event: GroupEvent) -> None:
        # "The group rebalances" is an answer too: the group knows that we live.
        if not isinstance(event, HeartbeatAnswered | CoordinatorGone | NotNow | Failed):
            self._receive(HeartbeatAnswered())
        self._receive(event)

    async def _coordinator(self) -> Broker:
        return await self._cluster.coordinator(self._group_id)

    def _note(self, effect: Effect, event: GroupEvent) -> None:
        """Tell of what did not go well."""
        if isinstance(event, CoordinatorGone | NotNow):
            what = type(effect).__name__.removeprefix("Send")
            self._observer.tell(GroupRequestFailed(self._group_id, what, event.reason, "trying again"))


async def _outcome(work: Awaitable[GroupEvent]) -> GroupEvent:
    """What happened, as an event: our own errors become what they mean to a membership."""
    try:
        return await work
    except (AuthenticationError, UnsupportedVersionError) as error:
        return Failed(error)
    except (BrokerConnectionError, MalformedMessageError) as error:
        return CoordinatorGone(str(error))
    except BrokerError as error:
        return NotNow(str(error)) if error.retriable else Failed(error)
    except PenstockError as error:
        return Failed(error)


def _joined(answer: JoinGroupResponse) -> GroupEvent:
    protocol = answer.protocol_name or ""
    if answer.leader != answer.member_id:
        return JoinedAsFollower(answer.member_id, answer.generation_id, protocol)
    return JoinedAsLeader(
        answer.member_id,
        answer.generation_id,
        protocol,
        {one.member_id: decode_subscription(one.metadata) for one in answer.members},
        {one.member_id: one.group_instance_id for one in answer.members if one.group_instance_id is not None},
        answer.skip_assignment,
    )


def _settings(config: ConsumerConfig, topics: frozenset[str]) -> MemberSettings:
    assert config.group_id is not None
    return MemberSettings(
        group_id=config.group_id,
        topics=topics,
        assignors=config.partition_assignment_strategy,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        rebalance_timeout_s=config.max_poll_interval_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
        leaves_on_stop=config.leaves_on_stop,
        instance_id=config.group_instance_id,
        rack=config.client_rack or None,
    )
