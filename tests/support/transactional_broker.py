"""Broker behind a proxy, views of committed results, and exactly-once apps.

The tests run with both versions of transactions (KIP-890), as the broker has finalized them; version 1 is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tailrace import App, Retry
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.admin_tools import FEATURES, KafkaTool
from tests.support.committed_records import CommittedRecords
from tests.support.pipelines import IMPATIENT, QUICK_BROKER, direct
from tests.support.witness import Witness


@pytest.fixture(scope="session", params=[2, pytest.param(1, marks=pytest.mark.slow)], ids=["v2", "v1"])
def transaction_version(request) -> int:
    """Return the version of transactions that the broker has finalized."""
    return request.param


def finalize(server: KafkaServer, version: int) -> None:
    """Let the broker finalize a version of transactions, by Kafka's own tool."""
    tool = KafkaTool(direct(server).bootstrap_servers, FEATURES)
    change = "downgrade" if version == 1 else "upgrade"
    printed = tool.output(change, "--feature", f"transaction.version={version}")
    assert f"transaction.version was {change}d to {version}" in printed, printed


@pytest.fixture(scope="session")
def quick_broker(transaction_version) -> Iterator[KafkaServer]:
    """Start a broker behind a proxy that checks for expired transactions frequently."""
    with KafkaServer(proxied=True, config=QUICK_BROKER) as started:
        if transaction_version == 1:
            finalize(started, 1)
        yield started


@pytest.fixture
def own_server(quick_broker) -> KafkaServer:
    """Provide the shared broker, without recorded frames of earlier tests."""
    quick_broker.proxy.frames.clear()
    return quick_broker


@pytest.fixture
def mortal_server(transaction_version) -> Iterator[KafkaServer]:
    """Start a broker that the test may kill, without the topics of other tests, with which it restarts slowly."""
    with KafkaServer(config=QUICK_BROKER) as started:
        if transaction_version == 1:
            finalize(started, 1)
        yield started


@pytest.fixture
def proxy(own_server) -> FaultProxy:
    return own_server.proxy


@pytest.fixture
def ledger(own_server) -> CommittedRecords:
    """Provide a view of committed results, without the proxy."""
    return CommittedRecords(direct(own_server))


@pytest.fixture
def witness(own_server) -> Witness:
    """Provide another client, connected without the proxy."""
    return Witness(direct(own_server).bootstrap_servers)


@pytest.fixture
def new_app(own_server, group, recorder) -> Callable[..., App]:
    def make(**options: object) -> App:
        defaults = {
            **IMPATIENT,
            "bootstrap_servers": own_server.bootstrap_servers,
            "group_id": group,
            "hooks": [recorder],
            "retry": Retry(attempts=2, backoff_ms=1, max_backoff_ms=50),
            "delivery": "exactly_once",
        }
        return App(**{**defaults, **options})

    return make


@pytest.fixture
def dead(own_server, ledger) -> Callable[[str], str]:
    """Create a dead-letter topic with the given name."""

    def make(name: str) -> str:
        own_server.create_topic(name)
        ledger._partitions[name] = 1
        return name

    return make
