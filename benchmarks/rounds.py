"""Rounds of a comparison: filling of topics, clients in turns, each in a separate process, and medians."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks.clients import Client
from tailrace import TailraceError
from tailrace.cli.screen import Screen, count, megabytes

PARTITIONS = 4
_KEYS = 1_000
_LONGEST_S = 600


class Reading(NamedTuple):
    """Topic that a client reads."""

    bootstrap_servers: str
    topic: str
    records: int
    size: int
    """Size of each value, in bytes."""


def fill(screen: Screen, reading: Reading, value: bytes) -> None:
    """Fill the topic with uncompressed records, by confluent-kafka's producer."""
    _, topic, records, size = reading
    began = time.monotonic()
    producer = Producer(
        {
            "bootstrap.servers": reading.bootstrap_servers,
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    keys = [b"k%d" % number for number in range(_KEYS)]
    with screen.progress() as progress:
        bar = progress.add_task("fill", total=records, note="")
        for number in range(records):
            while True:
                try:
                    producer.produce(topic, value, keys[number % _KEYS])
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
                progress.update(bar, completed=number, note=f"{count(number)} of {count(records)}")
        if left := producer.flush(60):
            raise TailraceError(f"the broker did not acknowledge {left} records within a minute - is the disk full?")
    took = time.monotonic() - began
    screen.line("topic", f"{count(records)} records of {size} B, {megabytes(records * size)}, in {took:.1f} s")


def in_turns(
    screen: Screen, rounds: int, clients: Sequence[Client], reading_of: Callable[[Client], Reading]
) -> dict[str, list[dict]]:
    """Return the figures of all runs by client; each round starts with another client."""
    runs: dict[str, list[dict]] = {client.name: [] for client in clients}
    with screen.progress() as progress:
        bar = progress.add_task("read", total=rounds * len(clients), note="")
        for number in range(rounds):
            turn = number % len(clients)
            for client in (*clients[turn:], *clients[:turn]):
                progress.update(bar, note=client.name)
                runs[client.name].append(one_run(client, reading_of(client)))
                progress.advance(bar)
    return runs


def one_run(client: Client, reading: Reading) -> dict:
    """Run a client in a separate process and return its figures."""
    records = min(reading.records, client.most or reading.records)
    command = [sys.executable, "-m", "benchmarks.clients", client.name]
    command += [reading.bootstrap_servers, reading.topic, f"bench-{uuid.uuid4().hex[:8]}", str(records)]
    here = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        raise TailraceError(f"{client.name} did not read {records} records in {_LONGEST_S} s") from None
    if done.returncode:
        raise TailraceError(f"{client.name} failed:\n{done.stderr[-2_000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    if client.reads == "bytes" and figures["read_bytes"] < records * reading.size:
        raise TailraceError(f"{client.name} read {figures['read_bytes']} bytes of {records * reading.size}")
    return figures | {"records": records}


def row(client: Client, runs: list[dict]) -> dict:
    """Return the medians of a client's runs."""
    speeds = [one["records_per_s"] for one in runs]
    cpu_s = median(one["cpu_s"] for one in runs)
    records = runs[0]["records"]
    return {
        "client": client.name,
        "version": version(client.package),
        "records": records,
        "records_per_s": median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "cpu_s": cpu_s,
        "records_per_cpu_s": records / max(cpu_s, 1e-9),
        "max_rss_bytes": max(one["max_rss_bytes"] for one in runs),
        "runs": runs,
    }


def machine() -> dict:
    """Return the description of this machine."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = models[0].partition(":")[2].strip() if models else model
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "model": model,
        "system": platform.platform(),
        "python": platform.python_version(),
    }
