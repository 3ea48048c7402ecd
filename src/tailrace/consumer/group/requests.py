"""Requests of a group membership: performs the effects that need brokers, each with one event as its outcome.

A lookup of the whole group checks an assignment that the group has stored; see ``consumer.group.classic``. After
failures in a row, ``JoinLimit`` and ``ServerErrorLimit`` replace the event by one that pauses or ends the membership.

Errors do not reach the membership as exceptions. ``event_of`` turns error codes into events, by the reactions of
``core.group_requests``. If the broker does not answer, the event is ``CoordinatorGone``. If a retry cannot resolve the
error, the event is ``MembershipFailed``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, assert_never
from uuid import UUID

import anyio
from msgspec.structs import replace

from tailrace.config import ConsumerConfig
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    DescribeGroup,
    Effect,
    FindPartitions,
    FindTopicNames,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    HeartbeatAnswered,
    InstanceHeld,
    InstanceReleased,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
    MembershipFailed,
    PartitionsFound,
    RebalanceCalled,
    RequestEffect,
    RetryLater,
    SendGroupHeartbeat,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    SessionKnown,
    Synced,
    TopicNamesFound,
)
from tailrace.consumer.group.kip848 import STATIC_LEAVE_EPOCH
from tailrace.core.group_requests import (
    INSTANCE_RELEASED,
    REACTIONS,
    ErrorReactions,
    GroupReaction,
    GroupRequestKind,
    error_of,
)
from tailrace.error_codes import ErrorCode, name_of
from tailrace.errors import (
    AuthenticationError,
    BrokerConnectionError,
    BrokerError,
    GroupAuthorizationFailedError,
    MalformedMessageError,
    NoCommonAssignorError,
    RebalanceError,
    RequestTimedOutError,
    TailraceError,
    UnsupportedVersionError,
    broker_error,
)
from tailrace.net.broker import Broker, Channel, ChannelKey
from tailrace.net.cluster import Cluster
from tailrace.observe.events import GroupLeft, GroupRequestCompleted, GroupRequestFailed
from tailrace.observe.hooks import Observer
from tailrace.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberAssignment,
    MemberSubscription,
    OwnedPartitions,
    SyncGroupAssignment,
    SyncGroupRequest,
    TopicIdPartitions,
    decode_assignment,
    decode_cooperative_data,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_cooperative_data,
    encode_sticky_data,
    encode_subscription,
)
from tailrace.protocol.message import Request
from tailrace.protocol.metadata import FindCoordinatorRequest
from tailrace.records import TopicPartition

__all__ = [
    "ConsumerProtocol",
    "GroupRequests",
    "JoinLimit",
    "MemberProtocol",
    "ServerErrorLimit",
    "described_member",
    "event_of",
    "joined_event",
    "outcome_of",
    "read_subscription",
    "write_subscription",
]

# ---- requests of a group membership ----------------------------------------------------------------------------------

ResponseT = TypeVar("ResponseT")

_LEAVE_ATTEMPTS = 2
_DESCRIBE_S = 5.0
"""Time in seconds for the description of a group that an error message names the assignor of."""
_NOT_A_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})
"""Error codes in the answer to a leave if the group has removed the member already."""
_METADATA_ATTEMPTS = 3
"""Number of metadata refreshes after which an assigned partition that no broker knows is taken as missing."""
_RESEND_AFTER_SESSIONS = 2 / 3
"""Share of ``session_timeout_ms`` after which a join or sync without an answer is sent again."""
_WITHOUT_CLASSIC_MEMBERS = {"Dead", "Empty"}
"""States of a group without members of the classic protocol. A KIP-848 group, which the broker assigns, is "Dead"."""
_GROUP_RESOURCE = 32
"""Resource type of a group in DescribeConfigs."""
_SESSION_OPTION = "consumer.session.timeout.ms"


class GroupRequests:
    """Requests of one member. ``outcome`` performs an effect by one or more requests, and returns one event.

    Args:
        member: name for this member's connections, unique in this process.
        protocol: embedded protocol of the group; by default that of consumer groups.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        observer: Observer,
        member: str,
        protocol: MemberProtocol | None = None,
    ) -> None:
        assert config.group_id is not None
        self._protocol, self._is_consumer = protocol or ConsumerProtocol(), protocol is None
        self.group_id, self._member = config.group_id, member
        self.config, self.cluster, self.observer = config, cluster, observer
        self._heartbeat_channel = ChannelKey(Channel.HEARTBEAT, member)
        self._reactions = ErrorReactions(config.group_error_reactions)
        self._limit = JoinLimit(config.rebalance_max_retries)
        self._server_error_limit = ServerErrorLimit(config.session_timeout_ms / 1000)

    async def outcome(self, effect: RequestEffect) -> GroupEvent:
        """Perform an effect and return its outcome; emit GroupRequestCompleted if the request was answered."""
        began_at = asyncio.get_running_loop().time()
        event = self._limit.apply(effect, await outcome_of(self._send(effect)))
        event = self._server_error_limit.apply(effect, event, asyncio.get_running_loop().time())
        # After MemberIdAssigned the join goes on. RetryLater may mean that the request was not sent, because no
        # coordinator was found.
        if not isinstance(event, CoordinatorGone | InstanceHeld | MembershipFailed | MemberIdAssigned | RetryLater):
            request = type(effect).__name__.removeprefix("Send")
            took_s = asyncio.get_running_loop().time() - began_at
            self.observer.emit(GroupRequestCompleted(self.group_id, request, took_s))
        return event

    def event_of(self, code: int, request: GroupRequestKind) -> GroupEvent:
        """Return the event for an error code in the answer to a request, with the user's reactions."""
        return event_of(code, request, self._reactions.overrides(code))

    def close(self) -> None:
        """Stop watching the topics of the group, because the membership has ended."""
        self.cluster.unwatch((self._member, "group"))

    async def session_timeout(self) -> SessionKnown | None:
        """Request the group's session timeout from a broker (KIP-848); return None if it cannot be read."""
        from tailrace.protocol.admin import ConfigsToDescribe, DescribeConfigsRequest  # noqa: PLC0415 - KIP-848 only

        request = DescribeConfigsRequest((ConfigsToDescribe(_GROUP_RESOURCE, self.group_id, (_SESSION_OPTION,)),))
        try:
            answer = await self.cluster.send_to_any(request)
        except (BrokerConnectionError, UnsupportedVersionError):
            return None
        for described in answer.results:
            for config in described.configs:
                if config.name == _SESSION_OPTION and config.value is not None and config.value.isdecimal():
                    return SessionKnown(int(config.value) / 1000)
        return None

    async def _send(self, effect: RequestEffect) -> GroupEvent:  # noqa: PLR0911 - one return for each effect
        match effect:
            case SendJoin():
                return await self._join(effect)
            case SendSync():
                return await self._sync(effect)
            case SendHeartbeat():
                return await self._heartbeat(effect)
            case SendGroupHeartbeat():
                return await self._group_heartbeat(effect)
            case SendLeave():
                return await self._leave(effect)
            case FindPartitions():
                return await self._find_partitions(effect)
            case FindTopicNames():
                return await self._find_topic_names(effect)
            case DescribeGroup():
                return await self._describe_group(effect)
            case _:
                assert_never(effect)

    # ---- the classic protocol ------------------------------------------------------------------------------------

    async def _join(self, effect: SendJoin) -> GroupEvent:
        coordinator = await self.cluster.coordinator(self.group_id)
        request = JoinGroupRequest(
            self.group_id,
            self.config.session_timeout_ms,
            self.config.max_poll_interval_ms,
            effect.member_id,
            self._protocol.protocol_type,
            self._protocol.offers(effect),
            group_instance_id=self.config.group_instance_id,
            reason=effect.reason,
        )

        async def join() -> GroupEvent:
            answer = await self._send_held(coordinator, request, effect.timeout_s)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                return MemberIdAssigned(answer.member_id)
            if answer.error_code:
                event = self.event_of(answer.error_code, GroupRequestKind.JOIN)
                if isinstance(event, MembershipFailed) and isinstance(event.error, NoCommonAssignorError):
                    assignor = await self._assignor_of_group(coordinator)
                    return MembershipFailed(error_of(answer.error_code, GroupRequestKind.JOIN, assignor))
                return event
            try:
                return self._protocol.joined(answer)
            except MalformedMessageError as error:
                return MembershipFailed(error)

        return await self._while_coordinator_answers(coordinator, join())

    async def _assignor_of_group(self, coordinator: Broker) -> str:
        """Return the assignor that the group has chosen, for an error message; an empty string if it is unknown."""
        from tailrace.protocol.groups import DescribeGroupsRequest  # noqa: PLC0415 - as in _describe_group

        try:
            request = DescribeGroupsRequest((self.group_id,))
            (group,) = (await coordinator.send(request, timeout_s=_DESCRIBE_S)).groups
        except TailraceError:
            return ""
        is_known = not group.error_code and group.protocol_type == self._protocol.protocol_type
        return group.protocol_data if is_known else ""

    async def _send_held(self, coordinator: Broker, request: Request[ResponseT], timeout_s: float) -> ResponseT:
        """Send a join or sync, and repeat it on a new connection if it is not answered for two thirds of a session.

        The coordinator may hold the request, and meanwhile answers no other request of the connection. A half-open
        connection would therefore not be detected. If the coordinator still holds the first request, the repeated
        request replaces it; if the coordinator has answered the first request, it answers again.

        The last third of the session is left for the answer to the repeated request. If the coordinator has completed
        the rebalance, and the answer is lost, the coordinator no longer acknowledges heartbeats of the former
        generation, and the session ends.
        """
        is_reported = False
        attempt_s = self.config.session_timeout_ms / 1000 * _RESEND_AFTER_SESSIONS
        deadline = anyio.current_time() + timeout_s
        while True:
            # A request that times out closes its connection, so the next attempt uses a new connection.
            left_s = deadline - anyio.current_time()
            try:
                return await coordinator.send(request, owner=self._member, timeout_s=min(attempt_s, left_s))
            except RequestTimedOutError as error:
                if anyio.current_time() >= deadline:
                    raise
                # A rebalance may take many sessions, so only the first repetition is reported.
                if is_reported:
                    continue
                is_reported = True
                name = type(request).__name__.removesuffix("GroupRequest")
                self.observer.emit(
                    GroupRequestFailed(self.group_id, name, str(error), "resending on another connection")
                )

    async def _while_coordinator_answers(self, coordinator: Broker, work: Awaitable[GroupEvent]) -> GroupEvent:
        """Return the outcome of ``work``; CoordinatorGone if the coordinator stops answering or changes meanwhile."""
        outcomes: list[GroupEvent] = []

        async def watch() -> None:
            outcomes.append(await self._watch_coordinator(coordinator))
            # The coordinator may still hold the request, and would answer no other request of this connection.
            coordinator.close_owned(self._member)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            outcomes.append(await outcome_of(work))
            tasks.cancel_scope.cancel()
        return outcomes[0]

    async def _watch_coordinator(self, coordinator: Broker) -> CoordinatorGone:
        """Send FindCoordinator to ``coordinator`` every third of a session.

        Return when another broker is the coordinator, or when no answer has arrived for a session.
        """
        session_s, request = self.config.session_timeout_ms / 1000, FindCoordinatorRequest(self.group_id)
        last_answered_at = sent_at = anyio.current_time()
        while last_answered_at + session_s > anyio.current_time():
            await anyio.sleep_until(sent_at + session_s / 3)
            sent_at = anyio.current_time()
            with contextlib.suppress(BrokerConnectionError, MalformedMessageError):
                answer = await coordinator.send(request, key=self._heartbeat_channel, timeout_s=session_s / 3)
                last_answered_at = sent_at
                if not answer.error_code and answer.node_id != coordinator.id:
                    return CoordinatorGone(f"broker {answer.node_id} is the coordinator now")
            if self.cluster.coordinator_id(self.group_id) not in {None, coordinator.id}:
                return CoordinatorGone(f"{coordinator.address} is not the coordinator any more")
        return CoordinatorGone(f"{coordinator.address} holds a join and has not answered for {session_s:g} s")

    async def _find_partitions(self, effect: FindPartitions) -> GroupEvent:
        if not effect.topics:
            return PartitionsFound({})
        self.cluster.watch((self._member, "group"), effect.topics)
        await self.cluster.refresh()
        topology = self.cluster.topology
        return PartitionsFound(topology.partition_counts(effect.topics), topology.racks_of(effect.topics))

    async def _sync(self, effect: SendSync) -> GroupEvent:
        coordinator = await self.cluster.coordinator(self.group_id)
        request = SyncGroupRequest(
            self.group_id,
            effect.identity.generation,
            effect.identity.member_id,
            effect.identity.instance_id,
            self._protocol.protocol_type,
            effect.protocol,
            self._protocol.shares(effect),
        )
        answer = await self._send_held(coordinator, request, effect.timeout_s)
        if answer.error_code:
            return self.event_of(answer.error_code, GroupRequestKind.SYNC)
        try:
            synced = self._protocol.synced(answer.assignment)
        except MalformedMessageError as error:
            return Synced(MemberAssignment(()), fault=str(error))
        return await self._with_missing(synced) if self._is_consumer else synced

    async def _with_missing(self, synced: Synced) -> Synced:
        """Return ``synced`` with the assigned partitions that do not exist, after refreshes of outdated metadata."""
        entries = synced.assignment.assigned_partitions
        assigned = frozenset(TopicPartition(one.topic, number) for one in entries for number in one.partitions)
        missing = self._missing(assigned)
        for _ in range(_METADATA_ATTEMPTS if missing else 0):
            await self.cluster.refresh()
            missing = self._missing(assigned)
            if not missing:
                break
        return replace(synced, missing=missing)

    def _missing(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return the partitions that the metadata lacks, without those of topics that the member does not watch."""
        topology = self.cluster.topology
        return frozenset(
            one
            for one in partitions
            if topology.errors.get(one.topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            or (one.topic in topology.topics and topology.leader(one) is None)
        )

    async def _describe_group(self, effect: DescribeGroup) -> GroupDescribed:
        """Request the subscription and assignment of each member; the group answers them only while it is stable."""
        # Most consumers never send this request, so its classes are not created at their start.
        from tailrace.protocol.groups import DescribeGroupsRequest  # noqa: PLC0415

        try:
            coordinator = await self.cluster.coordinator(self.group_id)
            (group,) = (await coordinator.send(DescribeGroupsRequest((self.group_id,)))).groups
            if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state in _WITHOUT_CLASSIC_MEMBERS:
                return GroupDescribed({})
            if group.error_code:
                raise broker_error(group.error_code, f"describing group {self.group_id!r}")
            if group.group_state != "Stable":
                return GroupDescribed(None)
            members = {
                one.member_id: described_member(one.metadata, one.assignment, effect.protocol) for one in group.members
            }
            topics = frozenset(topic for subscription, _ in members.values() for topic in subscription.topics)
            return GroupDescribed(members, await self._partition_counts(topics))
        except GroupAuthorizationFailedError as error:
            self.observer.emit(GroupRequestFailed(self.group_id, "DescribeGroup", str(error), "continuing"))
            return GroupDescribed({})
        except TailraceError as error:
            self.observer.emit(GroupRequestFailed(self.group_id, "DescribeGroup", str(error), "retrying"))
            return GroupDescribed(None)

    async def _partition_counts(self, topics: frozenset[str]) -> Mapping[str, int]:
        """Return the partition counts of topics, some of which this member may not subscribe to."""
        topology = self.cluster.topology
        if not all(topic in topology.topics or topic in topology.errors for topic in topics):
            with self.cluster.watching(topics):
                await self.cluster.refresh()
        return self.cluster.topology.partition_counts(topics)

    async def _heartbeat(self, effect: SendHeartbeat) -> GroupEvent:
        """Send a heartbeat, with a timeout so short that another heartbeat can be sent before the session ends."""
        me = effect.identity
        with anyio.move_on_after(effect.timeout_s):
            coordinator = await self.cluster.coordinator(self.group_id)
            request = HeartbeatRequest(self.group_id, me.generation, me.member_id, me.instance_id)
            answer = await coordinator.send(request, owner=self._member, timeout_s=effect.timeout_s)
            if answer.error_code:
                return self.event_of(answer.error_code, GroupRequestKind.HEARTBEAT)
            return HeartbeatAnswered()
        return CoordinatorGone(f"no heartbeat was acknowledged within {effect.timeout_s:.1f} s")

    # ---- the consumer protocol -----------------------------------------------------------------------------------

    async def _group_heartbeat(self, effect: SendGroupHeartbeat) -> GroupEvent:
        me = effect.identity
        request = ConsumerGroupHeartbeatRequest(
            self.group_id,
            me.member_id,
            me.generation,
            me.instance_id,
            effect.rack,
            -1 if effect.rebalance_timeout_s is None else round(effect.rebalance_timeout_s * 1000),
            None if effect.topics is None else tuple(sorted(effect.topics)),
            effect.pattern,
            effect.assignor,
            None if effect.owned is None else tuple(TopicIdPartitions(*entry) for entry in effect.owned.items()),
        )
        with anyio.move_on_after(effect.timeout_s):
            coordinator = await self.cluster.coordinator(self.group_id)
            try:
                answer = await coordinator.send(request, key=self._heartbeat_channel, timeout_s=effect.timeout_s)
            except UnsupportedVersionError as error:
                # The user sees the same error whether the broker does not know this request or refuses it.
                raise error_of(ErrorCode.UNSUPPORTED_VERSION, GroupRequestKind.GROUP_HEARTBEAT) from error
            if me.generation == STATIC_LEAVE_EPOCH and answer.error_code in INSTANCE_RELEASED:
                return InstanceReleased()
            if answer.error_code:
                kind = GroupRequestKind.GROUP_HEARTBEAT if me.generation > 0 else GroupRequestKind.GROUP_JOIN
                return self.event_of(answer.error_code, kind)
            assigned = answer.assignment
            return HeartbeatAnswered(
                answer.member_epoch,
                answer.heartbeat_interval_ms / 1000,
                None if assigned is None else {one.topic_id: one.partitions for one in assigned},
            )
        return CoordinatorGone(f"no heartbeat was acknowledged within {effect.timeout_s:.1f} s")

    async def _find_topic_names(self, effect: FindTopicNames) -> GroupEvent:
        def known_names() -> Mapping[UUID, str]:
            topics = self.cluster.topology.topics.values()
            return {topic.topic_id: topic.name for topic in topics if topic.topic_id in effect.topic_ids}

        if len(known_names()) < len(effect.topic_ids):
            await self.cluster.refresh()
        return TopicNamesFound(known_names())

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _leave(self, effect: SendLeave) -> GroupEvent:
        for _ in range(_LEAVE_ATTEMPTS):
            event = await outcome_of(self._send_leave(effect))
            if isinstance(event, LeaveAnswered):
                break
            reason = str(event.error) if isinstance(event, MembershipFailed) else getattr(event, "reason", str(event))
            reaction = "without a leave, the group keeps the member until its session expires"
            self.observer.emit(GroupRequestFailed(self.group_id, "Leave", reason, reaction))
            if not isinstance(event, CoordinatorGone | RetryLater):
                break
            self.cluster.forget_coordinator(self.group_id, reason)
        return LeaveAnswered()

    async def _send_leave(self, effect: SendLeave) -> GroupEvent:
        me = effect.identity
        coordinator = await self.cluster.coordinator(self.group_id)
        # The leave is sent on the connection of heartbeats: on the other, the coordinator may still hold a join.
        if self.config.group_protocol == "consumer":
            heartbeat = ConsumerGroupHeartbeatRequest(self.group_id, me.member_id, me.generation, me.instance_id)
            codes = [(await coordinator.send(heartbeat, key=self._heartbeat_channel)).error_code]
        else:
            leaving = LeaveGroupRequest(self.group_id, me.member_id, me.instance_id, effect.reason)
            answer = await coordinator.send(leaving, key=self._heartbeat_channel)
            codes = [answer.error_code, *(member.error_code for member in answer.members)]
        if code := next((code for code in codes if code), ErrorCode.NONE):
            if code in _NOT_A_MEMBER:
                return LeaveAnswered()
            return self.event_of(code, GroupRequestKind.LEAVE)
        self.observer.emit(GroupLeft(self.group_id, me.member_id))
        return LeaveAnswered()


async def outcome_of(work: Awaitable[GroupEvent]) -> GroupEvent:
    """Return the event that ``work`` returns, or the event for the error that it raises."""
    try:
        return await work
    except (AuthenticationError, UnsupportedVersionError) as error:
        return MembershipFailed(error)
    except (BrokerConnectionError, MalformedMessageError) as error:
        return CoordinatorGone(str(error))
    except BrokerError as error:
        return RetryLater(str(error)) if error.retriable else MembershipFailed(error)
    except TailraceError as error:
        return MembershipFailed(error)


def event_of(code: int, request: GroupRequestKind, overrides: Mapping[int, GroupReaction] | None = None) -> GroupEvent:
    """Return the event that reports ``code`` to the membership; ``overrides`` replaces the reactions to its codes."""
    reason = f"{request}: {name_of(code)}"
    match REACTIONS.reaction_to(code, request, overrides):
        case GroupReaction.RETRY:
            is_limited = code == ErrorCode.UNKNOWN_SERVER_ERROR
            return RetryLater(reason, error_of(code, request) if is_limited else None)
        case GroupReaction.FIND_COORDINATOR:
            return CoordinatorGone(reason)
        case GroupReaction.REJOIN:
            return RebalanceCalled()
        case GroupReaction.REJOIN_WITH_SAME_ID:
            return GenerationLost(reason)
        case GroupReaction.REJOIN_AS_NEW:
            return MemberLost(reason)
        case GroupReaction.FAIL:
            error = error_of(code, request)
            # The holder of the instance id may be a process that was killed. Its session ends by itself.
            is_held = code == ErrorCode.UNRELEASED_INSTANCE_ID and request is GroupRequestKind.GROUP_JOIN
            return InstanceHeld(error) if is_held else MembershipFailed(error)


# ---- limits on the requests of a member that fail in a row -----------------------------------------------------------


class JoinLimit:
    """Counter of attempts that failed since the last success.

    Args:
        retries: ``rebalance_max_retries``, the number of attempts after the first failure; None for no limit.
    """

    def __init__(self, retries: int | None) -> None:
        self._retries, self._failures = retries, 0

    def apply(self, effect: Effect, event: GroupEvent) -> GroupEvent:
        """Count ``event`` if it ends an attempt, and return the event to pass to the membership.

        The result is ``event`` unless several attempts have failed: it may then be ``RetryLater``, for a pause before
        the next attempt, or ``MembershipFailed``, after more than ``retries`` failures.

        Args:
            effect: request of the membership; only joins and syncs are counted.
            event: outcome of ``effect``.
        """
        if not isinstance(effect, SendJoin | SendSync):
            return event
        match event:
            case Synced():
                self._failures = 0
                return event
            case JoinedAsFollower() | JoinedAsLeader() | MemberIdAssigned() | MembershipFailed():
                return event
        self._failures += 1
        reason = str(getattr(event, "reason", event))
        if self._retries is not None and self._failures > self._retries:
            return MembershipFailed(
                RebalanceError(
                    f"the group could not be joined in {self._failures} attempts; the last attempt failed: {reason}"
                    " - check the other members of the group, or raise rebalance_max_retries"
                )
            )
        if isinstance(event, RebalanceCalled) and self._failures > 1:
            # A first failure may be due to another member that joined meanwhile, so the next join follows at once. From
            # the second failure on, the member pauses before it joins.
            return RetryLater(reason)
        return event


class ServerErrorLimit:
    """Limit on the time for which a request is repeated while it fails in the broker (``RetryLater.error``).

    Args:
        limit_s: time in seconds since the first of these failures in a row.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._failing_since: dict[type[Effect], float] = {}
        """Time of the first failure since the last other outcome, by kind of request."""

    def apply(self, effect: Effect, event: GroupEvent, now: float) -> GroupEvent:
        """Return the event to pass to the membership: ``event``, or ``MembershipFailed`` if the time is over."""
        if not isinstance(event, RetryLater) or event.error is None:
            self._failing_since.pop(type(effect), None)
            return event
        since = self._failing_since.setdefault(type(effect), now)
        return event if now < since + self._limit_s else MembershipFailed(event.error)


# ---- embedded protocol of classic groups -----------------------------------------------------------------------------


class MemberProtocol(Protocol):
    """Encoding and decoding of the member data of one kind of group; raises MalformedMessageError."""

    @property
    def protocol_type(self) -> str:
        """Protocol type of the group, such as ``consumer``."""

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        """Return the protocols that a join offers, most preferred first."""

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        """Return the event of a successful join."""

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        """Return the assignment of each member if this member is the leader, otherwise an empty tuple."""

    def synced(self, assignment: bytes) -> Synced:
        """Return the event of a successful sync, which was answered with this member's ``assignment``."""


class ConsumerProtocol:
    """Embedded protocol of consumer groups."""

    protocol_type = "consumer"

    def offers(self, effect: SendJoin) -> tuple[JoinGroupProtocol, ...]:
        return tuple(
            JoinGroupProtocol(
                name, write_subscription(subscription, name, effect.last_assigned, effect.last_generation)
            )
            for name, subscription in effect.subscriptions
        )

    def joined(self, answer: JoinGroupResponse) -> GroupEvent:
        return joined_event(answer, read_subscription)

    def shares(self, effect: SendSync) -> tuple[SyncGroupAssignment, ...]:
        return tuple(SyncGroupAssignment(m, encode_assignment(given)) for m, given in effect.assignments.items())

    def synced(self, assignment: bytes) -> Synced:
        return Synced(decode_assignment(assignment))


def joined_event(answer: JoinGroupResponse, read: Callable[[bytes, str], MemberSubscription]) -> GroupEvent:
    """Return the event of a successful join; ``read`` decodes a member's data for the leader."""
    protocol = answer.protocol_name or ""
    if answer.leader != answer.member_id:
        return JoinedAsFollower(answer.member_id, answer.generation_id, protocol)
    return JoinedAsLeader(
        answer.member_id,
        answer.generation_id,
        protocol,
        {one.member_id: read(one.metadata, protocol) for one in answer.members},
        {one.member_id: one.group_instance_id for one in answer.members if one.group_instance_id is not None},
        answer.skip_assignment,
    )


def described_member(metadata: bytes, assignment: bytes, assignor: str) -> tuple[MemberSubscription, MemberAssignment]:
    """Return the subscription and the assignment in the description of a member; empty ones if they are malformed."""
    try:
        return read_subscription(metadata, assignor), decode_assignment(assignment)
    except MalformedMessageError:
        return MemberSubscription(()), MemberAssignment(())


def write_subscription(
    subscription: MemberSubscription, assignor: str, last_assigned: Sequence[OwnedPartitions], last_generation: int
) -> bytes:
    """Return the encoded subscription that a join offers with ``assignor``, which decides about its user data."""
    if assignor == "sticky":
        subscription = replace(subscription, user_data=encode_sticky_data(last_assigned, last_generation))
    elif assignor == "cooperative-sticky":
        subscription = replace(subscription, user_data=encode_cooperative_data(subscription.generation_id))
    return encode_subscription(subscription)


def read_subscription(data: bytes, assignor: str) -> MemberSubscription:
    """Return the subscription of a member; for the sticky assignors, partly decoded from the user data."""
    subscription = decode_subscription(data)
    if assignor == "sticky":
        owned, generation = decode_sticky_data(subscription.user_data)
        return replace(subscription, owned_partitions=owned, generation_id=generation)
    if assignor == "cooperative-sticky" and subscription.generation_id < 0:
        return replace(subscription, generation_id=decode_cooperative_data(subscription.user_data))
    return subscription
