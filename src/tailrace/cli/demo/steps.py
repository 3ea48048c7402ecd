"""Steps of the demo: start of a broker, topic, publishing, reading, verification and cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from rich import box
from rich.table import Table

from tailrace.admin.groups import delete_group
from tailrace.admin.topics import create_topic, delete_topic
from tailrace.cli.demo.counts import FEWEST_FLIGHTS, HandledFlights, PartitionProof
from tailrace.cli.demo.flights import TOTAL, airports
from tailrace.cli.demo.group import MEMBERS, GroupReader
from tailrace.cli.demo.on_spark import SparkReader, check_spark
from tailrace.cli.demo.publishing import FlightPublisher
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen, count, megabytes, per_second
from tailrace.config import ConsumerOptions, resolve
from tailrace.errors import ConfigurationError, TailraceError
from tailrace.net.cluster import Cluster
from tailrace.net.offsets import committed_offsets
from tailrace.producer.producer import Producer
from tailrace.records import TopicPartition
from tailrace.signals import run
from tailrace.spark.session import MEGABYTES

__all__ = ["PARTITIONS", "Demo", "partitions_table", "play", "routes_table", "shares", "verdict"]

# ---- report of the demo: routes, partitions and verdict --------------------------------------------------------------

_SHOWN_ROUTES = 10


def routes_table(counts: HandledFlights, airports: dict[str, str]) -> Table:
    """Return a table of the routes with the highest mean delay."""
    table = _table(f"Highest mean arrival delays ({FEWEST_FLIGHTS} or more flights)")
    table.add_column("from")
    table.add_column("to")
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=30, style="dim")
    table.add_column("flights", justify="right")
    table.add_column("mean delay", justify="right", style="bold")
    for route, delays in counts.worst_routes(_SHOWN_ROUTES):
        origin, _, dest = route.partition("-")
        table.add_row(origin, dest, airports.get(dest, ""), count(delays.flights), f"{delays.mean:.1f} min")
    if not table.row_count:
        table.add_row("-", "-", f"no route with {FEWEST_FLIGHTS} flights")
    return table


def partitions_table(proof: Sequence[PartitionProof]) -> Table:
    """Return a table of the counts by partition; it has a column of members unless Spark read the records."""
    table = _table("Records by partition")
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


def shares(counts: HandledFlights) -> str:
    """Return the number and percentage of records that each member handled."""
    counts_by_member = [sum(by_partition) for by_partition in counts.by_member]
    return ", ".join(
        f"member {number} {count(share)} ({share / max(counts.handled, 1):.0%})"
        for number, share in enumerate(counts_by_member, 1)
    )


def verdict(proof: Sequence[PartitionProof]) -> str:
    """Return the result of the verification as a sentence."""
    if all(one.holds for one in proof):
        return f"all {count(sum(one.produced for one in proof))} records were handled exactly once and committed"
    wrong = [str(partition) for partition, one in enumerate(proof) if not one.holds]
    return f"not every record was handled exactly once and committed: see partition {', '.join(wrong)}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )


# ---- steps of the demo: start of a broker, topic, publishing, reading, verification and cleanup ----------------------

PARTITIONS = 6

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


def play(
    bootstrap_servers: str | None, *, rate: float | None = None, limit: int | None = None, on_spark: bool = False
) -> int:
    """Run the demo on ``bootstrap_servers``, or on a local broker if None, and return the exit code.

    Raises:
        ConfigurationError: ``rate`` is set with ``on_spark``, or a dependency is not installed.
    """
    if on_spark and rate is not None:
        raise ConfigurationError("--rate cannot be combined with --engine spark, which reads existing records only")
    screen, remaining, began = Screen(), list[str](), time.monotonic()
    ended = "failed"
    try:
        holds = _play(screen, remaining, bootstrap_servers, rate=rate, limit=limit, on_spark=on_spark)
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


def _play(  # noqa: PLR0913 - one for each option of the command
    screen: Screen,
    remaining: list[str],
    bootstrap_servers: str | None,
    *,
    rate: float | None,
    limit: int | None,
    on_spark: bool,
) -> bool | None:
    """Run the demo and return True if the verification succeeded, False if it failed, or None after SIGTERM.

    The names of a topic and a group that could not be deleted are added to ``remaining``.
    """
    airport_names, options, total = airports(), _OPTIONS.copy(), min(limit or TOTAL, TOTAL)
    if on_spark and not check_spark():
        screen.line("download", f"Spark's Kafka connector (first start only): {MEGABYTES} MB from Maven Central")
    seconds = 5 + (total / rate if rate else total / 50_000) + (15 + total / 12_000 if on_spark else 0)
    memory = f", {_COST_ON_SPARK if on_spark else _COST}"
    screen.line("demo", f"{count(total)} flights: about {count(seconds)} s{'' if bootstrap_servers else memory}")
    with ExitStack() as stack:
        is_own_broker = False
        if bootstrap_servers is None:
            server = stack.enter_context(local_broker(screen))
            is_own_broker = bool(server.nodes)
            bootstrap_servers = server.bootstrap_servers
            options["security_protocol"] = "PLAINTEXT"
        options["bootstrap_servers"] = bootstrap_servers
        demo = Demo(screen, airport_names, options, rate=rate, total=total, on_spark=on_spark)
        try:
            return run(demo.play(cleans_up=not is_own_broker))
        finally:
            remaining += demo.remaining


class Demo:
    """One run of the demo.

    Args:
        screen: output of the command.
        airport_names: names of airports by code.
        options: options of the consumers and the producer.
        rate: flights per second; unlimited if None.
        total: number of flights.
        on_spark: True to read with Spark instead of a consumer group.

    Attributes:
        name: name of the topic and of the group.
        remaining: topic and group that could not be deleted at the end.
    """

    def __init__(  # noqa: PLR0913 - one for each option of the command
        self,
        screen: Screen,
        airport_names: dict[str, str],
        options: ConsumerOptions,
        *,
        rate: float | None,
        total: int,
        on_spark: bool = False,
    ) -> None:
        self.remaining: list[str] = []
        self.name = f"tailrace-demo-{secrets.token_hex(4)}"
        self._screen, self._airport_names, self._rate = screen, airport_names, rate
        self._total = total
        options = {**options, "group_id": self.name}
        self._config = resolve(options)
        self._publisher = FlightPublisher(self.name, PARTITIONS, rate=rate, limit=total)
        self._reader: GroupReader | SparkReader = (
            SparkReader(self.name, PARTITIONS, options)
            if on_spark
            else GroupReader(self.name, PARTITIONS, self._publisher, options)
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

    async def _read(self, reader: GroupReader) -> None:
        screen, counts = self._screen, reader.counts
        await screen.watch(reader.run(), {"read": lambda: counts.handled}, self._total)
        screen.line("group", f"{MEMBERS} members, joined in {reader.joined_s:.1f} s")
        took = reader.reading_s
        speed = f"in {took:.2f} s, [bold]{per_second(counts.handled, took)} records/s[/], each decoded and counted"
        screen.line("read", f"{count(counts.handled)} records {speed}")
        screen.line("share", shares(counts))

    async def _read_on_spark(self, reader: SparkReader) -> None:
        screen, counts = self._screen, reader.counts
        await screen.watch(reader.run(self._publisher.produced), {"read": lambda: counts.handled}, self._total)
        screen.line("spark", f"local Apache Spark {reader.version}, ready in {reader.starting_s:.1f} s")
        took = reader.reading_s
        speed = f"in {took:.1f} s, [bold]{per_second(counts.handled, took)} records/s[/], written to a table"
        screen.line("read", f"{count(counts.handled)} records {speed}")

    async def _publish_and_read(self, reader: GroupReader) -> None:
        screen, publisher, counts = self._screen, self._publisher, reader.counts
        screen.line("publish", f"{self._rate:,g} flights per second, read at the same time")
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish())
            await screen.watch(
                reader.run(),
                {"publish": lambda: publisher.count, "read": lambda: counts.handled},
                self._total,
                lambda: routes_table(counts, self._airport_names),
            )
            await publishing
        screen.line("read", f"{count(counts.handled)} records")
        screen.line("share", shares(counts))

    async def _publish(self) -> None:
        async with Producer(self._config, max_batch_bytes=524_288) as producer:
            await self._publisher.run(producer)

    async def _committed(self, cluster: Cluster) -> dict[int, int]:
        partitions = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
        found = await committed_offsets(cluster, self.name, partitions, timeout_s=30)
        return {partition.partition: committed.offset for partition, committed in found.items()}

    def _report(self, committed: dict[int, int]) -> bool:
        counts = self._reader.counts
        proof = self._reader.proof(self._publisher.produced, committed)
        self._screen.show(routes_table(counts, self._airport_names))
        self._screen.show(partitions_table(proof))
        holds = all(one.holds for one in proof)
        self._screen.console.print()
        self._screen.line("[green]verified[/]" if holds else "[bold red]failed[/]", verdict(proof))
        return holds
