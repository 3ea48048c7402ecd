"""`tailrace kafka`: a broker for as long as somebody wants it."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest
from confluent_kafka import Producer

from tailrace.embedded.ports import free_ports
from tests.support.commands import end, read_until, running, tailrace


def test_a_broker_until_ctrl_c():
    """It says where it listens, has the topics that were asked for, makes others when they are written to, and ends."""
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
        returned, said = end(process, signal.SIGINT)

    assert (returned, "Traceback" in said) == (130, False)
    assert made == {"orders": 6, "bills": 1}
    assert not is_alive(java)


@pytest.mark.parametrize("topic", ["", ":3", "orders:", "orders:none", "orders:0"])
def test_a_topic_that_is_none_is_told(topic):
    """How a topic is written is told before anything is started."""
    done = tailrace("kafka", "--topic", topic)

    assert done.returncode == 2
    assert "must be NAME or NAME:PARTITIONS, such as orders:6, not" in done.stderr


def test_a_broker_that_dies_is_told():
    """When the broker ends by itself, the command says so and ends with 1."""
    with running("kafka") as process:
        read_until(process, "stop")
        subprocess.run(["kill", "-9", str(broker_of(process.pid))], check=True)
        out, errors = process.communicate(timeout=60)

    assert (process.returncode, out.strip(), "Traceback" in errors) == (1, "", False)
    assert errors.startswith("tailrace kafka: the broker exited.")


def test_a_port_in_use_is_told():
    """A port that somebody has is one sentence, before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tailrace("kafka", "--port", str(port))

    assert done.returncode == 1
    assert f"port {port} is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_does_not_pass_another_broker_off_as_its_own():
    """With the variable that names the brokers of tests there is nothing to start."""
    done = tailrace("kafka", TAILRACE_TEST_BOOTSTRAP_SERVERS="127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr.startswith("tailrace kafka: TAILRACE_TEST_BOOTSTRAP_SERVERS selects brokers that already run - ")


def broker_of(pid: int) -> int:
    """The broker's process below the command's."""
    import psutil  # noqa: PLC0415 - the one use

    (java,) = psutil.Process(pid).children()
    return java.pid


def is_alive(pid: int) -> bool:
    import psutil  # noqa: PLC0415

    return psutil.pid_exists(pid)
