"""Memory, CPU and startup time of clients, measured from another process."""

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
from benchmarks.rounds import ROOT, median_and_range, new_group, run_in_turns, select_clients, version_of
from benchmarks.run import peak_memory
from benchmarks.single_records import CLIENTS, RecordClient
from benchmarks.topics import TopicSettings, fill
from tailrace import TailraceError
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen, megabytes
from tailrace.embedded.cluster import EmbeddedCluster

BACKLOG_BYTES = 2_000_000_000
SLEEP_S = 0.01
"""Time that the client sleeps for each record in the benchmark ``memory``."""
_SAMPLE_INTERVAL_S = 0.25
_FIRST_RECORD_TIMEOUT_S = 60
_SETTLING_S = 3
"""Time from the first record to the start of the measurement in the benchmark ``idle``."""
MAX_GROWTH = 1.1
"""Maximum growth of memory that counts as flat: peak in the last quarter of the time / peak in the second quarter."""


def memory(*, rounds: int, seconds: float, backlog: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared, settings = Screen(), select_clients(CLIENTS, clients), TopicSettings(payload=1_024)
    with local_broker(screen) as server:
        topic, records = fill(screen, server, settings, backlog // settings.record_bytes)

        def run(client: RecordClient) -> dict:
            with running_client(client, "slow", server, topic, sleep_s=SLEEP_S) as process:
                return _memory_over_time(process, seconds)

        runs = run_in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "peak_rss_bytes": median_and_range("peak_rss_bytes", runs[client.name]),
            "growth": median_and_range("growth", runs[client.name]),
            "is_flat": median_and_range("growth", runs[client.name])["median"] <= MAX_GROWTH,
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
    process_info, began, samples = psutil.Process(process.pid), time.monotonic(), []
    while (now := time.monotonic() - began) < seconds:
        samples.append((round(now, 2), process_info.memory_info().rss))
        time.sleep(_SAMPLE_INTERVAL_S)
    quarter = max(1, len(samples) // 4)
    sizes = [size for _, size in samples]
    growth = max(sizes[-quarter:]) / max(sizes[quarter : 2 * quarter] or sizes)
    return {"peak_rss_bytes": peak_memory(process.pid), "growth": growth, "samples": samples}


def idle(*, rounds: int, seconds: float, partitions: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared = Screen(), select_clients(CLIENTS, clients)
    with local_broker(screen) as server:
        topic = _topic_of_one_record(server, partitions)

        def run(client: RecordClient) -> dict:
            with running_client(client, "first", server, topic) as process:
                _first_at_s(client, process)
                time.sleep(_SETTLING_S)
                before, began = _cpu_s(process.pid), time.monotonic()
                time.sleep(seconds)
                share = max(_cpu_s(process.pid) - before, 0.0) / (time.monotonic() - began)
                return {"cpu_share": share, "rss_bytes": psutil.Process(process.pid).memory_info().rss}

        runs = run_in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "cpu_share": median_and_range("cpu_share", runs[client.name]),
            "rss_bytes": median_and_range("rss_bytes", runs[client.name]),
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
    """Return the CPU time of a process in seconds, with a resolution of 1 ns on Linux and 10 ms elsewhere."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    times = psutil.Process(pid).cpu_times()
    return round(times.user + times.system, 2)


def start(*, rounds: int, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared = Screen(), select_clients(CLIENTS, clients)
    with local_broker(screen) as server:
        topic = _topic_of_one_record(server, 4)

        def run(client: RecordClient) -> dict:
            began = time.monotonic()
            with running_client(client, "first", server, topic) as process:
                return {"seconds": _first_at_s(client, process) - began}

        # Run each client once without measuring it, because the first run reads the code of its packages from disk.
        for client in compared:
            run(client)
        runs = run_in_turns(screen, rounds, compared, run)
    rows = [
        {
            "client": client.name,
            "version": version_of(client.package),
            "seconds": median_and_range("seconds", runs[client.name]),
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
def running_client(
    client: RecordClient, mode: str, server: EmbeddedCluster, topic: str, **options: float
) -> Iterator[subprocess.Popen]:
    """Run a client as a new group in a separate process, for the duration of a context.

    Args:
        client: client to run.
        mode: method of ``benchmarks.single_records.Source`` to call for each record.
        server: brokers.
        topic: topic to read.
        options: fields of ``Source``.

    Raises:
        TailraceError: the client ended before the end of the context.
    """
    source = {"bootstrap_servers": server.bootstrap_servers, "topic": topic, "group": new_group(), **options}
    command = [sys.executable, "-m", "benchmarks.single_records", client.name, mode, json.dumps(source)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        if process.poll() is not None:
            raise TailraceError(f"{client.name} ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.communicate(timeout=_FIRST_RECORD_TIMEOUT_S)


def _first_at_s(client: RecordClient, process: subprocess.Popen) -> float:
    """Return the time at which the client received its first record, by the monotonic clock of the machine."""
    # Kill a client that receives no record, because readline() has no timeout.
    killing = threading.Timer(_FIRST_RECORD_TIMEOUT_S, process.kill)
    killing.start()
    line = process.stdout.readline()
    killing.cancel()
    if not line:
        raise TailraceError(f"{client.name} received no record within {_FIRST_RECORD_TIMEOUT_S} s")
    return json.loads(line)["first_at_s"]


def _topic_of_one_record(server: EmbeddedCluster, partitions: int) -> str:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    server.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    producer.produce(topic, b"v", partition=0)
    if producer.flush(20):
        raise TailraceError("the broker did not acknowledge the record within 20 s")
    return topic
