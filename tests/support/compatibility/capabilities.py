"""Capabilities of tailrace on a broker, one coroutine function each, which raises if the capability is missing."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace import App, Consumer, Retry, UnsupportedVersionError
from tests.support.commands import COMMAND, environment
from tests.support.consumer_group import until

__all__ = ["CAPABILITIES", "Cluster", "Outcome", "examine"]

_CAPABILITY_S = 120
"""Maximum time of one capability, in seconds."""


@dataclass(frozen=True)
class Cluster:
    """Cluster whose topics are created and filled by librdkafka.

    Attributes:
        address: address that tailrace uses.
        direct_address: address that librdkafka uses.
    """

    address: str
    direct_address: str

    async def topic(self, records: int = 0, partitions: int = 1) -> str:
        """Create a topic with ``records`` records, whose values are numbers."""
        return await asyncio.to_thread(self._topic, records, partitions)

    def _topic(self, records: int, partitions: int) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": self.direct_address})
        for future in admin.create_topics([NewTopic(name, partitions, 1)], request_timeout=20).values():
            future.result()
        producer = Producer({"bootstrap.servers": self.direct_address})
        for number in range(records):
            producer.produce(name, b"%d" % number)
        assert producer.flush(20) == 0
        return name

    async def wait_for_topic(self, name: str) -> None:
        """Wait until a topic exists."""
        admin = AdminClient({"bootstrap.servers": self.direct_address})
        while name not in (await asyncio.to_thread(admin.list_topics, timeout=10)).topics:  # noqa: ASYNC110 - a request each
            await asyncio.sleep(0.1)

    async def read(self, topic: str, count: int, **options: object) -> list[bytes]:
        """Return the values of the first ``count`` records."""
        values: list[bytes] = []
        common = {"bootstrap_servers": self.address, "auto_offset_reset": "earliest"}
        async with Consumer(topic, **common, **options) as consumer:
            while len(values) < count:
                record = await consumer.getone(timeout_ms=15_000)
                assert record is not None, f"read {len(values)} of {count} records"
                values.append(record.value)
        return values

    async def command(self, *arguments: str) -> str:
        """Run a command of tailrace, and return its output."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            f"--bootstrap-servers={self.address}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{arguments[0]}: {(output + errors).decode()[-600:]}"
        return output.decode()


def _group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


def _numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def consume(cluster: Cluster) -> None:
    topic = await cluster.topic(1_000)
    assert await cluster.read(topic, 1_000) == _numbers(1_000)


async def group(cluster: Cluster) -> None:
    """Two members share the partitions; the one that stays gets all when the other leaves."""
    topic = await cluster.topic(partitions=4)
    options = {"bootstrap_servers": cluster.address, "group_id": _group(), "heartbeat_interval_ms": 300}
    async with Consumer(topic, **options) as first:
        async with Consumer(topic, **options) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2)
        await until(lambda: len(first.assignment()) == 4)


async def consumer_protocol(cluster: Cluster) -> None:
    topic, name = await cluster.topic(100, partitions=2), _group()
    values = await cluster.read(topic, 100, group_id=name, group_protocol="consumer")
    assert sorted(values) == sorted(_numbers(100))


async def offset_map(cluster: Cluster) -> None:
    """Records acknowledged out of order are not delivered again after a restart."""
    topic, name = await cluster.topic(10), _group()
    async with Consumer(
        topic,
        bootstrap_servers=cluster.address,
        group_id=name,
        auto_offset_reset="earliest",
        ack="manual",
        enable_auto_commit=False,
    ) as consumer:
        records = [record async for record in _first(consumer, 10)]
        for record in (records[2], *records[5:]):
            consumer.ack(record)
        await consumer.commit()
    assert await cluster.read(topic, 4, group_id=name) == [b"0", b"1", b"3", b"4"]


async def _first(consumer: Consumer, count: int):
    for _ in range(count):
        record = await consumer.getone(timeout_ms=15_000)
        assert record is not None
        yield record


async def publish(cluster: Cluster) -> None:
    topic = await cluster.topic()
    async with App(bootstrap_servers=cluster.address) as app:
        for value in _numbers(10):
            await app.publish(topic, value, key=b"key")
    assert await cluster.read(topic, 10) == _numbers(10)


async def retry_topics(cluster: Cluster) -> None:
    """A record that fails goes through a retry topic to the dead-letter topic."""
    topic, name = await cluster.topic(1), _group()
    dead_letters = f"{topic}.{name}.dead"
    app = App(
        bootstrap_servers=cluster.address,
        group_id=name,
        dead_letter="{topic}.{group}.dead",
        auto_offset_reset="earliest",
    )
    calls = []

    @app.handler(topic, retry=Retry(attempts=1, topic_delays_ms=[300]))
    async def handle(value: bytes) -> None:
        calls.append(value)
        raise ValueError("this record cannot be handled")

    async with app:
        await cluster.wait_for_topic(dead_letters)
        assert await cluster.read(dead_letters, 1) == [b"0"]
    assert calls == [b"0", b"0"]


async def exactly_once(cluster: Cluster) -> None:
    topic, results, name = await cluster.topic(200, partitions=2), await cluster.topic(), _group()
    app = App(bootstrap_servers=cluster.address, group_id=name, delivery="exactly_once", auto_offset_reset="earliest")

    @app.handler(topic, publish=results, concurrency=10)
    async def handle(value: bytes) -> bytes:
        return value

    async with app:
        values = await cluster.read(results, 200, isolation_level="read_committed")
    assert sorted(values) == sorted(_numbers(200))


async def doctor(cluster: Cluster) -> None:
    assert "answer under their advertised names" in await cluster.command("doctor", f"--topic={await cluster.topic()}")


async def commands(cluster: Cluster) -> None:
    topic, name = await cluster.topic(10), _group()
    await cluster.read(topic, 10, group_id=name)
    assert name in await cluster.command("groups", "list")
    assert topic in await cluster.command("lag", name)
    assert topic in await cluster.command("offsets", "show", name)
    await cluster.command("offsets", "reset", name, "--all-topics", "--to-earliest", "--execute")
    assert (await cluster.command("tail", topic, "--from=earliest", "--max=10")).count("\n") >= 10


Capability = Callable[[Cluster], Awaitable[None]]

CAPABILITIES: Mapping[str, Capability] = {
    "consume": consume,
    "classic group": group,
    "KIP-848": consumer_protocol,
    "offset map": offset_map,
    "publish": publish,
    "retry topics, dead letters": retry_topics,
    "exactly once": exactly_once,
    "doctor": doctor,
    "commands": commands,
}


@dataclass(frozen=True)
class Outcome:
    """Outcome of one capability.

    Attributes:
        result: "yes"; "no" if tailrace refuses with a typed error; "fails" after any other error.
        error: message of the error.
        seconds: time that the capability took.
    """

    result: str
    error: str = ""
    seconds: float = 0.0


async def examine(cluster: Cluster, names: Iterable[str] = CAPABILITIES) -> dict[str, Outcome]:
    """Try capabilities on a cluster, and return their outcomes by name."""
    outcomes: dict[str, Outcome] = {}
    for name in names:
        began = time.monotonic()
        outcome = await _outcome(CAPABILITIES[name], cluster)
        outcomes[name] = replace(outcome, seconds=round(time.monotonic() - began, 1))
        sys.stderr.write(f"  {name}: {outcome.result} {outcome.error}\n")
    return outcomes


async def _outcome(capability: Capability, cluster: Cluster) -> Outcome:
    try:
        async with asyncio.timeout(_CAPABILITY_S):
            await capability(cluster)
    except UnsupportedVersionError as error:
        return Outcome("no", str(error).replace(cluster.address, "broker"))
    except Exception as error:  # noqa: BLE001 - the error is the outcome
        return Outcome("fails", f"{type(error).__name__}: {error}".replace(cluster.address, "broker")[:800])
    return Outcome("yes")
