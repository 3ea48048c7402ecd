"""Invariants of a whole classic group under lost messages, delays and failures of its members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.consumer.group.classic import ClassicState
from tailrace.consumer.group.group_machine import Release, SendHeartbeat, TakeOver
from tailrace.records import TopicPartition
from tests.support.simulation.classic_group import LOST, Consumer, Letter, World
from tests.support.simulation.driven_machine import Pick, RandomSteps

Offers = Sequence[tuple[str, ...]]

SESSION_S, INTERVAL_S = 10.0, 3.0
AT_ONCE, IN_ALL = 3, 6
"""Limits of members, so that runs go deep rather than wide."""
ROUNDS = 4
"""Generations after which an undisturbed group is at rest, from any state."""
SUBSCRIPTIONS = (frozenset("t"), frozenset("tu"))
INSTANCES = {"a", "b", "c"}

KINDS: dict[str, Offers] = {
    "eager": [("range",)],
    "cooperative": [("cooperative-sticky",)],
    "not yet cooperative": [("cooperative-sticky", "range"), ("range",)],
    "cooperative at last": [("cooperative-sticky",), ("cooperative-sticky", "range")],
}
"""Strategies offered by the members, one entry each; the last two are steps of a migration of a running group."""


class Life(RandomSteps):
    """Simulation of a group in a network that loses and delays messages; ``pick`` chooses the next step."""

    def __init__(self, pick: Pick, offers: Offers) -> None:
        super().__init__(pick)
        self.offers = offers
        self.world = World({"t": 3, "u": 2}, SESSION_S, INTERVAL_S)
        self.start()

    # ---- steps -------------------------------------------------------------------------------------------------

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """Return the possible steps, and whether each is allowed now."""
        # Most steps succeed, or no member would ever own anything.
        yield from ((self.go_on, True) for _ in range(6))
        yield self.time_passes, True
        yield self.pass_request, bool(self.under_way)
        yield self.lose_request, bool(self.under_way)
        yield self.break_connection, bool(self.held)
        yield self.delay, bool(self.world.letters)
        yield self.pass_answer, bool(self.answered)
        yield self.lose_answer, bool(self.answered)
        yield self.finish_work, bool(self.busy)
        yield self.fail_work, bool(self.busy)
        yield self.cut_off, bool(self.running)
        yield self.slow_down, bool(self.running)
        yield self.start, self.may_start
        yield self.stop, bool(self.running)
        yield self.die, bool(self.running)
        yield self.stall, bool(self.running)
        yield self.resume, bool(self.running)
        yield self.resubscribe, bool(self.running)
        yield self.grow, self.world.topics["t"] < 5
        yield self.world.move, True

    @property
    def may_start(self) -> bool:
        return len(self.running) < AT_ONCE and len(self.world.consumers) < IN_ALL

    def start(self) -> None:
        """Start another member."""
        self.world.start(self.pick(SUBSCRIPTIONS), self.pick(self.offers))

    def stop(self) -> None:
        """Stop a member."""
        self.world.stop(self.pick(self.running))

    def die(self) -> None:
        """Kill a member."""
        self.world.kill(self.pick(self.running))

    def stall(self) -> None:
        """Let the application of a member stop polling."""
        self.world.stall(self.pick(self.running))

    def resume(self) -> None:
        """Let the application of a member poll again."""
        self.world.resume(self.pick(self.running))

    def resubscribe(self) -> None:
        """Change a member's subscription, or repeat it."""
        self.world.resubscribe(self.pick(self.running), self.pick(SUBSCRIPTIONS))

    def grow(self) -> None:
        """Add a partition to a topic and refresh all metadata."""
        self.world.topics["t"] += 1
        self.world.refresh()

    def pass_request(self) -> None:
        """Deliver a request."""
        self.world.deliver(self.pick(self.under_way))

    def lose_request(self) -> None:
        """Lose a request."""
        self.world.report(self.pick(self.under_way), LOST)

    def break_connection(self) -> None:
        """Break the connection while a request is held; its answer is lost."""
        self.world.report(self.pick(self.held), LOST)

    def pass_answer(self) -> None:
        """Deliver an answer."""
        letter = self.pick(self.answered)
        self.world.report(letter, letter.answer)

    def lose_answer(self) -> None:
        """Lose an answer."""
        self.world.report(self.pick(self.answered), LOST)

    def delay(self) -> None:
        """Delay a request or its answer."""
        self.pick(list(self.world.letters)).is_late = True

    def finish_work(self) -> None:
        """Complete a takeover or a release."""
        self.world.finish(self.pick(self.busy))

    def fail_work(self) -> None:
        """Let a callback of the user raise."""
        self.world.fail(self.pick(self.busy))

    def cut_off(self) -> None:
        """Cut a member off from the network, or reconnect it."""
        consumer = self.pick(self.running)
        consumer.is_cut_off = not consumer.is_cut_off

    def slow_down(self) -> None:
        """Make the callbacks of a member slow, or fast again."""
        consumer = self.pick(self.running)
        consumer.is_slow = not consumer.is_slow

    def time_passes(self) -> None:
        """Let time pass without any other step."""
        self.pass_time(self.pick((0.1, 1.0, 3.0, 11.0)))

    def go_on(self) -> None:
        """Let everything succeed for a while, except for members that are cut off."""
        for _ in range(self.pick((1, 2, 4, 8, 16))):
            self.turn()

    def turn(self) -> None:
        """Let all members commit, and deliver all messages."""
        for consumer in self.running:
            if consumer.consuming:
                self.world.commit(consumer)
        for letter in self.under_way:
            if letter in self.world.letters and not letter.is_late and not letter.sender.is_cut_off:
                self.world.deliver(letter)
        for letter in self.answered:
            if letter in self.world.letters and not letter.is_late:
                self.world.report(letter, letter.answer)
        for consumer in self.busy:
            if not consumer.is_slow:
                self.world.finish(consumer)
        self.pass_time(1.0)
        self.check()

    # ---- invariants --------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check the invariants, also for members with nothing to do."""
        for consumer in self.world.consumers:
            if not consumer.is_dead:
                self.world.check(consumer)

    def check_rest(self) -> None:
        """Check that all members are in one generation and stable, and each partition has one subscribed owner."""
        wanted = {topic for one in self.running for topic in one.topics}
        assert {one.machine.state for one in self.running} <= {ClassicState.STABLE}
        assert len({one.machine.identity.generation for one in self.running}) <= 1
        reading = Counter(partition for one in self.running for partition in one.consuming)
        assert reading == Counter(TopicPartition(t, n) for t in wanted for n in range(self.world.topics[t]))
        assert all(partition.topic in one.topics for one in self.running for partition in one.consuming)
        dealt = self.world.coordinator.assignments
        for one in self.running:
            shares = dealt[one.machine.identity.member_id].assigned_partitions
            assert one.consuming == {TopicPartition(of.topic, number) for of in shares for number in of.partitions}

        joins = self.world.joins
        self.go_on_for(2 * SESSION_S)
        assert self.world.joins == joins

    def end(self) -> None:
        """Check that without further faults the group comes to rest, and that every stop ends."""
        assert self.come_to_rest() <= ROUNDS
        self.check_rest()

        for consumer in self.running:
            self.world.stop(consumer)
        self.come_to_rest()
        assert {one.machine.state for one in self.world.consumers if not one.is_dead} <= {
            ClassicState.LEFT,
            ClassicState.FAILED,
        }
        assert self.world.coordinator.members == {}
        assert not any(one.consuming or one.work for one in self.world.consumers)

    def come_to_rest(self) -> int:
        """Let time pass without faults; return the number of generations until the group is at rest."""
        before = self.world.coordinator.generation
        self.end_faults()
        for _ in range(2):
            self.world.refresh()
            self.go_on_for(20.0)
        return self.world.coordinator.generation - before

    def end_faults(self) -> None:
        """Let all members be connected and fast again."""
        for consumer in self.world.consumers:
            consumer.is_cut_off = consumer.is_slow = False
            self.world.resume(consumer)
        for letter in self.world.letters:
            letter.is_late = False

    def go_on_for(self, seconds: float) -> None:
        """Let everything succeed for some time."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.turn()

    @property
    def is_over(self) -> bool:
        """Return True if all members have ended and own nothing."""
        return not self.world.owner_of and all(one.is_dead or one.machine.is_over for one in self.world.consumers)

    # ---- internals ---------------------------------------------------------------------------------------------

    @property
    def running(self) -> list[Consumer]:
        return self.world.running

    @property
    def under_way(self) -> list[Letter]:
        return [one for one in self.world.letters if one.is_under_way]

    @property
    def held(self) -> list[Letter]:
        return [one for one in self.world.letters if not one.is_under_way and one.answer is None]

    @property
    def answered(self) -> list[Letter]:
        return [one for one in self.world.letters if one.answer is not None]

    @property
    def busy(self) -> list[Consumer]:
        return [one for one in self.world.consumers if one.work is not None]

    @property
    def heartbeats(self) -> list[Letter]:
        return [one for one in self.world.letters if isinstance(one.effect, SendHeartbeat)]

    def pass_time(self, seconds: float) -> None:
        """Advance the clock and call the timers that are due."""
        until = self.world.now + seconds
        for _ in range(1_000):
            if (at := self.next_time()) is None or at > until:
                self.world.now = until
                return
            self.world.now = max(self.world.now, at)
            self.ring()
        raise AssertionError("somebody has something to do all the time, and never does it")

    def next_time(self) -> float | None:
        alive = [one for one in self.world.consumers if not one.is_dead and not one.machine.is_over]
        times = [one.machine.next_deadline() for one in alive]
        times += [one.sent_at + one.effect.timeout_s for one in self.heartbeats]
        times.append(self.world.coordinator.next_expiry())
        return min((at for at in times if at is not None), default=None)

    def ring(self) -> None:
        """Call members' timers at their deadlines; the coordinator expires no member before."""
        for letter in self.heartbeats:
            if self.world.now >= letter.sent_at + letter.effect.timeout_s:
                self.world.report(letter, LOST)
        for consumer in self.world.consumers:
            if not consumer.machine.is_over:
                self.world.look_at_clock(consumer)
        self.world.expire()


class StaticLife(Life):
    """Simulation of a group of static members (KIP-345), which stop without a leave, are killed, and come back."""

    def start(self) -> None:
        """Start a member whose former process has ended, perhaps with other topics than before."""
        self.start_again(self.pick(sorted(self.free_instances)), self.pick(SUBSCRIPTIONS))

    def acts(self) -> Iterator[tuple[Callable[[], None], bool]]:
        """Return the possible steps: mostly restarts, so that they hit every phase of a rebalance."""
        yield from ((self.go_on, True) for _ in range(2))
        yield from ((self.turn, True) for _ in range(4))
        yield from ((self.start, self.may_start) for _ in range(4))
        yield from ((self.restart, bool(self.running)) for _ in range(3))
        yield self.stop, bool(self.running)
        yield self.die, bool(self.running)
        yield self.slow_down, bool(self.running)
        yield self.finish_work, bool(self.busy)
        yield self.lose_answer, bool(self.answered)
        yield self.resubscribe, bool(self.running)
        yield self.grow, self.world.topics["t"] < 5
        yield self.world.move, True

    def restart(self) -> None:
        """Kill a member, and start it again at once with the same topics."""
        former = self.pick(self.running)
        self.world.kill(former)
        self.start_again(former.instance_id, former.topics)

    def start_again(self, instance_id: str, topics: frozenset[str]) -> None:
        """Start a member whose former process has ended."""
        # The connections of the former process are closed.
        for letter in [one for one in self.world.letters if one.sender.instance_id == instance_id]:
            del self.world.letters[letter]
        self.world.start(topics, self.pick(self.offers), instance_id)

    @property
    def may_start(self) -> bool:
        return bool(self.free_instances)

    @property
    def free_instances(self) -> set[str]:
        alive = (one for one in self.world.consumers if not one.is_dead and not one.machine.is_over)
        return INSTANCES - {one.instance_id for one in alive}

    def check_rest(self) -> None:
        """Check in addition that no member reports a fault."""
        super().check_rest()
        assert {one.fault for one in self.running} == {""}

    def end(self) -> None:
        """Check that partitions have owners a heartbeat interval after the group is stable, and no fault is left."""
        self.end_faults()
        while len(self.running) < AT_ONCE:
            if self.free_instances:
                self.start()
            self.turn()
        unowned_since = None
        for _ in range(60):
            self.turn()
            wanted = {topic for one in self.running for topic in one.topics}
            everything = {TopicPartition(t, n) for t in wanted for n in range(self.world.topics[t])}
            is_stable = {one.machine.state for one in self.running} == {ClassicState.STABLE}
            if is_stable and self.world.coordinator.phase == "stable" and everything - self.world.owner_of.keys():
                unowned_since = self.world.now if unowned_since is None else unowned_since
                assert self.world.now - unowned_since <= INTERVAL_S
            else:
                unowned_since = None
        super().end()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_of_restarts_leaves_a_partition_without_owner(seed, kind):
    """Static members restart at any time, with other topics, and every partition has an owner soon after."""
    for number in range(20):
        life = StaticLife(Random(seed * 1_000 + number).choice, KINDS[kind])
        for _ in range(50):
            life.step()
        life.end()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_no_schedule_of_restarts_leaves_a_partition_without_owner_stepwise(kind, data):
    """The same holds in the steps that Hypothesis chooses, which it reduces to few for a failure."""
    life = StaticLife(lambda choices: data.draw(st.sampled_from(choices)), KINDS[kind])
    for _ in range(data.draw(st.integers(0, 30))):
        life.step()
    life.end()


@pytest.mark.parametrize("drains", ["leader", "follower", "follower of another client"])
@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_drain_that_a_restart_interrupts_is_completed(ends, drains):
    """A static member restarts while it drains revoked partitions: they have an owner within a heartbeat interval."""
    world = World({"t": 4, "u": 0}, SESSION_S, INTERVAL_S)
    life = StaticLife(lambda choices: choices[0], KINDS["cooperative"])
    life.world = world
    owner = world.start(frozenset("t"), ("cooperative-sticky",), "a")
    other = world.start(frozenset("u"), ("cooperative-sticky",), "b") if drains != "leader" else None
    life.go_on_for(10.0)
    if other is not None and drains != "leader":
        # The other member leads the next generation, because the owner was absent when the group began it.
        world.stop(owner)
        life.go_on_for(2 * SESSION_S)
        owner = world.start(frozenset("t"), ("cooperative-sticky",), "a")
        owner.is_foreign = drains == "follower of another client"
        life.go_on_for(10.0)
    assert (world.coordinator.leader == owner.machine.identity.member_id) is (drains == "leader")
    assert len(owner.consuming) == 4

    owner.is_slow = True
    world.start(frozenset("t"), ("cooperative-sticky",), "c")
    life.go_on_for(8.0)
    assert len(owner.work.partitions) == 2
    world.kill(owner) if ends == "kill" else world.stop(owner)
    if ends == "stop":
        world.finish(owner)
    world.letters = {one: None for one in world.letters if one.sender is not owner}
    again = world.start(frozenset("t"), ("cooperative-sticky",), "a")
    again.is_foreign = owner.is_foreign
    life.go_on_for(2 * INTERVAL_S + 3.0)

    assert len(world.owner_of) == 4
    assert not any(one.fault for one in world.running)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_group_keeps_its_invariants(seed, kind):
    """No partition has two owners, every join ends, and a stopped member only releases and leaves."""
    # More can go wrong while partitions are kept.
    for number in range(20 if ("cooperative-sticky",) in KINDS[kind] else 8):
        life = Life(Random(seed * 1_000 + number).choice, KINDS[kind])
        for _ in range(50):
            life.step()
        life.end()

        assert life.is_over


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_group_keeps_its_invariants_stepwise(kind, data):
    """The same invariants hold in the steps that Hypothesis chooses, which it reduces to few for a failure."""
    life = Life(lambda choices: data.draw(st.sampled_from(choices)), KINDS[kind])
    for _ in range(data.draw(st.integers(0, 30))):
        life.step()
    life.end()

    assert life.is_over


@pytest.mark.parametrize("seed", range(5))
def test_kept_partitions_are_read_throughout_a_rebalance(seed):
    """After one cause, a cooperative group is at rest within two generations, and each moved partition moves once."""
    life = Life(Random(seed).choice, KINDS["cooperative"])
    life.world.topics |= {"t": 7, "u": 4}
    for _ in range(12):
        while len(life.running) < 2:
            life.start()
        life.come_to_rest()
        before, works = dict(life.world.owner_of), []
        life.world.on_work = lambda one, works=works: works.append((one, one.work))

        life.pick([life.start, life.stop, life.die, life.resubscribe, life.grow])()
        assert life.come_to_rest() <= 2

        life.check_rest()
        after = life.world.owner_of
        moved = {one for one in before | after if before.get(one) is not after.get(one)}
        assert Counter(one for _, work in works if isinstance(work, TakeOver) for one in work.added) == Counter(
            moved & after.keys()
        )
        given = [(work.is_lost, one) for _, work in works if isinstance(work, Release) for one in work.partitions]
        assert {one for _, one in given} <= moved
        assert not any(is_lost for is_lost, _ in given)
        assert len(given) == len(set(given))


@pytest.mark.parametrize("steps", range(0, 40, 2))
def test_stop_during_a_rebalance_leaves_nothing_uncommitted(steps):
    """A member that stops during a rebalance commits all finished records, if the rebalance ends in time."""
    life = Life(lambda choices: choices[0], KINDS["cooperative"])
    life.come_to_rest()
    (one,) = life.running
    codes, coordinator = [], life.world.coordinator

    def commit(consumer: Consumer) -> None:
        if consumer is one and isinstance(one.work, Release):
            me = one.machine.identity
            coordinator.commit(None, me.member_id, me.generation, life.world.now)
            codes.append(coordinator.answers.pop().error_code)

    life.start()
    for _ in range(steps):
        if life.answered:
            life.world.report(life.answered[0], life.answered[0].answer)
        elif life.under_way:
            life.world.deliver(life.under_way[0])
        elif life.busy:
            life.world.finish(life.busy[0])
        else:
            life.pass_time(1.0)
    life.world.on_work = commit
    life.world.stop(one)
    life.go_on_for(SESSION_S)

    assert one.machine.is_over
    assert codes == [0]
