"""Decoders by schema id.

Schemas never change, so each is fetched once and kept. The fetch is awaited before decoding, which itself never waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tailrace.app.codec_protocols import Decode
from tailrace.app.declare.annotations import split_none
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.formats import HEADER, Format, check_schema, header_of, id_of, is_framed
from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.errors import TailraceError

__all__ = ["SchemaDecoders", "SharedLookup"]

_UNKNOWN_FOR_S = 30.0
"""Time for which a missing id is not requested again; after it, a registry replica may have caught up."""
_MOST_UNKNOWN = 1000


class SharedLookup:
    """Look-ups in a registry; concurrent ones with the same key share one request."""

    def __init__(self) -> None:
        self._asking: dict[object, _Question] = {}

    async def ask(self, about: object, ask: Callable[[], Awaitable[None]]) -> None:
        """Call ``ask``, or wait for a call under way; check for a result afterwards, since that call may be canceled.

        Raises:
            TailraceError: the error of ``ask``; all waiting callers receive it.
        """
        question = self._asking.get(about)
        if question is not None:
            await question.is_over.wait()
            if question.error is not None:
                raise type(question.error)(*question.error.args) from question.error
            return
        question = self._asking[about] = _Question()
        try:
            await ask()
        except TailraceError as error:
            question.error = error
            raise
        finally:
            del self._asking[about]
            question.is_over.set()


class _Question:
    __slots__ = ("error", "is_over")

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.error: TailraceError | None = None


class SchemaDecoders:
    """Decoders of values in the wire format."""

    def __init__(self, client: RegistryClient, form: Format) -> None:
        self._client, self._format = client, form
        self._schemas: dict[int, Schema] = {}
        self._headers: set[bytes] = set()
        """Headers of values whose schemas are known."""
        self._unknown: dict[int, float] = {}
        """Ids that do not exist, and the time at which each may be requested again."""
        self._together = SharedLookup()

    def decoder(self, annotation: Any) -> Decode:  # noqa: ANN401 - any type
        """Return a decoder of a type, see ``SchemaRegistry.decoder``."""
        if split_none(annotation)[0] is bytes:
            return _as_it_is
        self._format.check(annotation)
        readers: dict[bytes, Decode] = {}

        def decode(data: bytes) -> object:
            # The header's bytes are the key, to spare each record the conversion to an id.
            read = readers.get(data[:HEADER])
            if read is None:
                read = readers[data[:HEADER]] = self._reader(id_of(data), annotation)
            return read(data)

        return decode

    def learn(self, schema: Schema) -> None:
        """Add a schema that was fetched elsewhere."""
        self._schemas[schema.id] = schema
        self._headers.add(header_of(schema.id))

    def knows(self, header: bytes) -> bool:
        """Return True if the schema of values with this header is known."""
        return header in self._headers

    def schema(self, header: bytes) -> Schema:
        """Return the schema of a header that ``knows`` returns True for."""
        return self._schemas[id_of(header)]

    def lacks(self, data: bytes) -> bool:
        """Return True if the schema of these bytes must be fetched, see ``SchemaRegistry.lacks``."""
        if data[:HEADER] in self._headers:
            return False
        if not is_framed(data):
            return False  # decoding raises the reason
        again_at = self._unknown.get(int.from_bytes(data[1:HEADER], "big"))
        return again_at is None or again_at <= asyncio.get_running_loop().time()

    async def fetch(self, data: bytes) -> None:
        """Fetch the schema of these bytes, see ``SchemaRegistry.fetch``."""
        schema_id = id_of(data)

        async def ask() -> None:
            schema = await self._client.by_id(schema_id)
            if schema is not None:
                self.learn(schema)
                return
            self._unknown.pop(schema_id, None)
            if len(self._unknown) >= _MOST_UNKNOWN:
                del self._unknown[next(iter(self._unknown))]
            self._unknown[schema_id] = asyncio.get_running_loop().time() + _UNKNOWN_FOR_S

        while self.lacks(data):
            await self._together.ask(schema_id, ask)

    def _reader(self, schema_id: int, annotation: object) -> Decode:
        schema = self._schemas.get(schema_id)
        if schema is None:
            raise LookupError(
                f"the registry has no schema {schema_id}"
                if schema_id in self._unknown
                else f"schema {schema_id} is not fetched"
            )
        check_schema(schema, self._format, schema.read_rules)
        return self._format.reader(schema, annotation)


def _as_it_is(data: bytes) -> bytes:
    return data
