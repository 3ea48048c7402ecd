"""Start, stop, kill, pause and restart of a broker, as other clients see them."""

from __future__ import annotations

import socket
import uuid

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace import ConfigurationError
from tailrace.testing import KafkaCluster, KafkaServer, KafkaServerError

pytestmark = pytest.mark.xdist_group("embedded-server")  # they share brokers


@pytest.fixture(scope="module")
def server():
    """Start a broker that tests may stop and kill, and that each test leaves running."""
    with KafkaServer() as one:
        yield one


@pytest.fixture
def topic(server) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    server.create_topic(name)
    return name


def produce(server: KafkaServer, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def read(server: KafkaServer, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap_servers, "group.id": f"g-{uuid.uuid4().hex}"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return [message.value() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def topics_of(server: KafkaServer, timeout_s: float = 20) -> set[str]:
    return set(AdminClient({"bootstrap.servers": server.bootstrap_servers}).list_topics(timeout=timeout_s).topics)


# ---- stop, kill and pause --------------------------------------------------------------------------------------------


def test_another_client_connects_to_bootstrap_servers(server):
    """Another client connects to bootstrap_servers, where one broker process listens on the loopback address."""
    found = AdminClient({"bootstrap.servers": server.bootstrap_servers}).list_topics(timeout=20)

    assert [f"{broker.host}:{broker.port}" for broker in found.brokers.values()] == [server.bootstrap_servers]
    assert server.client_options == {"bootstrap_servers": server.bootstrap_servers}
    assert "java" in psutil.Process(server.node.pid).name()


def test_the_broker_listens_only_on_the_loopback_address(server):
    """All sockets of the broker listen on the loopback address."""
    listening = {
        connection.laddr
        for connection in psutil.Process(server.node.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }

    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert len(listening) == 3


def test_acknowledged_records_survive_a_kill(server, topic):
    """After SIGKILL and a restart, the broker has the same address and records."""
    produce(server, topic, b"one", b"two")
    address, pid = server.bootstrap_servers, server.node.pid

    server.kill()
    assert not server.node.is_running
    assert not psutil.pid_exists(pid)
    server.restart()

    assert (server.bootstrap_servers, server.node.is_running) == (address, True)
    assert server.node.pid != pid
    assert read(server, topic, 2) == [b"one", b"two"]
    produce(server, topic, b"three")
    assert read(server, topic, 3) == [b"one", b"two", b"three"]


def test_a_stopped_broker_refuses_connections_until_its_restart(server, topic):
    """A stopped broker refuses connections, and has its records after the restart."""
    produce(server, topic, b"one")
    host, port = server.bootstrap_servers.split(":")

    server.stop()
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), 5):
        pass
    assert server.node.pid is None
    assert "stopped" in repr(server)
    server.restart()

    assert read(server, topic, 1) == [b"one"]
    assert "running" in repr(server)


def test_a_stopped_broker_shuts_down_cleanly(server):
    """The log of a stopped broker contains its clean shutdown."""
    server.stop()
    try:
        assert "shut down completed" in server.node.log_file.read_text()
    finally:
        server.restart()


def test_operations_are_possible_in_all_states(server, topic):
    """stop(), kill(), pause() and resume() may be called repeatedly."""
    server.stop()
    server.stop()
    server.kill()
    server.pause()
    server.resume()
    assert not server.node.is_running
    assert not server.node.is_listening
    server.restart()
    server.resume()
    assert server.node.is_listening

    assert topic in topics_of(server)


def test_a_paused_broker_keeps_its_sockets_and_answers_nothing(server, topic):
    """A client of a paused broker connects and waits, and gets its response after resume()."""
    host, port = server.bootstrap_servers.split(":")

    server.pause()
    try:
        with socket.create_connection((host, int(port)), 5):
            assert psutil.Process(server.node.pid).status() == psutil.STATUS_STOPPED
            assert server.node.is_running
            assert server.node.is_paused
            assert "paused" in repr(server)
            with pytest.raises(KafkaException):
                topics_of(server, timeout_s=1)
    finally:
        server.resume()

    assert topic in topics_of(server)
    assert not server.node.is_paused


def test_a_paused_broker_can_be_killed_and_restarted(server, topic):
    """A paused broker can be killed, and runs after a restart."""
    server.pause()
    server.restart()

    assert not server.node.is_paused
    assert topic in topics_of(server)


def test_restart_replaces_a_running_process(server):
    """restart() of a running broker stops it first."""
    pid = server.node.pid

    server.restart()

    assert server.node.pid not in {None, pid}
    assert not psutil.pid_exists(pid)


def test_requests_to_a_stopped_broker_fail_at_once(server):
    """Requests to a stopped broker do not wait for a timeout."""
    server.stop()
    try:
        with pytest.raises(KafkaServerError, match="all brokers are stopped or paused"):
            server.create_topic("nowhere")
        with pytest.raises(KafkaServerError, match="all brokers are stopped or paused"):
            server.wait_until_ready()
    finally:
        server.restart()


def test_a_failed_restart_raises_with_its_log(server):
    """The error of a failed restart has the log of this start, not of earlier ones."""
    server.stop()
    meta = server.node.data / "meta.properties"
    before = meta.read_text()
    meta.write_text(before.replace("version=1", "version=77"))
    try:
        with pytest.raises(KafkaServerError, match=r"(?s)broker 1 exited while starting.*77"):
            server.restart()
        assert not server.node.is_running
    finally:
        meta.write_text(before)
        server.restart()


# ---- start and close -------------------------------------------------------------------------------------------------


async def test_several_servers_are_independent(temporary):
    """Several servers have their own ports, processes, folders and topics."""
    with KafkaServer() as one:
        async with KafkaServer() as other:
            one.create_topic("of-one")
            other.create_topic("of-the-other")

            assert "of-one" in topics_of(one)
            assert "of-the-other" in topics_of(other)
            assert topics_of(one).isdisjoint(topics_of(other))
            assert {one.node.pid, other.node.pid} == temporary.brokers
            assert len(temporary.run_folders) == 2

        assert temporary.brokers == {one.node.pid}
        assert len(temporary.run_folders) == 1

    temporary.assert_nothing_is_left()


def test_a_server_may_be_started_again(temporary):
    """start() after close() starts an empty broker, and repeated calls of either do nothing."""
    server = KafkaServer()
    server.start()
    server.start()
    assert len(temporary.brokers) == 1
    server.create_topic("old")
    server.close()
    server.close()
    temporary.assert_nothing_is_left()

    with server:
        assert "old" not in topics_of(server)

    temporary.assert_nothing_is_left()


def test_calls_before_the_start_raise():
    """Calls before the start raise an error that says how to start the server."""
    server = KafkaServer()

    for question in (
        lambda: server.bootstrap_servers,
        lambda: server.client_options,
        lambda: server.node,
        server.stop,
        server.restart,
        server.wait_until_ready,
        lambda: server.create_topic("nowhere"),
    ):
        with pytest.raises(KafkaServerError, match=r"not started - use a `with` block, or call start\(\)"):
            question()
    assert "not started" in repr(server)
    server.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"security": "TLS"}, "security must be one of PLAINTEXT, SSL, MTLS, PLAIN, SCRAM"),
        ({"tls": True}, "tls=True requires a SASL mechanism"),
        ({"config": {"listeners": "PLAINTEXT://0.0.0.0:9092"}}, "config must not contain 'listeners'"),
        ({"config": {"log.dirs": "/"}}, "config must not contain 'log.dirs'"),
    ],
)
def test_invalid_options_of_a_server_raise(options, words):
    """Invalid options of a server raise in the constructor."""
    with pytest.raises(ConfigurationError, match=words):
        KafkaServer(**options)


@pytest.mark.parametrize(
    ("brokers", "options", "words"),
    [
        (0, {}, "brokers must be at least 1, not 0"),
        (3, {"racks": ["a", "b"]}, "one entry for each of 3 brokers"),
    ],
)
def test_invalid_options_of_a_cluster_raise(brokers, options, words):
    """Invalid options of a cluster raise in the constructor."""
    with pytest.raises(ConfigurationError, match=words):
        KafkaCluster(brokers, **options)
