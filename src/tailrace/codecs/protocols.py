"""Protocols of codecs, which decode and encode values and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

from tailrace.records import Record

__all__ = [
    "AnyCodec",
    "Codec",
    "Decode",
    "FetchingCodec",
    "RecordCodec",
    "TopicCodec",
    "TopicReader",
    "TopicReadingCodec",
]

Decode: TypeAlias = Callable[[Any], object]
"""Decodes bytes to a value."""


@runtime_checkable
class Codec(Protocol):
    """Codec whose decoding depends on the bytes only.

    ``decoder`` is called once for each type, when the app starts. For values, it is not called for the type ``bytes``:
    such handlers receive the bytes of the record unchanged.
    """

    def decoder(self, annotation: Any, /) -> Decode: ...  # noqa: ANN401 - any type annotation
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class RecordCodec(Protocol):
    """Codec whose decoding depends on the record, such as on its topic or on a header that names a schema.

    Both methods are plain functions, and are not called for null values. Nor is ``decode`` called for the type
    ``bytes``. An exception of ``decode`` becomes a DecodeError of the record, except an OSError, such as from a
    registry that does not answer.
    """

    def decode(self, data: bytes, annotation: Any, record: Record, /) -> object: ...  # noqa: ANN401
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class FetchingCodec(Codec, Protocol):
    """Codec that must fetch data before it can decode some bytes, such as the schema that the bytes refer to.

    Before bytes for which ``lacks`` returns True are decoded, ``fetch`` is awaited with them. An error of ``fetch``
    makes the record fail, like an error of the handler. After a SchemaRegistryError, the record is retried until the
    registry answers.

    Attributes:
        keys: True if the codec also decodes keys.
    """

    keys: bool

    def lacks(self, data: bytes, /) -> bool: ...
    async def fetch(self, data: bytes, /) -> None: ...


class TopicReader(Protocol):
    """Decoder of record values or of record keys that receives the topic of each record."""

    def lacks(self, topic: str, data: bytes, /) -> bool: ...
    async def fetch(self, topic: str, data: bytes, /) -> None: ...
    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]: ...  # noqa: ANN401


@runtime_checkable
class TopicReadingCodec(FetchingCodec, Protocol):
    """Fetching codec whose decoding also depends on the topic, such as on the subject of a schema.

    Apps call ``reader`` instead of ``decoder``, ``lacks`` and ``fetch``. The reader receives the topic from which a
    record was first read, even if the record is now in a retry or replay topic.
    """

    def reader(self, *, is_key: bool) -> TopicReader: ...


@runtime_checkable
class TopicCodec(Protocol):
    """Codec whose encoding depends on the topic of a message; apps call ``encode_for`` instead of ``encode``.

    Attributes:
        keys: True if the codec also encodes keys.
    """

    keys: bool

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes: ...  # noqa: ANN401


AnyCodec: TypeAlias = Codec | RecordCodec
"""Codec of an app or a handler."""
