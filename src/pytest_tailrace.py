"""The pytest plugin of tailrace: one broker for the whole session, and a maker of clusters.

Where nothing can start a broker, tests that need one are skipped; with ``--require-kafka``, or where the environment
variable ``CI`` is set, they fail.

``kafka_server`` and ``kafka_cluster`` are synchronous, so they fit tests of any event loop and any plugin for one.
A module of its own beside the package, so that it imports nothing of tailrace until a test asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from tailrace.testing import KafkaCluster, KafkaServer

__all__ = ["kafka_cluster", "kafka_server", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--require-kafka``."""
    parser.getgroup("tailrace").addoption(
        "--require-kafka",
        action="store_true",
        help="fail tests that need a Kafka broker where none can be started, instead of skipping them"
        " (the default where the environment variable CI is set)",
    )


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A real broker, shared by all tests of the session: give your topics and groups names of their own."""
    from tailrace.testing import KafkaNotAvailableError, KafkaServer  # noqa: PLC0415 - not until asked

    server = KafkaServer()
    try:
        server.start()
    except KafkaNotAvailableError as error:
        _give_up(f"no Kafka broker: {error}", pytestconfig)
    with server:
        yield server


@pytest.fixture
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Callable[..., KafkaCluster]]:
    """A maker of clusters, ``kafka_cluster(brokers=3, …)``; those it made end with the test."""
    from tailrace.testing import KafkaCluster, KafkaNotAvailableError  # noqa: PLC0415 - not until asked

    with ExitStack() as stack:

        def make(brokers: int = 3, **options: Any) -> KafkaCluster:  # noqa: ANN401 - those of KafkaCluster
            cluster = KafkaCluster(brokers, **options)
            try:
                return stack.enter_context(cluster)
            except KafkaNotAvailableError as error:
                _give_up(f"no Kafka cluster: {error}", pytestconfig)

        yield make


def _give_up(reason: str, config: pytest.Config) -> NoReturn:
    """Skip the test, or fail it where a run without a broker proves nothing."""
    if config.getoption("--require-kafka"):
        pytest.fail(f"{reason} (--require-kafka)", pytrace=False)
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        pytest.fail(f"{reason} (skipped only where the environment variable CI is not set)", pytrace=False)
    pytest.skip(reason)
