"""Reading batch by batch: each as full as it gets within its time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailrace.records import Record

__all__ = ["Batches"]


class Batches:
    """``async for batch in consumer.batches(...)``: the batch before is done when the next one is asked for.

    Args:
        next_batch: gives the next one; ends the loop by StopAsyncIteration.
    """

    def __init__(self, next_batch: Callable[[], Awaitable[list[Record]]]) -> None:
        self._next_batch = next_batch

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> list[Record]:
        return await self._next_batch()
