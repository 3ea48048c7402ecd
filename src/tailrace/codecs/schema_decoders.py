"""Decoders of values, selected by the schema id in the value.

The schema of an id never changes, so each schema is fetched only once, before the decoder is called.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from anyio.to_thread import run_sync

from tailrace.codecs.annotations import split_none
from tailrace.codecs.protocols import Decode
from tailrace.codecs.registry_client import RegistryClient
from tailrace.codecs.wire_format import (
    HEADER_SIZE,
    LARGE_VALUE,
    Format,
    PayloadReader,
    Schema,
    check_schema,
    header_of,
    id_of,
    is_framed,
)
from tailrace.errors import TailraceError

__all__ = [
    "ParameterReader",
    "SchemaDecoders",
    "SharedLookup",
    "SubjectName",
    "SubjectReader",
    "TypeDecoder",
    "subject_of",
]

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
        return TypeDecoder(annotation, self)

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
            _drop_oldest_if_full(self._missing, _MAX_MISSING)
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


class _Decoded(NamedTuple):
    """Value that was decoded in a thread, or the error.

    ``data`` keeps its bytes in memory, so that no other bytes have their identity.
    """

    data: bytes
    value: object
    error: Exception | None


class TypeDecoder:
    """Decoder of values of one type, with the values that were decoded in a thread until they are taken."""

    def __init__(self, annotation: object, schemas: SchemaDecoders) -> None:
        self._annotation, self._schemas = annotation, schemas
        # The key is the header, because converting it to the id would take time for each record.
        self._readers: dict[bytes, PayloadReader] = {}
        self._decoded: dict[int, _Decoded] = {}
        """Values and errors by the identity of the bytes."""

    def decode(self, data: bytes) -> object:
        """Take the value that was decoded in a thread, or decode it now; may raise any exception."""
        if self._decoded and (found := self._decoded.pop(id(data), None)) is not None:
            if found.error is not None:
                raise found.error
            return found.value
        reader = self._readers.get(data[:HEADER_SIZE])
        if reader is None:
            reader = self._readers[data[:HEADER_SIZE]] = self._schemas.reader(id_of(data), self._annotation)
        return reader.decode(data)

    def lacks(self, data: bytes) -> bool:
        """Return True if ``decode_in_thread`` must be called first, because the value or its new schema is large."""
        if id(data) in self._decoded:
            return False
        reader = self._readers.get(data[:HEADER_SIZE])
        if reader is not None:
            return reader.is_slow and len(data) > LARGE_VALUE
        if not self._schemas.knows(data[:HEADER_SIZE]):
            return False
        # The reader may also be slow, which is known only after it was created.
        return len(self._schemas.schema(data[:HEADER_SIZE]).text) > LARGE_VALUE or len(data) > LARGE_VALUE

    def decode_in_thread(self, data: bytes) -> None:
        """Decode a value, and keep it, or the error, for ``decode``."""
        value, error = None, None
        with _THREADS:
            try:
                value = self.decode(data)
            except Exception as raised:  # noqa: BLE001 - raised by ``decode``
                error = raised
        _drop_oldest_if_full(self._decoded, _MAX_DECODED)
        self._decoded[id(data)] = _Decoded(data, value, error)


def _pass_through(data: bytes) -> bytes:
    return data


# ---- subjects of topics ----------------------------------------------------------------------------------------------

SubjectName: TypeAlias = Literal["topic", "record", "topic_record"]

_REFUSED_FOR_S = 5.0
"""Time in seconds for which a refused id is not checked again.

A new version of the subject may have the id by then.
"""
_MAX_REFUSED = 1000
_MAX_TOPICS = 10_000
_MAX_DECODED = 1000
"""Maximum number of values that were decoded in a thread and not yet taken.

A value is not taken if its handler is canceled in between.
"""
_THREADS = threading.Lock()
"""Lock that lets one value at a time be decoded in a thread: each further thread would delay the event loop."""


def subject_of(strategy: SubjectName, topic: str, *, is_key: bool, record_name: Callable[[], str]) -> str:
    """Return the subject for the values or keys of a topic; ``record_name`` returns the name of the schema."""
    if strategy == "topic":
        return f"{topic}-{'key' if is_key else 'value'}"
    return record_name() if strategy == "record" else f"{topic}-{record_name()}"


class SubjectReader:
    """Reader of values, or of keys, that refuses schema ids that do not belong to the subject of the topic.

    Args:
        subject: returns the subject for a topic and a schema. It returns None, so that the schema id is accepted, if
            the naming strategy requires the name of the schema and the schema has none.
    """

    def __init__(
        self, schemas: SchemaDecoders, client: RegistryClient, subject: Callable[[str, Schema], str | None]
    ) -> None:
        self._schemas, self._client, self._subject = schemas, client, subject
        self._accepted: dict[str, set[bytes]] = {}
        """Headers of accepted ids, by topic."""
        self._refused: dict[tuple[str, bytes], float] = {}
        """Event loop times from which refused ids may be checked again, by topic and header."""
        self._lookups = SharedLookup()

    def accept(self, topic: str, schema_id: int) -> None:
        """Accept a schema id in all records of a topic from now on."""
        accepted = self._accepted.get(topic)
        if accepted is None:
            _drop_oldest_if_full(self._accepted, _MAX_TOPICS)
            accepted = self._accepted[topic] = set()
        accepted.add(header_of(schema_id))

    def lacks(self, topic: str, data: bytes, /) -> bool:
        """Return True if the schema must be fetched, or its id must be checked, before these bytes are decoded."""
        header = data[:HEADER_SIZE]
        accepted = self._accepted.get(topic)
        if accepted is not None and header in accepted:
            return False
        if self._schemas.lacks(data):
            return True
        if not self._schemas.knows(header):
            return False  # The decoder raises an error.
        retry_at = self._refused.get((topic, header))
        return retry_at is None or retry_at <= asyncio.get_running_loop().time()

    async def fetch(self, topic: str, data: bytes, /) -> None:
        """Fetch the schema, and check that its id belongs to the subject of the topic."""
        header = data[:HEADER_SIZE]
        while self.lacks(topic, data):
            await self._schemas.fetch(data)
            if self._schemas.knows(header):
                await self._lookups.run((topic, header), lambda: self._check(topic, header))

    def check(self, topic: str, data: bytes) -> None:
        """Raise LookupError if the schema id does not belong to the subject of the topic."""
        accepted = self._accepted.get(topic)
        if accepted is None or data[:HEADER_SIZE] not in accepted:
            self._raise_if_refused(topic, data)

    async def _check(self, topic: str, header: bytes) -> None:
        """Accept or refuse the schema id in a header for a topic."""
        schema = self._schemas.schema(header)
        subject = self._subject(topic, schema)
        self._refused.pop((topic, header), None)
        if subject is None or await self._client.may_belong_to(subject, schema.id):
            self.accept(topic, schema.id)
            return
        _drop_oldest_if_full(self._refused, _MAX_REFUSED)
        self._refused[topic, header] = asyncio.get_running_loop().time() + _REFUSED_FOR_S

    def _raise_if_refused(self, topic: str, data: bytes) -> None:
        schema_id = id_of(data)
        if not self._schemas.knows(data[:HEADER_SIZE]):
            return  # The decoder raises an error.
        subject = self._subject(topic, self._schemas.schema(data[:HEADER_SIZE]))
        raise LookupError(f"schema {schema_id} is not a version of {subject!r}")


class ParameterReader:
    """``TopicReader`` for one parameter of a handler, which decodes values in a thread if this may take long.

    Args:
        subjects: checks schema ids; shared by all parameters.
    """

    def __init__(self, schemas: SchemaDecoders, subjects: SubjectReader) -> None:
        self._schemas, self._subjects = schemas, subjects
        self._decoders: list[TypeDecoder] = []

    def lacks(self, topic: str, data: bytes, /) -> bool:
        """Return True if the schema must be fetched or checked, or the value must be decoded in a thread."""
        return self._subjects.lacks(topic, data) or any(one.lacks(data) for one in self._decoders)

    async def fetch(self, topic: str, data: bytes, /) -> None:
        """Fetch and check the schema, and then decode the value in a thread if this may take long."""
        await self._subjects.fetch(topic, data)
        for one in self._decoders:
            if one.lacks(data):
                await run_sync(one.decode_in_thread, data, abandon_on_cancel=True)

    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]:  # noqa: ANN401 - any type
        """Return a decoder of a type, for bytes for which ``lacks`` returns False.

        Raises:
            TypeError: the format does not support the type.
        """
        if split_none(annotation)[0] is bytes:
            return lambda _topic, data: data
        check, decoder = self._subjects.check, self._schemas.type_decoder(annotation)
        self._decoders.append(decoder)

        def decode_checked(topic: str, data: bytes) -> object:
            check(topic, data)
            return decoder.decode(data)

        return decode_checked


def _drop_oldest_if_full(entries: dict[Any, Any], limit: int) -> None:
    if len(entries) >= limit:
        del entries[next(iter(entries))]
