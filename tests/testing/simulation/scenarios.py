"""Runs of real consumers against simulated brokers, with faults from a seed, judged by the oracle."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import random
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import structlog

from tailrace import App, Consumer, Record
from tailrace.errors import TailraceError
from tailrace.testing.simulation import Process, SimulatedCluster, SimulatedLoop, simulated
from tailrace.testing.simulation.network import FAST
from tests.testing.simulation.oracle import Ledger, Place, Violation

__all__ = ["SCENARIOS", "Fault", "Outcome", "faults_of", "run", "shrunk"]

TOPIC, GROUP = "orders", "billing"
PARTITIONS = 6
SETTLING_S = 60.0
"""Virtual time in seconds after the last fault in which all records must be handled."""


# ---- faults ------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """Fault at a time, for a duration."""

    at_s: float
    kind: str
    subject: int
    """Number of the broker, partition or member."""
    duration_s: float

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.kind} {self.subject} for {self.duration_s:.1f} s"


HARMLESS = {"join member", "add partitions", "move leader"}
"""Kinds after which no record may be repeated."""


def faults_of(seed: int, duration_s: float, brokers: int, members: int) -> list[Fault]:
    """Return the faults of a seed; each seed uses only some kinds, so that rare combinations occur (swarm testing)."""
    chance = random.Random(f"{seed} faults")
    kinds = [one for one in KINDS if chance.random() < 0.4]
    pause_s = chance.choice([5.0, 15.0, 40.0])
    found: list[Fault] = []
    at = 3.0
    while kinds and (at := at + chance.expovariate(1 / pause_s)) < duration_s:
        kind = chance.choice(kinds)
        subject = chance.randrange(brokers) + 1 if "broker" in kind else chance.randrange(max(members, PARTITIONS))
        found.append(
            Fault(round(at, 3), kind, subject, round(chance.choice([0.3, 2.0, 8.0, 25.0]) * chance.random(), 3))
        )
    return found


# ---- members -----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """Surroundings of a scenario.

    Attributes:
        members: processes of members that were not ended on purpose.
    """

    loop: SimulatedLoop
    cluster: SimulatedCluster
    ledger: Ledger
    chance: random.Random
    member: Callable[[World, str, asyncio.Event], Awaitable[None]]
    options: Mapping[str, Any]
    members: list[tuple[str, Process, asyncio.Event]] = field(default_factory=list)
    started: int = 0
    trace: Any = field(default_factory=hashlib.sha256)

    @property
    def now(self) -> float:
        return self.loop.time()

    def member_of(self, fault: Fault) -> tuple[str, Process, asyncio.Event]:
        """Return the member that a fault concerns."""
        return self.members[fault.subject % len(self.members)]

    def add_member(self) -> None:
        """Start a member in a process of its own."""
        self.started += 1
        name, stop = f"member-{self.started}", asyncio.Event()
        process = self.cluster.process(name)
        self.members.append((name, process, stop))
        process.start(self._run_member(name, stop))

    async def _run_member(self, name: str, stop: asyncio.Event) -> None:
        try:
            await self.member(self, name, stop)
        except TailraceError as error:
            if not stop.is_set():
                self.ledger.failed("E", self.now, f"{name} ended with {type(error).__name__}: {error}")

    def note(self, *what: object) -> None:
        """Add to the trace, by which two runs of a seed are compared."""
        self.trace.update(repr((round(self.now, 6), *what)).encode())

    def note_commit(self, _group: str, topic: str, partition: int, offset: int) -> None:
        """Note a commit that the coordinator has stored."""
        self.note("commit", topic, partition, offset)
        self.ledger.committed((topic, partition), offset, self.now)

    async def settle(self) -> None:
        """Wait until all records are handled, for a limited time."""
        healed = self.now
        while True:
            if not self.ledger.unfinished() or self.now >= healed + SETTLING_S:
                return
            await asyncio.sleep(0.5)

    def start(self, member: str, record: Record[Any, Any], lane: object = None) -> None:
        """Note that a member has got a record."""
        place = (record.topic, record.partition)
        self.note("start", member, place, record.offset)
        self.ledger.started(member, place, record.offset, self.now, lane)

    async def work(self) -> None:
        """Take the time of a handler."""
        if (pause_s := self.chance.choice([0, 0, 0, 0.001, 0.02, 0.2])) > 0:
            await asyncio.sleep(pause_s)

    def check_end(self, what: str, began: float) -> None:
        """Note an end that took too long."""
        if self.now - began > SETTLING_S:
            self.ledger.failed("T", self.now, f"{what} took {self.now - began:.1f} s")

    def listener(self, member: str) -> _Listener:
        """Return the rebalance listener of a member."""
        return _Listener(self.ledger, member)


class _Listener:
    def __init__(self, ledger: Ledger, member: str) -> None:
        self._ledger, self._member = ledger, member

    async def on_partitions_assigned(self, partitions: Sequence[Any]) -> None:
        self._ledger.assigned(self._member, map(tuple, partitions))

    async def on_partitions_revoked(self, partitions: Sequence[Any]) -> None:
        self._ledger.released(self._member, map(tuple, partitions))

    async def on_partitions_lost(self, partitions: Sequence[Any]) -> None:
        self._ledger.released(self._member, map(tuple, partitions))


def _options(world: World, member: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": world.cluster.bootstrap_servers,
        "group_id": GROUP,
        "client_id": member,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 1_000,
        "metadata_max_age_ms": 10_000,
        **world.options,
    }


_CLASSIC = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 1_000}
_KIP_848 = {"group_protocol": "consumer"}


async def iterating(world: World, member: str, stop: asyncio.Event) -> None:
    """Read with ``async for``: a record is finished when the next is requested."""
    consumer = Consumer(TOPIC, rebalance_listener=world.listener(member), **_options(world, member))
    async with _stopping(world, consumer, stop):
        last: Record[Any, Any] | None = None
        reading = aiter(consumer)
        while not stop.is_set():
            if last is not None:
                world.ledger.finished((last.topic, last.partition), last.offset)
            try:
                last = await anext(reading)
            except StopAsyncIteration:
                return
            world.start(member, last)
            await world.work()


async def acknowledging(world: World, member: str, stop: asyncio.Event) -> None:
    """Read with ``ack="manual"``: a few records are handled at once, and finished in any order."""
    limit = asyncio.Semaphore(4)
    consumer = Consumer(TOPIC, rebalance_listener=world.listener(member), ack="manual", **_options(world, member))

    async def work(record: Record[Any, Any]) -> None:
        try:
            await world.work()
            world.ledger.finished((record.topic, record.partition), record.offset)
            consumer.ack(record)
        finally:
            limit.release()

    async with _stopping(world, consumer, stop), asyncio.TaskGroup() as tasks:
        async for record in consumer:
            world.start(member, record)
            await limit.acquire()
            tasks.create_task(work(record))


def app_by(order: Literal["key", "partition"]) -> Callable[[World, str, asyncio.Event], Awaitable[None]]:
    """Return a member that is an app, whose handler keeps the order of each key or partition."""

    async def run_app(world: World, member: str, stop: asyncio.Event) -> None:
        app = App(**{**_options(world, member), "rebalance_listener": world.listener(member)})

        @app.handler(TOPIC, order_by=order)
        async def handle(record: Record) -> None:
            world.start(member, record, record.key if order == "key" else None)
            await world.work()
            world.ledger.finished((record.topic, record.partition), record.offset)

        async with app:
            await stop.wait()
            began = world.now
        world.check_end("the app's stop", began)

    return run_app


class _stopping:  # noqa: N801 - a context manager
    """Context of a consumer that stops when the member is to quit."""

    def __init__(self, world: World, consumer: Consumer[Any, Any], stop: asyncio.Event) -> None:
        self._world, self._consumer, self._stop = world, consumer, stop
        self._waiter: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Consumer[Any, Any]:
        await self._consumer.start()
        self._waiter = asyncio.create_task(self._end())
        return self._consumer

    async def _end(self) -> None:
        await self._stop.wait()
        began = self._world.now
        await self._consumer.stop()
        self._world.check_end("stop()", began)

    async def __aexit__(self, *_error: object) -> None:
        assert self._waiter is not None
        self._stop.set()
        await self._waiter


SCENARIOS: dict[str, Callable[[World, str, asyncio.Event], Awaitable[None]]] = {
    "iterate": iterating,
    "acknowledge": acknowledging,
    "by key": app_by("key"),
    "by partition": app_by("partition"),
    "iterate, KIP-848": iterating,
    "by key, KIP-848": app_by("key"),
}


# ---- run ---------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Result of a run."""

    seed: int
    scenario: str
    violations: Sequence[Violation]
    faults: Sequence[Fault]
    records: int
    repeats: int
    trace: str
    """Hash of all that the members did, with its times."""


def run(
    seed: int,
    scenario: str = "iterate",
    *,
    duration_s: float = 120.0,
    faults: Sequence[Fault] | None = None,
    members: int = 3,
    rate: float = 10.0,
) -> Outcome:
    """Run a scenario with a seed and judge it."""
    chosen = faults_of(seed, duration_s, 3, members) if faults is None else list(faults)
    with _silence(), simulated(seed) as loop:
        cluster = SimulatedCluster(loop, 3, seed=seed)
        chance = random.Random(f"{seed} members")
        options = _KIP_848 if scenario.endswith("KIP-848") else _CLASSIC
        world = World(loop, cluster, Ledger(), chance, SCENARIOS[scenario], options)
        records = loop.run_until_complete(_play(world, chosen, duration_s, members, rate))
    ledger = world.ledger
    return Outcome(seed, scenario, ledger.violations, chosen, records, ledger.repeats, world.trace.hexdigest())


@contextmanager
def _silence() -> Iterator[None]:
    """Drop log lines, and warnings about consumers of killed processes, which were never stopped."""
    kept = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[_drop])
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        logging.disable(level)
        structlog.configure(**kept)


def _drop(_logger: object, _name: str, _event: object) -> Any:
    raise structlog.DropEvent


async def _play(world: World, faults: Sequence[Fault], duration_s: float, members: int, rate: float) -> int:
    cluster, ledger, began = world.cluster, world.ledger, world.now
    cluster.state.create_topic(TOPIC, PARTITIONS)
    cluster.state.on_commit = world.note_commit
    cluster.state.group_session_s, cluster.state.group_heartbeat_ms = 10.0, 1_000
    for _ in range(members):
        world.add_member()
    producing = asyncio.create_task(_produce(world, began + duration_s, rate))
    async with asyncio.TaskGroup() as tasks:
        for fault in faults:
            await asyncio.sleep(began + fault.at_s - world.now)
            tasks.create_task(_induce(world, fault))
    cluster.network.heal()
    count = await producing
    await world.settle()
    ledger.judge_end(world.now)
    for _, _, stop in world.members:
        stop.set()
    tasks_left = [task for _, process, _ in world.members for task in process.tasks]
    if tasks_left:
        _, late = await asyncio.wait(tasks_left, timeout=2 * SETTLING_S)
        for task in late:
            ledger.failed("T", world.now, f"a member has not ended: {task.get_coro()}")
    return count


async def _produce(world: World, until: float, rate: float) -> int:
    count = 0
    while world.now < until:
        partitions = len(world.cluster.state.topics[TOPIC].partitions)
        partition = world.chance.randrange(partitions)
        log = world.cluster.state.topics[TOPIC].partitions[partition]
        if log.leader in world.cluster.state.alive:
            values = [b"%d" % n for n in range(world.chance.choice([1, 1, 1, 2, 20]))]
            base = world.cluster.produce(TOPIC, partition, *values, key=b"%d" % world.chance.randrange(8))
            _note_acked(world, (TOPIC, partition), base, len(values))
            count += len(values)
        await asyncio.sleep(world.chance.expovariate(rate))
    return count


def _note_acked(world: World, place: Place, base: int, count: int) -> None:
    world.ledger.acked(place, range(base, base + count))
    log = world.cluster.state.topics[place[0]].partitions[place[1]]
    # Producers count a record as stored when all replicas have it, and send it again otherwise.
    log.high_watermark = log.end


async def _induce(world: World, fault: Fault) -> None:
    """Let a fault begin, last and end."""
    if fault.kind not in HARMLESS:
        world.ledger.faults.append(world.now)
    world.note("fault", fault)
    await KINDS[fault.kind](world, fault)
    if fault.kind not in HARMLESS:
        world.ledger.faults.append(world.now)


async def _kill_broker(world: World, fault: Fault) -> None:
    alive = world.cluster.state.alive
    if len(alive) > 1 and fault.subject in alive:
        world.cluster.kill(fault.subject)
        await asyncio.sleep(3 + fault.duration_s)
        world.cluster.restart(fault.subject)


async def _freeze_broker(world: World, fault: Fault) -> None:
    if not world.cluster.is_broker_frozen(fault.subject):
        world.cluster.freeze(fault.subject)
        await asyncio.sleep(fault.duration_s)
        world.cluster.thaw(fault.subject)


async def _move_leader(world: World, fault: Fault) -> None:
    world.cluster.move_leader(TOPIC, fault.subject % PARTITIONS)


async def _lose_records(world: World, fault: Fault) -> None:
    place = (TOPIC, fault.subject % PARTITIONS)
    log = world.cluster.state.topics[TOPIC].partitions[place[1]]
    bases = [one.base for one in log.batches[-3:]]
    if bases:
        world.cluster.move_leader(*place, lost=log.end - world.chance.choice(bases))
        world.ledger.lost(place, log.end, world.now)


async def _move_coordinator(world: World, _fault: Fault) -> None:
    world.cluster.move_coordinator(GROUP)


async def _reset_broker(world: World, fault: Fault) -> None:
    world.cluster.network.reset(f"broker-{fault.subject}")


async def _reset_member(world: World, fault: Fault) -> None:
    world.cluster.network.reset(world.member_of(fault)[0])


async def _mute_broker(world: World, fault: Fault) -> None:
    world.cluster.network.cut(f"broker-{fault.subject}", world.member_of(fault)[0], one_way=True)
    await asyncio.sleep(fault.duration_s)
    world.cluster.network.heal()


async def _cut_member(world: World, fault: Fault) -> None:
    name, network = world.member_of(fault)[0], world.cluster.network
    for broker in world.cluster.state.addresses:
        network.cut(name, f"broker-{broker}")
    await asyncio.sleep(fault.duration_s)
    network.heal()


async def _kill_member(world: World, fault: Fault) -> None:
    killed = world.member_of(fault)
    killed[1].kill()
    world.cluster.network.reset(killed[0])
    world.members.remove(killed)
    world.add_member()


async def _freeze_member(world: World, fault: Fault) -> None:
    _, process, _ = world.member_of(fault)
    if not process.is_frozen:
        process.freeze()
        await asyncio.sleep(fault.duration_s)
        process.thaw()


async def _quit_member(world: World, fault: Fault) -> None:
    quitting = world.member_of(fault)
    world.members.remove(quitting)
    quitting[2].set()
    world.add_member()


async def _join_member(world: World, _fault: Fault) -> None:
    if len(world.members) < PARTITIONS:
        world.add_member()


async def _slow_network(world: World, fault: Fault) -> None:
    network = world.cluster.network
    network.latency = (0.01, 0.5)
    await asyncio.sleep(fault.duration_s)
    network.latency = FAST


async def _add_partitions(world: World, _fault: Fault) -> None:
    count = len(world.cluster.state.topics[TOPIC].partitions)
    if count < 2 * PARTITIONS:
        world.cluster.state.add_partitions(TOPIC, count + 1)


KINDS: dict[str, Callable[[World, Fault], Awaitable[None]]] = {
    "kill broker": _kill_broker,
    "freeze broker": _freeze_broker,
    "move leader": _move_leader,
    "lose records": _lose_records,
    "reset broker": _reset_broker,
    "reset member": _reset_member,
    "cut member": _cut_member,
    "mute broker": _mute_broker,
    "kill member": _kill_member,
    "freeze member": _freeze_member,
    "quit member": _quit_member,
    "join member": _join_member,
    "slow network": _slow_network,
    "add partitions": _add_partitions,
    "move coordinator": _move_coordinator,
}
"""Kinds of faults, and what induces them."""


def shrunk(outcome: Outcome, promise: str, **options: Any) -> Outcome:
    """Leave out faults as long as the promise is still broken, and return the smallest run."""
    faults = list(outcome.faults)
    smallest = outcome
    index = 0
    while index < len(faults):
        fewer = faults[:index] + faults[index + 1 :]
        tried = run(outcome.seed, outcome.scenario, faults=fewer, **options)
        if any(one.promise == promise for one in tried.violations):
            faults, smallest = fewer, tried
        else:
            index += 1
    return smallest
