"""Connections that reach another cluster or node than expected: nothing is read there, committed or published."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace as replace_option
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from tailrace import Consumer, PublishError, TopicPartition, WrongBrokerError
from tailrace.config import resolve
from tailrace.observe.events import WrongBrokerReached
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import OutgoingRecord
from tailrace.producer.record_producer import RecordProducer
from tailrace.producer.transactional_producer import TransactionalProducer
from tailrace.protocol.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from tailrace.testing import KafkaCluster, KafkaServer
from tests.support.admin_tools import Reached
from tests.support.net.open_connections import configured
from tests.support.witness import Witness

QUICK: dict[str, Any] = {
    "retry_backoff_ms": 20,
    "retry_backoff_max_ms": 100,
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
    "fetch_max_wait_ms": 50,
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("4.3.0", id="noticed in the metadata"),
        pytest.param("4.4.0", id="noticed by the broker", marks=pytest.mark.slow),
    ],
)
def home(request) -> Iterator[KafkaServer]:
    """Start the broker that the clients mean to reach."""
    with KafkaServer(proxied=True, version=request.param) as started:
        yield started


@pytest.fixture(scope="module")
def other(home) -> Iterator[KafkaServer]:
    """Start the only broker of another cluster, with the same node id."""
    with KafkaServer(version=home.version) as started:
        yield started


@pytest.fixture
def topic(home, other, name) -> str:
    """Create a topic of the same name in both clusters."""
    home.create_topic(name)
    other.create_topic(name)
    return name


@pytest.fixture
def astray(home, other) -> Callable[[], Any]:
    """Return a context in which the address of the broker leads to the other cluster."""

    @contextmanager
    def make() -> Iterator[None]:
        home.proxy.redirect("127.0.0.1", other.node.ports.client)
        try:
            yield
        finally:
            home.proxy.redirect("127.0.0.1", home.node.ports.client)

    return make


async def end_offset(server: KafkaServer, topic: str) -> int:
    """Return the end of the topic's only partition as librdkafka sees it."""
    return (await Witness(server.bootstrap_servers).ends(topic, 1))[0]


def groups(server: KafkaServer) -> set[str]:
    """Return the groups of a cluster as librdkafka sees them."""
    found = AdminClient({"bootstrap.servers": server.bootstrap_servers}).list_consumer_groups().result(20)
    return {one.group_id for one in found.valid}


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Return the values of the next records."""
    async with asyncio.timeout(30):
        return [(await consumer.getone()).value for _ in range(count)]


async def test_a_consumer_neither_reads_nor_commits_elsewhere(home, other, topic, astray, group, recorder):  # noqa: PLR0917
    """A consumer whose broker's address leads to another cluster waits, and goes on when it leads back."""
    here, there = Witness(home.bootstrap_servers), Witness(other.bootstrap_servers)
    here.produce(topic, [b"1", b"2"])
    there.produce(topic, [b"foreign"] * 5)
    options = {**QUICK, "bootstrap_servers": home.bootstrap_servers, "group_id": group, "hooks": [recorder]}

    async with Consumer(topic, auto_offset_reset="earliest", default_api_timeout_ms=3_000, **options) as consumer:
        assert await values(consumer, 2) == [b"1", b"2"]
        with astray():
            reached = await recorder.wait_for(WrongBrokerReached, 2)
            with pytest.raises(WrongBrokerError, match="restart this process"):
                await consumer.topics()
            assert not await consumer.getmany(timeout_ms=300)
            assert group not in await asyncio.to_thread(groups, other)
        here.produce(topic, [b"3"])
        assert await values(consumer, 1) == [b"3"]
        await consumer.commit()

    assert isinstance(reached.exception, WrongBrokerError)
    assert "instead of" in reached.reason
    assert await here.committed(group, topic, 1) == {0: 3}


@pytest.mark.parametrize("is_transactional", [False, True], ids=["idempotent", "transactional"])
async def test_a_producer_publishes_nothing_elsewhere(home, other, topic, astray, is_transactional):
    """A record that is published while the address leads to another cluster is not stored there, but fails."""
    config = resolve({**QUICK, "bootstrap_servers": home.bootstrap_servers, "default_api_timeout_ms": 1_500}, {})

    async def publish(value: bytes) -> None:
        record = OutgoingRecord(topic, value, partition=0)
        if isinstance(producer, RecordProducer):
            await producer.publish(record)
        else:
            await producer.begin()
            await producer.send(record)
            await producer.commit()

    producer: RecordProducer | TransactionalProducer = (
        TransactionalProducer(config, transactional_id=topic) if is_transactional else RecordProducer(config)
    )

    async def publish_at_last(value: bytes) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    return await publish(value)
                except PublishError:
                    continue

    async with producer:
        await publish_at_last(b"1")
        with astray():
            with pytest.raises(PublishError, match="instead of"):
                await publish(b"2")
            assert await end_offset(other, topic) == 0
        await publish_at_last(b"3")

    assert await end_offset(other, topic) == 0
    assert await end_offset(home, topic) > 1


async def test_addresses_of_another_cluster_are_refused(home, other, recorder):
    """If ``bootstrap_servers`` leads to two clusters, only brokers of the one that has answered first are used."""
    async with Reached(configured(home.bootstrap_servers, **QUICK), Observer((recorder,))) as cluster:
        cluster.config = replace_option(cluster.config, bootstrap_servers=(other.bootstrap_servers,))
        home.proxy.refuse()
        try:
            with pytest.raises(
                WrongBrokerError, match=f"instead of any broker of cluster {cluster.topology.cluster_id}"
            ):
                await cluster.refresh()
        finally:
            home.proxy.restore()

    assert recorder.of(WrongBrokerReached)


@pytest.mark.slow
async def test_two_brokers_that_swap_their_addresses_are_found_again(name, recorder):
    """If two brokers have swapped their addresses, connections to them are closed, and the new addresses are used."""
    with KafkaCluster(2, proxied=True) as cluster:
        cluster.create_topic(name, 2, replication_factor=1)
        options = {**QUICK, "bootstrap_servers": cluster.bootstrap_servers, "hooks": [recorder]}
        async with Consumer(**options) as consumer:
            await consumer.assign(TopicPartition(name, 0), TopicPartition(name, 1), at="earliest")
            first, second = cluster.nodes
            witness = Witness(f"127.0.0.1:{first.ports.internal}")
            ports = {one.node_id: cluster.proxies[one.node_id].port for one in cluster.nodes}
            swapped = {first.node_id: ports[second.node_id], second.node_id: ports[first.node_id]}

            def moved(answer: MetadataResponse) -> MetadataResponse:
                return replace(answer, brokers=tuple(replace(one, port=swapped[one.node_id]) for one in answer.brokers))

            def described(answer: DescribeClusterResponse) -> DescribeClusterResponse:
                brokers = tuple(replace(one, port=swapped[one.broker_id]) for one in answer.brokers)
                return replace(answer, brokers=brokers)

            for proxy in cluster.proxies.values():
                proxy.edit_answer(MetadataRequest, moved, times=None)
                proxy.edit_answer(DescribeClusterRequest, described, times=None)
            cluster.proxies[first.node_id].redirect("127.0.0.1", second.ports.client)
            cluster.proxies[second.node_id].redirect("127.0.0.1", first.ports.client)
            for partition in (0, 1):
                witness.produce(name, [b"%d" % partition], partition=partition)
            assert sorted(await values(consumer, 2)) == [b"0", b"1"]
    assert recorder.of(WrongBrokerReached)


@pytest.mark.slow
async def test_a_load_balancer_that_leads_to_another_node_is_noticed(name, recorder):
    """A broker of Kafka 4.4 that is reached in place of another one refuses, although both are of one cluster."""
    with KafkaCluster(2, proxied=True, version="4.4.0") as cluster:
        cluster.create_topic(name, 2, replication_factor=1)
        options = {**QUICK, "bootstrap_servers": cluster.bootstrap_servers, "hooks": [recorder]}
        async with Consumer(**options) as consumer:
            await consumer.assign(TopicPartition(name, 0), TopicPartition(name, 1), at="earliest")
            first, second = cluster.nodes
            cluster.proxies[first.node_id].redirect("127.0.0.1", second.ports.client)
            reached = await recorder.wait_for(WrongBrokerReached)
            cluster.proxies[first.node_id].redirect("127.0.0.1", first.ports.client)
            for partition in (0, 1):
                Witness(f"127.0.0.1:{first.ports.internal}").produce(name, [b"%d" % partition], partition=partition)
            assert sorted(await values(consumer, 2)) == [b"0", b"1"]
    assert f"broker {first.node_id} of cluster" in reached.reason
