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
"""Decodes bytes."""


@runtime_checkable
class Codec(Protocol):
    """Codec that returns a decoder for each type when the app starts; the decoder is called with the bytes only."""

    def decoder(self, annotation: Any, /) -> Decode: ...  # noqa: ANN401 - any type annotation
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class RecordCodec(Protocol):
    """Codec whose decoding depends on the record, such as on its topic or on a header that names a schema.

    Both methods are plain functions. They are called neither for the type ``bytes`` nor for null values. An exception
    that ``decode`` raises is raised as a DecodeError of the record. An OSError, such as from a registry that does not
    answer, is raised unchanged.
    """

    def decode(self, data: bytes, annotation: Any, record: Record, /) -> object: ...  # noqa: ANN401
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class FetchingCodec(Codec, Protocol):
    """Codec that must fetch data before it can decode some bytes, such as the schema that the bytes refer to.

    If ``lacks`` returns True for some bytes, ``fetch`` is awaited for them. An error that ``fetch`` raises counts as
    raised by the handler. A SchemaRegistryError pauses the record until the registry answers.

    Attributes:
        keys: True if the codec also decodes keys.
    """

    keys: bool

    def lacks(self, data: bytes, /) -> bool: ...
    async def fetch(self, data: bytes, /) -> None: ...


class TopicReader(Protocol):
    """Decoder of record values or of record keys that knows the topic of each record."""

    def lacks(self, topic: str, data: bytes, /) -> bool: ...
    async def fetch(self, topic: str, data: bytes, /) -> None: ...
    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]: ...  # noqa: ANN401


@runtime_checkable
class TopicReadingCodec(FetchingCodec, Protocol):
    """Fetching codec that checks bytes against their topic, such as against the subject of a schema.

    Apps call ``reader`` instead of ``decoder``, ``lacks`` and ``fetch``. For a record of a retry or replay topic, the
    topic passed to the reader is the topic from which the record was first read.
    """

    def reader(self, *, is_key: bool) -> TopicReader: ...


@runtime_checkable
class TopicCodec(Protocol):
    """Codec whose encoding depends on the topic of a message; ``encode_for`` is called instead of ``encode``."""

    keys: bool

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes: ...  # noqa: ANN401


AnyCodec: TypeAlias = Codec | RecordCodec
"""Codec of an app or a handler."""
