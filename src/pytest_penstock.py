"""The pytest plugin of penstock: one broker for the whole session, and a maker of clusters.

``kafka_server`` and ``kafka_cluster`` are synchronous, so they fit tests of any event loop and any plugin for one.
A module of its own beside the package, so that it imports nothing of penstock until a test asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import KafkaCluster, KafkaServer

__all__ = ["kafka_cluster", "kafka_server"]


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A real broker, shared by all tests of the session: give your topics and groups names of their own."""
    from penstock.testing import KafkaNotAvailableError, KafkaServer  # noqa: PLC0415 - not until asked

    server = KafkaServer()
    try:
        server.start()
    except KafkaNotAvailableError as error:
        pytest.skip(f"no Kafka broker: {error}")
    with server:
        yield server


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., KafkaCluster]]:
    """A maker of clusters, ``kafka_cluster(brokers=3, …)``; those it made end with the test."""
    from penstock.testing import KafkaCluster, KafkaNotAvailableError  # noqa: PLC0415 - not until asked

    with ExitStack() as stack:

        def make(brokers: int = 3, **options: Any) -> KafkaCluster:  # noqa: ANN401 - those of KafkaCluster
            cluster = KafkaCluster(brokers, **options)
            try:
                return stack.enter_context(cluster)
            except KafkaNotAvailableError as error:
                pytest.skip(f"no Kafka cluster: {error}")

        yield make
