"""The shared broker, and commands called with its address."""

from __future__ import annotations

import pytest
from commands import environment
from tooling import Kafka


@pytest.fixture
def kafka(kafka_server, monkeypatch, capsys) -> Kafka:
    monkeypatch.setattr("os.environ", environment(PENSTOCK_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers))
    return Kafka(kafka_server, capsys)
