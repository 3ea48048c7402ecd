"""Fixtures: a topic, a broker behind a proxy, and its committed records."""

from __future__ import annotations

import uuid

import pytest

from tests.support.transactional_broker import (
    ledger,
    mortal_server,
    own_server,
    proxy,
    quick_broker,
    transaction_version,
    witness,
)

__all__ = ["ledger", "mortal_server", "own_server", "proxy", "quick_broker", "topic", "transaction_version", "witness"]


@pytest.fixture
def topic(kafka_server) -> str:
    """Topic with three partitions."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    kafka_server.create_topic(name, 3)
    return name
