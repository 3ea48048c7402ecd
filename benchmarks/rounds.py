"""Rounds of a comparison: clients in turns, each in a separate process, and medians of their figures."""

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
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen
from tailrace.embedded.cluster import EmbeddedCluster
from tailrace.embedded.jars import KAFKA_VERSION

ROOT = Path(__file__).parents[1]

_STARTUP_S = 60


class Named(Protocol):
    """Client of a comparison, or a case of it."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


class Reading(NamedTuple):
    """Topic that a client reads."""

    bootstrap_servers: str
    topic: str
    records: int
    """Number of records in the topic."""
    payload: int
    """Size of each value, in bytes."""


def cluster_of(screen: Screen, brokers: int) -> AbstractContextManager[EmbeddedCluster]:
    """Return a context that runs one or more brokers."""
    return local_broker(screen) if brokers == 1 else EmbeddedCluster(brokers)


def in_turns(
    screen: Screen, rounds: int, clients: Sequence[NamedT], run: Callable[[NamedT], dict]
) -> dict[str, list[dict]]:
    """Return the figures of all runs by client.

    Each round has an order of its own, the same in each process, because a client that leaves the broker busy would
    slow down whichever client always follows it.
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


def in_process(
    name: str, module: str, *arguments: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> dict:
    """Run ``python -m module`` and return the figures that it writes."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s + _STARTUP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TailraceError(f"{name} did not end within {timeout_s + _STARTUP_S:.0f} s") from None
    if done.returncode:
        raise TailraceError(f"{name} failed:\n{done.stderr[-2_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def new_group() -> str:
    """Return the name of a new group."""
    return f"bench-{uuid.uuid4().hex[:8]}"


def middle(name: str, runs: list[dict]) -> dict[str, float]:
    """Return the median, the lowest and the highest of a figure."""
    values = [one[name] for one in runs]
    return {"median": median(values), "lowest": min(values), "highest": max(values)}


def chosen(clients: Sequence[NamedT], words: Sequence[str]) -> list[NamedT]:
    """Return the clients whose name contains one of ``words``; all without words.

    Raises:
        TailraceError: a word is in no name.
    """
    for word in words:
        if not any(word in client.name for client in clients):
            raise TailraceError(f"no client has {word!r} in its name: {', '.join(one.name for one in clients)}")
    return [client for client in clients if not words or any(word in client.name for word in words)]


def version_of(package: str) -> str:
    """Return the version of a compared package; Java's client has that of the broker."""
    return KAFKA_VERSION if package == "java" else version(package)


def machine() -> dict:
    """Return the description of this machine and its software."""
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
        # With TMPDIR=/dev/shm, no disk takes part.
        "log_folder": tempfile.gettempdir(),
        "date": datetime.now(UTC).date().isoformat(),
    }
