"""Topics as tests need them, seen by another client."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tailrace import BrokerError, InvalidTopicError, UnknownTopicError
from tailrace.protocol.list_offsets import ListOffsetsPartition, ListOffsetsRequest
from tailrace.testing import KafkaServerError


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def admin(kafka_server) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers})


def partitions_of(admin: AdminClient, topic: str) -> dict[int, int]:
    """Each partition's leader."""
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


def test_a_topic_is_there_when_it_was_made(kafka_server, admin, name):
    """create_topic returns when all partitions have leaders, so a client may begin at once."""
    kafka_server.create_topic(name, 7)

    assert partitions_of(admin, name) == dict.fromkeys(range(7), 1)


def test_a_topic_is_served_when_it_was_made(kafka_server, name):
    """A broker says who leads before it does: of many partitions, no first read is refused for that."""
    kafka_server.create_topic(name, 300)
    asked = ListOffsetsRequest(tuple(ListOffsetsPartition(name, partition, -1) for partition in range(300)))

    answer = kafka_server._admin._ask(asked)

    assert [(one.error_code, one.offset) for one in answer.partitions] == [(0, 0)] * 300
    kafka_server.delete_topic(name)


def test_a_topic_has_the_configuration_it_was_made_with(kafka_server, admin, name):
    """Numbers, truth values and texts arrive as Kafka means them; the rest is the broker's default."""
    kafka_server.create_topic(
        name, config={"retention.ms": 60_000, "cleanup.policy": "compact,delete", "preallocate": True}
    )
    found = config_of(admin, name)

    assert found["retention.ms"] == "60000"
    assert found["cleanup.policy"] == "compact,delete"
    assert found["preallocate"] == "true"
    assert found["compression.type"] == "producer"


def test_brokers_make_no_topic_by_themselves(kafka_server, admin, name):
    """A misspelt topic is an error in a test, not a new topic."""
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
    """delete_topic returns when nobody sees it any more; a new one of that name is another topic."""
    kafka_server.create_topic(name, 2)
    before = kafka_server._admin.metadata(name).topics[0].topic_id

    kafka_server.delete_topic(name)
    assert name not in admin.list_topics(timeout=20).topics
    kafka_server.create_topic(name, 1)

    assert partitions_of(admin, name) == {0: 1}
    assert kafka_server._admin.metadata(name).topics[0].topic_id != before


def test_a_topic_grows(kafka_server, admin, name):
    """add_partitions takes the new total and returns when the new ones have leaders."""
    kafka_server.create_topic(name, 2)

    kafka_server.add_partitions(name, 5)

    assert partitions_of(admin, name) == dict.fromkeys(range(5), 1)


def test_records_go_as_retention_would_take_them(kafka_server, name):
    """delete_records moves the beginning of a partition: to an offset, or to the end with -1."""
    kafka_server.create_topic(name, 3)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
    for partition in range(3):
        for _ in range(10):
            producer.produce(name, b"x", partition=partition)
    assert producer.flush(30) == 0

    kafka_server.delete_records(name, {0: 4, 1: -1})

    assert [bounds_of(kafka_server, name, partition) for partition in range(3)] == [(4, 10), (10, 10), (0, 10)]


def test_the_leader_of_a_partition_is_one_of_the_brokers(kafka_server, name):
    """leader_of gives the broker to stop or to pause."""
    kafka_server.create_topic(name)

    assert kafka_server.leader_of(name) is kafka_server.node
    with pytest.raises(KafkaServerError, match=r"\[1\] has no leader"):
        kafka_server.leader_of(name, 1)


def test_what_the_broker_refuses_is_the_brokers_error(kafka_server, name):
    """Names that exist, do not exist, or are no names, and counts that are none, raise what Kafka says of them."""
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


def test_a_topic_may_exist_already_where_that_is_said(kafka_server, name):
    """Tests that share a broker each create their topic; one that exists stays as it is, other refusals are raised."""
    kafka_server.create_topic(name, 2)

    kafka_server.create_topic(name, 5, exist_ok=True)
    with pytest.raises(InvalidTopicError):
        kafka_server.create_topic("a name with spaces", exist_ok=True)
    kafka_server.add_partitions(name, 3)
