"""Latency from a producer to a client at constant rates, with and without a busy loop in the client's process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import columns, write
from benchmarks.rounds import ROOT, median_and_range, new_group, run_in_turns, run_module, select_clients, version_of
from benchmarks.run import WARM_UP_S
from benchmarks.single_records import BUSY_S, CLIENTS, FREE_S, RecordClient
from tailrace.cli.kafka import local_broker
from tailrace.cli.screen import Screen

RATES = (500, 5_000)
PARTITIONS, PAYLOAD = 4, 100


class Case(NamedTuple):
    """Client at a rate, with or without a busy loop."""

    client: RecordClient
    rate: int
    is_busy: bool

    @property
    def name(self) -> str:
        return f"{self.client.name}, {self.rate}/s{', busy' if self.is_busy else ''}"


def latency(*, rounds: int, seconds: float, clients: Sequence[str], path: Path) -> int:
    """Run the benchmark, show the results and write them to ``path``."""
    screen, compared = Screen(), select_clients(CLIENTS, clients)
    cases = [Case(client, rate, is_busy) for rate in RATES for is_busy in (False, True) for client in compared]
    with local_broker(screen) as server:

        def run(case: Case) -> dict:
            # Each run has a new topic, so that the previous run leaves no backlog.
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            server.create_topic(topic, PARTITIONS)
            source = {"bootstrap_servers": server.bootstrap_servers, "topic": topic, "group": new_group()}
            # Start at the latest offset, because records that are produced while the client starts would be late.
            source |= {"seconds": seconds, "is_busy": case.is_busy, "auto_offset_reset": "latest"}
            with running_producer(server.bootstrap_servers, topic, case.rate):
                return run_module(
                    case.name,
                    "benchmarks.single_records",
                    case.client.name,
                    "latency",
                    json.dumps(source),
                    timeout_s=WARM_UP_S + seconds,
                )

        runs = run_in_turns(screen, rounds, cases, run)
    rows = [
        {
            "client": case.client.name,
            "version": version_of(case.client.package),
            "rate": case.rate,
            "is_busy": case.is_busy,
            "p50_ms": median_and_range("p50_ms", runs[case.name]),
            "p99_ms": median_and_range("p99_ms", runs[case.name]),
            "runs": runs[case.name],
        }
        for case in cases
    ]
    table = columns("client", "records/s", "busy", "p50", "p99")
    for row in rows:
        busy = "yes" if row["is_busy"] else "no"
        figures = (f"{row[name]['median']:.2f} ms" for name in ("p50_ms", "p99_ms"))
        table.add_row(row["client"], str(row["rate"]), busy, *figures)
    screen.show(table)
    settings = {"rounds": rounds, "seconds": seconds, "warm_up_s": WARM_UP_S, "payload": PAYLOAD}
    settings |= {"partitions": PARTITIONS, "busy_ms": BUSY_S * 1000, "free_ms": FREE_S * 1000}
    write(screen, path, "latency", {"settings": settings, "rows": rows})
    return 0


@contextmanager
def running_producer(bootstrap_servers: str, topic: str, rate: int) -> Iterator[None]:
    """Produce at a constant rate in a separate process, for the duration of a context."""
    command = [sys.executable, "-m", "benchmarks.latency", bootstrap_servers, topic, str(rate)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def produce(bootstrap_servers: str, topic: str, rate: str) -> None:
    """Produce values that begin with the time of the monotonic clock, until the process is killed."""
    from confluent_kafka import Producer

    # With only one request in flight, the producer batches records while the broker writes the previous ones. The
    # broker shares the machine with the client, and cannot handle a request for each of 5,000 records a second.
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "max.in.flight": 1})
    began = time.monotonic()
    for number in range(sys.maxsize):
        if (early_s := began + number / int(rate) - time.monotonic()) > 0:
            time.sleep(early_s)
        value = f"{time.monotonic():024.9f}".encode().ljust(PAYLOAD, b".")
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        produce(*sys.argv[1:])
