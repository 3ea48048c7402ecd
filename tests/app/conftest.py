"""Topics and groups of a test's own on the shared broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from recorder import Recorder
from witness import Witness


@pytest.fixture
def witness(kafka_server) -> Witness:
    return Witness(kafka_server.bootstrap_servers)


@pytest.fixture
def new_topic(kafka_server) -> Callable[..., str]:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        kafka_server.create_topic(name, partitions)
        return name

    return make


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()
