"""One broker behind a fault proxy for all tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from proxied import ProxiedWitness

from penstock.testing import KafkaServer


@pytest.fixture(scope="session")
def parity_server() -> Iterator[KafkaServer]:
    """The broker; a group of it rebalances at once."""
    with KafkaServer(proxied=True) as server:
        yield server


@pytest.fixture
def kafka(parity_server) -> Iterator[ProxiedWitness]:
    """The broker and what a test needs of it; it sees its own frames only, and its line is whole again after it."""
    parity_server.proxy.frames.clear()
    yield ProxiedWitness(parity_server)
    parity_server.proxy.restore()


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"
