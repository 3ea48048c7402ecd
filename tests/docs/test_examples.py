"""The programs in examples/ do what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from commands import environment
from confluent_kafka import Consumer, Producer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(kafka_server):
    """Starts a program of ours on the shared broker; it is ended with the test."""
    processes = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment(PENSTOCK_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_the_shop_charges_what_is_ordered(started, kafka_server):
    """An order that is placed by one command becomes an invoice by the other."""
    for topic in ("orders", "invoices", "orders.billing.dead"):
        kafka_server.create_topic(topic)
    witness = Consumer(
        {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    witness.subscribe(["invoices"])

    placed = started("examples/shop.py", "order", "ann", "5")
    assert (placed.wait(30), placed.stderr.read()) == (0, "")
    charging = started("-m", "penstock", "run", "examples.shop:billing")
    message = next(one for _ in range(300) if (one := witness.poll(0.1)) is not None and not one.error())
    charging.send_signal(signal.SIGTERM)
    witness.close()

    assert message.value() == b'{"customer":"ann","total":5}'
    assert charging.wait(30) == 0


def test_the_watcher_prints_what_is_written(started, kafka_server):
    """Each record is a line, and SIGTERM ends it with 0."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(topic)
    watching = started("examples/watch.py", topic)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "linger.ms": 0})

    lines: list[str] = []
    reading = threading.Thread(target=lambda: lines.append(watching.stdout.readline()), daemon=True)
    reading.start()
    # It reads from "now" on, and does not tell when that is.
    while reading.is_alive():
        producer.produce(topic, b"v", key=b"k")
        producer.flush(10)
        reading.join(0.05)
    watching.send_signal(signal.SIGTERM)

    assert lines[0].startswith("0@")
    assert lines[0].endswith(" b'k' b'v'\n")
    assert watching.wait(30) == 0
