"""Subjects of topics, and the check that the schema id of a record belongs to the subject of its topic.

A schema id is refused only if the registry has the subject, and no version of the subject has the id. An accepted id
stays accepted, so that records with known schemas can be read while the registry cannot be reached.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from anyio.to_thread import run_sync

from tailrace.app.declare.annotations import split_none
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.decoders import SchemaDecoders, SharedLookup, TypeDecoder
from tailrace.app.declare.schema_registry.formats import HEADER_SIZE, header_of, id_of
from tailrace.app.declare.schema_registry.schema import Schema

__all__ = ["ParameterReader", "SubjectName", "SubjectReader", "subject_of"]

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
        schemas: fetches schemas and decodes values.
        client: client of the registry.
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
        """Fetch the schema, and check that its id belongs to the subject of the topic.

        Raises:
            SchemaRegistryError: a request failed.
        """
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
        schemas: fetches schemas and decodes values.
        subjects: checks schema ids; shared by all parameters.
    """

    def __init__(self, schemas: SchemaDecoders, subjects: SubjectReader) -> None:
        self._schemas, self._subjects = schemas, subjects
        self._decoders: list[_LargeValueDecoder] = []

    def lacks(self, topic: str, data: bytes, /) -> bool:
        """Return True if the schema must be fetched or checked, or the value must be decoded in a thread."""
        return self._subjects.lacks(topic, data) or any(one.lacks(data) for one in self._decoders)

    async def fetch(self, topic: str, data: bytes, /) -> None:
        """Fetch and check the schema, and then decode the value in a thread if this may take long.

        Raises:
            SchemaRegistryError: a request failed.
        """
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
        check, decoder = self._subjects.check, _LargeValueDecoder(self._schemas.type_decoder(annotation))
        self._decoders.append(decoder)

        def decode_checked(topic: str, data: bytes) -> object:
            check(topic, data)
            return decoder.decode(data)

        return decode_checked


class _Decoded(NamedTuple):
    """Value that was decoded in a thread, or the error.

    ``data`` keeps its bytes in memory, so that no other bytes have their identity.
    """

    data: bytes
    value: object
    error: Exception | None


class _LargeValueDecoder:
    """Decoder of one type, with the values that were decoded in a thread until they are taken."""

    def __init__(self, decoder: TypeDecoder) -> None:
        self._decoder = decoder
        self._decoded: dict[int, _Decoded] = {}
        """Values and errors by the identity of the bytes."""

    def lacks(self, data: bytes) -> bool:
        return id(data) not in self._decoded and self._decoder.is_slow(data)

    def decode_in_thread(self, data: bytes) -> None:
        value, error = None, None
        with _THREADS:
            try:
                value = self._decoder.decode(data)
            except Exception as raised:  # noqa: BLE001 - raised by ``decode``
                error = raised
        _drop_oldest_if_full(self._decoded, _MAX_DECODED)
        self._decoded[id(data)] = _Decoded(data, value, error)

    def decode(self, data: bytes) -> object:
        """Take the decoded value, or decode it now; may raise any exception."""
        found = self._decoded.pop(id(data), None) if self._decoded else None
        if found is None:
            return self._decoder.decode(data)
        if found.error is not None:
            raise found.error
        return found.value


def _drop_oldest_if_full(entries: dict[Any, Any], limit: int) -> None:
    if len(entries) >= limit:
        del entries[next(iter(entries))]
