"""Shared broker behind a fault proxy; each test has its own topics, groups and client ids."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tailrace.testing import KafkaServer
from tests.support.net.security_setups import Way
from tests.support.witness import Witness


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaServer]:
    """Start a broker with automatic topic creation, which advertises the address of ``kafka.proxy``."""
    with KafkaServer(proxied=True, config={"auto.create.topics.enable": True}) as server:
        if not server.nodes:
            pytest.skip("a broker that somebody else runs has no proxy before it")
        yield server


@pytest.fixture(scope="session")
def secured_by() -> Iterator[Callable[[Way], KafkaServer]]:
    """Return a function that returns a broker with a security setup, started on first use."""
    with ExitStack() as stack:
        started: dict[Way, KafkaServer] = {}

        def start(way: Way) -> KafkaServer:
            if way not in started:
                options = {"security": way.security, "tls": way.tls, "config": dict(way.config), "proxied": way.proxied}
                started[way] = stack.enter_context(KafkaServer(**options))
            return started[way]

        yield start


@pytest.fixture
def secured(request, secured_by) -> KafkaServer:
    """Provide a broker with the security setup of the test, by ``ways.by``."""
    return secured_by(request.param)


@pytest.fixture(scope="session")
def stoppable() -> Iterator[KafkaServer]:
    """Start a broker that tests may stop."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def own_kafka(stoppable) -> KafkaServer:
    """Provide the running broker ``stoppable``, which the test may leave stopped."""
    if not stoppable.node.is_running:
        stoppable.restart()
    return stoppable


@pytest.fixture
def address(kafka) -> Iterator[str]:
    """Provide the address of the broker's proxy, whose faults end with the test."""
    yield kafka.bootstrap_servers
    kafka.proxy.restore()


@pytest.fixture
def direct(kafka) -> str:
    """Provide the address of the broker, without its proxy."""
    return f"127.0.0.1:{kafka.node.ports.client}"


@pytest.fixture
def witness(kafka) -> Witness:
    """Provide another client, connected without the proxy."""
    return Witness(f"127.0.0.1:{kafka.node.ports.internal}")


@pytest.fixture
def name() -> str:
    """Provide a unique name of a topic, group or client."""
    return f"n-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(kafka, name) -> Callable[..., str]:
    """Create a topic."""

    def make(partitions: int = 1) -> str:
        kafka.create_topic(name, partitions)
        return name

    return make
