"""Simulation of a classic group: members, a coordinator and the requests between them.

The test decides which requests arrive, which are lost, and when work is finished. Invariants are checked after each
event of a member: a partition has one owner, and only the owner may commit for it (A); a member without a response for
a session owns nothing (Z); kept partitions are consumed without a break, and taken-over ones were not consumed before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tailrace.consumer.group.assignors import are_cooperative, strategies_of
from tailrace.consumer.group.classic import ClassicMember
from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    DescribeGroup,
    Effect,
    FindPartitions,
    ForgetCoordinator,
    GenerationLost,
    GroupDescribed,
    GroupEvent,
    HeartbeatAnswered,
    HeartbeatOutcome,
    JoinedAsFollower,
    JoinedAsLeader,
    LeaveAnswered,
    MemberIdAssigned,
    MemberLost,
    MemberSettings,
    MembershipFailed,
    MetadataRefreshed,
    PartitionsFound,
    PollingResumed,
    PollingStalled,
    RebalanceCalled,
    Release,
    Released,
    ReportAssignmentFault,
    ReportGroupError,
    Resubscribed,
    SendHeartbeat,
    SendJoin,
    SendLeave,
    SendSync,
    StartMembership,
    StopMembership,
    Synced,
    TakenOver,
    TakeOver,
)
from tailrace.consumer.group.requests import event_of
from tailrace.core.group_requests import GroupRequestKind, Identity
from tailrace.error_codes import ErrorCode
from tailrace.errors import RebalanceError
from tailrace.records import TopicPartition
from tests.support.simulation.classic_coordinator import Answer, Coordinator

LOST = CoordinatorGone("the connection broke")
FAULT = MembershipFailed(RebalanceError("the callback raised"))
UNREAD = PollingStalled(RebalanceError("the application does not poll"))

AFTER_STOP = (Release, SendLeave, SendHeartbeat, ForgetCoordinator, ReportGroupError, FindPartitions, SendSync)
"""Effects allowed after a stop: release, leave, and group duties until then."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit request of a consumer, in its current generation."""

    identity: Identity
    partitions: frozenset[TopicPartition]


ASKED = {
    SendJoin: GroupRequestKind.JOIN,
    SendSync: GroupRequestKind.SYNC,
    SendHeartbeat: GroupRequestKind.HEARTBEAT,
    SendLeave: GroupRequestKind.LEAVE,
    Commit: GroupRequestKind.COMMIT,
}


@dataclass(eq=False)
class Consumer:
    """Member with its coroutines, which do one thing at a time."""

    machine: ClassicMember
    topics: frozenset[str]
    is_cooperative: bool
    work: TakeOver | Release | None = None
    consuming: set[TopicPartition] = field(default_factory=set)
    """Partitions from which records are delivered, from the end of a takeover to the end of a release."""
    owned: frozenset[TopicPartition] = frozenset()
    """Partitions owned by the state machine at the last check."""
    heard_at: float = 0.0
    """Time at which the last acknowledged request was sent."""
    instance_id: str | None = None
    is_foreign: bool = False
    """True for a member of a client that does not look up the assignments of others."""
    fault: str = ""
    """Fault of the assignment that the member has reported; empty if there is none."""
    beats: set[Identity] = field(default_factory=set)
    """Identities of heartbeats in flight."""
    is_stopped: bool = False
    is_dead: bool = False
    """True if the process was killed."""
    is_cut_off: bool = False
    """True if no request arrives."""
    is_slow: bool = False
    """True if takeovers and releases are slow."""

    @property
    def is_running(self) -> bool:
        return not self.is_stopped and not self.is_dead


@dataclass(eq=False)
class Letter:
    """Request in transit, or its response."""

    sender: Consumer
    effect: Effect | Commit
    sent_at: float
    is_under_way: bool = True
    answer: GroupEvent | None = None
    is_late: bool = False
    """True if the request or its response is overtaken by others."""


def nobody(_: object) -> None:
    """Ignore a notification."""


@dataclass(eq=False)
class World:
    """Group with its members.

    ``on_letter`` is called with each request that is sent or answered, ``on_work`` with each consumer that starts a
    takeover or release, ``on_told`` with each consumer whose next deadline may have changed.
    """

    topics: dict[str, int]
    session_s: float
    interval_s: float
    on_letter: Callable[[Letter], None] = nobody
    on_work: Callable[[Consumer], None] = nobody
    on_told: Callable[[Consumer], None] = nobody
    now: float = 0.0
    consumers: list[Consumer] = field(default_factory=list)
    letters: dict[Letter, None] = field(default_factory=dict)
    """Requests in transit, in the order of sending."""
    owner_of: dict[TopicPartition, Consumer] = field(default_factory=dict)
    joins: int = 0
    """Number of joins sent."""

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.session_s)

    @property
    def running(self) -> list[Consumer]:
        return [one for one in self.consumers if one.is_running]

    # ---- consumers ---------------------------------------------------------------------------------------------

    def start(self, topics: frozenset[str], offers: Collection[str], instance_id: str | None = None) -> Consumer:
        """Start another member; with ``instance_id``, a static one, which does not leave when it stops."""
        settings = MemberSettings(
            group_id="g",
            topics=topics,
            session_timeout_s=self.session_s,
            heartbeat_interval_s=self.interval_s,
            rebalance_timeout_s=60,
            request_timeout_s=30,
            retry_first_s=0.1,
            retry_longest_s=1,
            leaves_on_stop=instance_id is None,
            instance_id=instance_id,
            stop_max_wait_s=self.session_s,
        )
        strategies = strategies_of(offers)
        machine = ClassicMember(settings, strategies, lambda: 0.5)
        consumer = Consumer(machine, topics, are_cooperative(strategies), instance_id=instance_id)
        self.consumers.append(consumer)
        self.tell(consumer, StartMembership())
        return consumer

    def stop(self, consumer: Consumer) -> None:
        """Stop a member."""
        consumer.is_stopped = True
        self.tell(consumer, StopMembership())

    def kill(self, consumer: Consumer) -> None:
        """Kill the process of a member; its requests in transit may still arrive."""
        consumer.is_dead, consumer.work = True, None
        consumer.consuming.clear()
        self._settle(consumer, frozenset())

    def resubscribe(self, consumer: Consumer, topics: frozenset[str]) -> None:
        """Subscribe to other topics, or the same."""
        consumer.topics = topics
        self.tell(consumer, Resubscribed(topics))

    def stall(self, consumer: Consumer) -> None:
        """Stop reading from a member."""
        self.tell(consumer, UNREAD)

    def resume(self, consumer: Consumer) -> None:
        """Resume reading."""
        self.tell(consumer, PollingResumed())

    def refresh(self) -> None:
        """Refresh the metadata of all members."""
        for consumer in self.consumers:
            self.tell(consumer, MetadataRefreshed(dict(self.topics)))

    def commit(self, consumer: Consumer) -> None:
        """Commit the positions of a member if it is in a generation."""
        if consumer.machine.is_member:
            self._send(consumer, Commit(consumer.machine.identity, frozenset(consumer.consuming)))

    def finish(self, consumer: Consumer) -> None:
        """Finish a takeover or release."""
        work, consumer.work = consumer.work, None
        if isinstance(work, TakeOver):
            consumer.consuming |= work.added
        else:
            consumer.consuming -= work.partitions
        if consumer.machine.awaits(work):
            self.tell(consumer, TakenOver() if isinstance(work, TakeOver) else Released())

    def fail(self, consumer: Consumer) -> None:
        """Let the user's callback raise during a takeover or release."""
        consumer.work, consumer.is_stopped = None, True
        self.tell(consumer, FAULT)

    def tell(self, consumer: Consumer, event: GroupEvent) -> None:
        """Pass an event to a member and perform its effects."""
        if not consumer.is_dead:
            consumer.machine.receive(event, self.now)
            self.look_at_clock(consumer)

    def look_at_clock(self, consumer: Consumer) -> None:
        """Let a member handle its timers."""
        if not consumer.is_dead:
            consumer.machine.handle_timer(self.now)
            self._perform(consumer)
            self.check(consumer)
            self.on_told(consumer)

    # ---- network -----------------------------------------------------------------------------------------------

    def deliver(self, letter: Letter) -> None:
        """Deliver a request to the coordinator, which may delay its response."""
        letter.is_under_way = False
        match letter.effect:
            case SendJoin(member_id, offers):
                self.coordinator.join(letter, member_id, dict(offers), self.now, letter.sender.instance_id)
            case SendSync(identity, _, assignments):
                self.coordinator.sync(letter, identity.member_id, identity.generation, assignments, self.now)
            case SendHeartbeat(identity):
                self.coordinator.heartbeat(letter, identity.member_id, identity.generation, self.now)
            case Commit(identity, partitions):
                self.coordinator.commit(letter, identity.member_id, identity.generation, self.now)
                if not self.coordinator.answers[-1].error_code:
                    assert all(self.owner_of.get(one, letter.sender) is letter.sender for one in partitions)
            case SendLeave(identity):
                self.coordinator.leave(letter, identity.member_id, self.now)
            case DescribeGroup() if letter.sender.is_foreign:
                self.report(letter, GroupDescribed({}))
            case DescribeGroup():
                self.coordinator.describe(letter)
            case FindPartitions(topics):
                letter.answer = PartitionsFound({topic: self.topics[topic] for topic in topics})
                self.on_letter(letter)
        self._collect()

    def report(self, letter: Letter, event: GroupEvent) -> None:
        """Pass the outcome of a request to the member that waits for it, and that of a heartbeat in any case."""
        del self.letters[letter]
        sender, effect = letter.sender, letter.effect
        if isinstance(effect, SendHeartbeat):
            sender.beats.remove(effect.identity)
            if isinstance(event, HeartbeatAnswered | RebalanceCalled):
                self._heard(letter)
            self.tell(sender, HeartbeatOutcome(effect.identity, event))
        elif isinstance(effect, Commit):
            # After any other error, the commit is only retried.
            if isinstance(event, GenerationLost | MemberLost) and sender.machine.is_current(effect.identity):
                self.tell(sender, event)
        elif isinstance(effect, DescribeGroup) and not isinstance(event, GroupDescribed):
            if sender.machine.awaits(effect):
                self.tell(sender, GroupDescribed(None))
        elif sender.machine.awaits(effect):
            if isinstance(event, Synced):
                self._heard(letter)
            self.tell(sender, LeaveAnswered() if isinstance(effect, SendLeave) else event)

    def move(self) -> None:
        """Move the group to another coordinator."""
        self.coordinator.move(self.now)
        self._collect()

    def expire(self) -> None:
        """Remove members without heartbeats, and assert that they own nothing."""
        gone = self.coordinator.expire(self.now)
        for consumer in self.consumers if gone else ():
            assert consumer.machine.identity.member_id not in gone or not consumer.owned
        self._collect()

    # ---- the laws ----------------------------------------------------------------------------------------------

    def check(self, consumer: Consumer) -> None:
        """Assert the invariants A and Z, and that members read only their own partitions."""
        if consumer.machine.owned is not consumer.owned:
            self._settle(consumer, consumer.machine.owned)
        assert consumer.consuming <= consumer.owned
        assert not consumer.owned or self.now < consumer.heard_at + self.session_s
        assert not consumer.owned or not consumer.machine.is_over

    def _settle(self, consumer: Consumer, owned: frozenset[TopicPartition]) -> None:
        for partition in consumer.owned - owned:
            del self.owner_of[partition]
        for partition in owned - consumer.owned:
            assert partition not in self.owner_of
            self.owner_of[partition] = consumer
        consumer.owned = owned

    def _check_effect(self, consumer: Consumer, effect: Effect) -> None:
        assert not consumer.is_stopped or isinstance(effect, AFTER_STOP)
        assert not (consumer.is_stopped and isinstance(effect, ReportGroupError) and not effect.is_fatal)
        match effect:
            case TakeOver(added, kept):
                assert kept <= consumer.consuming
                assert consumer.consuming.isdisjoint(added)
                assert consumer.is_cooperative or not kept
            case SendJoin(_, offers):
                claimed = {owned for _, subscription in offers for owned in subscription.owned_partitions}
                assert consumer.is_cooperative or not claimed
            case SendHeartbeat(identity):
                # The next heartbeat waits for the response to the last.
                assert identity not in consumer.beats
                consumer.beats.add(identity)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _perform(self, consumer: Consumer) -> None:
        for effect in consumer.machine.effects():
            self._check_effect(consumer, effect)
            match effect:
                case TakeOver() | Release():
                    # The current work is canceled by the next one.
                    consumer.work = effect
                    if isinstance(effect, Release) and effect.is_lost:
                        consumer.consuming.clear()
                    self.on_work(consumer)
                case ReportAssignmentFault(_, fault):
                    consumer.fault = fault
                case ForgetCoordinator() | ReportGroupError():
                    pass
                case _:
                    self.joins += isinstance(effect, SendJoin)
                    self._send(consumer, effect)

    def _send(self, consumer: Consumer, effect: Effect | Commit) -> None:
        letter = Letter(consumer, effect, self.now)
        self.letters[letter] = None
        self.on_letter(letter)

    def _collect(self) -> None:
        """Send the responses of the coordinator."""
        for answer in self.coordinator.answers:
            answer.token.answer = self._event_for(answer)
            self.on_letter(answer.token)
        self.coordinator.answers.clear()

    def _event_for(self, answer: Answer) -> GroupEvent:
        described = isinstance(answer.token.effect, DescribeGroup)
        return GroupDescribed(answer.described, dict(self.topics)) if described else event_for(answer)

    def _heard(self, letter: Letter) -> None:
        letter.sender.heard_at = max(letter.sender.heard_at, letter.sent_at)


def event_for(answer: Answer) -> GroupEvent:
    """Return the event of a response for the member that sent the request."""
    effect = answer.token.effect
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return MemberIdAssigned(answer.member_id)
    if answer.error_code:
        return event_of(answer.error_code, ASKED[type(effect)])
    if isinstance(effect, SendJoin):
        joined = answer.member_id, answer.generation, answer.protocol
        if answer.members is None:
            return JoinedAsFollower(*joined)
        return JoinedAsLeader(*joined, answer.members, {}, answer.skips_assignment)
    if isinstance(effect, SendSync):
        return Synced(answer.assignment)
    return HeartbeatAnswered()
