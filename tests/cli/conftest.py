"""The shared broker, and commands called with its address."""

from __future__ import annotations

import pytest

from tests.support.admin_tools import Kafka
from tests.support.commands import environment


@pytest.fixture
def kafka(kafka_server, monkeypatch, capsys) -> Kafka:
    monkeypatch.setattr("os.environ", environment(TAILRACE_BOOTSTRAP_SERVERS=kafka_server.bootstrap_servers))
    return Kafka(kafka_server, capsys)
