"""Topics and groups of a test on the shared broker, and other clients."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tailrace.config import resolve
from tests.support.admin_tools import KafkaTool, Reached, commit_to


@pytest.fixture
def admin(kafka_server) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka_server.bootstrap_servers})


@pytest.fixture
def reached(kafka_server) -> Callable[..., Reached]:
    def make(**options: object) -> Reached:
        return Reached(resolve({"bootstrap_servers": kafka_server.bootstrap_servers, **options}, {}))

    return make


@pytest.fixture
def kafkas_tool(kafka_server) -> KafkaTool:
    return KafkaTool(kafka_server.bootstrap_servers)


@pytest.fixture
def new_topic(kafka_server) -> Callable[..., str]:
    """Create a topic with records a second apart from ``since_ms`` (an hour ago) on in each partition."""

    def make(partitions: int = 1, records: int = 0, *, since_ms: int | None = None) -> str:
        topic = f"t-{uuid.uuid4().hex[:12]}"
        kafka_server.create_topic(topic, partitions)
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers})
        first_ms = int(time.time() * 1000) - 3_600_000 if since_ms is None else since_ms
        for partition in range(partitions):
            for n in range(records):
                producer.produce(topic, b"%d" % n, partition=partition, timestamp=first_ms + 1000 * n)
        assert producer.flush(20) == 0
        return topic

    return make


@pytest.fixture
def commit(kafka_server) -> Callable[..., None]:
    """Return a function that commits by librdkafka without membership, as in ``commit(group, topic, {0: 5, 1: 7})``."""
    return partial(commit_to, kafka_server.bootstrap_servers)
