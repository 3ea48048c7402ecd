"""Errors of a broker that does not start have Kafka's reason, and only the log remains."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from tailrace.embedded import cluster as embedded
from tailrace.embedded.cluster import free_ports
from tailrace.testing import KafkaCluster, KafkaServer, KafkaServerError

pytestmark = pytest.mark.slow


def kept_logs(error: BaseException) -> list[Path]:
    """Return the log files that the message names."""
    return [Path(name) for name in str(error).rpartition("The whole log: ")[2].split(", ")]


def test_an_invalid_configuration_raises_with_kafkas_message(temporary):
    """The error has Kafka's message about the setting without a stack trace, and the log is kept."""
    with pytest.raises(KafkaServerError, match=r"Invalid value soon for configuration log\.retention\.ms") as caught:
        KafkaServer(config={"log.retention.ms": "soon"}).start()

    assert len(str(caught.value).splitlines()) < 10
    (log,) = kept_logs(caught.value)
    assert "log.retention.ms" in log.read_text()
    temporary.assert_nothing_is_left()


def test_a_broker_that_exits_while_starting_raises(temporary):
    """The error is raised when the process ends, with the relevant part of its log."""
    with pytest.raises(KafkaServerError, match=r"(?s)broker 1 exited while starting.*no\.such\.Authorizer") as caught:
        KafkaServer(config={"authorizer.class.name": "no.such.Authorizer"}).start()

    assert len(str(caught.value).splitlines()) < 30
    assert "no.such.Authorizer" in kept_logs(caught.value)[0].read_text()
    temporary.assert_nothing_is_left()


def test_a_failed_server_can_be_closed(temporary):
    """A server whose start failed has the same state as before and can be closed."""
    server = KafkaServer(config={"num.io.threads": 0})
    for _ in range(2):
        with pytest.raises(KafkaServerError, match=r"num\.io\.threads"):
            server.start()
    server.close()

    with pytest.raises(KafkaServerError, match="not started"):
        _ = server.bootstrap_servers
    temporary.assert_nothing_is_left()


async def test_async_with_fails_the_same_way(temporary):
    """``async with`` raises the same error as ``with``."""
    with pytest.raises(KafkaServerError, match=r"num\.io\.threads"):
        async with KafkaServer(config={"num.io.threads": 0}):
            pytest.fail("it started")

    temporary.assert_nothing_is_left()


def test_one_failing_broker_stops_the_cluster(temporary):
    """If one broker of a cluster does not start, all are stopped."""
    with pytest.raises(KafkaServerError, match=r"no\.such\.Authorizer"):
        KafkaCluster(2, config={"authorizer.class.name": "no.such.Authorizer"}).start()

    temporary.assert_nothing_is_left()


def test_a_port_taken_meanwhile_is_replaced(temporary, monkeypatch):
    """If another process opens a chosen port before the broker, other ports are used."""
    # The CLIENT port, which a broker opens after the INTERNAL one.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = [[taken.getsockname()[1], *free_ports(2)], free_ports(3)]
        monkeypatch.setattr(embedded, "free_ports", lambda _: choices.pop(0))

        with KafkaServer() as server:
            assert choices == []
            assert len(temporary.run_folders) == 1
            server.create_topic("made")

    temporary.assert_nothing_is_left()


def test_a_given_port_is_used_or_named_in_the_error(temporary):
    """port= is used, or an error says that it is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(KafkaServerError, match=rf"^port {port} is in use.*$"):
            KafkaServer(port=port).start()
        temporary.assert_nothing_is_left()

    (port,) = free_ports(1)
    with KafkaServer(port=port) as server:
        assert server.bootstrap_servers == f"127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), 5):
            pass


def test_ports_are_free_and_below_those_of_outgoing_connections():
    """Chosen ports are free and below the range that the system uses for outgoing connections."""
    ports = free_ports(30)

    assert len(set(ports)) == 30
    assert max(ports) < 32_768
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            assert port not in free_ports(10)


@pytest.fixture
def never_ready(monkeypatch) -> None:
    """Keep a start from completing until the test ends it."""
    monkeypatch.setattr(embedded.BrokerNode, "is_listening", False)


async def test_a_canceled_start_stops_the_broker(never_ready, temporary, eventually):
    """Canceling `async with` during the start stops the broker and raises CancelledError."""
    server = KafkaServer()

    async def use() -> None:
        async with server:
            pytest.fail("it started")

    task = asyncio.create_task(use())
    await asyncio.to_thread(eventually, lambda: temporary.brokers, "a JVM")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    temporary.assert_nothing_is_left()
    with pytest.raises(KafkaServerError, match="not started"):
        _ = server.bootstrap_servers


async def test_close_in_another_thread_ends_a_start(never_ready, temporary, eventually):
    """close() in another thread ends a start with an error that says why."""
    server = KafkaServer()

    started = asyncio.create_task(asyncio.to_thread(server.start))
    await asyncio.to_thread(eventually, lambda: temporary.brokers, "a JVM")
    await asyncio.to_thread(server.close)
    with pytest.raises(KafkaServerError, match="closed while they were starting"):
        await started

    temporary.assert_nothing_is_left()


async def test_a_canceled_exit_stops_the_broker(temporary):
    """If the task that leaves the block is canceled, the broker is stopped."""
    leaving = asyncio.Event()

    async def use() -> None:
        async with KafkaServer():
            leaving.set()

    task = asyncio.create_task(use())
    await leaving.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    temporary.assert_nothing_is_left()


def test_a_log_without_errors_is_shown_by_its_end(tmp_path):
    """complaint() returns the errors of a log, else its last lines, else a note that there is no log."""
    node = embedded.BrokerNode(1, None, tmp_path, Path("java"), [])
    assert node.complaint() == "(no log)"

    node.log_file.write_text("\n".join(f"INFO line {n}" for n in range(100)))
    assert node.complaint(lines=3) == "INFO line 97\nINFO line 98\nINFO line 99"

    with node.log_file.open("a") as log:
        log.write("\nERROR it is broken\n\tat some.place\nCaused by: this\nINFO good-bye\n")
    assert re.fullmatch("ERROR it is broken\nCaused by: this", node.complaint())
