"""Two chained apps that are killed at random: each record reaches the last topic once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import uuid
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests.support.admin_tools import CONSOLE_CONSUMER, KafkaTool
from tests.support.commands import environment
from tests.support.committed_records import CommittedRecords
from tests.support.pipelines import direct, offsets_now
from tests.support.witness import Witness

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("eos_chain_program.py")
PARTITIONS, KEYS = 4, 100


@pytest.fixture
def server(own_server):
    # The next producer with the same name aborts an open transaction; without one, the broker soon does.
    return direct(own_server)


class Link:
    """App of the chain, in a process that can be killed, frozen and restarted."""

    def __init__(self, server, source: str, target: str, **options: object) -> None:
        self.group, self.target = f"g-{uuid.uuid4().hex[:8]}", target
        self._arguments = [source, target]
        self._options = {
            "bootstrap_servers": server.bootstrap_servers,
            "group_id": self.group,
            "fetch_max_wait_ms": 50,
            "transaction_timeout_ms": 5_000,
            **options,
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROGRAM,
            *self._arguments,
            json.dumps(self._options),
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
        )

    async def running(self) -> None:
        """Wait until the process handles signals."""
        assert self._process is not None
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"running\n"

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def kill_and_start(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()
        await self.start()


async def fill(ledger: CommittedRecords, topic: str, count: int) -> None:
    """Produce ``count`` numbered records of several keys."""
    numbers = range(count)
    witness = Witness(ledger.server.bootstrap_servers)
    await asyncio.to_thread(
        witness.produce, topic, (b"%d" % n for n in numbers), keys=(b"k%d" % (n % KEYS) for n in numbers)
    )


async def until_there(ledger: CommittedRecords, topic: str, count: int, timeout_s: float = 100) -> None:
    """Wait until the last stable offsets of a topic add up to ``count``, markers included."""
    async with asyncio.timeout(timeout_s):
        while True:
            # A broker that has just started may have elected no leaders yet.
            with contextlib.suppress(KafkaException):
                if sum([await ledger.stable_end(topic, one) for one in range(PARTITIONS)]) >= count:
                    return
            await asyncio.sleep(0.05)


async def until_through(ledger: CommittedRecords, link: Link, source: str, timeout_s: float = 100) -> None:
    """Wait until the link has committed all records of its source topic."""
    async with asyncio.timeout(timeout_s):
        ends = {one: await ledger.stable_end(source, one) for one in range(PARTITIONS)}
        while True:
            at = await offsets_now(ledger, link.group, source, PARTITIONS)
            # After the last record there is at most the marker of its transaction.
            if all(ends[one] - at.get(one, 0) <= 1 for one in ends):
                return
            await asyncio.sleep(0.05)


async def until_owned(ledger: CommittedRecords, group: str, partitions: int) -> None:
    """Wait until one member owns all partitions."""
    witness = Witness(ledger.server.bootstrap_servers)
    async with asyncio.timeout(30):
        while True:
            members = await witness.members(group)
            if len(members) == 1 and len(*members.values()) == partitions:
                return
            await asyncio.sleep(0.05)


async def check(ledger: CommittedRecords, topic: str, count: int) -> None:
    """Assert that each record is committed once, and each key is in order."""
    by_key = defaultdict(list)
    for one in await ledger.committed(topic):
        by_key[one.key()].append(int(one.value()))

    assert {key: sorted(set(numbers)) for key, numbers in by_key.items()} == by_key
    assert sum(map(len, by_key.values())) == count


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("count", "kills", "first", "second"),
    [
        pytest.param(
            100_000,
            8,
            # Restarts under the same name, and aborts its open transaction.
            {"group_instance_id": "a", "transactional_id": "{group}-{instance}"},
            # Restarts under a new name: the broker ends the open transaction and the old membership.
            {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500, "transaction_timeout_ms": 1_500},
            id="classic",
        ),
        pytest.param(
            20_000,
            4,
            {"group_protocol": "consumer", "transactional_id": "{group}"},
            {"group_protocol": "consumer", "transactional_id": "{group}"},
            id="consumer",
        ),
    ],
)
async def test_apps_killed_at_random_publish_each_record_once(server, count, kills, first, second):
    """Each of 100,000 records passes two apps once, in the order of its key, although both are killed at random."""
    ledger, chance = CommittedRecords(server), random.Random(20)
    topics = [ledger.topic(PARTITIONS) for _ in range(3)]
    links = [Link(server, topics[0], topics[1], **first), Link(server, topics[1], topics[2], **second)]
    await fill(ledger, topics[0], count)

    for link in links:
        await link.start()
    for share in sorted(chance.uniform(0.02, 0.9) for _ in range(kills)):
        # Kills hit any moment of a transaction, and the start.
        link = chance.choice(links)
        await until_there(ledger, link.target, round(share * count))
        await asyncio.sleep(chance.uniform(0, 0.3))
        await link.kill_and_start()
    await until_there(ledger, topics[1], count)
    await until_through(ledger, links[0], topics[0])
    await until_through(ledger, links[1], topics[1])
    for link in links:
        await link.running()
        link.signal(signal.SIGTERM)

    assert [await link.wait() for link in links] == [0, 0]
    await check(ledger, topics[1], count)
    await check(ledger, topics[2], count)


@pytest.mark.parametrize(
    ("protocol", "timeout_ms"),
    [
        pytest.param("classic", 2_000, id="its transaction is over"),
        pytest.param("classic", 60_000, id="its transaction is open-classic"),
        pytest.param("consumer", 60_000, id="its transaction is open-consumer"),
    ],
)
async def test_a_process_that_was_suspended_too_long_commits_nothing(server, protocol, timeout_ms):
    """A process that is frozen until its partitions are reassigned commits none of its records, and rejoins."""
    ledger = CommittedRecords(server)
    source, target = ledger.topic(PARTITIONS), ledger.topic(PARTITIONS)
    options = {"group_protocol": protocol, "transaction_timeout_ms": timeout_ms}
    if protocol == "classic":
        options |= {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 500}
    frozen = Link(server, source, target, **options)
    other = Link(server, source, target, **{**options, "group_id": frozen.group})
    await fill(ledger, source, 20_000)

    await frozen.start()
    await until_there(ledger, target, 500)
    frozen.signal(signal.SIGSTOP)
    await other.start()
    # The other member owns all partitions now, and has read their committed offsets.
    await until_owned(ledger, frozen.group, PARTITIONS)
    frozen.signal(signal.SIGCONT)
    await until_through(ledger, frozen, source)
    for link in (frozen, other):
        await link.running()
        link.signal(signal.SIGTERM)

    assert [await link.wait() for link in (frozen, other)] == [0, 0]
    await check(ledger, target, 20_000)


@pytest.mark.timeout(200)
async def test_killed_apps_and_frozen_brokers_publish_each_record_once_for_java(mortal_server):
    """Java's read_committed consumer finds each record once, although app and broker fail in transactions.

    The broker is frozen, not killed: Kafka 4.3 skips the markers of a transaction that its coordinator ends while it
    starts and is the leader, too ("Couldn't find leader endpoint for partitions … can be skipped" in server.log).
    """
    ledger, chance, count = CommittedRecords(mortal_server), random.Random(7), 20_000
    source, target = ledger.topic(PARTITIONS), ledger.topic(PARTITIONS)
    link = Link(mortal_server, source, target, group_instance_id="a", transactional_id="{group}-{instance}")
    await fill(ledger, source, count)

    await link.start()
    for share in (0.15, 0.4, 0.65, 0.85):
        await until_there(ledger, target, round(share * count))
        await asyncio.sleep(chance.uniform(0, 0.2))
        # The broker is leader, group coordinator and transaction coordinator.
        mortal_server.pause()
        try:
            await asyncio.sleep(chance.uniform(0.5, 2))
            if share in {0.4, 0.85}:
                await link.kill_and_start()
        finally:
            mortal_server.resume()
    await until_through(ledger, link, source)
    await link.running()
    link.signal(signal.SIGTERM)
    assert await link.wait() == 0

    java = KafkaTool(mortal_server.bootstrap_servers, CONSOLE_CONSUMER)
    isolation = ("--command-property", "isolation.level=read_committed")
    printed = await asyncio.to_thread(
        java.output, "--topic", target, "--from-beginning", "--timeout-ms", "8000", *isolation
    )
    assert sorted(map(int, printed.split())) == [*range(count)]
