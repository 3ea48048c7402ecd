"""Longest gap between records of a partition that stays assigned to its member during a rebalance.

A gap is the time between two records. Records are produced continuously, and a member reads them while another member
joins. In half of the cases, there is also a member that takes five seconds to handle a record, which delays the
rebalance. The longest gap during the rebalance is compared with the longest gap in a period of the same length after
the rebalance.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from confluent_kafka import Producer
from rich.table import Table

from benchmarks.report import columns, write
from tailrace import Consumer, Record, TopicPartition
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen

MIN_BOUND_S, QUIET_FACTOR = 0.1, 2
"""Promise: a gap is at most ``MIN_BOUND_S``, or at most ``QUIET_FACTOR`` times the gap without a rebalance."""

PARTITIONS = 6
_SLOW_RECORD_S = 5.0
"""Time that the slow member takes to handle a record."""
_RECORDS_PER_S = 600
_TIMEOUT_S = 60
_BROKER = {
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
}


@dataclass
class Member:
    """Consumer that stores the arrival times of its records.

    Attributes:
        arrivals: times by partition.
        pause_s: time to take for the next record; 0 for none.
    """

    consumer: Consumer
    arrivals: dict[TopicPartition, list[float]] = field(default_factory=dict)
    pause_s: float = 0.0

    async def read(self) -> None:
        async for record in self.consumer:
            self._note(record)
            if self.pause_s:
                pause_s, self.pause_s = self.pause_s, 0.0
                await asyncio.sleep(pause_s)

    def _note(self, record: Record) -> None:
        self.arrivals.setdefault(TopicPartition(record.topic, record.partition), []).append(time.monotonic())

    def longest_gap(self, partitions: frozenset[TopicPartition], since: float, until: float) -> float:
        """Return the longest gap of a partition in seconds; ``since`` and ``until`` count as arrivals of a record."""
        gaps = []
        for partition in partitions:
            arrivals = [at for at in self.arrivals.get(partition, ()) if since <= at <= until]
            gaps += [later - earlier for earlier, later in pairwise([since, *arrivals, until])]
        return max(gaps)


class Round:
    """Members of a group that reads one topic."""

    def __init__(self, options: dict, topic: str, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        self._options, self._topic, self._stack, self._tasks = options, topic, stack, tasks
        self.members: list[Member] = []

    async def join(self) -> Member:
        consumer = await self._stack.enter_async_context(Consumer(self._topic, **self._options))
        member = Member(consumer)
        self.members.append(member)
        self._tasks.create_task(member.read())
        return member

    async def wait_until_balanced(self) -> None:
        """Wait until all members have the same number of partitions, and have received records of all of them."""
        share = PARTITIONS // len(self.members)
        async with asyncio.timeout(_TIMEOUT_S):
            while not all(len(one.consumer.assignment()) == share for one in self.members):
                await asyncio.sleep(0.01)
            while not all(one.consumer.assignment() <= one.arrivals.keys() for one in self.members):
                await asyncio.sleep(0.01)


async def one_round(options: dict, topic: str, *, has_slow_member: bool) -> tuple[float, float]:
    """Return the longest gaps in seconds, during a rebalance and in a period of the same length after it."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        group = Round(options, topic, stack, tasks)
        first = await group.join()
        await group.wait_until_balanced()
        if has_slow_member:
            slow = await group.join()
            await group.wait_until_balanced()
            slow.pause_s = _SLOW_RECORD_S
        before, began = first.consumer.assignment(), time.monotonic()
        await group.join()
        await group.wait_until_balanced()
        kept, ended = before & first.consumer.assignment(), time.monotonic()
        await asyncio.sleep(ended - began)
        gaps = first.longest_gap(kept, began, ended), first.longest_gap(kept, ended, time.monotonic())
        await stack.aclose()
    return gaps


@contextmanager
def running_producer(bootstrap_servers: str, topic: str) -> Iterator[None]:
    """Produce records continuously in a separate process, for the duration of a context."""
    command = [sys.executable, "-m", "benchmarks.rebalance", bootstrap_servers, topic]
    producing = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        yield
    finally:
        producing.kill()
        producing.wait()


def produce(bootstrap_servers: str, topic: str) -> None:
    """Produce to the partitions in turn at a constant rate, until the process is killed."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0})
    for number in range(sys.maxsize):
        producer.produce(topic, b"v" * 100, partition=number % PARTITIONS)
        producer.poll(0)
        time.sleep(1 / _RECORDS_PER_S)


def rebalance(*, rounds: int, path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``; return 0 if the promise holds, else 1."""
    screen, rows = Screen(), []
    cases = [(protocol, has_slow_member) for protocol in ("classic", "consumer") for has_slow_member in (False, True)]
    with local_broker(screen, config=_BROKER) as server, screen.progress() as progress:
        bar = progress.add_task("rounds", total=rounds * len(cases), note="")
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        server.create_topic(topic, PARTITIONS)
        with running_producer(server.bootstrap_servers, topic):
            for protocol, has_slow_member in cases:
                progress.update(bar, note=protocol + (", slow member" if has_slow_member else ""))
                gaps = []
                for _ in range(rounds):
                    options = {
                        "bootstrap_servers": server.bootstrap_servers,
                        "group_id": f"bench-{uuid.uuid4().hex[:8]}",
                        "group_protocol": protocol,
                        "auto_offset_reset": "latest",
                    }
                    gaps.append(asyncio.run(one_round(options, topic, has_slow_member=has_slow_member)))
                    progress.advance(bar)
                rows.append(row(protocol, gaps, has_slow_member=has_slow_member))
    holds = all(one["holds"] for one in rows)
    result = {"settings": {"rounds": rounds, "partitions": PARTITIONS}, "rows": rows, "holds": holds}
    screen.show(table(rows))
    write(screen, path, "rebalance", result)
    screen.line("gaps", f"the promise {'holds' if holds else 'does NOT hold'}")
    return 0 if holds else 1


def row(protocol: str, gaps: list[tuple[float, float]], *, has_slow_member: bool) -> dict:
    """Return the medians of the gaps of one case, and the promise."""
    during_rebalance, quiet = (median(column) for column in zip(*gaps, strict=True))
    bound = max(MIN_BOUND_S, QUIET_FACTOR * quiet)
    return {
        "protocol": protocol,
        "drains": has_slow_member,
        "gap_s": during_rebalance,
        "quiet_gap_s": quiet,
        "bound_s": bound,
        "holds": during_rebalance <= bound,
        "runs": gaps,
    }


def table(rows: list[dict]) -> Table:
    """Return the table of results, one line per case."""
    table = columns("longest gap of a kept partition", "rebalance", "no rebalance", "promise")
    for one in rows:
        case = one["protocol"] + (", a member takes 5 s" if one["drains"] else " protocol")
        figures = (f"{one[name] * 1000:.0f} ms" for name in ("gap_s", "quiet_gap_s", "bound_s"))
        table.add_row(case, *figures, style=None if one["holds"] else "bold red")
    return table


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        produce(*sys.argv[1:])
