"""What the ids of schemas mean: asked once and kept, for it never changes.

Rule of this file: asking is awaited ahead of decoding, which then finds the schema or tells why there is none.
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
"""For so long an id that does not exist is not asked for again. After that it is: a replica may lag behind."""
_MOST_UNKNOWN = 1000


class SharedLookup:
    """One question at a time about one thing; whoever comes meanwhile waits for its answer."""

    def __init__(self) -> None:
        self._asking: dict[object, _Question] = {}

    async def ask(self, about: object, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask, or wait for who asks already; that one may have been cancelled, so look whether it has an answer.

        Raises:
            TailraceError: what ``ask`` raised, to each of them.
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
        self._known: dict[int, Schema] = {}
        self._headers: set[bytes] = set()
        """What values begin with whose schemas are known."""
        self._unknown: dict[int, float] = {}
        """Ids that do not exist, and when each may be asked for again."""
        self._together = SharedLookup()

    def decoder(self, annotation: Any) -> Decode:  # noqa: ANN401 - any type there is
        """As ``SchemaRegistry.decoder`` says."""
        if split_none(annotation)[0] is bytes:
            return _as_it_is
        self._format.check(annotation)
        readers: dict[bytes, Decode] = {}

        def decode(data: bytes) -> object:
            # By the bytes of the header as they are: no number is made of them for each record.
            read = readers.get(data[:HEADER])
            if read is None:
                read = readers[data[:HEADER]] = self._reader(id_of(data), annotation)
            return read(data)

        return decode

    def learn(self, schema: Schema) -> None:
        """Take a schema, whoever asked for it."""
        self._known[schema.id] = schema
        self._headers.add(header_of(schema.id))

    def knows(self, header: bytes) -> bool:
        """Return True if the schema is known that values with this header were written with."""
        return header in self._headers

    def schema(self, header: bytes) -> Schema:
        """Return the schema of a header that ``knows`` returns True for."""
        return self._known[id_of(header)]

    def lacks(self, data: bytes) -> bool:
        """As ``SchemaRegistry.lacks`` says."""
        if data[:HEADER] in self._headers:
            return False
        if not is_framed(data):
            return False  # decoding tells
        again_at = self._unknown.get(int.from_bytes(data[1:HEADER], "big"))
        return again_at is None or again_at <= asyncio.get_running_loop().time()

    async def fetch(self, data: bytes) -> None:
        """As ``SchemaRegistry.fetch`` says."""
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
        schema = self._known.get(schema_id)
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
