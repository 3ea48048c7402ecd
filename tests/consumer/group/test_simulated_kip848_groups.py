"""Invariants of a whole KIP-848 group under lost messages, delays and failures of its members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.consumer.group.group_machine import (
    CoordinatorGone,
    Effect,
    FindTopicNames,
    ForgetCoordinator,
    GroupEvent,
    HeartbeatAnswered,
    InstanceReleased,
    LeaveAnswered,
    MemberSettings,
    MetadataRefreshed,
    Release,
    Released,
    Resubscribed,
    SendGroupHeartbeat,
    SendLeave,
    SessionKnown,
    StartMembership,
    StopMembership,
    TakenOver,
    TakeOver,
    TopicNamesFound,
)
from tailrace.consumer.group.kip848 import OVER, Kip848Member, Kip848State
from tailrace.consumer.group.requests import event_of
from tailrace.core.group_requests import INSTANCE_RELEASED, GroupRequestKind, Identity
from tailrace.error_codes import ErrorCode
from tailrace.records import TopicPartition
from tests.support.simulation.driven_machine import Pick, RandomSteps
from tests.support.simulation.kip848_coordinator import Coordinator

SESSION_S, INTERVAL_S = 10.0, 2.0
AT_ONCE, IN_ALL = 3, 6
"""Limits of members, so that runs go deep rather than wide."""
SUBSCRIPTIONS = (frozenset("t"), frozenset("tu"))
WILL_BE_BACK = -2
LOST = CoordinatorGone("the connection broke")
IDS = {"t": UUID(int=1), "u": UUID(int=2)}

AFTER_STOP = (Release, SendLeave, SendGroupHeartbeat, ForgetCoordinator)
"""Effects of a stopped member: it releases, leaves, and sends heartbeats until then."""


@dataclass(eq=False)
class Consumer:
    """Member whose effects are performed one at a time."""

    machine: Kip848Member
    topics: frozenset[str]
    work: TakeOver | Release | None = None
    consuming: set[TopicPartition] = field(default_factory=set)
    """Partitions that it reads now."""
    is_stopped: bool = False
    is_dead: bool = False
    is_cut_off: bool = False
    """True if none of its messages arrive."""


@dataclass(eq=False)
class Message:
    """Request or answer in transit."""

    sender: Consumer
    effect: Effect
    sent_at: float
    answer: GroupEvent | None = None


class World(RandomSteps):
    """Simulation of a group; its driver chooses the next step."""

    def __init__(self, pick: Pick) -> None:
        super().__init__(pick)
        self.now = 0.0
        topics = {"t": (IDS["t"], 3), "u": (IDS["u"], 2)}
        self.coordinator = Coordinator(SESSION_S, topics, takes_back=pick((True, False)))
        self.consumers: list[Consumer] = []
        self.messages: list[Message] = []
        self.holders: dict[TopicPartition, Consumer] = {}
        """Owner of each partition, from its TakeOver to its Released, or until it knows of the loss."""
        self.known = {IDS["t"]: "t"}
        """Topic names in the cluster metadata."""
        self.start()

    # ---- steps -------------------------------------------------------------------------------------------------

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """Return the possible steps, and whether each is allowed now."""
        # Most steps succeed, or no member would ever own anything.
        yield from ((self.go_on, True) for _ in range(6))
        yield self.time_passes, True
        yield self.pass_request, bool(self.under_way)
        yield self.lose_request, bool(self.under_way)
        yield self.refuse_request, bool(self.under_way)
        yield self.pass_answer, bool(self.answered)
        yield self.lose_answer, bool(self.answered)
        yield self.finish_work, any(one.work for one in self.consumers)
        yield self.commit, bool(self.running)
        yield self.cut_off, bool(self.running)
        yield self.start, len(self.running) < AT_ONCE and len(self.consumers) < IN_ALL
        yield self.stop, bool(self.running)
        yield self.die, bool(self.running)
        yield self.resubscribe, bool(self.running)
        yield self.grow, self.coordinator.topics["t"][1] < 5
        yield self.look, True
        yield self.move, True

    def start(self) -> None:
        """Start another member."""
        topics = self.pick(SUBSCRIPTIONS)
        options = MemberSettings(
            group_id="g",
            topics=topics,
            session_timeout_s=SESSION_S,
            heartbeat_interval_s=INTERVAL_S,
            rebalance_timeout_s=60,
            request_timeout_s=30,
            retry_first_s=0.1,
            retry_longest_s=1,
            leaves_on_stop=self.pick((True, True, False)),
            instance_id=self.pick((None, f"place {len(self.consumers)}")),
        )
        consumer = Consumer(Kip848Member(options, f"m{len(self.consumers)}", lambda: 0.5), topics)
        self.consumers.append(consumer)
        self.tell(consumer, StartMembership())
        self.tell(consumer, SessionKnown(SESSION_S))

    def stop(self) -> None:
        """Stop a member."""
        self._stop(self.pick(self.running))

    def die(self) -> None:
        """Kill a member; its messages in transit are lost."""
        consumer = self.pick(self.running)
        consumer.is_stopped = consumer.is_dead = True
        consumer.work = None
        consumer.consuming.clear()
        self.holders = {partition: one for partition, one in self.holders.items() if one is not consumer}
        self.messages = [message for message in self.messages if message.sender is not consumer]

    def resubscribe(self) -> None:
        """Change a member's subscription, or repeat it."""
        consumer = self.pick(self.running)
        consumer.topics = self.pick(SUBSCRIPTIONS)
        self.tell(consumer, Resubscribed(consumer.topics))

    def grow(self) -> None:
        """Add a partition to a topic."""
        self.coordinator.grow("t")

    def look(self) -> None:
        """Refresh the metadata of all members."""
        self.known = {topic_id: name for name, (topic_id, _) in self.coordinator.topics.items()}
        for consumer in self.alive:
            self.tell(consumer, MetadataRefreshed({}))

    def commit(self) -> None:
        """Let a member commit; a refusal is reported to it."""
        consumer = self.pick(self.running)
        me = consumer.machine.identity
        if consumer.machine.is_member and (code := self.coordinator.commit(me.member_id, me.generation)):
            self.tell(consumer, event_of(code, GroupRequestKind.COMMIT))

    def pass_request(self) -> None:
        """Deliver a request."""
        self.deliver(self.pick(self.under_way))

    def lose_request(self) -> None:
        """Lose a request."""
        self.miss(self.pick(self.under_way))

    def refuse_request(self) -> None:
        """Let the coordinator answer that it is not ready."""
        message = self.pick(self.under_way)
        code = self.pick((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR))
        message.answer = event_of(code, GroupRequestKind.GROUP_HEARTBEAT)

    def pass_answer(self) -> None:
        """Deliver an answer."""
        self.bring(self.pick(self.answered))

    def lose_answer(self) -> None:
        """Lose an answer."""
        self.miss(self.pick(self.answered))

    def finish_work(self) -> None:
        """Complete a takeover or a release."""
        self.finish(self.pick([one for one in self.consumers if one.work]))

    def cut_off(self) -> None:
        """Cut a member off from the network, or reconnect it."""
        consumer = self.pick(self.running)
        consumer.is_cut_off = not consumer.is_cut_off

    def move(self) -> None:
        """Move the coordinator to another broker."""
        self.coordinator.move(self.now)

    def time_passes(self) -> None:
        """Let time pass without any other step."""
        self.pass_time(self.pick((0.1, 1.0, 3.0, 11.0)))

    def go_on(self) -> None:
        """Let most steps succeed for a while, except for members that are cut off."""
        for _ in range(self.pick((1, 2, 4, 8, 16))):
            for message in self.under_way:
                if not message.sender.is_cut_off:
                    self.pick((*[self.deliver] * 7, self.miss, self.wait))(message)
            for message in self.answered:
                self.pick((*[self.bring] * 7, self.miss, self.wait))(message)
            for consumer in [one for one in self.consumers if one.work]:
                self.pick((self.finish, self.wait))(consumer)
            self.pass_time(self.pick((0.1, 1.0)))

    def turn(self) -> None:
        """Deliver all messages in transit."""
        for message in self.under_way:
            self.deliver(message)
        for message in self.answered:
            self.bring(message)
        for consumer in [one for one in self.consumers if one.work]:
            self.finish(consumer)
        self.pass_time(1.0)

    # ---- invariants --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that no member reads a partition that it does not own, and that ended members own nothing."""
        for consumer in self.alive:
            machine = consumer.machine
            assert consumer.consuming <= machine.owned
            assert machine.owned == {partition for partition, one in self.holders.items() if one is consumer}
            assert machine.state not in OVER or not machine.owned

    def end(self) -> None:
        """Check that without further faults each member reaches its target assignment, and that every stop ends."""
        self.come_to_rest()
        wanted = {topic for one in self.running for topic in one.topics}
        everything = {TopicPartition(name, n) for name in wanted for n in range(self.coordinator.topics[name][1])}
        assert {one.machine.state for one in self.running} <= {Kip848State.STABLE}
        for one in self.running:
            target = self.coordinator.targets[one.machine.identity.member_id]
            assert one.consuming == one.machine.owned == {TopicPartition(self.known[topic], n) for topic, n in target}
            assert one.machine.identity.generation == self.coordinator.epoch
        assert {partition for one in self.running for partition in one.consuming} == everything

        for consumer in self.running:
            self._stop(consumer)
        self.come_to_rest()
        assert {one.machine.state for one in self.alive} <= {Kip848State.LEFT}
        assert self.coordinator.members == {}
        assert not any(one.consuming or one.work for one in self.consumers)
        assert self.holders == {}

    def come_to_rest(self) -> None:
        """Let time pass without faults."""
        for consumer in self.consumers:
            consumer.is_cut_off = False
        self.look()
        for _ in range(35):
            self.turn()

    @property
    def is_over(self) -> bool:
        """Return True if all members have ended and own nothing."""
        return not self.holders and all(one.is_dead or one.machine.is_over for one in self.consumers)

    # ---- internals ---------------------------------------------------------------------------------------------

    @property
    def alive(self) -> list[Consumer]:
        return [one for one in self.consumers if not one.is_dead]

    @property
    def running(self) -> list[Consumer]:
        return [one for one in self.consumers if not one.is_stopped]

    @property
    def under_way(self) -> list[Message]:
        """Return the next message of each connection; messages of a connection keep their order."""
        first: dict[tuple[Consumer, bool], Message] = {}
        for message in self.messages:
            if message.answer is None:
                first.setdefault((message.sender, isinstance(message.effect, FindTopicNames)), message)
        return list(first.values())

    @property
    def answered(self) -> list[Message]:
        return [one for one in self.messages if one.answer is not None]

    def tell(self, consumer: Consumer, event: GroupEvent) -> None:
        consumer.machine.receive(event, self.now)
        self.perform(consumer)

    def perform(self, consumer: Consumer) -> None:
        consumer.machine.handle_timer(self.now)
        for effect in consumer.machine.effects():
            assert not consumer.is_stopped or isinstance(effect, AFTER_STOP)
            match effect:
                case TakeOver(added):
                    consumer.work = effect
                    for partition in added:
                        # The former owner released it, or its session had expired, before this member got it.
                        assert self.holders.get(partition, consumer) is consumer
                        self.holders[partition] = consumer
                case Release(partitions, is_lost):
                    consumer.work = effect
                    if is_lost:
                        consumer.consuming.clear()
                        self.give_up(consumer, partitions)
                case ForgetCoordinator():
                    pass
                case _:
                    self.messages.append(Message(consumer, effect, self.now))

    def give_up(self, consumer: Consumer, partitions: frozenset[TopicPartition]) -> None:
        for partition in partitions:
            assert self.holders.pop(partition) is consumer

    def finish(self, consumer: Consumer) -> None:
        work, consumer.work = consumer.work, None
        if isinstance(work, TakeOver):
            consumer.consuming |= work.added
        elif not work.is_lost:
            consumer.consuming -= work.partitions
            self.give_up(consumer, work.partitions)
        if consumer.machine.awaits(work):
            self.tell(consumer, TakenOver() if isinstance(work, TakeOver) else Released())

    def deliver(self, message: Message) -> None:
        """Deliver a request and answer it."""
        match message.effect:
            case SendGroupHeartbeat(me, topics=topics, owned=owned):
                message.answer = self.heartbeat(me, message.effect, topics, owned)
            case SendLeave(me):
                (self.coordinator.step_away if me.generation == WILL_BE_BACK else self.coordinator.leave)(me.member_id)
                message.answer = LeaveAnswered()
            case FindTopicNames(topic_ids):
                message.answer = TopicNamesFound({one: self.known[one] for one in topic_ids & self.known.keys()})

    def heartbeat(self, me: Identity, effect: SendGroupHeartbeat, topics, owned) -> GroupEvent:
        answer = self.coordinator.heartbeat(
            me.member_id,
            me.generation,
            topics,
            None if owned is None else frozenset((topic, n) for topic, numbers in owned.items() for n in numbers),
            self.now,
            is_full=effect.rebalance_timeout_s is not None and topics is not None and owned is not None,
            is_static=me.instance_id is not None,
        )
        if me.generation == WILL_BE_BACK and answer.error_code in INSTANCE_RELEASED:
            return InstanceReleased()
        if answer.error_code:
            kind = GroupRequestKind.GROUP_HEARTBEAT if me.generation > 0 else GroupRequestKind.GROUP_JOIN
            return event_of(answer.error_code, kind)
        assigned: dict[UUID, tuple[int, ...]] = {}
        for topic, n in answer.assigned or ():
            assigned[topic] = (*assigned.get(topic, ()), n)
        given = None if answer.assigned is None else assigned
        return HeartbeatAnswered(answer.epoch, INTERVAL_S, given)

    def bring(self, message: Message) -> None:
        """Deliver an answer."""
        self.report(message, message.answer)

    def miss(self, message: Message) -> None:
        """Lose a message and report it to the member."""
        self.report(message, LOST)

    def wait(self, _what: object) -> None:
        """Delay a message."""

    def report(self, message: Message, event: GroupEvent) -> None:
        """Report an outcome to the member if it is still awaited, as the coroutines do."""
        self.messages.remove(message)
        if not message.sender.machine.awaits(message.effect):
            return
        if isinstance(message.effect, SendLeave):
            event = LeaveAnswered()
        self.tell(message.sender, event)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and call the timers that are due."""
        until = self.now + seconds
        for _ in range(1_000):
            if (at := self.next_time()) is None or at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.ring()
        raise AssertionError("somebody has something to do all the time, and never does it")

    def next_time(self) -> float | None:
        times = [one.machine.next_deadline() for one in self.alive]
        times += [one.sent_at + one.effect.timeout_s for one in self.heartbeats()]
        times.append(self.coordinator.next_expiry())
        return min((at for at in times if at is not None), default=None)

    def ring(self) -> None:
        """Call members' timers at their deadlines; the coordinator expires no member before."""
        for message in list(self.heartbeats()):
            if self.now >= message.sent_at + message.effect.timeout_s:
                self.report(message, LOST)
        for consumer in self.alive:
            self.perform(consumer)
        self.coordinator.expire(self.now)

    def heartbeats(self) -> Iterator[Message]:
        return (one for one in self.messages if isinstance(one.effect, SendGroupHeartbeat))

    def _stop(self, consumer: Consumer) -> None:
        consumer.is_stopped = True
        self.tell(consumer, StopMembership())


@pytest.mark.parametrize("seed", range(8))
def test_group_keeps_its_invariants(seed):
    """No partition has two owners, every member reaches its target, and a stopped member only releases and leaves."""
    for life in range(30):
        random = Random(seed * 1_000 + life)
        world = World(random.choice)
        for _ in range(50):
            world.step()
        world.end()

        assert world.is_over


@settings(max_examples=25)
@given(st.data())
def test_group_keeps_its_invariants_stepwise(data):
    """The same invariants hold in the steps that Hypothesis chooses, which it reduces to few for a failure."""
    world = World(lambda choices: data.draw(st.sampled_from(choices)))
    for _ in range(data.draw(st.integers(0, 30))):
        world.step()
    world.end()

    assert world.is_over
