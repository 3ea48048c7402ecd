"""Subjects of topics, and the check that the schema id of a record belongs to the subject of its topic.

A schema id is refused only if the registry has the subject, and no version of the subject has the id. An accepted id
stays accepted, so that records with known schemas can be read while the registry cannot be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from tailrace.app.declare.annotations import split_none
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.decoders import SchemaDecoders, SharedLookup
from tailrace.app.declare.schema_registry.formats import HEADER_SIZE, header_of, id_of
from tailrace.app.declare.schema_registry.schema import Schema

__all__ = ["SubjectName", "SubjectReader", "subject_of"]

SubjectName: TypeAlias = Literal["topic", "record", "topic_record"]

_REFUSED_FOR_S = 5.0
"""Time in seconds for which a refused id is not checked again.

A new version of the subject may have the id by then.
"""
_MAX_REFUSED = 1000
_MAX_TOPICS = 10_000


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

    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]:  # noqa: ANN401 - any type
        """Return a decoder of a type, for bytes for which ``lacks`` returns False.

        Raises:
            TypeError: the format does not support the type.
        """
        decode = self._schemas.decoder(annotation)
        if split_none(annotation)[0] is bytes:
            return lambda _topic, data: decode(data)

        def decode_checked(topic: str, data: bytes) -> object:
            accepted = self._accepted.get(topic)
            if accepted is None or data[:HEADER_SIZE] not in accepted:
                self._raise_if_refused(topic, data)
            return decode(data)

        return decode_checked

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


def _drop_oldest_if_full(entries: dict[Any, Any], limit: int) -> None:
    if len(entries) >= limit:
        del entries[next(iter(entries))]
