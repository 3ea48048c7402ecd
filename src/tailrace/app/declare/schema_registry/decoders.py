"""Decoders of values, selected by the schema id in the value.

The schema of an id never changes, so each schema is fetched only once, before the decoder is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tailrace.app.codec_protocols import Decode
from tailrace.app.declare.annotations import split_none
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.formats import (
    HEADER_SIZE,
    LARGE_VALUE,
    Format,
    PayloadReader,
    check_schema,
    header_of,
    id_of,
    is_framed,
)
from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.errors import TailraceError

__all__ = ["SchemaDecoders", "SharedLookup", "TypeDecoder"]

_MISSING_FOR_S = 30.0
"""Time in seconds for which an id that does not exist is not requested again.

A new schema may not have reached all replicas of the registry yet.
"""
_MAX_MISSING = 1000


class SharedLookup:
    """Sends requests to a registry; concurrent calls with the same key share one request."""

    def __init__(self) -> None:
        self._running: dict[object, _Request] = {}

    async def run(self, key: object, send: Callable[[], Awaitable[None]]) -> None:
        """Await ``send()``, or wait until a running request with the same key has ended.

        The running request may have been canceled, so the caller must check for its result, and call ``run`` again if
        there is none.

        Raises:
            TailraceError: the error of the request, which all calls that share it raise.
        """
        request = self._running.get(key)
        if request is not None:
            await request.ended.wait()
            if request.error is not None:
                raise type(request.error)(*request.error.args) from request.error
            return
        request = self._running[key] = _Request()
        try:
            await send()
        except TailraceError as error:
            request.error = error
            raise
        finally:
            del self._running[key]
            request.ended.set()


class _Request:
    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: TailraceError | None = None


class SchemaDecoders:
    """Decoders of values in the wire format."""

    def __init__(self, client: RegistryClient, form: Format) -> None:
        self._client, self._format = client, form
        self._schemas: dict[int, Schema] = {}
        self._headers: set[bytes] = set()
        """Headers of values whose schemas were fetched."""
        self._missing: dict[int, float] = {}
        """Ids that do not exist, each with the event loop time from which it may be requested again."""
        self._lookups = SharedLookup()

    def decoder(self, annotation: Any) -> Decode:  # noqa: ANN401 - any type
        """Return a decoder of a type, see ``SchemaRegistry.decoder``."""
        return _pass_through if split_none(annotation)[0] is bytes else self.type_decoder(annotation).decode

    def type_decoder(self, annotation: Any) -> TypeDecoder:  # noqa: ANN401
        """Return a decoder of a type other than bytes.

        Raises:
            TypeError: the format does not support the type.
        """
        self._format.check(annotation)
        return TypeDecoder(annotation, self._schemas, self.reader)

    def add(self, schema: Schema) -> None:
        """Add a schema, so that values that refer to it can be decoded without a fetch."""
        self._schemas[schema.id] = schema
        self._headers.add(header_of(schema.id))

    def knows(self, header: bytes) -> bool:
        """Return True if values with this header can be decoded without a fetch."""
        return header in self._headers

    def schema(self, header: bytes) -> Schema:
        """Return the schema of values with this header, for which ``knows`` must return True."""
        return self._schemas[id_of(header)]

    def lacks(self, data: bytes) -> bool:
        """Return True if the schema of these bytes must be fetched, see ``SchemaRegistry.lacks``."""
        if data[:HEADER_SIZE] in self._headers:
            return False
        if not is_framed(data):
            return False  # The decoder raises an error.
        retry_at = self._missing.get(int.from_bytes(data[1:HEADER_SIZE], "big"))
        return retry_at is None or retry_at <= asyncio.get_running_loop().time()

    async def fetch(self, data: bytes) -> None:
        """Fetch the schema of these bytes, see ``SchemaRegistry.fetch``."""
        schema_id = id_of(data)

        async def request() -> None:
            schema = await self._client.by_id(schema_id)
            if schema is not None:
                self.add(schema)
                return
            self._missing.pop(schema_id, None)
            if len(self._missing) >= _MAX_MISSING:
                del self._missing[next(iter(self._missing))]
            self._missing[schema_id] = asyncio.get_running_loop().time() + _MISSING_FOR_S

        while self.lacks(data):
            await self._lookups.run(schema_id, request)

    def reader(self, schema_id: int, annotation: object) -> PayloadReader:
        """Return a reader of values with a schema.

        Raises:
            LookupError: the schema was not fetched, or does not exist.
            TypeError: the schema cannot be used.
        """
        schema = self._schemas.get(schema_id)
        if schema is None:
            raise LookupError(
                f"the registry has no schema {schema_id}"
                if schema_id in self._missing
                else f"schema {schema_id} was not fetched"
            )
        check_schema(schema, self._format, schema.read_rules)
        return self._format.reader(schema, annotation)


class TypeDecoder:
    """Decoder of values of one type.

    Args:
        annotation: the type.
        schemas: fetched schemas by id.
        create_reader: returns the reader of a schema id and the type; may raise any exception.
    """

    def __init__(
        self, annotation: object, schemas: Mapping[int, Schema], create_reader: Callable[[int, object], PayloadReader]
    ) -> None:
        self._annotation, self._schemas, self._create_reader = annotation, schemas, create_reader
        # The key is the header, because converting it to the id would take time for each record.
        self._readers: dict[bytes, PayloadReader] = {}

    def decode(self, data: bytes) -> object:
        """Decode a value; may raise any exception."""
        reader = self._readers.get(data[:HEADER_SIZE])
        return (self._reader(data) if reader is None else reader).decode(data)

    def is_slow(self, data: bytes) -> bool:
        """Return True if ``decode`` should be called in a thread, because the value or its new schema is large."""
        reader = self._readers.get(data[:HEADER_SIZE])
        if reader is None and is_framed(data):
            schema = self._schemas.get(id_of(data))
            # The reader may also be slow, which is known only after it was created.
            return schema is not None and (len(schema.text) > LARGE_VALUE or len(data) > LARGE_VALUE)
        return reader is not None and reader.is_slow and len(data) > LARGE_VALUE

    def _reader(self, data: bytes) -> PayloadReader:
        reader = self._readers[data[:HEADER_SIZE]] = self._create_reader(id_of(data), self._annotation)
        return reader


def _pass_through(data: bytes) -> bytes:
    return data
