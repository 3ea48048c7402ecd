"""Fixtures: brokers behind fault proxies, a broker that tests may kill, and consumers of the shared broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tailrace import Consumer
from tailrace.testing import KafkaServer
from tests.support.kip848_broker import QUICK, Kip848Broker
from tests.support.proxied_broker import ProxiedBroker


@pytest.fixture(scope="session")
def quick_server() -> Iterator[KafkaServer]:
    """Start a broker behind a fault proxy with short heartbeat intervals for groups of the consumer protocol."""
    with KafkaServer(proxied=True, config=QUICK) as server:
        yield server


@pytest.fixture
def proxied_server(quick_server) -> Iterator[KafkaServer]:
    """Provide that broker for one test, which sees only its own frames; the proxy is restored after the test."""
    quick_server.proxy.frames.clear()
    yield quick_server
    quick_server.proxy.restore()


@pytest.fixture
def witness_of(proxied_server) -> ProxiedBroker:
    """Provide that broker with members of the classic protocol."""
    return ProxiedBroker(proxied_server)


@pytest.fixture
def quick(proxied_server) -> Kip848Broker:
    """Provide that broker with members of the consumer protocol."""
    return Kip848Broker(proxied_server)


@pytest.fixture(scope="session")
def observed_server() -> Iterator[KafkaServer]:
    """Start a broker behind a fault proxy with Kafka's defaults for groups."""
    with KafkaServer(proxied=True) as server:
        yield server


@pytest.fixture
def kafka(observed_server) -> Iterator[ProxiedBroker]:
    """Provide that broker for one test, which sees only its own frames; the proxy is restored after the test."""
    observed_server.proxy.frames.clear()
    yield ProxiedBroker(observed_server)
    observed_server.proxy.restore()


@pytest.fixture(scope="session")
def killed_server() -> Iterator[KafkaServer]:
    """Start a broker that tests may kill; these tests share one xdist_group, so that there is one."""
    with KafkaServer(config=QUICK) as server:
        server.create_topic("always-there", 2)
        yield server


@pytest.fixture
def own_server(killed_server) -> KafkaServer:
    """Provide that broker, running."""
    if not killed_server.node.is_running:
        killed_server.restart()
    return killed_server


@pytest.fixture
def new_consumer(kafka_server) -> Callable[..., Consumer]:
    """Return a function that creates consumers of the shared broker; the test starts them by ``async with``."""

    def make(*topics: str, **options: object) -> Consumer:
        return Consumer(*topics, **{"bootstrap_servers": kafka_server.bootstrap_servers, **options})

    return make
