"""Iterator of record batches, for ``Consumer.batches``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Self

from tailrace.records import KeyT_co, Record, ValueT_co

__all__ = ["Batches"]


class Batches(Generic[KeyT_co, ValueT_co]):
    """Iterator of ``consumer.batches(...)``; a batch is finished when the next one is polled.

    Args:
        next_batch: returns the next batch; raises StopAsyncIteration to end the loop.
    """

    def __init__(self, next_batch: Callable[[], Awaitable[list[Record[KeyT_co, ValueT_co]]]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Record[KeyT_co, ValueT_co]]:
        return await self._next_batch()
