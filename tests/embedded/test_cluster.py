"""Clusters of several brokers: racks, leaders, failures and advertised addresses."""

from __future__ import annotations

import uuid

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tailrace.embedded.cluster import EXTERNAL_BROKERS, EmbeddedServer
from tailrace.testing import KafkaCluster

pytestmark = pytest.mark.xdist_group("embedded-cluster")  # they share brokers

RACKS = ["eu-1a", "eu-1b", "eu-1c"]


@pytest.fixture(scope="module")
def three():
    """Start a cluster of three brokers in three racks, which each test leaves running."""
    with KafkaCluster(3, racks=RACKS) as brokers:
        yield brokers


@pytest.fixture
def topic(three) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    three.create_topic(name, 3, config={"min.insync.replicas": 2})
    return name


def replicas_of(three: KafkaCluster, topic: str) -> list[tuple[int, set[int], set[int]]]:
    """Return leader, replicas and in-sync replicas of each partition."""
    found = AdminClient({"bootstrap.servers": three.bootstrap_servers}).list_topics(topic, 20).topics[topic]
    return [(one.leader, set(one.replicas), set(one.isrs)) for one in found.partitions.values()]


def produce(three: KafkaCluster, topic: str) -> list[object]:
    """Produce one record to each partition with acks=all, and return the errors."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": three.bootstrap_servers, "acks": "all", "message.timeout.ms": 30_000})
    for partition in range(3):
        producer.produce(topic, b"x", partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(40) == 0
    assert len(errors) == 3
    return [error for error in errors if error is not None]


def test_brokers_have_addresses_and_racks(three):
    """Each address of bootstrap_servers returns all three brokers with their racks."""
    for address in three.bootstrap_servers.split(","):
        admin = AdminClient({"bootstrap.servers": address})
        nodes = admin.describe_cluster().result(20).nodes
        assert {f"{node.host}:{node.port}" for node in nodes} == set(three.bootstrap_servers.split(","))
        assert [node.rack for node in sorted(nodes, key=lambda node: node.id)] == RACKS
    assert [node.node_id for node in three.nodes] == [1, 2, 3]


def test_the_default_replication_factor_is_three(three, topic):
    """Topics of a cluster have three replicas unless replication_factor is given."""
    assert [(replicas, isr) for _, replicas, isr in replicas_of(three, topic)] == [({1, 2, 3}, {1, 2, 3})] * 3

    three.create_topic(f"{topic}-single", 3, replication_factor=1)

    assert all(len(replicas) == 1 for _, replicas, _ in replicas_of(three, f"{topic}-single"))


def test_another_broker_becomes_leader_when_the_leader_is_killed(three, topic, eventually):
    """When a leader is killed, records are accepted by another one, and the killed broker can return."""
    victim = three.leader_of(topic, 0)

    victim.kill()
    try:
        eventually(lambda: three.leader_of(topic, 0) is not victim, "another leader")
        assert produce(three, topic) == []
        assert "stopped" in repr(three)
    finally:
        three.restart(victim)

    assert victim.is_running
    eventually(lambda: all(isr == {1, 2, 3} for _, _, isr in replicas_of(three, topic)), "all replicas in sync")
    assert produce(three, topic) == []


def test_topics_can_be_created_while_a_broker_is_paused(three, topic):
    """While a broker is paused, topics are created through the other ones."""
    victim = next(node for node in three.nodes if node is not three.leader_of(topic, 0))

    victim.pause()
    try:
        three.wait_until_ready()
        assert three.leader_of(topic, 0) is not victim
    finally:
        victim.resume()

    three.wait_until_ready()
    assert produce(three, topic) == []


def test_a_stopped_broker_transfers_its_leadership(three, topic, eventually):
    """After stop() of a broker, its partitions get other leaders."""
    victim = three.leader_of(topic, 0)

    victim.stop()
    try:
        eventually(lambda: three.leader_of(topic, 0) is not victim, "another leader")
    finally:
        three.restart(victim)

    assert {node.is_running for node in three.nodes} == {True}


def test_one_address_of_an_external_cluster_is_enough(three, topic, monkeypatch):
    """With one address of an external cluster, requests reach the leaders on all brokers."""
    monkeypatch.setenv(EXTERNAL_BROKERS, three.bootstrap_servers.split(",")[0])

    with EmbeddedServer() as named:
        named.create_topic(f"{topic}-named", 6, replication_factor=1)
        assert {leader for leader, *_ in replicas_of(three, f"{topic}-named")} == {1, 2, 3}
        assert produce(three, topic) == []
        named.delete_records(topic, dict.fromkeys(range(3), -1))

    consumer = Consumer({"bootstrap.servers": three.bootstrap_servers, "group.id": "witness"})
    bounds = [consumer.get_watermark_offsets(TopicPartition(topic, one), 20) for one in range(3)]
    consumer.close()
    assert bounds == [(1, 1)] * 3


@pytest.mark.slow
def test_a_cluster_restarts_with_its_topics(three, topic):
    """After all three brokers were killed, a restart restores the quorum and the topics."""
    for node in three.nodes:
        node.kill()
    for node in three.nodes:
        node.start()
    three.wait_until_ready()

    assert produce(three, topic) == []


def test_advertise_changes_the_ports_for_clients(temporary):
    """advertise= is called with the port of a broker and returns the one for clients."""
    asked: dict[int, int] = {}

    def advertise(node_id: int, port: int) -> int:
        asked[node_id] = port
        return port + 20_000

    with EmbeddedServer(advertise=advertise) as server:
        (node_id, port), *others = asked.items()
        found = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=20)

        assert (node_id, others) == (1, [])
        assert server.bootstrap_servers == f"127.0.0.1:{port + 20_000}"
        assert [broker.port for broker in found.brokers.values()] == [port + 20_000]
        assert port in {c.laddr.port for c in psutil.Process(server.node.pid).net_connections("tcp")}
        server.create_topic("made-behind-it")

    temporary.assert_nothing_is_left()
