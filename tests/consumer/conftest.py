"""Topics and groups of a test's own on the shared broker, and consumers that are stopped with the test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from proxied import ProxiedWitness
from reconciled import QUICK, ReconcilingWitness
from witness import Witness

from penstock import Consumer
from penstock.testing import KafkaServer


@pytest.fixture
def witness(kafka_server) -> Witness:
    return Witness(kafka_server.bootstrap_servers)


@pytest.fixture
def new_topic(kafka_server) -> Callable[..., str]:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        kafka_server.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    return make


@pytest.fixture(scope="session")
def quick_server() -> Iterator[KafkaServer]:
    """A broker behind a fault proxy, for all tests that need one; groups of the consumer protocol beat quickly."""
    with KafkaServer(proxied=True, config=QUICK) as server:
        yield server


@pytest.fixture
def proxied_server(quick_server) -> Iterator[KafkaServer]:
    """That broker for one test, which sees its own frames only; whole again after it."""
    quick_server.proxy.frames.clear()
    yield quick_server
    quick_server.proxy.restore()


@pytest.fixture
def witness_of(proxied_server) -> ProxiedWitness:
    """The broker behind the proxy, and members of the classic protocol."""
    return ProxiedWitness(proxied_server)


@pytest.fixture
def quick(proxied_server) -> ReconcilingWitness:
    """The same, and members of the consumer protocol."""
    return ReconcilingWitness(proxied_server)


@pytest.fixture(scope="session")
def killed_server() -> Iterator[KafkaServer]:
    """A broker that tests may kill; they are of one xdist_group, so that there is one."""
    with KafkaServer(config=QUICK) as server:
        server.create_topic("always-there", 2)
        yield server


@pytest.fixture
def own_server(killed_server) -> KafkaServer:
    """That broker, running."""
    if not killed_server.node.is_running:
        killed_server.restart()
    return killed_server


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_consumer(kafka_server) -> Callable[..., Consumer]:
    """Makes a consumer of the shared broker; the test starts it, by ``async with``."""

    def make(*topics: str, **options: object) -> Consumer:
        return Consumer(*topics, **{"bootstrap_servers": kafka_server.bootstrap_servers, **options})

    return make
