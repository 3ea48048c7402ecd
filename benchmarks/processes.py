"""Memory, CPU and start time of clients, measured from outside of their processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka import Producer

from benchmarks.report import columns, write
from benchmarks.rounds import ROOT, chosen, in_turns, middle, new_group, version_of
from benchmarks.run import peak_memory
from benchmarks.single_records import CLIENTS, RecordClient
from benchmarks.topics import TopicSettings, fill
from tailrace import TailraceError
from tailrace.cli.local_broker import local_broker
from tailrace.cli.screen import Screen, megabytes
from tailrace.embedded.cluster import EmbeddedCluster

BACKLOG_BYTES = 2_000_000_000
SLEEP_S = 0.01
"""Duration of a handler's call in the benchmark of memory."""
_SAMPLE_S = 0.25
_FIRST_RECORD_S = 60
_SETTLING_S = 3
FLAT = 1.1
"""Maximum ratio of the memory of the last quarter to that of the second quarter, for memory that does not grow."""


def memory(*, rounds: int, seconds: float, backlog: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared, settings = Screen(), chosen(CLIENTS, clients), TopicSettings(payload=1_024)
    with local_broker(screen) as server:
        topic, records = fill(screen, server, settings, backlog // settings.record_bytes)

        def run(client: RecordClient) -> dict:
            with started(client, "slow", server, topic, sleep_s=SLEEP_S) as process:
                return _memory_over_time(process, seconds)

        runs = in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "peak_rss_bytes": middle("peak_rss_bytes", runs[client.name]),
            "growth": middle("growth", runs[client.name]),
            "is_flat": middle("growth", runs[client.name])["median"] <= FLAT,
            "runs": runs[client.name],
        }
        for client in compared
    ]
    table = columns("client", "peak memory", "growth", "flat")
    for row in rows:
        growth = f"{row['growth']['median']:.2f}"
        table.add_row(
            row["client"], megabytes(row["peak_rss_bytes"]["median"]), growth, "yes" if row["is_flat"] else "no"
        )
    screen.show(table)
    shape = {"payload": settings.payload, "partitions": settings.partitions, "records": records}
    shape |= {"backlog_bytes": backlog, "sleep_ms": SLEEP_S * 1000, "rounds": rounds, "seconds": seconds}
    write(screen, path, "memory", {"settings": shape, "rows": rows})
    return 0


def _memory_over_time(process: subprocess.Popen, seconds: float) -> dict:
    watched, began, samples = psutil.Process(process.pid), time.monotonic(), []
    while (now := time.monotonic() - began) < seconds:
        samples.append((round(now, 2), watched.memory_info().rss))
        time.sleep(_SAMPLE_S)
    quarter = max(1, len(samples) // 4)
    sizes = [size for _, size in samples]
    growth = max(sizes[-quarter:]) / max(sizes[quarter : 2 * quarter] or sizes)
    return {"peak_rss_bytes": peak_memory(process.pid), "growth": growth, "samples": samples}


def idle(*, rounds: int, seconds: float, partitions: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared = Screen(), chosen(CLIENTS, clients)
    with local_broker(screen) as server:
        topic = _topic_of_one_record(server, partitions)

        def run(client: RecordClient) -> dict:
            with started(client, "first", server, topic) as process:
                _first_at_s(client, process)
                time.sleep(_SETTLING_S)
                before, began = _cpu_s(process.pid), time.monotonic()
                time.sleep(seconds)
                share = max(_cpu_s(process.pid) - before, 0.0) / (time.monotonic() - began)
                return {"cpu_share": share, "rss_bytes": psutil.Process(process.pid).memory_info().rss}

        runs = in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "cpu_share": middle("cpu_share", runs[client.name]),
            "rss_bytes": middle("rss_bytes", runs[client.name]),
            "runs": runs[client.name],
        }
        for client in compared
    ]
    table = columns("client", "CPU of a core", "memory")
    for row in rows:
        table.add_row(row["client"], f"{row['cpu_share']['median']:.1%}", megabytes(row["rss_bytes"]["median"]))
    screen.show(table)
    write(
        screen,
        path,
        "idle",
        {"settings": {"partitions": partitions, "rounds": rounds, "seconds": seconds}, "rows": rows},
    )
    return 0


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process; on Linux to the nanosecond, elsewhere to the tick of 10 ms."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    times = psutil.Process(pid).cpu_times()
    return round(times.user + times.system, 2)


def start(*, rounds: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared = Screen(), chosen(CLIENTS, clients)
    with local_broker(screen) as server:
        topic = _topic_of_one_record(server, 4)

        def run(client: RecordClient) -> dict:
            began = time.monotonic()
            with started(client, "first", server, topic) as process:
                return {"seconds": _first_at_s(client, process) - began}

        # The first runs read the code of the packages from disk.
        for client in compared:
            run(client)
        runs = in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "seconds": middle("seconds", runs[client.name]),
            "runs": runs[client.name],
        }
        for client in compared
    ]
    table = columns("client", "start to first record")
    for row in rows:
        table.add_row(row["client"], f"{row['seconds']['median']:.2f} s")
    screen.show(table)
    write(screen, path, "start", {"settings": {"partitions": 4, "rounds": rounds}, "rows": rows})
    return 0


@contextmanager
def started(
    client: RecordClient, mode: str, server: EmbeddedCluster, topic: str, **options: float
) -> Iterator[subprocess.Popen]:
    """Run a client as a new group in a separate process, for the duration of a context."""
    source = {"bootstrap_servers": server.bootstrap_servers, "topic": topic, "group": new_group(), **options}
    command = [sys.executable, "-m", "benchmarks.single_records", client.name, mode, json.dumps(source)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        if process.poll() is not None:
            raise TailraceError(f"{client.name} ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.communicate(timeout=_FIRST_RECORD_S)


def _first_at_s(client: RecordClient, process: subprocess.Popen) -> float:
    """Return the time of the first record, by the monotonic clock of the machine."""
    # Without it, a client that receives no record would be waited for without an end.
    killing = threading.Timer(_FIRST_RECORD_S, process.kill)
    killing.start()
    line = process.stdout.readline()
    killing.cancel()
    if not line:
        raise TailraceError(f"{client.name} received no record within {_FIRST_RECORD_S} s")
    return json.loads(line)["first_at_s"]


def _topic_of_one_record(server: EmbeddedCluster, partitions: int) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    producer.produce(topic, b"v", partition=0)
    if producer.flush(20):
        raise TailraceError("the broker did not acknowledge the record within 20 s")
    return topic
