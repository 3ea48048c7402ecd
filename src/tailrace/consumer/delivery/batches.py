"""Iterator of record batches, for ``Consumer.batches``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailrace.records import Record

__all__ = ["Batches"]


class Batches:
    """``async for batch in consumer.batches(...)``; a batch is finished when the next one is polled.

    Args:
        next_batch: returns the next batch; raises StopAsyncIteration to end the loop.
    """

    def __init__(self, next_batch: Callable[[], Awaitable[list[Record]]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> list[Record]:
        return await self._next_batch()
