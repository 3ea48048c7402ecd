"""A broker that does not start says why, in Kafka's words, and leaves nothing but the log that it names."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path

import pytest

from tailrace.embedded import cluster as embedded
from tailrace.embedded.ports import free_ports
from tailrace.testing import KafkaCluster, KafkaServer, KafkaServerError

pytestmark = pytest.mark.slow


def kept_logs(error: BaseException) -> list[Path]:
    """The files that the message names."""
    return [Path(name) for name in str(error).rpartition("The whole log: ")[2].split(", ")]


def test_a_configuration_that_kafka_does_not_take_is_shown(temporary):
    """The message is what Kafka says of the setting, not a stack trace, and the whole log is kept."""
    with pytest.raises(KafkaServerError, match=r"Invalid value soon for configuration log\.retention\.ms") as caught:
        KafkaServer(config={"log.retention.ms": "soon"}).start()

    assert len(str(caught.value).splitlines()) < 10
    (log,) = kept_logs(caught.value)
    assert "log.retention.ms" in log.read_text()
    temporary.assert_nothing_is_left()


def test_a_broker_that_ends_while_it_starts_is_shown(temporary):
    """It is not waited for in vain, and the message has the part of the log that matters."""
    with pytest.raises(KafkaServerError, match=r"(?s)broker 1 exited while starting.*no\.such\.Authorizer") as caught:
        KafkaServer(config={"authorizer.class.name": "no.such.Authorizer"}).start()

    assert len(str(caught.value).splitlines()) < 30
    assert "no.such.Authorizer" in kept_logs(caught.value)[0].read_text()
    temporary.assert_nothing_is_left()


def test_a_server_that_failed_may_be_closed_and_says_that_it_is_not_started(temporary):
    """After a failure the object is as before the start."""
    server = KafkaServer(config={"num.io.threads": 0})
    for _ in range(2):
        with pytest.raises(KafkaServerError, match=r"num\.io\.threads"):
            server.start()
    server.close()

    with pytest.raises(KafkaServerError, match="not started"):
        _ = server.bootstrap_servers
    temporary.assert_nothing_is_left()


async def test_async_with_fails_the_same_way(temporary):
    """Nothing depends on which kind of block it is."""
    with pytest.raises(KafkaServerError, match=r"num\.io\.threads"):
        async with KafkaServer(config={"num.io.threads": 0}):
            pytest.fail("it started")

    temporary.assert_nothing_is_left()


def test_one_bad_broker_takes_the_others_with_it(temporary):
    """A cluster starts as a whole or not at all."""
    with pytest.raises(KafkaServerError, match=r"no\.such\.Authorizer"):
        KafkaCluster(2, config={"authorizer.class.name": "no.such.Authorizer"}).start()

    temporary.assert_nothing_is_left()


def test_a_port_that_somebody_took_meanwhile_is_no_failure(temporary, monkeypatch):
    """Between looking for a port and listening on it others may come: then other ports are taken."""
    # Clients' port, which a broker opens after the one that we ask it by.
    with socket.create_server(("127.0.0.1", 0)) as taken:
        choices = [[taken.getsockname()[1], *free_ports(2)], free_ports(3)]
        monkeypatch.setattr(embedded, "free_ports", lambda _: choices.pop(0))

        with KafkaServer() as server:
            assert choices == []
            assert len(temporary.run_folders) == 1
            server.create_topic("made")

    temporary.assert_nothing_is_left()


def test_a_port_of_ones_choice_is_taken_or_told_to_be_somebodys(temporary):
    """port= says where the broker listens; where somebody does already, that is the whole message."""
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
    """A stopped broker's port is not given to some client's connection, so that it is free when it comes back."""
    ports = free_ports(30)

    assert len(set(ports)) == 30
    assert max(ports) < 32_768
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            assert port not in free_ports(10)


@pytest.fixture
def never_ready(monkeypatch) -> None:
    """However fast a broker is, its start is not over before something ends it."""
    monkeypatch.setattr(embedded.BrokerNode, "is_listening", False)


async def test_a_start_that_is_cancelled_leaves_nothing(never_ready, temporary, eventually):
    """Cancelling `async with` while the broker starts ends it, and what was cancelled is told so."""
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


async def test_a_start_that_is_closed_by_another_thread_ends(never_ready, temporary, eventually):
    """close() does not wait for a start to finish; whoever started it learns why it did not."""
    server = KafkaServer()

    started = asyncio.create_task(asyncio.to_thread(server.start))
    await asyncio.to_thread(eventually, lambda: temporary.brokers, "a JVM")
    await asyncio.to_thread(server.close)
    with pytest.raises(KafkaServerError, match="closed while starting"):
        await started

    temporary.assert_nothing_is_left()


async def test_an_exit_that_is_cancelled_is_an_exit(temporary):
    """Cancelling the task that leaves the block does not leave a broker behind."""
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


def test_a_log_that_says_nothing_bad_is_shown_by_its_end(tmp_path):
    """complaint() is what went wrong, else the last lines, else a word that there is no log."""
    node = embedded.BrokerNode(1, None, tmp_path, Path("java"), [])
    assert node.complaint() == "(no log)"

    node.log_file.write_text("\n".join(f"INFO line {n}" for n in range(100)))
    assert node.complaint(lines=3) == "INFO line 97\nINFO line 98\nINFO line 99"

    with node.log_file.open("a") as log:
        log.write("\nERROR it is broken\n\tat some.place\nCaused by: this\nINFO good-bye\n")
    assert re.fullmatch("ERROR it is broken\nCaused by: this", node.complaint())
