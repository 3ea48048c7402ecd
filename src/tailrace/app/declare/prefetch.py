"""Fetches of data that a codec needs before it decodes a record, such as the schema of the record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from tailrace.app.codec_protocols import TopicReader
from tailrace.app.declare.arguments import Opened
from tailrace.context_managers import asynccontextmanager
from tailrace.records import Record

__all__ = ["Prefetch", "batch_prefetch", "record_prefetch"]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Functions that fetch data before a unit is decoded; a unit is a record, or the list of records of a batch.

    Attributes:
        lacks: Returns True if ``fetch`` must be awaited before the unit can be decoded.
        fetch: Fetches the data for the unit; may raise any error of the codec.
    """

    lacks: Callable[[Any], bool]
    fetch: Callable[[Any], Awaitable[None]]

    def then(self, call: Callable[[Any], Awaitable[object]]) -> Callable[[Any], Awaitable[object]]:
        """Return a function that fetches if necessary, and then awaits ``call``."""

        async def call_after_fetch(unit: object) -> object:
            if self.lacks(unit):
                await self.fetch(unit)
            return await call(unit)

        return call_after_fetch

    @asynccontextmanager
    async def before(
        self, unit: object, dependencies: AbstractAsyncContextManager[Opened, bool | None]
    ) -> AsyncIterator[Opened]:
        """Fetch if necessary, and then open ``dependencies`` for the duration of a context."""
        if self.lacks(unit):
            await self.fetch(unit)
        async with dependencies as opened:
            yield opened


def record_prefetch(value_reader: TopicReader | None, key_reader: TopicReader | None) -> Prefetch | None:
    """Return the prefetch for records whose values and keys are decoded by these readers; None without a reader."""
    if value_reader is None and key_reader is None:
        return None

    def lacks(record: Record) -> bool:
        if value_reader is not None and record.value is not None and value_reader.lacks(record.topic, record.value):
            return True
        return key_reader is not None and record.key is not None and key_reader.lacks(record.topic, record.key)

    async def fetch(record: Record) -> None:
        for reader, data in ((value_reader, record.value), (key_reader, record.key)):
            if reader is not None and data is not None and reader.lacks(record.topic, data):
                await reader.fetch(record.topic, data)

    return Prefetch(lacks, fetch)


def batch_prefetch(one_record: Prefetch) -> Prefetch:
    """Return the prefetch for batches, which applies ``one_record`` to each record of a batch, in order."""

    def any_lacks(records: Sequence[Record]) -> bool:
        return any(map(one_record.lacks, records))

    async def fetch_all(records: Sequence[Record]) -> None:
        for record in records:
            if one_record.lacks(record):
                await one_record.fetch(record)

    return Prefetch(any_lacks, fetch_all)
