"""Changes of topics and groups are complete when the call returns."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tailrace import BrokerError, Consumer, GroupNotEmptyError
from tailrace.admin.groups import delete_group
from tailrace.admin.topics import create_topic, delete_topic


async def test_a_created_topic_has_leaders_and_configuration(reached, admin, name):
    """After create_topic() returns, all partitions have leaders and the topic has its configuration."""
    async with reached() as cluster:
        await create_topic(cluster, name, 3, config={"retention.ms": 1_234_567})

        assert {one.leader_id for one in cluster.topology.topics[name].partitions.values()} == {1}
    assert len(admin.list_topics(name, 60).topics[name].partitions) == 3


async def test_creating_an_existing_topic_raises(reached, kafka_server, name):
    """Creating a topic that exists raises an error with its name."""
    kafka_server.create_topic(name)

    async with reached() as cluster:
        with pytest.raises(BrokerError, match=f"{name}.*TOPIC_ALREADY_EXISTS"):
            await create_topic(cluster, name, 1)


async def test_a_deleted_topic_is_gone(reached, kafka_server, admin, name):
    """After delete_topic() returns, no broker lists the topic, and deleting it again is no error."""
    kafka_server.create_topic(name)

    async with reached() as cluster:
        await delete_topic(cluster, name)
        await delete_topic(cluster, name)

    assert name not in admin.list_topics(timeout=60).topics


async def test_a_group_is_deleted_with_its_offsets(reached, kafka_server, admin, name):
    """A group is deleted with its offsets, and deleting it again is no error."""
    kafka_server.create_topic(name)
    await read_one_of(kafka_server.bootstrap_servers, name)
    assert name in groups(admin)

    async with reached() as cluster:
        await delete_group(cluster, name)
        await delete_group(cluster, name)

    assert name not in groups(admin)


async def test_a_group_with_members_is_not_deleted(reached, kafka_server, name):
    """Deleting a group with members raises an error that names them."""
    kafka_server.create_topic(name)

    async with Consumer(name, bootstrap_servers=kafka_server.bootstrap_servers, group_id=name) as consumer:
        assert await consumer.getone(timeout_ms=1) is None
        produce(kafka_server.bootstrap_servers, name)
        await consumer.getone()
        async with reached() as cluster:
            with pytest.raises(GroupNotEmptyError, match=r"1 live member: tailrace at 127\.0\.0\.1"):
                await delete_group(cluster, name)


async def read_one_of(bootstrap_servers: str, name: str) -> None:
    produce(bootstrap_servers, name)
    async with Consumer(name, bootstrap_servers=bootstrap_servers, group_id=name) as consumer:
        consumer.ack(await consumer.getone())


def produce(bootstrap_servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def groups(admin: AdminClient) -> set[str]:
    return {one.group_id for one in admin.list_consumer_groups().result(60).valid}
