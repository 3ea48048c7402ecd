"""The simulated brokers answer as Apache Kafka does."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tailrace.config import resolve
from tailrace.net.dialer import Dialer
from tailrace.testing.simulation import SimulatedCluster, simulated
from tests.testing.simulation.conformance import ROWS, Broker


async def observed(bootstrap: str, topic: str, what: str) -> object:
    config = resolve({"bootstrap_servers": bootstrap})
    host, _, port = bootstrap.partition(":")
    dialer = Dialer(config)
    broker = Broker(lambda: dialer.dial(host, int(port)), topic, f"g-{uuid.uuid4().hex}")
    try:
        await broker.start()
        return await ROWS[what][0](broker)
    finally:
        broker.close()


@pytest.mark.parametrize("what", ROWS)
def test_kafka_shows_the_behaviour(what, kafka_server):
    """Apache Kafka shows each behaviour of the table."""
    topic = f"t-{uuid.uuid4().hex}"
    kafka_server.create_topic(topic, 2)

    assert asyncio.run(observed(kafka_server.bootstrap_servers, topic, what)) == ROWS[what][1]


@pytest.mark.parametrize("what", ROWS)
def test_the_simulation_shows_the_behaviour(what):
    """Simulated brokers show each behaviour of the table."""
    with simulated(3) as loop:
        cluster = SimulatedCluster(loop, 1, seed=3)
        cluster.state.create_topic("orders", 2, 1)

        assert loop.run_until_complete(observed(cluster.bootstrap_servers, "orders", what)) == ROWS[what][1]
