"""A group of members, a coordinator, a network that loses and delays: a world to live in, one step at a time.

Whoever drives it picks what happens next; ``check`` says after each step whether what must hold does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from group_model import Answer, Coordinator

from penstock.core.assignors import ASSIGNORS
from penstock.core.classic import ClassicMember, State
from penstock.core.group_errors import Asked, event_of
from penstock.core.membership import (
    CoordinatorGone,
    Effect,
    Failed,
    FindPartitions,
    ForgetCoordinator,
    GroupEvent,
    HeartbeatAnswered,
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
    Resubscribed,
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
from penstock.records import TopicPartition

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]

SESSION_S, INTERVAL_S = 10.0, 3.0
AT_ONCE, IN_ALL = 3, 6
"""So many members, so that a life goes deep rather than wide."""
SUBSCRIPTIONS = (frozenset("t"), frozenset("tu"))
LOST = CoordinatorGone("the connection broke")

AFTER_STOP = (Release, SendLeave, SendHeartbeat, ForgetCoordinator)
"""All that a member still does when it was stopped: give back, say good-bye, and live until then."""

ASKED = {SendJoin: Asked.JOIN, SendSync: Asked.SYNC, SendHeartbeat: Asked.HEARTBEAT, SendLeave: Asked.LEAVE}


@dataclass(eq=False)
class Consumer:
    """A member and what the coroutines around it do, one thing at a time."""

    machine: ClassicMember
    topics: frozenset[str]
    work: TakeOver | Release | None = None
    consuming: set[TopicPartition] = field(default_factory=set)
    """The partitions that it reads now."""
    is_stopped: bool = False
    is_cut_off: bool = False
    """Whether nothing that it sends arrives."""


@dataclass(eq=False)
class Letter:
    """A request on its way, or the answer to it."""

    sender: Consumer
    effect: Effect
    sent_at: float
    is_under_way: bool = True
    answer: GroupEvent | None = None


class World:
    """One group, from its first member on."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.now = 0.0
        self.topics = {"t": 3, "u": 2}
        self.coordinator = Coordinator(SESSION_S)
        self.consumers: list[Consumer] = []
        self.letters: list[Letter] = []
        self.start()

    # ---- what may happen ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Something that may happen, happens."""
        self.pick([act for act, is_possible in self.acts() if is_possible])()
        self.check()

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """What there is to happen, and whether it may."""
        # Most of the time most things go well, or nobody would ever come to own anything.
        yield from ((self.go_on, True) for _ in range(6))
        yield self.time_passes, True
        yield self.pass_request, any(one.is_under_way for one in self.letters)
        yield self.lose_request, any(one.is_under_way for one in self.letters)
        yield self.break_connection, bool(self.held)
        yield self.pass_answer, any(one.answer for one in self.letters)
        yield self.lose_answer, any(one.answer for one in self.letters)
        yield self.finish_work, any(one.work for one in self.consumers)
        yield self.cut_off, bool(self.running)
        yield self.start, len(self.running) < AT_ONCE and len(self.consumers) < IN_ALL
        yield self.stop, bool(self.running)
        yield self.resubscribe, bool(self.running)
        yield self.grow, self.topics["t"] < 5
        yield self.move, True

    def start(self) -> None:
        """Another member."""
        topics = self.pick(SUBSCRIPTIONS)
        settings = MemberSettings(
            group_id="g",
            topics=topics,
            assignors=("range",),
            session_timeout_s=SESSION_S,
            heartbeat_interval_s=INTERVAL_S,
            rebalance_timeout_s=60,
            request_timeout_s=30,
            retry_first_s=0.1,
            retry_longest_s=1,
            leaves_on_stop=True,
        )
        consumer = Consumer(ClassicMember(settings, ASSIGNORS, lambda: 0.5), topics)
        self.consumers.append(consumer)
        self.tell(consumer, Start())

    def stop(self) -> None:
        """One has had enough."""
        self._stop(self.pick(self.running))

    def resubscribe(self) -> None:
        """One wants other topics, or the same."""
        consumer = self.pick(self.running)
        consumer.topics = self.pick(SUBSCRIPTIONS)
        self.tell(consumer, Resubscribed(consumer.topics))

    def grow(self) -> None:
        """A topic has one partition more, and everybody sees it."""
        self.topics["t"] += 1
        self.refresh()

    def pass_request(self) -> None:
        """A request arrives."""
        self.deliver(self.pick([one for one in self.letters if one.is_under_way]))

    def lose_request(self) -> None:
        """A request does not."""
        self.report(self.pick([one for one in self.letters if one.is_under_way]), LOST)

    def break_connection(self) -> None:
        """While a request is held; its answer will find nobody."""
        self.report(self.pick(self.held), LOST)

    def pass_answer(self) -> None:
        """An answer arrives."""
        letter = self.pick([one for one in self.letters if one.answer is not None])
        self.report(letter, letter.answer)

    def lose_answer(self) -> None:
        """An answer does not."""
        self.report(self.pick([one for one in self.letters if one.answer is not None]), LOST)

    def finish_work(self) -> None:
        """A takeover or a release is through."""
        self.finish(self.pick([one for one in self.consumers if one.work]))

    def cut_off(self) -> None:
        """Nothing of one arrives any more, or does again."""
        consumer = self.pick(self.running)
        consumer.is_cut_off = not consumer.is_cut_off

    def move(self) -> None:
        """Another broker coordinates the group."""
        self.coordinator.move(self.now)
        self.collect()

    def time_passes(self) -> None:
        """And nothing else does."""
        self.pass_time(self.pick((0.1, 1.0, 3.0, 11.0)))

    def go_on(self) -> None:
        """All goes well for a while, for those who are not cut off."""
        for _ in range(self.pick((1, 2, 4, 8, 16))):
            self.turn()

    def turn(self) -> None:
        """Everything that is under way arrives."""
        for letter in list(self.letters):
            if letter in self.letters and letter.is_under_way and not letter.sender.is_cut_off:
                self.deliver(letter)
        for letter in list(self.letters):
            if letter in self.letters and letter.answer is not None:
                self.report(letter, letter.answer)
        for consumer in self.consumers:
            if consumer.work is not None:
                self.finish(consumer)
        self.pass_time(1.0)
        self.check()

    # ---- what must hold ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """No partition is consumed twice, and nobody consumes what is not its own."""
        for of in (lambda one: one.consuming, lambda one: one.machine.owned):
            times = Counter(partition for consumer in self.consumers for partition in of(consumer))
            assert not times or max(times.values()) == 1
        for consumer in self.consumers:
            assert consumer.consuming <= consumer.machine.owned or isinstance(consumer.work, Release)
            assert not consumer.machine.is_over or not consumer.consuming or consumer.work

    def end(self) -> None:
        """Left alone, every join ends, with each partition in one hand; and so does every stop."""
        self.come_to_rest()
        wanted = {topic for one in self.running for topic in one.topics}
        assert {one.machine.state for one in self.running} <= {State.STABLE}
        assert len({one.machine.identity.generation for one in self.running}) <= 1
        owned = Counter(partition for one in self.running for partition in one.consuming)
        assert owned == Counter(TopicPartition(topic, n) for topic in wanted for n in range(self.topics[topic]))
        assert all(partition.topic in one.topics for one in self.running for partition in one.consuming)

        for consumer in self.running:
            self._stop(consumer)
        self.come_to_rest()
        assert {one.machine.state for one in self.consumers} == {State.LEFT}
        assert self.coordinator.members == {}
        assert not any(one.consuming or one.work for one in self.consumers)

    def come_to_rest(self) -> None:
        """Nothing is lost any more, and time passes."""
        for consumer in self.consumers:
            consumer.is_cut_off = False
        for _ in range(2):
            self.refresh()
            for _ in range(20):
                self.turn()

    # ---- inside ---------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Consumer]:
        return [one for one in self.consumers if not one.is_stopped]

    @property
    def held(self) -> list[Letter]:
        return [one for one in self.letters if not one.is_under_way and one.answer is None]

    def refresh(self) -> None:
        """Everybody sees the cluster as it is."""
        for consumer in self.consumers:
            self.tell(consumer, PartitionsChanged(dict(self.topics)))

    def tell(self, consumer: Consumer, event: GroupEvent) -> None:
        consumer.machine.receive(event, self.now)
        consumer.machine.handle_timer(self.now)
        self.perform(consumer)

    def perform(self, consumer: Consumer) -> None:
        for effect in consumer.machine.effects():
            assert not consumer.is_stopped or isinstance(effect, AFTER_STOP)
            match effect:
                case TakeOver() | Release():
                    consumer.work = effect
                    if isinstance(effect, Release) and effect.is_lost:
                        consumer.consuming.clear()
                case ForgetCoordinator():
                    pass
                case _:
                    assert not isinstance(effect, SendHeartbeat) or not self.has_heartbeat(consumer)
                    self.letters.append(Letter(consumer, effect, self.now))

    def has_heartbeat(self, consumer: Consumer) -> bool:
        return any(
            one.sender is consumer
            and isinstance(one.effect, SendHeartbeat)
            and one.effect.identity == consumer.machine.identity
            for one in self.letters
        )

    def finish(self, consumer: Consumer) -> None:
        work, consumer.work = consumer.work, None
        if isinstance(work, TakeOver):
            consumer.consuming |= work.added
        else:
            consumer.consuming -= work.partitions
        if consumer.machine.awaits(work):
            self.tell(consumer, TakenOver() if isinstance(work, TakeOver) else Released())

    def deliver(self, letter: Letter) -> None:
        """A request has come to the coordinator, which may hold it."""
        letter.is_under_way = False
        match letter.effect:
            case SendJoin(member_id, ((_, subscription),)):
                self.coordinator.join(letter, member_id, subscription, self.now)
            case SendSync(identity, _, assignments):
                self.coordinator.sync(letter, identity.member_id, identity.generation, assignments, self.now)
            case SendHeartbeat(identity):
                self.coordinator.heartbeat(letter, identity.member_id, identity.generation, self.now)
            case SendLeave(identity):
                self.coordinator.leave(letter, identity.member_id, self.now)
            case FindPartitions(topics):
                letter.answer = PartitionsFound({topic: self.topics[topic] for topic in topics})
        self.collect()

    def collect(self) -> None:
        """The coordinator's answers are on their way."""
        for answer in self.coordinator.answers:
            answer.token.answer = event_for(answer)
        self.coordinator.answers.clear()

    def report(self, letter: Letter, event: GroupEvent) -> None:
        """As the coroutines do: only what is still waited for is told."""
        self.letters.remove(letter)
        machine = letter.sender.machine
        if isinstance(letter.effect, SendHeartbeat):
            if not machine.is_current(letter.effect.identity):
                return
            if not isinstance(event, HeartbeatAnswered | CoordinatorGone | NotNow | Failed):
                self.tell(letter.sender, HeartbeatAnswered())
        elif not machine.awaits(letter.effect):
            return
        elif isinstance(letter.effect, SendLeave):
            event = LeaveAnswered()
        self.tell(letter.sender, event)

    def pass_time(self, seconds: float) -> None:
        """Clocks go on, and whoever has something to do at a time does it."""
        until = self.now + seconds
        for _ in range(1_000):
            if (at := self.next_time()) is None or at > until:
                self.now = until
                return
            self.now = max(self.now, at)
            self.ring()
        raise AssertionError("somebody has something to do all the time, and never does it")

    def _stop(self, consumer: Consumer) -> None:
        consumer.is_stopped = True
        self.tell(consumer, Stop())

    def next_time(self) -> float | None:
        times = [one.machine.next_deadline() for one in self.consumers if not one.machine.is_over]
        times += [one.sent_at + one.effect.timeout_s for one in self.heartbeats()]
        times.append(self.coordinator.next_expiry())
        return min((at for at in times if at is not None), default=None)

    def ring(self) -> None:
        """Members look at their clocks when they said they would; the coordinator expires nobody before that."""
        for letter in list(self.heartbeats()):
            if self.now >= letter.sent_at + letter.effect.timeout_s:
                self.report(letter, LOST)
        for consumer in self.consumers:
            if not consumer.machine.is_over:
                consumer.machine.handle_timer(self.now)
                self.perform(consumer)
        self.coordinator.expire(self.now)
        self.collect()

    def heartbeats(self) -> Iterator[Letter]:
        return (one for one in self.letters if isinstance(one.effect, SendHeartbeat))


def event_for(answer: Answer) -> GroupEvent:
    """What an answer means to the one who asked."""
    effect = answer.token.effect
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        return MemberIdGiven(answer.member_id)
    if answer.error_code:
        return event_of(answer.error_code, ASKED[type(effect)])
    if isinstance(effect, SendJoin):
        if answer.members is None:
            return JoinedAsFollower(answer.member_id, answer.generation, "range")
        return JoinedAsLeader(answer.member_id, answer.generation, "range", answer.members, {})
    if isinstance(effect, SendSync):
        return Synced(answer.assignment)
    return HeartbeatAnswered()
