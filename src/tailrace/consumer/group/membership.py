"""Membership of a group: the loop that drives a member's state machine, and the membership of a consumer.

The way of a rebalance: ``GroupRequests`` turns the answer to a heartbeat into an event. The machine of the protocol,
``ClassicMember`` or ``Kip848Member``, decides by its table, and emits effects: requests, or a ``Release`` and a
``TakeOver``, which hand over partitions. ``Assignment`` performs them: a release halts, drains, commits, calls the
user's callback and removes; a takeover looks up positions and calls the user's callbacks.

The loop performs each request, takeover and release in a separate task, so that heartbeats are sent while the
coordinator holds a join, a callback runs, or a release waits for records in flight. The outcome of an effect is dropped
if the machine no longer awaits it. There are two exceptions: the machine itself checks whether the outcome of a
heartbeat is outdated, and the error of a takeover or release is always reported.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable
from typing import Protocol, TypeAlias

import anyio
from anyio.abc import TaskGroup

from tailrace.awaitables import AutoResetEvent
from tailrace.config import ConsumerConfig
from tailrace.consumer.arguments import BrokerPattern, TopicPattern
from tailrace.consumer.delivery.reader import Reader
from tailrace.consumer.group.assignors import strategies_of
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    Effect,
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
    RequestEffect,
    Resubscribed,
    RetryLater,
    SendGroupHeartbeat,
    SendHeartbeat,
    SendJoin,
    StartMembership,
    StopMembership,
    TakenOver,
    TakeOver,
)
from tailrace.consumer.group.kip848 import Kip848Member
from tailrace.consumer.group.rebalance import Assignment
from tailrace.consumer.group.requests import GroupRequests, outcome_of
from tailrace.consumer.parts import ConsumerParts
from tailrace.core.backoff import Backoff
from tailrace.core.group_requests import GroupRequestKind, Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import RebalanceError, TailraceError
from tailrace.observe.events import (
    AssignmentFaultFound,
    AssignmentFaultResolved,
    GroupJoined,
    GroupRequestFailed,
    RebalanceStarted,
    SessionExpired,
)

__all__ = ["AssignmentOwner", "ConsumerMembership", "Machine", "Membership", "member_settings"]

Machine: TypeAlias = ClassicMember | Kip848Member


class AssignmentOwner(Protocol):
    """Receiver of a membership's assignments and errors.

    A consumer's is ``Assignment`` (``consumer.group.rebalance``), which ``Subscription`` creates with the membership;
    the other implementation is that of ``GroupMember``, for groups that assign no partitions.
    """

    async def take_over(self, effect: TakeOver) -> None:
        """Make the assigned partitions ready for fetching."""

    async def release(self, effect: Release) -> None:
        """Release revoked partitions, or drop lost partitions."""

    def report(self, error: TailraceError, *, is_fatal: bool) -> None:
        """Report an error to the user; a fatal error ends the membership."""


# ---- loop of one membership, of a consumer or of a GroupMember -------------------------------------------------------


class Membership:
    """Membership of one group.

    Args:
        machine: state machine of the member's protocol.
        requests: sends the member's requests.
        owner: receives assignments and errors.
    """

    def __init__(self, machine: Machine, requests: GroupRequests, owner: AssignmentOwner) -> None:
        self.machine, self._requests, self._owner = machine, requests, owner
        self._group_id, self._observer = requests.group_id, requests.observer
        self._loop = asyncio.get_running_loop()
        self._wakeup = AutoResetEvent()
        """Set when the state machine may have new effects."""
        self._has_fault = False
        """True from the event AssignmentFaultFound to AssignmentFaultResolved."""
        self._is_rebalancing = False
        """True from the event RebalanceStarted to the takeover that ends the rebalance."""
        self._waits_for_instance = False
        """True while the answers to joins are InstanceHeld, which is reported once."""
        self._backoff = Backoff.of_ms(requests.config.retry_backoff_ms, requests.config.retry_backoff_max_ms)
        self._owner_scope: anyio.CancelScope | None = None
        """Scope of the takeover or release in progress; a later takeover or release cancels this scope."""
        self._owner_lock = asyncio.Lock()
        """Held by a takeover or release, so that a canceled one ends before the next begins."""

    @property
    def identity(self) -> Identity:
        """Member id and generation (or member epoch)."""
        return self.machine.identity

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last acknowledged heartbeat was sent."""
        return self.machine.heartbeat_age_s(self._loop.time())

    def receive(self, event: GroupEvent) -> None:
        """Pass an event to the state machine; the resulting effects are performed soon."""
        self.machine.receive(event, self._loop.time())
        self._wakeup.set()

    async def run(self) -> None:
        """Join the group, and drive the state machine until the membership has ended."""
        self.receive(StartMembership())
        async with anyio.create_task_group() as tasks:
            while not self.machine.is_over:
                now = self._loop.time()
                was_member, silent_s = self.machine.is_member, self.machine.heartbeat_age_s(now)
                self.machine.handle_timer(now)
                if was_member and not self.machine.is_member:
                    self._observer.emit(SessionExpired(self._group_id, silent_s))
                self._perform_all(tasks)
                await self._wakeup.wait(self.machine.next_deadline())
            self._perform_all(tasks)
            self._report_fault(frozenset(), "")
            # Requests in flight are not awaited. A release in progress is awaited, so that it completes.
            while self._owner_scope is not None:
                await self._wakeup.wait()
            tasks.cancel_scope.cancel()

    def _perform_all(self, tasks: TaskGroup) -> None:
        """Begin to perform the machine's effects; a takeover or release cancels the one in progress."""
        for effect in self.machine.effects():
            if isinstance(effect, RequestEffect):
                tasks.start_soon(self._request, effect)
            elif isinstance(effect, TakeOver | Release):
                if self._owner_scope is not None:
                    self._owner_scope.cancel()
                scope = self._owner_scope = anyio.CancelScope()
                tasks.start_soon(self._call_owner, effect, scope)
            elif isinstance(effect, ForgetCoordinator):
                self._requests.cluster.forget_coordinator(self._group_id, effect.reason)
            elif isinstance(effect, ReportAssignmentFault):
                self._report_fault(effect.partitions, effect.fault)
            else:
                self._owner.report(effect.error, is_fatal=effect.is_fatal)

    async def _request(self, effect: RequestEffect) -> None:
        if isinstance(effect, SendJoin):
            self._note_rebalance(effect.reason)
        event = await self._requests.outcome(effect)
        if isinstance(effect, SendHeartbeat):
            if self.machine.is_current(effect.identity):
                self._report_failure(effect, event)
            self.receive(HeartbeatOutcome(effect.identity, event))
        elif self.machine.awaits(effect):
            self._report_failure(effect, event)
            self.receive(event)

    async def _call_owner(self, effect: TakeOver | Release, scope: anyio.CancelScope) -> None:
        with scope:
            async with self._owner_lock:
                event = await (self._take_over(effect) if isinstance(effect, TakeOver) else self._release(effect))
            if self._owner_scope is scope:
                self._owner_scope = None
            if self.machine.awaits(effect) or isinstance(event, MembershipFailed):
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
            if not self.machine.awaits(effect):
                return event

    async def _release(self, effect: Release) -> GroupEvent:
        if not effect.is_last and not effect.is_lost:
            self._note_rebalance(effect.reason)
        event = await outcome_of(_event_after(self._owner.release(effect), Released()))
        if not effect.is_last:
            # After a loss, the event RebalanceStarted follows the release; otherwise it was emitted before.
            self._note_rebalance(effect.reason)
        return event

    # ---- events for the observer ---------------------------------------------------------------------------------

    def _report_fault(self, partitions: Partitions, fault: str) -> None:
        if fault:
            self._has_fault = True
            self._observer.emit(AssignmentFaultFound(self._group_id, partitions, fault))
        elif self._has_fault:
            self._has_fault = False
            self._observer.emit(AssignmentFaultResolved(self._group_id))

    def _note_rebalance(self, reason: str) -> None:
        """Emit RebalanceStarted once per rebalance, however many joins the rebalance takes."""
        if not self._is_rebalancing:
            self._is_rebalancing = True
            self._observer.emit(RebalanceStarted(self._group_id, reason))

    def _report_failure(self, effect: Effect, event: GroupEvent) -> None:
        request = type(effect).__name__.removeprefix("Send")
        if isinstance(event, CoordinatorGone | RetryLater):
            self._observer.emit(GroupRequestFailed(self._group_id, request, event.reason, "retrying"))
        elif isinstance(event, InstanceHeld) and not self._waits_for_instance:
            reaction = "waiting until the session of the other member has ended"
            self._observer.emit(GroupRequestFailed(self._group_id, request, str(event.error), reaction))
        if isinstance(effect, SendGroupHeartbeat):
            self._waits_for_instance = isinstance(event, InstanceHeld)


async def _event_after(work: Awaitable[None], event: GroupEvent) -> GroupEvent:
    """Await ``work`` and return ``event``."""
    await work
    return event


# ---- membership of a consumer: its subscription, and whether the application polls -----------------------------------

_NOT_POLLED = (
    "the consumer was not polled within max_poll_interval_ms ({:g} s), so it left the group and its partitions are"
    " reassigned - the next poll joins again; raise max_poll_interval_ms if handling a record takes that long"
)
_REBALANCE_SHARE_OF_STOP = 0.25
"""Share of ``stop_timeout_ms`` for which a stop waits for a rebalance to end; until then, commits are refused."""


class ConsumerMembership(Membership):
    """Membership of a consumer in its group.

    Args:
        member: name for this member's connections, unique in this process.
        subscription: topics to subscribe to, and pattern of topic names or None.
    """

    def __init__(
        self,
        parts: ConsumerParts,
        assignment: Assignment,
        member: str,
        subscription: tuple[frozenset[str], TopicPattern | None],
    ) -> None:
        config = parts.config
        self.topics, self._pattern = subscription
        self._cluster, self._assignment = parts.cluster, assignment
        self._max_wait_s = config.max_poll_interval_ms / 1000
        self._uses_kip848 = config.group_protocol == "consumer"
        self._newer_metadata = AutoResetEvent()
        machine: Machine
        if self._uses_kip848:
            expression = self._pattern.pattern if isinstance(self._pattern, BrokerPattern) else None
            settings = member_settings(config, self.topics, expression)
            machine = Kip848Member(settings, str(uuid.uuid4()), random.random)
        else:
            strategies = strategies_of(config.partition_assignment_strategy)
            machine = ClassicMember(member_settings(config, self.topics), strategies, random.random)
        super().__init__(machine, GroupRequests(config, parts.cluster, parts.observer, member), assignment)

    async def run(self) -> None:
        """Join the group, and return when the membership has ended after ``stop`` or an error."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_polls, self._assignment.reader)
                if self._uses_kip848:
                    tasks.start_soon(self._watch_session_timeout)
                await super().run()
                tasks.cancel_scope.cancel()
        finally:
            self._requests.close()

    def stop(self) -> None:
        """Begin to release all partitions and leave the group; ``run`` returns when both are done."""
        self.receive(StopMembership(self._assignment.may_commit))

    def resubscribe(self, topics: frozenset[str], pattern: TopicPattern | None) -> None:
        """Change the subscription."""
        self.topics, self._pattern = topics, pattern
        self.receive(Resubscribed(topics))
        self.metadata_changed()

    def metadata_changed(self) -> None:
        """Update the topics that match the pattern, and report partition counts; call this after a metadata refresh."""
        topology = self._cluster.topology
        if self._pattern is not None and not isinstance(self._pattern, BrokerPattern):
            matching = topology.matching(self._pattern)
            if matching != self.topics:
                self.topics = matching
                self.receive(Resubscribed(matching))
        counts = {name: len(topic.partitions) for name, topic in topology.topics.items()}
        missing = {name: 0 for name, code in topology.errors.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        self.receive(MetadataRefreshed({**missing, **counts}))
        self._newer_metadata.set()

    def commit_identity(self) -> Identity | None:
        """Return the identity for commits; None while the member is in no generation of the group."""
        return self.identity if self.machine.is_member else None

    def handle_commit_error(self, code: int, identity: Identity) -> bool:
        """Handle the error code of a commit sent as ``identity``, and return True if it concerns the membership.

        It does not, and is ignored, if the member has another identity by now, or while a join is in flight, whose
        answer decides about the membership.
        """
        is_current = self.machine.is_current(identity)
        if is_current:
            self.receive(self._requests.event_of(code, GroupRequestKind.COMMIT))
        return is_current

    async def _watch_polls(self, reader: Reader) -> None:
        """Check until canceled whether the application polls within ``max_poll_interval_ms``."""
        clock = PollIntervalClock(self._max_wait_s)
        while True:
            clock.look(reader.poll_marker, self._loop.time(), awaits_poll=reader.awaits_poll)
            if clock.is_stuck:
                self.receive(PollingStalled(RebalanceError(_NOT_POLLED.format(self._max_wait_s))))
                await reader.next_poll.wait(clock.next_at(self._loop.time()))
            else:
                self.receive(PollingResumed())
                await anyio.sleep_until(clock.next_at(self._loop.time()))

    async def _watch_session_timeout(self) -> None:
        """Look up the group's session timeout now and after each metadata update, because it may change."""
        while True:
            if (session := await self._requests.session_timeout()) is not None:
                self.receive(session)
            await self._newer_metadata.wait()


def member_settings(
    config: ConsumerConfig, topics: frozenset[str] | None, pattern: str | None = None
) -> MemberSettings:
    """Return the settings of a membership; ``topics`` is None for a GroupMember."""
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
