"""What is fetched before a record is decoded, by codecs that need something from elsewhere, such as schemas.

Rule of this file: a look without a wait says whether anything is missing; nothing is awaited for a record that has all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tailrace.app.codec_protocols import TopicReader
from tailrace.app.declare.arguments import Opened
from tailrace.records import Record

__all__ = ["Prefetch", "ahead_of", "ahead_of_each"]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What comes before a record, or a batch, is decoded.

    Attributes:
        lacks: whether something is missing.
        fetch: gets it. Raises what could not be reached.
    """

    lacks: Callable[[Any], bool]
    fetch: Callable[[Any], Awaitable[None]]

    def then(self, call: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """``call``, behind what is missing."""

        async def call_when_all_is_there(subject: object) -> object:
            if self.lacks(subject):
                await self.fetch(subject)
            return await call(subject)

        return call_when_all_is_there

    @asynccontextmanager
    async def before(
        self, subject: object, opened: AbstractAsyncContextManager[Opened, bool | None]
    ) -> AsyncIterator[Opened]:
        """``opened``, behind what is missing."""
        if self.lacks(subject):
            await self.fetch(subject)
        async with opened as everything:
            yield everything


def ahead_of(of_value: TopicReader | None, of_key: TopicReader | None) -> Prefetch | None:
    """What comes before a record's value, its key or both are decoded; None where nothing is ever missing."""
    if of_value is None and of_key is None:
        return None

    def lacks(record: Record) -> bool:
        if of_value is not None and record.value is not None and of_value.lacks(record.topic, record.value):
            return True
        return of_key is not None and record.key is not None and of_key.lacks(record.topic, record.key)

    async def fetch(record: Record) -> None:
        for reader, data in ((of_value, record.value), (of_key, record.key)):
            if reader is not None and data is not None and reader.lacks(record.topic, data):
                await reader.fetch(record.topic, data)

    return Prefetch(lacks, fetch)


def ahead_of_each(ahead: Prefetch) -> Prefetch:
    """The same of a batch."""

    def any_lacks(records: Sequence[Record]) -> bool:
        return any(map(ahead.lacks, records))

    async def fetch_all(records: Sequence[Record]) -> None:
        for record in records:
            if ahead.lacks(record):
                await ahead.fetch(record)

    return Prefetch(any_lacks, fetch_all)
