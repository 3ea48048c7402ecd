"""Pytest plugin of tailrace with fixtures for Kafka: a broker for the whole session, and clusters for single tests.

On a machine without the means to start a broker (Java and the broker's jars, or Docker), tests that use a fixture are
skipped. With ``--require-kafka``, or if the environment variable ``CI`` is set, these tests fail. A broker that exits
while it starts is an error in any case.

The fixtures are synchronous, so they work with any event loop and any plugin for async tests. The plugin is a module
outside of the package ``tailrace``, so that pytest does not import tailrace before a test uses a fixture.
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
        help="fail tests that need a Kafka broker if none can be started, instead of skipping them"
        " (the default if the environment variable CI is set)",
    )


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """Start a real broker that all tests of the session share; each test must use topics and groups of its own."""
    from tailrace.testing import KafkaNotAvailableError, KafkaServer  # noqa: PLC0415 - only if the fixture is used

    server = KafkaServer()
    try:
        server.start()
    except KafkaNotAvailableError as error:
        _skip_or_fail(f"no Kafka broker: {error}", pytestconfig)
    with server:
        yield server


@pytest.fixture
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Callable[..., KafkaCluster]]:
    """Return a function that starts a cluster, such as ``kafka_cluster(brokers=3)``; clusters stop after the test.

    The arguments are those of ``KafkaCluster``.
    """
    from tailrace.testing import KafkaCluster, KafkaNotAvailableError  # noqa: PLC0415 - only if the fixture is used

    with ExitStack() as stack:

        def start_cluster(brokers: int = 3, **options: Any) -> KafkaCluster:  # noqa: ANN401 - options of KafkaCluster
            cluster = KafkaCluster(brokers, **options)
            try:
                return stack.enter_context(cluster)
            except KafkaNotAvailableError as error:
                _skip_or_fail(f"no Kafka cluster: {error}", pytestconfig)

        yield start_cluster


def _skip_or_fail(reason: str, config: pytest.Config) -> NoReturn:
    """Skip the test; fail it if ``--require-kafka`` or the environment variable ``CI`` is set."""
    if config.getoption("--require-kafka"):
        pytest.fail(f"{reason} (--require-kafka)", pytrace=False)
    if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        pytest.fail(f"{reason} (tests are skipped only if the environment variable CI is not set)", pytrace=False)
    pytest.skip(reason)
