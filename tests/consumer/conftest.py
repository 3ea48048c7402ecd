"""Fixtures: brokers behind fault proxies, a broker that tests may kill, and consumers of the shared broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tailrace import Consumer
from tailrace.testing import KafkaServer
from tests.support.kip848_broker import QUICK, Kip848Broker
from tests.support.net.open_connections import wait_for_coordinators
from tests.support.proxied_broker import ProxiedBroker


@pytest.fixture(scope="session")
def quick_server() -> Iterator[KafkaServer]:
    """Start a broker behind a fault proxy with short heartbeat intervals for groups of the consumer protocol."""
    with KafkaServer(proxied=True, config=QUICK) as server:
        wait_for_coordinators(server)
        yield server


@pytest.fixture
def proxied_server(quick_server) -> Iterator[KafkaServer]:
    """Provide the broker ``quick_server`` with no recorded frames, and restore its proxy after the test."""
    quick_server.proxy.frames.clear()
    yield quick_server
    quick_server.proxy.restore()


@pytest.fixture
def witness_of(proxied_server) -> ProxiedBroker:
    """Provide ``quick_server`` with members of the classic protocol."""
    return ProxiedBroker(proxied_server)


@pytest.fixture
def quick(proxied_server) -> Kip848Broker:
    """Provide ``quick_server`` with members of the consumer protocol."""
    return Kip848Broker(proxied_server)


@pytest.fixture(scope="session")
def observed_server() -> Iterator[KafkaServer]:
    """Start a broker behind a fault proxy with Kafka's defaults for groups."""
    with KafkaServer(proxied=True) as server:
        wait_for_coordinators(server)
        yield server


@pytest.fixture
def kafka(observed_server) -> Iterator[ProxiedBroker]:
    """Provide the broker ``observed_server`` with no recorded frames, and restore its proxy after the test."""
    observed_server.proxy.frames.clear()
    yield ProxiedBroker(observed_server)
    observed_server.proxy.restore()


@pytest.fixture(scope="session")
def killed_server() -> Iterator[KafkaServer]:
    """Start a broker that tests may kill; these tests share one xdist_group, so that they run one after another."""
    with KafkaServer(config=QUICK) as server:
        server.create_topic("always-there", 2)
        yield server


@pytest.fixture
def own_server(killed_server) -> KafkaServer:
    """Provide the broker ``killed_server``, running."""
    if not killed_server.node.is_running:
        killed_server.restart()
    return killed_server


@pytest.fixture
def new_consumer(kafka_server) -> Callable[..., Consumer]:
    """Return a function that creates consumers of the shared broker, which the test starts by ``async with``."""

    def make(*topics: str, **options: object) -> Consumer:
        return Consumer(*topics, **{"bootstrap_servers": kafka_server.bootstrap_servers, **options})

    return make
