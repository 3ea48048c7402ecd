"""One broker behind a fault proxy for all tests of this folder; topics, groups and client ids of a test's own."""

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
    """A broker that makes topics for whoever asks it to; clients are told the address of ``kafka.proxy``."""
    with KafkaServer(proxied=True, config={"auto.create.topics.enable": True}) as server:
        if not server.nodes:
            pytest.skip("a broker that somebody else runs has no proxy before it")
        yield server


@pytest.fixture(scope="session")
def secured_by() -> Iterator[Callable[[Way], KafkaServer]]:
    """Brokers with one way in each, started when the first test asks and kept for the others."""
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
    """A broker with the way in that the test asks for, by ``ways.by``."""
    return secured_by(request.param)


@pytest.fixture(scope="session")
def stoppable() -> Iterator[KafkaServer]:
    """A broker that tests stop."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def own_kafka(stoppable) -> KafkaServer:
    """A broker that runs and that the test may leave stopped."""
    if not stoppable.node.is_running:
        stoppable.restart()
    return stoppable


@pytest.fixture
def address(kafka) -> Iterator[str]:
    """The proxy before the broker, which is whole again after the test."""
    yield kafka.bootstrap_servers
    kafka.proxy.restore()


@pytest.fixture
def direct(kafka) -> str:
    """The broker itself."""
    return f"127.0.0.1:{kafka.node.ports.client}"


@pytest.fixture
def witness(kafka) -> Witness:
    """Somebody else's client, straight to the broker."""
    return Witness(f"127.0.0.1:{kafka.node.ports.internal}")


@pytest.fixture
def name() -> str:
    """A name that nobody else has: for a topic, a group, a client."""
    return f"n-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(kafka, name) -> Callable[..., str]:
    """Makes a topic."""

    def make(partitions: int = 1) -> str:
        kafka.create_topic(name, partitions)
        return name

    return make
