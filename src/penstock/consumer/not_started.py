"""A consumer before its start: every call says what to do."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.errors import ConsumerStateError
from penstock.records import Record

__all__ = ["NotStarted"]


class NotStarted:
    """Stands in for the reader before there is one."""

    advice = "this consumer is not started - use `async with Consumer(...)`, or await start() first"

    def __init__(self) -> None:
        self.slice: Iterator[Record] = iter(())
        self.hand: Record | None = None

    async def next_record(self) -> Record:
        """Refuse."""
        raise ConsumerStateError(self.advice)

    async def next_records(self, _count: int) -> list[Record]:
        """Refuse."""
        raise ConsumerStateError(self.advice)
