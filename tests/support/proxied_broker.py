"""A broker behind a fault proxy, with what a test needs at hand."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from tailrace import Consumer
from tailrace.testing import FaultProxy, KafkaServer
from tests.support.witness import Witness


class ProxiedBroker(Witness):
    """Produces and looks on, and makes topics and consumers; all of it through the proxy."""

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
        """A topic with so many records in each partition."""
        topic = self.topic(partitions)
        for partition in range(partitions):
            self.produce(topic, (b"%d" % n for n in range(count)), partition=partition)
        return topic

    def consumer(self, *topics: str, **options: object) -> Consumer:
        return Consumer(*topics, **{"bootstrap_servers": self.bootstrap_servers, **options})


def numbers(records: Iterable) -> list[int]:
    """The offsets."""
    return [record.offset for record in records]
