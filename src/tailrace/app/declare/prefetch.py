"""Fetches that codecs need before they decode records, such as of schemas.

A record that needs no fetch does not wait.
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
    """Fetch before a record, or a batch, is decoded.

    Attributes:
        lacks: Returns True if a fetch is needed.
        fetch: Runs the fetch; raises its error.
    """

    lacks: Callable[[Any], bool]
    fetch: Callable[[Any], Awaitable[None]]

    def then(self, call: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """Return ``call`` preceded by the fetch."""

        async def call_after_fetch(subject: object) -> object:
            if self.lacks(subject):
                await self.fetch(subject)
            return await call(subject)

        return call_after_fetch

    @asynccontextmanager
    async def before(
        self, subject: object, opened: AbstractAsyncContextManager[Opened, bool | None]
    ) -> AsyncIterator[Opened]:
        """Fetch, then enter ``opened``."""
        if self.lacks(subject):
            await self.fetch(subject)
        async with opened as everything:
            yield everything


def ahead_of(of_value: TopicReader | None, of_key: TopicReader | None) -> Prefetch | None:
    """Return the fetch for a record's value, key or both; None if no fetch is ever needed."""
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
    """Return the fetch for a batch."""

    def any_lacks(records: Sequence[Record]) -> bool:
        return any(map(ahead.lacks, records))

    async def fetch_all(records: Sequence[Record]) -> None:
        for record in records:
            if ahead.lacks(record):
                await ahead.fetch(record)

    return Prefetch(any_lacks, fetch_all)
