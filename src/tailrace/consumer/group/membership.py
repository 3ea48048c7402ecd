"""Loop of one group membership, of a consumer or of a GroupMember.

The loop decides nothing. It performs each effect of the state machine in a separate task, so that heartbeats are sent
while the coordinator holds a join, a callback runs, or a release waits for records in flight. The outcome of an effect
is dropped if the machine no longer awaits it, except outcomes of heartbeats and errors that end the membership.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias, assert_never

import anyio
from anyio.abc import TaskGroup

from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig
from tailrace.consumer.arguments import BrokerPattern, TopicPattern
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.group.assignment import AssignmentReconciler
from tailrace.consumer.group.assignors import strategies_of
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.kip848 import Kip848Member
from tailrace.consumer.group.machine import (
    CoordinatorGone,
    DescribeGroup,
    Effect,
    FindPartitions,
    FindTopicNames,
    ForgetCoordinator,
    GroupEvent,
    HeartbeatOutcome,
    InstanceHeld,
    MemberSettings,
    MembershipFailed,
    MetadataRefreshed,
    Partitions,
    PollingResumed,
    PollingStalled,
    PollIntervalClock,
    Release,
    Released,
    ReportAssignmentFault,
    ReportGroupError,
    Resubscribed,
    RetryLater,
    SendGroupHeartbeat,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    StartMembership,
    StopMembership,
    TakenOver,
    TakeOver,
)
from tailrace.consumer.group.requests import GroupRequests, RequestEffect, event_of, outcome_of
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import ErrorReactions, GroupRequestKind, Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import RebalanceError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    GroupJoined,
    GroupRequestFailed,
    RebalanceStarted,
    SessionExpired,
)
from tailrace.observe.hooks import Observer

__all__ = ["AssignmentOwner", "ConsumerMembership", "MembershipLoop", "member_settings", "run_poll_interval_check"]

# ---- check of ``max_poll_interval_ms``, which tells the membership whether the application polls ---------------------

_NOT_POLLED = (
    "the consumer was not polled within max_poll_interval_ms ({:g} s), so it left the group and its partitions are"
    " reassigned - the next poll joins again; raise max_poll_interval_ms if handling a record takes that long"
)


async def run_poll_interval_check(reader: Reader, limit_s: float, receive: Callable[[GroupEvent], None]) -> None:
    """Check until canceled whether the application polls, and pass the result to ``receive``.

    Args:
        reader: reader of the consumer that the application polls.
        limit_s: ``max_poll_interval_ms``, in seconds.
        receive: called with ``PollingStalled`` or ``PollingResumed`` after each check; the events may repeat.
    """
    loop, clock = asyncio.get_running_loop(), PollIntervalClock(limit_s)
    while True:
        clock.look(reader.poll_marker, loop.time(), awaits_poll=reader.awaits_poll)
        if clock.is_stuck:
            receive(PollingStalled(RebalanceError(_NOT_POLLED.format(limit_s))))
            await reader.next_poll.wait(clock.next_at(loop.time()))
        else:
            receive(PollingResumed())
            await anyio.sleep_until(clock.next_at(loop.time()))


# ---- loop of one group membership, of a consumer or of a GroupMember -------------------------------------------------

_REBALANCE_SHARE_OF_STOP = 0.25
"""Share of ``stop_timeout_ms`` for which a stop waits for a rebalance to end; until then, commits are refused."""


AnyMachine: TypeAlias = ClassicMember | Kip848Member


class AssignmentOwner(Protocol):
    """Receiver of a membership's assignments and errors."""

    async def take_over(self, effect: TakeOver) -> None:
        """Make the assigned partitions ready for fetching."""

    async def release(self, effect: Release) -> None:
        """Release revoked partitions, or drop lost partitions."""

    def report(self, error: TailraceError) -> None:
        """Report to the user an error that does not end the membership."""

    def fail(self, error: TailraceError) -> None:
        """Report to the user the error that ends the membership."""


class MembershipLoop:
    """Loop that drives the state machine of one member.

    Args:
        machine: state machine of the member's protocol.
        requests: sends the member's requests.
        owner: receives assignments and errors.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one argument for each thing that an effect acts on
        self,
        config: ConsumerConfig,
        machine: AnyMachine,
        requests: GroupRequests,
        cluster: Cluster,
        observer: Observer,
        owner: AssignmentOwner,
    ) -> None:
        assert config.group_id is not None
        self._group_id = config.group_id
        self._machine, self._requests, self._cluster = machine, requests, cluster
        self._observer, self._owner = observer, owner
        self._loop = asyncio.get_running_loop()
        self._wakeup = AutoResetEvent()
        """Set when the state machine may have new effects."""
        self._has_fault = False
        """True from the event AssignmentFaultFound to AssignmentFaultResolved."""
        self._is_rebalancing = False
        """True from the event RebalanceStarted to the takeover that ends the rebalance."""
        self._waits_for_instance = False
        """True while the answers to joins are InstanceHeld, which is reported once."""
        self._backoff = Backoff.of_ms(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._callback: anyio.CancelScope | None = None
        """Scope of the takeover or release in progress; a later takeover or release cancels this scope."""
        self._callback_lock = asyncio.Lock()
        """Held by a takeover or release, so that a canceled one ends before the next begins."""

    @property
    def identity(self) -> Identity:
        """Member id and generation (or member epoch)."""
        return self._machine.identity

    @property
    def is_member(self) -> bool:
        """True while the member is in a generation of the group, so that the member may commit."""
        return self._machine.is_member

    @property
    def is_over(self) -> bool:
        """True once the membership has ended."""
        return self._machine.is_over

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return self._machine.heartbeat_age_s(self._loop.time())

    def is_current(self, identity: Identity) -> bool:
        """Return True if the membership has to react to an error in the answer to a request sent as ``identity``."""
        return self._machine.is_current(identity)

    def receive(self, event: GroupEvent) -> None:
        """Pass an event to the state machine; the resulting effects are performed soon."""
        self._machine.receive(event, self._loop.time())
        self._wakeup.set()

    async def run(self) -> None:
        """Join the group, and drive the state machine until the membership has ended."""
        self.receive(StartMembership())
        async with anyio.create_task_group() as tasks:
            while not self._machine.is_over:
                self._handle_timer()
                self._perform_all(tasks)
                await self._wakeup.wait(self._machine.next_deadline())
            self._perform_all(tasks)
            self._report_fault(frozenset(), "")
            # Requests in flight are not awaited. A release in progress is awaited, so that it completes.
            while self._callback is not None:
                await self._wakeup.wait()
            tasks.cancel_scope.cancel()

    def _handle_timer(self) -> None:
        now = self._loop.time()
        was_member, silent_s = self._machine.is_member, self._machine.heartbeat_age_s(now)
        self._machine.handle_timer(now)
        if was_member and not self._machine.is_member:
            self._observer.emit(SessionExpired(self._group_id, silent_s))

    def _perform_all(self, tasks: TaskGroup) -> None:
        for effect in self._machine.effects():
            self._perform(effect, tasks)

    def _perform(self, effect: Effect, tasks: TaskGroup) -> None:
        match effect:
            case (
                SendJoin()
                | SendSync()
                | SendGroupHeartbeat()
                | FindPartitions()
                | FindTopicNames()
                | DescribeGroup()
                | SendLeave()
            ):
                tasks.start_soon(self._request, effect)
            case SendHeartbeat():
                tasks.start_soon(self._send_heartbeat, effect)
            case TakeOver() | Release():
                if self._callback is not None:
                    self._callback.cancel()
                scope = self._callback = anyio.CancelScope()
                tasks.start_soon(self._call_owner, effect, scope)
            case ForgetCoordinator():
                self._cluster.forget_coordinator(self._group_id, effect.reason)
            case ReportAssignmentFault():
                self._report_fault(effect.partitions, effect.fault)
            case ReportGroupError(error=error, is_fatal=is_fatal):
                if is_fatal:
                    self._owner.fail(error)
                else:
                    self._owner.report(error)
            case _:
                assert_never(effect)

    async def _request(self, effect: RequestEffect) -> None:
        if isinstance(effect, SendJoin):
            self._rebalance_started(effect.reason)
        event = await self._requests.outcome(effect)
        if self._machine.awaits(effect):
            self._report_failure(effect, event)
            self.receive(event)

    async def _send_heartbeat(self, effect: SendHeartbeat) -> None:
        event = await self._requests.outcome(effect)
        if self._machine.is_current(effect.identity):
            self._report_failure(effect, event)
        self.receive(HeartbeatOutcome(effect.identity, event))

    async def _call_owner(self, effect: TakeOver | Release, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._callback_lock:
                event = await (self._take_over(effect) if isinstance(effect, TakeOver) else self._release(effect))
            if self._callback is scope:
                self._callback = None
            if self._machine.awaits(effect) or isinstance(event, MembershipFailed):
                self.receive(event)
        self._wakeup.set()

    async def _take_over(self, effect: TakeOver) -> GroupEvent:
        self._is_rebalancing, me = False, effect.identity
        self._observer.emit(GroupJoined(self._group_id, me.generation, me.member_id, effect.protocol, effect.is_leader))
        failures = 0
        while True:
            event = await outcome_of(_event_after(self._owner.take_over(effect), TakenOver()))
            if not isinstance(event, CoordinatorGone | RetryLater):
                return event
            # Heartbeats still succeed, so the group does not rebalance, and nothing else would repeat this takeover.
            self._report_failure(effect, event)
            failures += 1
            await asyncio.sleep(self._backoff.pause_s(failures, random.random()))  # noqa: S311 - jitter
            if not self._machine.awaits(effect):
                return event

    async def _release(self, effect: Release) -> GroupEvent:
        if not effect.is_last and not effect.is_lost:
            self._rebalance_started(effect.reason)
        event = await outcome_of(_event_after(self._owner.release(effect), Released()))
        if not effect.is_last:
            # After a loss, the event RebalanceStarted follows the release; otherwise it was emitted before.
            self._rebalance_started(effect.reason)
        return event

    def _report_fault(self, partitions: Partitions, fault: str) -> None:
        if fault:
            self._has_fault = True
            self._observer.emit(AssignmentFaultFound(self._group_id, partitions, fault))
        elif self._has_fault:
            self._has_fault = False
            self._observer.emit(AssignmentFaultResolved(self._group_id))

    def _rebalance_started(self, reason: str) -> None:
        """Emit RebalanceStarted once per rebalance, however many joins the rebalance takes."""
        if not self._is_rebalancing:
            self._is_rebalancing = True
            self._observer.emit(RebalanceStarted(self._group_id, reason))

    def _report_failure(self, effect: Effect, event: GroupEvent) -> None:
        if isinstance(event, CoordinatorGone | RetryLater):
            self._emit_failure(effect, event.reason, "retrying")
        elif isinstance(event, InstanceHeld) and not self._waits_for_instance:
            self._emit_failure(effect, str(event.error), "waiting until the session of the other member has ended")
        if isinstance(effect, SendGroupHeartbeat):
            self._waits_for_instance = isinstance(event, InstanceHeld)

    def _emit_failure(self, effect: Effect, reason: str, reaction: str) -> None:
        request = type(effect).__name__.removeprefix("Send")
        self._observer.emit(GroupRequestFailed(self._group_id, request, reason, reaction))


async def _event_after(work: Awaitable[None], event: GroupEvent) -> GroupEvent:
    """Await ``work`` and return ``event``."""
    await work
    return event


def member_settings(
    config: ConsumerConfig, topics: frozenset[str] | None, pattern: str | None = None
) -> MemberSettings:
    """Return the settings of a membership.

    Args:
        config: options of the member.
        topics: subscribed topics; None for a GroupMember.
        pattern: regular expression that the broker matches against topic names (KIP-848).
    """
    assert config.group_id is not None
    return MemberSettings(
        group_id=config.group_id,
        topics=topics or frozenset(),
        has_subscription=topics is not None,
        session_timeout_s=config.session_timeout_ms / 1000,
        heartbeat_interval_s=config.heartbeat_interval_ms / 1000,
        rebalance_timeout_s=config.max_poll_interval_ms / 1000,
        request_timeout_s=config.request_timeout_ms / 1000,
        retry_first_s=config.retry_backoff_ms / 1000,
        retry_longest_s=config.retry_backoff_max_ms / 1000,
        leaves_on_stop=config.leaves_on_stop,
        stop_max_wait_s=config.stop_timeout_ms * _REBALANCE_SHARE_OF_STOP / 1000,
        instance_id=config.group_instance_id,
        rack=config.client_rack or None,
        pattern=pattern,
        remote_assignor=config.group_remote_assignor,
    )


# ---- group membership of a consumer: its subscription, and the handling of its assignment ----------------------------


class ConsumerMembership:
    """Membership of one consumer in its group.

    Args:
        member: name for this member's connections, unique in this process.
        subscription: topics, and pattern of topic names; None to subscribe to the topics only.
        on_failure: called with the error that ends the membership.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        reconciler: AssignmentReconciler,
        member: str,
        subscription: tuple[frozenset[str], TopicPattern | None],
        on_failure: Callable[[TailraceError], None],
    ) -> None:
        config, cluster, observer = parts.config, parts.cluster, parts.observer
        topics, pattern = subscription
        self.topics, self._pattern = topics, pattern
        self._cluster, self._reconciler, self._reader = cluster, reconciler, reconciler.reader
        self._max_wait_s = config.max_poll_interval_ms / 1000
        self._on_failure = on_failure
        self._reactions = ErrorReactions(config.group_error_reactions)
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
        self._membership_loop.receive(MetadataRefreshed({**missing, **counts}))
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


def _state_machine(config: ConsumerConfig, topics: frozenset[str], pattern: TopicPattern | None) -> AnyMachine:
    if config.group_protocol == "consumer":
        expression = pattern.pattern if isinstance(pattern, BrokerPattern) else None
        return Kip848Member(member_settings(config, topics, expression), str(uuid.uuid4()), random.random)
    strategies = strategies_of(config.partition_assignment_strategy)
    return ClassicMember(member_settings(config, topics), strategies, random.random)
