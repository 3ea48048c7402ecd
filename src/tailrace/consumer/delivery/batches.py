"""Iterator of batches, for ``Consumer.batches`` and ``Consumer.arrow_batches``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Self, TypeVar

__all__ = ["Batches"]

BatchT_co = TypeVar("BatchT_co", covariant=True)


class Batches(Generic[BatchT_co]):
    """Iterator of batches; a batch is finished when the next one is polled.

    Args:
        next_batch: finishes the previous batch and returns the next one; raises StopAsyncIteration to end the loop.
    """

    def __init__(self, next_batch: Callable[[], Awaitable[BatchT_co]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchT_co:
        return await self._next_batch()
