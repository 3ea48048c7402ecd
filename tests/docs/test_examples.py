"""Programs in examples/ run as documented."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer

from tests.support.commands import environment

ROOT = Path(__file__).parents[2]


@pytest.fixture
def started(kafka_server):
    """Provide a function that starts a program on the shared broker, which ends with the test."""
    processes = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment(TAILRACE_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers),
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


@pytest.fixture
def made(kafka_server):
    """Provide a function that creates the topics in an example's first lines, and no others."""

    def make(example: str) -> None:
        (command,) = re.findall(r"^tailrace kafka (.*?) +#", (ROOT / "examples" / example).read_text(), re.MULTILINE)
        for name, partitions in re.findall(r"--topic ([\w-]+)(?::(\d+))?", command):
            kafka_server.create_topic(name, int(partitions or 1), exist_ok=True)

    return make


def test_the_shop_charges_what_is_ordered(started, made, kafka_server):
    """An order that one command of the shop places becomes an invoice by the other command."""
    made("shop.py")
    witness = Consumer(
        {"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": "w", "auto.offset.reset": "earliest"}
    )
    witness.subscribe(["invoices"])

    placed = started("examples/shop.py", "order", "ann", "5")
    assert (placed.wait(60), placed.stderr.read()) == (0, "")
    charging = started("-m", "tailrace", "run", "examples.shop:billing")
    message = next(one for _ in range(600) if (one := witness.poll(0.1)) is not None and not one.error())
    charging.send_signal(signal.SIGTERM)
    witness.close()

    assert message.value() == b'{"customer":"ann","total":5}'
    assert charging.wait(60) == 0


def test_the_watcher_prints_what_is_written(started, kafka_server):
    """The watcher prints a line for each record, and exits with 0 on SIGTERM."""
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(topic)
    watching = started("examples/watch.py", topic)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "linger.ms": 0})

    lines: list[str] = []
    reading = threading.Thread(target=lambda: lines.append(watching.stdout.readline()), daemon=True)
    reading.start()
    # The command reads only new records, and prints nothing when it is ready.
    while reading.is_alive():
        producer.produce(topic, b"v", key=b"k")
        producer.flush(20)
        reading.join(0.05)
    watching.send_signal(signal.SIGTERM)

    assert lines[0].startswith("0@")
    assert lines[0].endswith(" b'k' b'v'\n")
    assert watching.wait(60) == 0


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_the_cashier_continues_the_trace_of_a_payment(started, made, options):
    """The spans of the process that sends a payment and of the one that handles it have the same trace."""
    made("traced.py")
    paying = started("examples/traced.py", "5")
    paid, _ = paying.communicate(timeout=60)
    (trace_id,) = {trace_id for name, trace_id in printed_spans(paid) if name == "send payments"}

    charging = started("-m", "tailrace", "run", "examples.traced:cashier", *options)
    found: set[str] = set()
    lines = ""
    while not {"process payments", "send receipts"} <= found:
        line = charging.stdout.readline()
        assert line, charging.stderr.read()
        lines += line.rpartition(" | ")[2]
        found = {name for name, of in printed_spans(lines) if of == trace_id}
    charging.send_signal(signal.SIGTERM)
    # communicate() would leave out what readline() has read ahead.
    rest = charging.stdout.read()
    charging.wait(60)

    assert (paying.returncode, charging.returncode) == (0, 0)
    # Lines of two workers may alternate, so the names of spans are not looked for with their traces here.
    assert '"name": "commit payments"' in lines + rest


def printed_spans(text: str) -> list[tuple[str, str]]:
    """Return the names and trace ids of spans that OpenTelemetry's console exporter printed."""
    return re.findall(r'"name": "([^"]+)",.*?"trace_id": "0x(\w+)"', text, re.DOTALL)


def test_the_page_about_traces_has_the_program_of_the_example():
    """The first program of the page is the start of the example, without its handler."""
    page, example = ((ROOT / path).read_text() for path in ("docs/howto/trace-an-app.md", "examples/traced.py"))
    (program, *_) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    assert program in example


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(270)
def test_the_windows_are_summed_by_spark(started, made, kafka_server, tmp_path):
    """Spark adds later orders to the sums of earlier batches, and drops orders that are too late."""
    made("windows_on_spark.py")
    command = ("examples/windows_on_spark.py", str(tmp_path / "sums"), "available_now")
    place(
        kafka_server, ("ann", 250, "12:01:00"), ("ann", 50, "12:04:59"), ("ann", 7, "12:05:00"), ("bob", 3, "12:04:00")
    )

    first = shown_by(started(*command))
    place(kafka_server, ("ann", 1, "12:00:00"), ("bob", 0, "12:30:00"), ("bob", 4, "12:30:00"))
    second = shown_by(started(*command))
    bought = started("examples/windows_on_spark.py", "order", "carl", "9")
    assert (bought.wait(60), bought.stderr.read()) == (0, "")
    place(kafka_server, ("ann", 1_000, "12:00:00"))
    third = shown_by(started(*command))

    assert first == [("12:00:00", "ann", 300), ("12:00:00", "bob", 3), ("12:05:00", "ann", 7)]
    assert second == [("12:00:00", "ann", 301), *first[1:], ("12:30:00", "bob", 4)]
    assert third[:-1] == second
    assert third[-1][1:] == ("carl", 9)


def place(kafka_server, *orders: tuple[str, int, str]) -> None:
    """Return an order of a customer with cents and a time of one day."""
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    for customer, cents, at in orders:
        value = json.dumps({"cents": cents, "at": f"2026-01-05T{at}Z"})
        producer.produce("sales-orders", value, key=customer)
    assert producer.flush(20) == 0


def shown_by(process: subprocess.Popen[str]) -> list[tuple[str, str, int]]:
    """Return the rows of the table that the example prints."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    rows = [line.split("\t") for line in out.splitlines()]
    return [(start.split()[1], customer, int(cents)) for start, customer, cents in rows]


TRACED = """
import runpy, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
sys.argv = sys.argv[1:]
sys.path.insert(0, "")
run = runpy.run_module if sys.argv[0] == "uvicorn" else runpy.run_path
run(sys.argv[0], run_name="__main__")
"""
"""Runs a program with a tracer provider that prints the spans."""


@pytest.mark.parametrize(
    ("example", "command"),
    [
        ("fastapi_service.py", ("uvicorn", "examples.fastapi_service:web", "--port")),
        ("monitored_worker.py", ("examples/monitored_worker.py",)),
    ],
)
def test_an_example_has_metrics_probes_and_spans(started, made, kafka_server, monkeypatch, tmp_path, example, command):  # noqa: PLR0917
    """The service and the worker have metrics, probes and spans, with less than ten lines of their own for them."""
    made(example)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PORT", str(port))
    monkeypatch.setenv("BILLING_DATABASE", str(tmp_path / "billing.db"))
    program = started("-c", TRACED, *command, *([str(port)] if "uvicorn" in command else []))
    threading.Thread(target=program.stderr.read, daemon=True).start()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    producer.produce("orders", b'{"customer": "ann", "total": 5}')
    assert producer.flush(20) == 0

    printed = ""
    while "process orders" not in {name for name, _ in printed_spans(printed)}:
        line = program.stdout.readline()
        assert line, printed
        printed += line
    threading.Thread(target=program.stdout.read, daemon=True).start()
    found = {}
    for path in ("livez", "readyz", "metrics"):
        with urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as answer:
            found[path] = answer.read().decode()
    program.send_signal(signal.SIGTERM)
    program.wait(timeout=60)

    assert '"status"' in found["livez"]
    assert '"status"' in found["readyz"]
    (calls,) = re.findall(
        r'^tailrace_handler_duration_seconds_count{group="billing",handler="charge"} (\S+)$',
        found["metrics"],
        re.MULTILINE,
    )
    assert float(calls) >= 1
    own = re.findall(
        r"^.*(?:OpenTelemetry|metrics_app|health_app|serve\().*$",
        (ROOT / "examples" / example).read_text(),
        re.MULTILINE,
    )
    assert 3 <= len(own) < 10


def test_the_monitored_worker_serves_its_metrics(started, made, kafka_server, monkeypatch):
    """The worker's metrics count a charged order, and SIGTERM ends it with exit code 0."""
    made("monitored_worker.py")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("PORT", str(port))
    worker = started("examples/monitored_worker.py")
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    producer.produce("orders", b"of ann")
    assert producer.flush(20) == 0

    line = worker.stdout.readline()
    while "of ann" not in line:  # other examples' orders come first
        line = worker.stdout.readline()
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)

    assert worker.returncode == 0
    assert re.search(r'^tailrace_handler_in_flight\{group="billing",handler="charge"\} ', text, re.MULTILINE)
