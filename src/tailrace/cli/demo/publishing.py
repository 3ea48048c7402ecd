"""Publishing of the flights, as fast as possible or at a given rate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from tailrace.cli.demo.flights import flights, partition_of
from tailrace.producer.producer import Producer

__all__ = ["FlightPublisher"]

_CHUNK_SIZE = 6_000
_CHUNKS_PER_SECOND = 20


class FlightPublisher:
    """Publisher of the flights, with counts of the published records.

    Args:
        topic: topic to publish to.
        partitions: number of partitions of the topic.
        rate: flights per second; unlimited if None.
        limit: number of flights.

    Attributes:
        payload_bytes: total size of the values.
        is_complete: True when all flights are published and acknowledged.
    """

    def __init__(self, topic: str, partitions: int, *, rate: float | None, limit: int) -> None:
        self.produced = [0] * partitions
        """Number of published records by partition, acknowledged or not; all are acknowledged when ``run`` returns."""
        self.payload_bytes = 0
        self.is_complete = False
        self._topic, self._rate, self._limit = topic, rate, limit

    @property
    def count(self) -> int:
        """Number of published records, acknowledged or not."""
        return sum(self.produced)

    async def run(self, producer: Producer) -> None:
        """Publish all flights and wait for their acknowledgments.

        Raises:
            PublishError: the broker rejected some flights.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        source = flights(self._limit)
        while chunk := list(islice(source, self._chunk_size)):
            for partition, records in self._by_partition(chunk):
                await producer.publish_many(self._topic, partition, records)
                self.produced[partition] += len(records)
            if self._rate is not None:
                await asyncio.sleep(began + self.count / self._rate - loop.time())
        await producer.flush()
        self.is_complete = True

    @property
    def _chunk_size(self) -> int:
        return _CHUNK_SIZE if self._rate is None else max(1, round(self._rate / _CHUNKS_PER_SECOND))

    def _by_partition(self, chunk: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in chunk:
            self.payload_bytes += len(value)
            found.setdefault(partition_of(key, len(self.produced)), []).append((key, value))
        yield from found.items()
