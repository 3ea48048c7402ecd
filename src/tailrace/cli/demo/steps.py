"""Steps of the demo: start of a broker, topic, publishing, reading, verification and cleanup."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice

import msgspec
from rich.table import Table

from tailrace.admin.groups import delete_group
from tailrace.admin.offsets import committed_offsets
from tailrace.admin.topics import create_topic, delete_topic
from tailrace.cli.demo.flights import (
    FEWEST_FLIGHTS,
    TOTAL,
    Flight,
    HandledFlights,
    PartitionProof,
    airports,
    arrived,
    flights,
    partition_of,
)
from tailrace.cli.demo.on_spark import SparkReader, check_spark
from tailrace.cli.kafka import local_broker
from tailrace.cli.output import count
from tailrace.cli.screen import Screen, megabytes, per_second, titled_table
from tailrace.config import ConsumerOptions, resolve
from tailrace.consumer.consumer import Consumer
from tailrace.errors import ConfigurationError, ConsumerTimeoutError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.producer.record_producer import RecordProducer
from tailrace.records import TopicPartition
from tailrace.signals import run
from tailrace.spark.session import MEGABYTES

__all__ = ["PARTITIONS", "Demo", "play", "verdict"]

PARTITIONS = 6

_MEMBERS = 2
_JOIN_TIMEOUT_S = 15
_STALL_S = 20
_POLL_INTERVAL_S = 0.05
_CHUNK_SIZE = 6_000
_CHUNKS_PER_SECOND = 20
_SHOWN_ROUTES = 10

_SIGTERM_EXIT_CODE = 143
_COST = "400 MB of memory, 100 MB of disk"
_COST_ON_SPARK = "2 GB of memory, 200 MB of disk"
_CLEANUP_TIMEOUT_S = 10
_OPTIONS: ConsumerOptions = {
    "client_id": "tailrace-demo",
    "socket_connection_setup_timeout_ms": 5_000,
    "default_api_timeout_ms": 30_000,
    "stop_timeout_ms": 10_000,
    # The following options override values from the environment that the demo could not work with.
    "auto_offset_reset": "earliest",
    "enable_auto_commit": True,
    "group_instance_id": None,
    "leave_on_stop": True,
    # The first member learns from the response to its next heartbeat that the second member is joining.
    "heartbeat_interval_ms": 500,
}


def play(options: argparse.Namespace) -> int:
    """Run the demo and return the exit code.

    Raises:
        ConfigurationError: ``--rate`` is given for Spark, or a dependency is not installed.
    """
    if options.engine == "spark" and options.rate is not None:
        raise ConfigurationError("--rate cannot be combined with --engine spark, which reads existing records only")
    screen, remaining, began = Screen(), list[str](), time.monotonic()
    ended = "failed"
    try:
        holds = _play(options, screen, remaining)
        ended = f"after {time.monotonic() - began:.1f} s"
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        cleanup = f"could not remove {', '.join(remaining)}" if remaining else "everything was removed"
        screen.line("end", f"{ended}; {cleanup}")
    if holds is None:
        return _SIGTERM_EXIT_CODE
    return 0 if holds and not remaining else 1


def _play(options: argparse.Namespace, screen: Screen, remaining: list[str]) -> bool | None:
    """Run the demo and return True if the verification succeeded, False if it failed, or None after SIGTERM.

    The names of a topic and a group that could not be deleted are added to ``remaining``.
    """
    airports()  # raises before a broker is started if the flights are not installed
    rate, on_spark, bootstrap_servers = options.rate, options.engine == "spark", options.bootstrap_servers
    total = min(options.limit or TOTAL, TOTAL)
    if on_spark and not check_spark():
        screen.line("download", f"Spark's Kafka connector (first start only): {MEGABYTES} MB from Maven Central")
    seconds = 5 + (total / rate if rate else total / 50_000) + (15 + total / 12_000 if on_spark else 0)
    memory = f", {_COST_ON_SPARK if on_spark else _COST}"
    screen.line("demo", f"{count(total)} flights: about {seconds:,.0f} s{'' if bootstrap_servers else memory}")
    client_options = _OPTIONS.copy()
    with ExitStack() as stack:
        is_own_broker = False
        if bootstrap_servers is None:
            server = stack.enter_context(local_broker(screen))
            is_own_broker = bool(server.nodes)
            bootstrap_servers = server.bootstrap_servers
            client_options["security_protocol"] = "PLAINTEXT"
        client_options["bootstrap_servers"] = bootstrap_servers
        demo = Demo(screen, client_options, rate=rate, total=total, on_spark=on_spark)
        try:
            return run(demo.play(cleans_up=not is_own_broker))
        finally:
            remaining += demo.remaining


class Demo:
    """One run of the demo.

    Args:
        screen: output of the command.
        options: options of the consumers and the producer.
        rate: flights per second; unlimited if None.
        total: number of flights.
        on_spark: True to read with Spark instead of a consumer group.

    Attributes:
        name: name of the topic and of the group.
        remaining: topic and group that could not be deleted at the end.
    """

    def __init__(
        self, screen: Screen, options: ConsumerOptions, *, rate: float | None, total: int, on_spark: bool = False
    ) -> None:
        self.remaining: list[str] = []
        self.name = f"tailrace-demo-{secrets.token_hex(4)}"
        self._screen, self._rate, self._total = screen, rate, total
        options = {**options, "group_id": self.name}
        self._config = resolve(options)
        self._publisher = _FlightPublisher(self.name, PARTITIONS, rate=rate, limit=total)
        self._reader: _GroupReader | SparkReader = (
            SparkReader(self.name, PARTITIONS, options)
            if on_spark
            else _GroupReader(self.name, PARTITIONS, self._publisher, options)
        )

    async def play(self, *, cleans_up: bool) -> bool:
        """Run all steps, and return True if each record was handled exactly once and committed.

        Args:
            cleans_up: True to delete the topic and the group at the end.
        """
        with closing(Cluster(self._config)) as cluster:
            await cluster.bootstrap()
            try:
                await create_topic(cluster, self.name, PARTITIONS)
                self._screen.line("topic", f"{self.name}: {PARTITIONS} partitions, the key is the route")
                match self._reader:
                    case SparkReader() as reader:
                        await self._publish_all()
                        await self._read_on_spark(reader)
                    case reader if self._rate is None:
                        await self._publish_all()
                        await self._read(reader)
                    case reader:
                        await self._publish_and_read(reader)
                committed = await self._committed(cluster)
            finally:
                if cleans_up:
                    await self._clean_up(cluster)
        return self._report(committed)

    async def _clean_up(self, cluster: Cluster) -> None:
        self.remaining = [f"group {self.name}", f"topic {self.name}"]
        with contextlib.suppress(TailraceError):
            await delete_group(cluster, self.name, timeout_s=_CLEANUP_TIMEOUT_S)
            self.remaining.remove(f"group {self.name}")
        with contextlib.suppress(TailraceError):
            await delete_topic(cluster, self.name, timeout_s=_CLEANUP_TIMEOUT_S)
            self.remaining.remove(f"topic {self.name}")

    async def _publish_all(self) -> None:
        screen, publisher = self._screen, self._publisher
        began = time.monotonic()
        await screen.watch(self._publish(), {"publish": lambda: publisher.count}, self._total)
        took = time.monotonic() - began
        size, speed = megabytes(publisher.payload_bytes), per_second(publisher.count, took)
        screen.line("publish", f"{count(publisher.count)} flights, {size} of JSON in {took:.1f} s, {speed} records/s")

    async def _read(self, reader: _GroupReader) -> None:
        screen, counts = self._screen, reader.counts
        await screen.watch(reader.run(), {"read": lambda: counts.handled}, self._total)
        screen.line("group", f"{_MEMBERS} members, joined in {reader.joined_s:.1f} s")
        took = reader.reading_s
        speed = f"in {took:.2f} s, [bold]{per_second(counts.handled, took)} records/s[/], each decoded and counted"
        screen.line("read", f"{count(counts.handled)} records {speed}")
        screen.line("share", _shares(counts))

    async def _read_on_spark(self, reader: SparkReader) -> None:
        screen, counts = self._screen, reader.counts
        await screen.watch(reader.run(self._publisher.produced), {"read": lambda: counts.handled}, self._total)
        screen.line("spark", f"local Apache Spark {reader.version}, ready in {reader.starting_s:.1f} s")
        took = reader.reading_s
        speed = f"in {took:.1f} s, [bold]{per_second(counts.handled, took)} records/s[/], written to a table"
        screen.line("read", f"{count(counts.handled)} records {speed}")

    async def _publish_and_read(self, reader: _GroupReader) -> None:
        screen, publisher, counts = self._screen, self._publisher, reader.counts
        screen.line("publish", f"{self._rate:,g} flights per second, read at the same time")
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish())
            await screen.watch(
                reader.run(),
                {"publish": lambda: publisher.count, "read": lambda: counts.handled},
                self._total,
                lambda: _routes_table(counts),
            )
            await publishing
        screen.line("read", f"{count(counts.handled)} records")
        screen.line("share", _shares(counts))

    async def _publish(self) -> None:
        async with RecordProducer(self._config, max_batch_size=524_288) as producer:
            await self._publisher.run(producer)

    async def _committed(self, cluster: Cluster) -> dict[int, int]:
        partitions = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
        found = await committed_offsets(cluster, self.name, partitions)
        return {partition.partition: committed.offset for partition, committed in found.items()}

    def _report(self, committed: dict[int, int]) -> bool:
        counts = self._reader.counts
        proof = self._reader.proof(self._publisher.produced, committed)
        self._screen.show(_routes_table(counts))
        self._screen.show(_partitions_table(proof))
        holds = all(one.holds for one in proof)
        self._screen.console.print()
        self._screen.line("[green]verified[/]" if holds else "[bold red]failed[/]", verdict(proof))
        return holds


# ---- publishing ----------------------------------------------------------------------------------------------------


class _FlightPublisher:
    """Publisher of the flights, with counts of the published records.

    Args:
        topic: topic to publish to.
        partitions: number of partitions of the topic.
        rate: flights per second; unlimited if None.
        limit: number of flights.

    Attributes:
        payload_bytes: total size of the values.
        is_complete: True when all flights are published and acknowledged.
    """

    def __init__(self, topic: str, partitions: int, *, rate: float | None, limit: int) -> None:
        self.produced = [0] * partitions
        """Number of published records by partition, acknowledged or not; all are acknowledged when ``run`` returns."""
        self.payload_bytes = 0
        self.is_complete = False
        self._topic, self._rate, self._limit = topic, rate, limit

    @property
    def count(self) -> int:
        """Number of published records, acknowledged or not."""
        return sum(self.produced)

    async def run(self, producer: RecordProducer) -> None:
        """Publish all flights and wait for their acknowledgments.

        Raises:
            PublishError: the broker rejected some flights.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        source = flights(self._limit)
        while chunk := list(islice(source, self._chunk_size)):
            for partition, records in self._by_partition(chunk):
                await producer.publish_many(self._topic, partition, records)
                self.produced[partition] += len(records)
            if self._rate is not None:
                await asyncio.sleep(began + self.count / self._rate - loop.time())
        await producer.flush()
        self.is_complete = True

    @property
    def _chunk_size(self) -> int:
        return _CHUNK_SIZE if self._rate is None else max(1, round(self._rate / _CHUNKS_PER_SECOND))

    def _by_partition(self, chunk: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in chunk:
            self.payload_bytes += len(value)
            found.setdefault(partition_of(key, len(self.produced)), []).append((key, value))
        yield from found.items()


# ---- reading with a consumer group ---------------------------------------------------------------------------------


class _GroupReader:
    """Consumer group of two members that reads and counts all records of ``publisher``.

    Args:
        topic: topic to read.
        partitions: number of partitions of the topic.
        publisher: publisher of the records.
        options: options of each consumer.

    Attributes:
        counts: counts of the handled records.
    """

    def __init__(self, topic: str, partitions: int, publisher: _FlightPublisher, options: ConsumerOptions) -> None:
        self.counts = HandledFlights(partitions, _MEMBERS)
        self.joined_s = 0.0
        """Seconds until both members had partitions and every partition was assigned, or until the join timed out."""
        self.reading_s = 0.0
        """Seconds from the first record to the last."""
        self.members: tuple[_Member, ...] = tuple(
            _Member(f"tailrace-demo-{number}", self._check_joined) for number in range(1, _MEMBERS + 1)
        )
        self._topic, self._partitions, self._publisher, self._options = topic, partitions, publisher, options
        self._joined, self._all_read = asyncio.Event(), asyncio.Event()
        self._expected = math.inf
        self._first_at = math.nan

    async def run(self) -> None:
        """Join the group, read until every record is handled, commit, and leave the group.

        Raises:
            ConsumerTimeoutError: no record arrived for 20 seconds, although published records are unread.
        """
        async with asyncio.TaskGroup() as tasks:
            began = self._now()
            readers = [tasks.create_task(self._read(number)) for number in range(_MEMBERS)]
            try:
                async with asyncio.timeout(_JOIN_TIMEOUT_S):
                    await self._joined.wait()
            except TimeoutError:
                # Read nevertheless: a member without partitions does not prevent the other member from reading.
                self._joined.set()
            self.joined_s = self._now() - began
            await self._wait_for_all()
            for reader in readers:
                reader.cancel()

    def proof(self, produced: Sequence[int], committed: Mapping[int, int]) -> list[PartitionProof]:
        """Return the counts of each partition, given the numbers of produced records and the committed offsets."""
        return self.counts.proof(produced, committed)

    async def _read(self, number: int) -> None:
        decode = msgspec.json.Decoder(Flight).decode
        member = self.members[number]
        options: ConsumerOptions = {**self._options, "client_id": member.name, "rebalance_listener": member}
        async with Consumer(self._topic, **options) as consumer:
            # Start after both members have joined, because the second one takes over partitions of the first.
            await self._joined.wait()
            async for record in consumer:
                if not self.counts.handled:
                    self._first_at = self._now()
                arrival = await arrived(decode(record.value or b"null"))
                self.counts.add(number, record, arrival.route, arrival.delay)
                if self.counts.handled >= self._expected:
                    self._end()

    async def _wait_for_all(self) -> None:
        seen, seen_at = -1, self._now()
        while not self._all_read.is_set():
            if self._publisher.is_complete:
                self._expected = self._publisher.count
                if self.counts.handled >= self._expected:
                    self._end()
            if self.counts.handled != seen or self.counts.handled >= self._publisher.count:
                seen, seen_at = self.counts.handled, self._now()
            elif self._now() - seen_at > _STALL_S:
                raise ConsumerTimeoutError(
                    f"{seen:,} of {self._publisher.count:,} records arrived, and none for {_STALL_S} s"
                    " - check that the brokers run"
                )
            try:
                async with asyncio.timeout(_POLL_INTERVAL_S):
                    await self._all_read.wait()
            except TimeoutError:
                continue

    def _end(self) -> None:
        if not self._all_read.is_set():
            self.reading_s = self._now() - self._first_at
            self._all_read.set()

    def _check_joined(self) -> None:
        assigned = [len(member.partitions) for member in self.members]
        if all(assigned) and sum(assigned) == self._partitions:
            self._joined.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class _Member:
    """Rebalance listener of one consumer: keeps the assigned partitions, and calls ``on_assigned`` for new ones."""

    def __init__(self, name: str, on_assigned: Callable[[], None]) -> None:
        self.name = name
        self.partitions: frozenset[TopicPartition] = frozenset()
        self._on_assigned = on_assigned

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.partitions |= partitions
        self._on_assigned()

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.partitions -= partitions

    on_partitions_lost = on_partitions_revoked


# ---- report --------------------------------------------------------------------------------------------------------


def _routes_table(counts: HandledFlights) -> Table:
    table = titled_table(f"Highest mean arrival delays ({FEWEST_FLIGHTS} or more flights)")
    table.add_column("from")
    table.add_column("to")
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=30, style="dim")
    table.add_column("flights", justify="right")
    table.add_column("mean delay", justify="right", style="bold")
    for route, delays in counts.worst_routes(_SHOWN_ROUTES):
        origin, _, dest = route.partition("-")
        table.add_row(origin, dest, airports().get(dest, ""), count(delays.flights), f"{delays.mean:.1f} min")
    if not table.row_count:
        table.add_row("-", "-", f"no route with {FEWEST_FLIGHTS} flights")
    return table


def _partitions_table(proof: Sequence[PartitionProof]) -> Table:
    """Return a table of the counts by partition; it has a column of members unless Spark read the records."""
    table = titled_table("Records by partition")
    table.add_column("partition", justify="right")
    has_members = any(one.members for one in proof)
    if has_members:
        table.add_column("member", justify="right")
    for name in ("produced", "handled", "exactly once", "committed"):
        table.add_column(name, justify="right")
    for partition, one in enumerate(proof):
        table.add_row(
            str(partition),
            *([", ".join(str(member + 1) for member in one.members)] if has_members else []),
            *map(count, (one.produced, one.handled, one.handled_once)),
            "none" if one.committed is None else count(one.committed),
            style=None if one.holds else "bold red",
        )
    table.add_section()
    rows = ((one.produced, one.handled, one.handled_once, one.committed or 0) for one in proof)
    table.add_row("all", *[""] * has_members, *(count(sum(column)) for column in zip(*rows, strict=True)), style="bold")
    return table


def _shares(counts: HandledFlights) -> str:
    """Return the number and percentage of records that each member handled."""
    counts_by_member = [sum(by_partition) for by_partition in counts.by_member]
    return ", ".join(
        f"member {number} {count(share)} ({share / max(counts.handled, 1):.0%})"
        for number, share in enumerate(counts_by_member, 1)
    )


def verdict(proof: Sequence[PartitionProof]) -> str:
    if all(one.holds for one in proof):
        return f"all {count(sum(one.produced for one in proof))} records were handled exactly once and committed"
    wrong = [str(partition) for partition, one in enumerate(proof) if not one.holds]
    return f"not every record was handled exactly once and committed: see partition {', '.join(wrong)}"
