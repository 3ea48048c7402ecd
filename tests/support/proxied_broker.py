"""Broker behind a fault proxy, with shortcuts for tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from tailrace import Consumer
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.witness import Witness


class ProxiedBroker(Witness):
    """Produces, observes, and creates topics and consumers through the proxy."""

    def __init__(self, server: KafkaServer) -> None:
        super().__init__(server.bootstrap_servers)
        self.server = server

    @property
    def proxy(self) -> FaultProxy:
        return self.server.proxy

    def topic(self, partitions: int = 1, **config: object) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.server.create_topic(name, partitions, config={k.replace("_", "."): v for k, v in config.items()})
        return name

    def topic_with(self, count: int, partitions: int = 1) -> str:
        """Create a topic with this number of records in each partition."""
        topic = self.topic(partitions)
        for partition in range(partitions):
            self.produce(topic, (b"%d" % n for n in range(count)), partition=partition)
        return topic

    def consumer(self, *topics: str, **options: object) -> Consumer:
        return Consumer(*topics, **{"bootstrap_servers": self.bootstrap_servers, **options})


def numbers(records: Iterable) -> list[int]:
    """Return the offsets of records."""
    return [record.offset for record in records]
