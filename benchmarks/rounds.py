"""Rounds of a comparison, in which each client runs once in a separate process, and medians of their figures."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol, TypeVar

from tailrace import TailraceError
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen
from tailrace.embedded.cluster import EmbeddedCluster
from tailrace.embedded.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[1]

_STARTUP_TIMEOUT_S = 60


class Named(Protocol):
    """Client or case of a comparison."""

    @property
    def name(self) -> str:
        """Name to show in tables."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


class FilledTopic(NamedTuple):
    """Topic for clients to read."""

    bootstrap_servers: str
    topic: str
    records: int
    """Number of records in the topic."""
    payload: int
    """Size of each value, in bytes."""


def run_brokers(screen: Screen, brokers: int) -> AbstractContextManager[EmbeddedCluster]:
    """Return a context manager that runs this number of brokers."""
    return local_broker(screen) if brokers == 1 else EmbeddedCluster(brokers)


def run_in_turns(
    screen: Screen, rounds: int, clients: Sequence[NamedT], run: Callable[[NamedT], dict]
) -> dict[str, list[dict]]:
    """Run each client once in each round, and return the figures by client.

    Each round has another order, because a client that leaves the broker busy slows down the next client. The orders
    are the same each time that a benchmark runs.
    """
    runs: dict[str, list[dict]] = {client.name: [] for client in clients}
    with screen.progress() as progress:
        bar = progress.add_task("run", total=rounds * len(clients), note="")
        for number in range(rounds):
            for client in random.Random(number).sample(clients, len(clients)):
                progress.update(bar, note=client.name)
                runs[client.name].append(run(client))
                progress.advance(bar)
    return runs


def run_module(
    name: str, module: str, *arguments: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> dict:
    """Run ``python -m module`` and return the figures that it prints as its last line.

    Raises:
        TailraceError: the process failed, or did not end within ``timeout_s`` and a minute for its start.
    """
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s + _STARTUP_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TailraceError(f"{name} did not end within {timeout_s + _STARTUP_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise TailraceError(f"{name} failed:\n{done.stderr[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def new_group() -> str:
    """Return the name of a new group."""
    return f"bench-{uuid.uuid4().hex[:8]}"


def median_and_range(name: str, runs: list[dict]) -> dict[str, float]:
    """Return the median, the lowest and the highest of a figure."""
    values = [one[name] for one in runs]
    return {"median": median(values), "lowest": min(values), "highest": max(values)}


def select_clients(clients: Sequence[NamedT], words: Sequence[str]) -> list[NamedT]:
    """Return the clients whose names contain one of ``words``, or all clients if there are no words.

    Raises:
        TailraceError: no name contains one of the words.
    """
    for word in words:
        if not any(word in client.name for client in clients):
            raise TailraceError(f"no client has {word!r} in its name: {', '.join(one.name for one in clients)}")
    return [client for client in clients if not words or any(word in client.name for word in words)]


def version_of(package: str) -> str:
    """Return the version of a package; the version of ``java`` is that of the broker."""
    return KAFKA_VERSION if package == "java" else version(package)


def machine() -> dict:
    """Return a description of this machine and its software."""
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
        "kafka": KAFKA_VERSION,
        # With TMPDIR=/dev/shm, the broker's log is in memory, so no disk affects the results.
        "log_folder": tempfile.gettempdir(),
        "date": datetime.now(UTC).date().isoformat(),
    }
