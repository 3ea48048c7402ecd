"""The demo from beginning to end: a broker, a topic, the replay, the group, the proof, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from contextlib import ExitStack, closing
from functools import partial

from penstock.admin.groups import delete_group
from penstock.admin.topics import create_topic, delete_topic
from penstock.app.producer import Producer
from penstock.cli.broker import local_broker
from penstock.cli.demo.flights import TOTAL, airports
from penstock.cli.demo.reading import MEMBERS, Reading
from penstock.cli.demo.replay import Replay
from penstock.cli.demo.report import partitions_table, routes_table, shares, verdict
from penstock.cli.screen import Screen, count, megabytes, per_second
from penstock.config import ConsumerOptions, resolve
from penstock.consumer.offsets import committed_offsets
from penstock.consumer.run import run
from penstock.errors import PenstockError
from penstock.net.cluster import Cluster
from penstock.records import TopicPartition

__all__ = ["PARTITIONS", "Demo", "play"]

PARTITIONS = 6

_SIGTERM = 143
_COST = "400 MB of memory, 100 MB of disk"
_CLEANING_S = 10
_OPTIONS: ConsumerOptions = {
    "client_id": "penstock-demo",
    "socket_connection_setup_timeout_ms": 5_000,
    "default_api_timeout_ms": 30_000,
    "stop_timeout_ms": 10_000,
    # Whatever the environment says of these, it is not about the demo.
    "auto_offset_reset": "earliest",
    "enable_auto_commit": True,
    "group_instance_id": None,
    "leave_on_stop": True,
    # The first member hears of the second by a heartbeat.
    "heartbeat_interval_ms": 500,
}


def play(bootstrap_servers: str | None, *, rate: float | None, limit: int | None) -> int:
    """Play it on these brokers, or on one of its own; gives the exit code.

    Raises:
        PenstockError: it could not be played to the end.
    """
    # aiokafka's warnings of a broker that is away would stand between our lines; what matters is raised.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    screen, left, began = Screen(), list[str](), time.monotonic()
    ended = "cut short"
    try:
        holds = _play(screen, left, bootstrap_servers, rate=rate, limit=limit)
        ended = f"after {time.monotonic() - began:.1f} s"
    finally:
        screen.say("end", f"{ended}, {', '.join(left) or 'nothing'} is left behind")
    if holds is None:
        return _SIGTERM
    return 0 if holds and not left else 1


def _play(
    screen: Screen, left: list[str], bootstrap_servers: str | None, *, rate: float | None, limit: int | None
) -> bool | None:
    names, options, total = airports(), _OPTIONS.copy(), min(limit or TOTAL, TOTAL)
    seconds = 5 + (total / rate if rate else total / 50_000)
    cost = f"about {count(seconds)} s" if bootstrap_servers else f"about {count(seconds)} s, {_COST}"
    screen.say("demo", f"{count(total)} flights: {cost}")
    with ExitStack() as stack:
        is_ours = False
        if bootstrap_servers is None:
            server = stack.enter_context(local_broker(screen))
            is_ours = bool(server.nodes)
            bootstrap_servers = server.bootstrap_servers
            options["security_protocol"] = "PLAINTEXT"
        options["bootstrap_servers"] = bootstrap_servers
        demo = Demo(screen, names, options, rate=rate, total=total)
        try:
            return run(demo.play(cleans_up=not is_ours))
        finally:
            left += demo.left


class Demo:
    """One performance.

    Args:
        screen: where it is shown.
        airport_names: by code.
        options: of every consumer, and of the producer where it has the same.
        rate: flights a second; all at once when nothing is said.
        total: how many flights.

    Attributes:
        name: of the topic and of the group.
        left: what could not be removed in the end.
    """

    def __init__(
        self,
        screen: Screen,
        airport_names: dict[str, str],
        options: ConsumerOptions,
        *,
        rate: float | None,
        total: int,
    ) -> None:
        self.left: list[str] = []
        self.name = f"penstock-demo-{secrets.token_hex(4)}"
        self._screen, self._airport_names, self._rate = screen, airport_names, rate
        self._total = total
        self._config = resolve({**options, "group_id": self.name})
        self._replay = Replay(self.name, PARTITIONS, rate=rate, limit=total)
        self._reading = Reading(self.name, PARTITIONS, self._replay, {**options, "group_id": self.name})

    async def play(self, *, cleans_up: bool) -> bool:
        """From the topic to the verdict; gives whether each record was handled once and committed.

        Raises:
            PenstockError: it could not be played to the end.
        """
        with closing(Cluster(self._config)) as cluster:
            await cluster.bootstrap()
            try:
                await create_topic(cluster, self.name, PARTITIONS)
                self._screen.say("topic", f"{self.name}: {PARTITIONS} partitions, the key is the route")
                if self._rate is None:
                    await self._fill_then_read()
                else:
                    await self._fill_and_read()
                committed = await self._committed(cluster)
            finally:
                if cleans_up:
                    await self._clean_up(cluster)
        return self._report(committed)

    async def _clean_up(self, cluster: Cluster) -> None:
        self.left = [f"group {self.name}", f"topic {self.name}"]
        with contextlib.suppress(PenstockError):
            await delete_group(cluster, self.name, timeout_s=_CLEANING_S)
            self.left.remove(f"group {self.name}")
        with contextlib.suppress(PenstockError):
            await delete_topic(cluster, self.name, timeout_s=_CLEANING_S)
            self.left.remove(f"topic {self.name}")

    async def _fill_then_read(self) -> None:
        screen, replay, tally = self._screen, self._replay, self._reading.tally
        began = time.monotonic()
        await screen.watch(self._fill(), {"replay": lambda: replay.count}, self._total)
        took = time.monotonic() - began
        speed = f"{megabytes(replay.payload_bytes)} of JSON in {took:.1f} s, {per_second(replay.count, took)} a second"
        screen.say("replay", f"{count(replay.count)} flights, {speed}")
        await screen.watch(self._reading.run(), {"read": lambda: tally.handled}, self._total)
        screen.say("group", f"{MEMBERS} members, joined in {self._reading.joined_s:.1f} s")
        took = self._reading.reading_s
        speed = f"in {took:.2f} s, [bold]{per_second(tally.handled, took)} records/s[/], each decoded and counted"
        screen.say("read", f"{count(tally.handled)} records {speed}")

    async def _fill_and_read(self) -> None:
        screen, replay, tally = self._screen, self._replay, self._reading.tally
        screen.say("replay", f"{self._rate:,g} flights a second, read as they come")
        async with asyncio.TaskGroup() as tasks:
            filling = tasks.create_task(self._fill())
            await screen.watch(
                self._reading.run(),
                {"replay": lambda: replay.count, "read": lambda: tally.handled},
                self._total,
                lambda: routes_table(tally, self._airport_names),
            )
            await filling
        screen.say("read", f"{count(tally.handled)} records")

    async def _fill(self) -> None:
        async with Producer(self._config, max_batch_bytes=524_288) as producer:
            await self._replay.run(producer)

    async def _committed(self, cluster: Cluster) -> dict[int, int]:
        wanted = [TopicPartition(self.name, partition) for partition in range(PARTITIONS)]
        ask = partial(committed_offsets, cluster, self.name, wanted)
        found = await cluster.retrying(ask, timeout_s=30, what="reading the committed offsets")
        return {partition.partition: committed.offset for partition, committed in found.items()}

    def _report(self, committed: dict[int, int]) -> bool:
        tally = self._reading.tally
        proof = tally.proof(self._replay.produced, committed)
        self._screen.say("share", shares(tally))
        self._screen.show(routes_table(tally, self._airport_names))
        self._screen.show(partitions_table(proof))
        holds = all(one.holds for one in proof)
        self._screen.console.print()
        self._screen.say("[green]proved[/]" if holds else "[bold red]wrong[/]", verdict(proof))
        return holds
