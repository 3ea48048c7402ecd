"""Administration of topics, as another client sees it."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tailrace import BrokerError, InvalidTopicError, UnknownTopicError
from tailrace.protocol.records import ListOffsetsPartition, ListOffsetsRequest
from tailrace.testing import KafkaServer, KafkaServerError
from tests.support.consumer_group import until


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def admin(kafka_server) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers})


def partitions_of(admin: AdminClient, topic: str) -> dict[int, int]:
    """Return the leader of each partition."""
    return {number: one.leader for number, one in admin.list_topics(topic, 20).topics[topic].partitions.items()}


def config_of(admin: AdminClient, topic: str) -> dict[str, str]:
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
    return {entry.name: entry.value for future in asked.values() for entry in future.result(20).values()}


def bounds_of(kafka_server, topic: str, partition: int) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": kafka_server.bootstrap_servers, "group.id": "witness"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), 20)
    finally:
        consumer.close()


def test_a_created_topic_has_leaders(kafka_server, admin, name):
    """create_topic() returns when all partitions have leaders."""
    kafka_server.create_topic(name, 7)

    assert partitions_of(admin, name) == dict.fromkeys(range(7), 1)


def test_a_created_topic_is_served(kafka_server, name):
    """create_topic() returns when the leaders of all partitions serve fetches."""
    kafka_server.create_topic(name, 300)
    asked = ListOffsetsRequest(tuple(ListOffsetsPartition(name, partition, -1) for partition in range(300)))

    answer = kafka_server._admin._send_to_any(asked)

    assert [(one.error_code, one.offset) for one in answer.partitions] == [(0, 0)] * 300
    kafka_server.delete_topic(name)


def test_a_created_topic_has_its_configuration(kafka_server, admin, name):
    """Numbers, booleans and strings of a topic's configuration are converted to Kafka's format."""
    kafka_server.create_topic(
        name, config={"retention.ms": 60_000, "cleanup.policy": "compact,delete", "preallocate": True}
    )
    found = config_of(admin, name)

    assert found["retention.ms"] == "60000"
    assert found["cleanup.policy"] == "compact,delete"
    assert found["preallocate"] == "true"
    assert found["compression.type"] == "producer"


async def test_records_of_old_timestamps_stay(name):
    """Records of any age stay; a topic with retention.ms loses the older ones."""
    often = {"log.retention.check.interval.ms": 100, "log.initial.task.delay.ms": 100}
    with KafkaServer(config=often) as server:
        server.create_topic(name)
        server.create_topic(f"{name}-short", config={"retention.ms": 60_000})
        producer = Producer({"bootstrap.servers": server.bootstrap_servers})
        for topic in (name, f"{name}-short"):
            producer.produce(topic, b"old", timestamp=1_000_000_000_000)
            assert producer.flush(20) == 0
        await until(lambda: bounds_of(server, f"{name}-short", 0) == (1, 1))

        assert bounds_of(server, name, 0) == (0, 1)


def test_automatic_topic_creation_is_disabled(kafka_server, admin, name):
    """Producing to a missing topic raises an error instead of creating it."""
    errors: list[KafkaError | None] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka_server.bootstrap_servers,
            "allow.auto.create.topics": True,
            "topic.metadata.propagation.max.ms": 500,
        }
    )
    producer.produce(name, b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0

    assert [error.code() for error in errors] == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    assert name not in admin.list_topics(timeout=20).topics


def test_a_deleted_topic_is_gone(kafka_server, admin, name):
    """delete_topic() returns when no broker lists the topic, and a new one of this name is empty."""
    kafka_server.create_topic(name, 2)
    before = kafka_server._admin.metadata(name).topics[0].topic_id

    kafka_server.delete_topic(name)
    assert name not in admin.list_topics(timeout=20).topics
    kafka_server.create_topic(name, 1)

    assert partitions_of(admin, name) == {0: 1}
    assert kafka_server._admin.metadata(name).topics[0].topic_id != before


def test_partitions_can_be_added(kafka_server, admin, name):
    """add_partitions() sets the number of partitions and returns when the new ones have leaders."""
    kafka_server.create_topic(name, 2)

    kafka_server.add_partitions(name, 5)

    assert partitions_of(admin, name) == dict.fromkeys(range(5), 1)


def test_records_can_be_deleted(kafka_server, name):
    """delete_records() deletes the records before an offset, or all with -1."""
    kafka_server.create_topic(name, 3)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    for partition in range(3):
        for _ in range(10):
            producer.produce(name, b"x", partition=partition)
    assert producer.flush(30) == 0

    kafka_server.delete_records(name, {0: 4, 1: -1})

    assert [bounds_of(kafka_server, name, partition) for partition in range(3)] == [(4, 10), (10, 10), (0, 10)]


def test_leader_of_returns_the_node(kafka_server, name):
    """leader_of() returns the node that leads a partition, which can be stopped or paused."""
    kafka_server.create_topic(name)

    assert kafka_server.leader_of(name) is kafka_server.node
    with pytest.raises(KafkaServerError, match=r"\[1\] has no leader"):
        kafka_server.leader_of(name, 1)


def test_errors_of_the_broker_are_raised(kafka_server, name):
    """Wrong topic names and numbers raise Kafka's error."""
    kafka_server.create_topic(name, 2)

    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        kafka_server.create_topic(name)
    with pytest.raises(InvalidTopicError, match="a name with spaces"):
        kafka_server.create_topic("a name with spaces")
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        kafka_server.add_partitions(name, 1)
    with pytest.raises(BrokerError, match="INVALID_CONFIG"):
        kafka_server.create_topic(f"{name}-other", config={"retention.ms": "for ever"})
    with pytest.raises(UnknownTopicError):
        kafka_server.delete_topic(f"{name}-absent")
    with pytest.raises(UnknownTopicError):
        kafka_server.leader_of(f"{name}-absent")
    with pytest.raises(KafkaServerError, match=rf"could not delete records of {name}\[9\]"):
        kafka_server.delete_records(name, {0: 0, 9: 0})


def test_exist_ok_accepts_an_existing_topic(kafka_server, name):
    """With exist_ok, an existing topic remains unchanged, and other errors are raised."""
    kafka_server.create_topic(name, 2)

    kafka_server.create_topic(name, 5, exist_ok=True)
    with pytest.raises(InvalidTopicError):
        kafka_server.create_topic("a name with spaces", exist_ok=True)
    kafka_server.add_partitions(name, 3)
