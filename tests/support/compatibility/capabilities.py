"""Capabilities of tailrace on a broker, one coroutine function each, which raises if the capability is missing."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tailrace import App, Consumer, Retry, UnsupportedVersionError
from tests.support.commands import COMMAND, environment
from tests.support.consumer_group import until

__all__ = ["CAPABILITIES", "Cluster", "Outcome", "assert_results", "examine", "expected_results"]

_CAPABILITY_S = 200
"""Maximum time of one capability, in seconds."""


class CommittedOffset(NamedTuple):
    """Committed offset with its metadata."""

    offset: int
    metadata: str


@dataclass(frozen=True)
class Cluster:
    """Cluster whose topics are created, filled and read by librdkafka, as an independent witness.

    Attributes:
        address: address that tailrace uses.
        direct_address: address that librdkafka uses.
        new_topic: creates a topic, given its name and number of partitions; None if the cluster supports CreateTopics.
        timeout_s: time limit of a step, such as joining a group and reading a record, in seconds.
        session_timeout_ms: session timeout of members of classic groups.
    """

    address: str
    direct_address: str
    new_topic: Callable[[str, int], None] | None = None
    timeout_s: float = 15
    session_timeout_ms: int = 45_000

    async def topic(self, records: int = 0, partitions: int = 1) -> str:
        """Create a topic with ``records`` records, whose values are numbers."""
        return await asyncio.to_thread(self._topic, records, partitions)

    def _topic(self, records: int, partitions: int) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        if self.new_topic is not None:
            self.new_topic(name, partitions)
        else:
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
        async with asyncio.timeout(self.timeout_s):
            while name not in (await asyncio.to_thread(admin.list_topics, timeout=10)).topics:  # noqa: ASYNC110 - a request each
                await asyncio.sleep(0.1)

    async def committed(self, group: str, topic: str, partitions: int = 1) -> list[CommittedOffset]:
        """Return the committed offsets of a group with their metadata, as librdkafka reads them."""
        return await asyncio.to_thread(self._committed, group, topic, partitions)

    def _committed(self, group: str, topic: str, partitions: int) -> list[CommittedOffset]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.direct_address, "group.id": group})
        try:
            while True:
                found = consumer.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=20)
                try:
                    return [CommittedOffset(one.offset, one.metadata or "") for one in found]
                except UnicodeDecodeError:
                    # librdkafka copies metadata without its end, so bytes of the heap may follow (seen in 2.16.0).
                    continue
        finally:
            consumer.close()

    def groups(self) -> list[str]:
        """Return the names of all groups, as librdkafka reads them."""
        admin = AdminClient({"bootstrap.servers": self.direct_address})
        return [one.group_id for one in admin.list_consumer_groups(request_timeout=20).result().valid]

    async def witness(self, topic: str, count: int) -> list[bytes]:
        """Return the values of the first ``count`` committed records of partition 0, as librdkafka reads them."""
        return await asyncio.to_thread(self._witness, topic, count)

    def _witness(self, topic: str, count: int) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.direct_address, "group.id": "unused", "isolation.level": "read_committed"}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            records = consumer.consume(count, timeout=self.timeout_s)
        finally:
            consumer.close()
        values = [record.value() for record in records if record.error() is None]
        assert len(values) == count, f"librdkafka read {len(values)} of {count} records"
        return values

    async def read(self, topic: str, count: int, **options: object) -> list[bytes]:
        """Return the values of the first ``count`` records."""
        values: list[bytes] = []
        common: dict[str, object] = {"bootstrap_servers": self.address, "auto_offset_reset": "earliest"}
        if "group_id" in options and "group_protocol" not in options:
            common["session_timeout_ms"] = self.session_timeout_ms
        async with Consumer(topic, **common, **options) as consumer:
            while len(values) < count:
                record = await consumer.getone(timeout_ms=int(self.timeout_s * 1000))
                assert record is not None, f"read {len(values)} of {count} records"
                values.append(record.value)
        return values

    async def command(self, *arguments: str) -> str:
        """Run a command of tailrace, and return its output.

        Raises:
            UnsupportedVersionError: the command refuses because of the brokers' versions.
        """
        async with self.running(*arguments) as process:
            output, errors = await process.communicate()
        text = (output + errors).decode()
        _check(process, text, arguments[0])
        return output.decode()

    @asynccontextmanager
    async def running(self, *arguments: str, **variables: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run a command of tailrace, and end it at the end of the block."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            *([] if variables else [f"--bootstrap-servers={self.address}"]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(**variables),
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _check(process: asyncio.subprocess.Process, text: str, command: str) -> None:
    """Raise an error with the text of a command unless it has succeeded."""
    if process.returncode and "tailrace supports version" in text:
        raise UnsupportedVersionError(" ".join(text.split()).removeprefix(f"tailrace {command}: "))
    assert process.returncode == 0, f"{command}: {text[-600:]}"


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
    options = {
        "bootstrap_servers": cluster.address,
        "group_id": _group(),
        "heartbeat_interval_ms": 300,
        "session_timeout_ms": cluster.session_timeout_ms,
    }
    async with Consumer(topic, **options) as first:
        async with Consumer(topic, **options) as second:
            await until(lambda: len(first.assignment()) == len(second.assignment()) == 2, cluster.timeout_s * 2)
        await until(lambda: len(first.assignment()) == 4, cluster.timeout_s * 2)


async def consumer_protocol(cluster: Cluster) -> None:
    topic, name = await cluster.topic(100, partitions=2), _group()
    values = await cluster.read(topic, 100, group_id=name, group_protocol="consumer")
    assert sorted(values) == sorted(_numbers(100))


async def offset_map(cluster: Cluster) -> None:
    """Records acknowledged out of order are in the commit's metadata, and not delivered again after a restart."""
    topic, name = await cluster.topic(10), _group()
    async with Consumer(
        topic,
        bootstrap_servers=cluster.address,
        group_id=name,
        auto_offset_reset="earliest",
        ack="manual",
        enable_auto_commit=False,
        session_timeout_ms=cluster.session_timeout_ms,
    ) as consumer:
        records = []
        while len(records) < 10:
            record = await consumer.getone(timeout_ms=int(cluster.timeout_s * 1000))
            assert record is not None, f"read {len(records)} of 10 records"
            records.append(record)
        for record in (records[2], *records[5:]):
            consumer.ack(record)
        await consumer.commit()
    (committed,) = await cluster.committed(name, topic)
    assert committed.offset == 0, f"committed offset {committed.offset}, not 0"
    assert committed.metadata.startswith("omap:1:"), f"metadata of the commit: {committed.metadata!r}"
    assert await cluster.read(topic, 4, group_id=name) == [b"0", b"1", b"3", b"4"]


async def publish(cluster: Cluster) -> None:
    topic = await cluster.topic()
    async with App(bootstrap_servers=cluster.address) as app:
        for value in _numbers(10):
            await app.publish(topic, value, key=b"key")
    assert await cluster.witness(topic, 10) == _numbers(10)


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
    """The results and the offsets of the records are committed in transactions."""
    topic, results, name = await cluster.topic(200, partitions=2), await cluster.topic(), _group()
    app = App(bootstrap_servers=cluster.address, group_id=name, delivery="exactly_once", auto_offset_reset="earliest")

    @app.handler(topic, publish=results, concurrency=10)
    async def handle(value: bytes) -> bytes:
        return value

    async with app:
        values = await cluster.read(results, 200, isolation_level="read_committed")
    assert sorted(values) == sorted(_numbers(200))
    assert sorted(await cluster.witness(results, 200)) == sorted(_numbers(200))
    total = sum(one.offset for one in await cluster.committed(name, topic, partitions=2))
    assert total == 200, f"committed offsets of {total} of 200 records"


async def doctor(cluster: Cluster) -> None:
    assert "answer under their advertised names" in await cluster.command("doctor", f"--topic={await cluster.topic()}")


async def commands(cluster: Cluster) -> None:
    """Commands show a group, its offsets and records, reset its offsets, and run an app."""
    topic, name = await cluster.topic(10), _group()
    await cluster.read(topic, 10, group_id=name)
    assert name in await cluster.command("groups", "list")
    assert name in await cluster.command("groups", "show", name)
    assert topic in await cluster.command("lag", name)
    assert topic in await cluster.command("offsets", "show", name)
    await cluster.command("offsets", "reset", name, "--all-topics", "--to-offset=4", "--execute")
    (committed,) = await cluster.committed(name, topic)
    assert committed.offset == 4, f"the offset is {committed.offset} after a reset to 4"
    assert (await cluster.command("tail", topic, "--from=earliest", "--max=10")).count("\n") >= 10
    results = await cluster.topic()
    variables = {"TAILRACE_BOOTSTRAP_SERVERS": cluster.address, "FROM_TOPIC": topic, "TO_TOPIC": results}
    async with cluster.running("run", "tests.support.compatibility.copying_app:app", **variables) as process:
        try:
            assert await cluster.witness(results, 10) == _numbers(10)
        finally:
            if process.returncode is None:
                process.terminate()
            _, errors = await process.communicate()
            _check(process, errors.decode(), "run")


async def dead_letter_commands(cluster: Cluster) -> None:
    """Commands show a dead letter, and replay it to the group, which then handles it."""
    topic, name = await cluster.topic(1), _group()
    dead_letters = f"{topic}.{name}.dead"
    app = App(
        bootstrap_servers=cluster.address,
        group_id=name,
        dead_letter="{topic}.{group}.dead",
        auto_offset_reset="earliest",
    )
    handled = asyncio.Event()

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        if not replayed:
            raise ValueError("this record cannot be handled")
        handled.set()

    replayed = False
    async with app:
        await cluster.wait_for_topic(dead_letters)
        assert await cluster.read(dead_letters, 1) == [b"0"]
        assert "ValueError" in await cluster.command("dead-letters", "list", dead_letters)
        assert "this record cannot be handled" in await cluster.command("dead-letters", "show", dead_letters)
        replayed = True
        await cluster.command("dead-letters", "replay", dead_letters, "--all", "--execute")
        async with asyncio.timeout(cluster.timeout_s):
            await handled.wait()


async def deleting_commands(cluster: Cluster) -> None:
    """Commands delete a group's offsets of a topic, and the group."""
    topic, other, name = await cluster.topic(2), await cluster.topic(2), _group()
    for one in (topic, other):
        await cluster.read(one, 2, group_id=name)
    await cluster.command("offsets", "delete", name, f"--topic={topic}", "--execute")
    assert (await cluster.committed(name, topic))[0].offset < 0
    assert (await cluster.committed(name, other))[0].offset == 1
    await cluster.command("groups", "delete", name, "--execute")
    assert name not in await asyncio.to_thread(cluster.groups)


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
    "dead-letter commands": dead_letter_commands,
    "deleting commands": deleting_commands,
}


def expected_results(refused: Collection[str], fails: Collection[str] = ()) -> dict[str, str]:
    """Return the result of each capability of a broker, given those that tailrace refuses and those that fail."""
    return {one: "no" if one in refused else "fails" if one in fails else "yes" for one in CAPABILITIES}


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


def assert_results(outcomes: Mapping[str, Outcome], expected: Mapping[str, str]) -> None:
    """Assert that each capability has the expected result, and show the errors of the others."""
    errors = {name: one.error for name, one in outcomes.items() if one.result != expected[name]}
    assert ({name: one.result for name, one in outcomes.items()}, errors) == (expected, {})


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
