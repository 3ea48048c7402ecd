"""Protocols of codecs: how values and keys are decoded and encoded."""

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
    """Codec that makes a decoder for each type at start; the decoder needs nothing but the bytes."""

    def decoder(self, annotation: Any, /) -> Decode: ...  # noqa: ANN401 - any type there is
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class RecordCodec(Protocol):
    """Codec that decodes by the record as well, such as by its topic or by a header that names a schema.

    Both are plain functions. They are not called for ``bytes`` and null values. An exception of ``decode`` is raised as
    a DecodeError of the record, except an OSError (a registry that does not answer), which is raised as it is.
    """

    def decode(self, data: bytes, annotation: Any, record: Record, /) -> object: ...  # noqa: ANN401
    def encode(self, value: Any, /) -> bytes: ...  # noqa: ANN401


@runtime_checkable
class FetchingCodec(Codec, Protocol):
    """Codec that fetches something before it can decode, such as the schema that the bytes name.

    ``fetch`` is awaited for bytes that ``lacks`` returns True for. Its errors are raised as if by the handler; a
    SchemaRegistryError pauses the record until the registry answers.

    Attributes:
        keys: True if the codec decodes keys, too.
    """

    keys: bool

    def lacks(self, data: bytes, /) -> bool: ...
    async def fetch(self, data: bytes, /) -> None: ...


class TopicReader(Protocol):
    """Decoder of the values, or of the keys, of records, given the topic of each."""

    def lacks(self, topic: str, data: bytes, /) -> bool: ...
    async def fetch(self, topic: str, data: bytes, /) -> None: ...
    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]: ...  # noqa: ANN401


@runtime_checkable
class TopicReadingCodec(FetchingCodec, Protocol):
    """Fetching codec that checks bytes against their topic, such as against the subject of a schema.

    Apps call ``reader`` instead of ``decoder``, ``lacks`` and ``fetch``. The topic of a record read from a retry or
    replay topic is that of its origin.
    """

    def reader(self, *, is_key: bool) -> TopicReader: ...


@runtime_checkable
class TopicCodec(Protocol):
    """Codec whose bytes depend on the topic they are published to; called instead of ``encode``."""

    keys: bool

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes: ...  # noqa: ANN401


AnyCodec: TypeAlias = Codec | RecordCodec
"""Codec of an app or a handler."""
