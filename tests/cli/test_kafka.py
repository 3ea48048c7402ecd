"""`tailrace kafka`: a local broker until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest
from confluent_kafka import Producer

from tailrace.embedded.cluster import free_ports
from tests.support.commands import end, read_until, running, tailrace


def test_broker_creates_topics_and_stops_on_ctrl_c():
    """`kafka` prints the address, creates topics on request and on first use, and stops on SIGINT."""
    (port,) = free_ports(1)

    with running("kafka", "--port", str(port), "--topic", "orders:6", "--topic", "bills") as process:
        assert f"127.0.0.1:{port}" in read_until(process, "broker")
        assert read_until(process, "topics") == "orders (6), bills (1)"
        assert read_until(process, "use") == f"export TAILRACE_BOOTSTRAP_SERVERS=127.0.0.1:{port}"
        read_until(process, "stop")
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
        made = {name: len(topic.partitions) for name, topic in producer.list_topics(timeout=20).topics.items()}
        producer.produce("new", b"x")
        assert producer.flush(20) == 0
        java = broker_of(process.pid)
        returned, output = end(process, signal.SIGINT)

    assert (returned, "Traceback" in output) == (130, False)
    assert made == {"orders": 6, "bills": 1}
    assert not is_alive(java)


@pytest.mark.parametrize("topic", ["", ":3", "orders:", "orders:none", "orders:0"])
def test_a_malformed_topic_is_a_usage_error(topic):
    """A malformed --topic is a usage error with the correct form."""
    done = tailrace("kafka", "--topic", topic)

    assert done.returncode == 2
    assert "must be NAME or NAME:PARTITIONS with 1 to 1000 partitions, such as orders:6, not" in done.stderr


def test_a_broker_that_dies_ends_the_command():
    """If the broker exits, the command prints an error and exits with 1."""
    with running("kafka") as process:
        read_until(process, "stop")
        subprocess.run(["kill", "-9", str(broker_of(process.pid))], check=True)
        out, errors = process.communicate(timeout=60)

    assert (process.returncode, out.strip(), "Traceback" in errors) == (1, "", False)
    assert errors.startswith("tailrace kafka: the broker exited.")


def test_a_port_in_use_is_an_error():
    """A port in use is an error without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tailrace("kafka", "--port", str(port))

    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_external_brokers_are_refused():
    """`kafka` fails if the variable for external brokers of tests is set."""
    done = tailrace("kafka", TAILRACE_TEST_BOOTSTRAP_SERVERS="127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr.startswith("tailrace kafka: TAILRACE_TEST_BOOTSTRAP_SERVERS selects brokers that already run - ")


def broker_of(pid: int) -> int:
    """Return the process id of the broker started by a command."""
    import psutil  # noqa: PLC0415 - the one use

    (java,) = psutil.Process(pid).children()
    return java.pid


def is_alive(pid: int) -> bool:
    import psutil  # noqa: PLC0415

    return psutil.pid_exists(pid)
