"""The replay: flights into the topic, as fast as it goes or at a pace that people can watch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

from tailrace.cli.demo.flights import flights, partition_of
from tailrace.producer.producer import Producer

__all__ = ["Replay"]

_AT_ONCE = 6_000
_ROUNDS_A_SECOND = 20


class Replay:
    """Publishes the flights and counts them.

    Args:
        topic: where to.
        partitions: how many it has.
        rate: flights a second; as fast as it goes when nothing is said.
        limit: how many.
    """

    def __init__(self, topic: str, partitions: int, *, rate: float | None, limit: int) -> None:
        self.produced = [0] * partitions
        """Records on their way, by partition; all of them acknowledged when ``run`` is through."""
        self.payload_bytes = 0
        self.is_complete = False
        self._topic, self._rate, self._limit = topic, rate, limit

    @property
    def count(self) -> int:
        """Records on their way or there."""
        return sum(self.produced)

    async def run(self, producer: Producer) -> None:
        """Publish them all and wait until each is acknowledged.

        Raises:
            PublishError: the broker refused some.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        source = flights(self._limit)
        while together := list(islice(source, self._chunk)):
            for partition, records in self._by_partition(together):
                await producer.publish_many(self._topic, partition, records)
                self.produced[partition] += len(records)
            if self._rate is not None:
                await asyncio.sleep(began + self.count / self._rate - loop.time())
        await producer.flush()
        self.is_complete = True

    @property
    def _chunk(self) -> int:
        return _AT_ONCE if self._rate is None else max(1, round(self._rate / _ROUNDS_A_SECOND))

    def _by_partition(self, together: list[tuple[bytes, bytes]]) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
        found: dict[int, list[tuple[bytes, bytes]]] = {}
        for key, value in together:
            self.payload_bytes += len(value)
            found.setdefault(partition_of(key, len(self.produced)), []).append((key, value))
        yield from found.items()
