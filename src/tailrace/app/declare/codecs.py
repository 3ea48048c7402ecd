"""JSON codec, the default of an app.

A codec creates one decoder per type, at startup, and refuses unsupported types then. Decoding never waits; fetches that
it needs, such as of schemas, are awaited before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec

from tailrace.app.codec_protocols import Decode, FetchingCodec, TopicReader, TopicReadingCodec
from tailrace.app.declare.annotations import described, metadata, parts, split_none

__all__ = [
    "JsonCodec",
    "check",
    "is_of_pydantic",
    "text_decoder",
    "topic_reader",
]


def topic_reader(codec: object, *, is_key: bool) -> TopicReader | None:
    """Return the reader of a codec that fetches before it decodes; None for other codecs."""
    if isinstance(codec, TopicReadingCodec):
        return codec.reader(is_key=is_key)
    return _OfAnyTopic(codec) if isinstance(codec, FetchingCodec) else None


class _OfAnyTopic:
    """Reader of a fetching codec that needs no topic."""

    def __init__(self, codec: FetchingCodec) -> None:
        self._codec = codec

    def lacks(self, _topic: str, data: bytes, /) -> bool:
        return self._codec.lacks(data)

    async def fetch(self, _topic: str, data: bytes, /) -> None:
        await self._codec.fetch(data)

    def decoder(self, annotation: Any, /) -> Callable[[str, bytes], object]:  # noqa: ANN401
        decode = self._codec.decoder(annotation)
        return lambda _topic, data: decode(data)


class JsonCodec:
    """Codec for JSON, by msgspec, and by pydantic for pydantic's types.

    ``bytes`` are passed unchanged and ``str`` is UTF-8, in both directions. Within other types, unions included, both
    are JSON.
    """

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401
        """Return a decoder of a type.

        Raises:
            TypeError: Neither msgspec nor pydantic supports the type, or decodes it to something else.
        """
        bare, _ = split_none(annotation)
        if bare is bytes:
            return _as_it_is
        if bare is str:
            return bytes.decode
        if is_of_pydantic(annotation):
            return _pydantic_decoder(annotation)
        kind = Any if bare is object else annotation
        check(kind)
        return msgspec.json.Decoder(kind).decode

    def encode(self, value: Any, /) -> bytes:  # noqa: ANN401
        """Encode a value.

        Raises:
            TypeError: The value has no JSON form.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, str) and not isinstance(value, Enum):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if hasattr(type(value), "__pydantic_serializer__"):
            return _pydantic_encoded(value)
        return _JSON.encode(value)


def text_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    """Return the decoder of a key or header: from text for numbers, dates, UUIDs and enums, else from JSON.

    Raises:
        TypeError: The type is not supported.
    """
    bare, _ = split_none(annotation)
    if bare is bytes or bare is str or is_of_pydantic(bare):
        return JsonCodec().decoder(bare)
    check(bare)
    if not _has_text(msgspec.inspect.type_info(bare)):
        return JsonCodec().decoder(bare)

    def from_text(data: bytes) -> object:
        return msgspec.convert(data.decode(), bare, strict=False)

    return from_text


def _as_it_is(data: bytes) -> bytes:
    return data


# ---- types of msgspec --------------------------------------------------------------------------------------------

_TEXTS = (
    msgspec.inspect.IntType
    | msgspec.inspect.FloatType
    | msgspec.inspect.BoolType
    | msgspec.inspect.StrType
    | msgspec.inspect.EnumType
    | msgspec.inspect.LiteralType
    | msgspec.inspect.DateTimeType
    | msgspec.inspect.DateType
    | msgspec.inspect.TimeType
    | msgspec.inspect.TimeDeltaType
    | msgspec.inspect.UUIDType
    | msgspec.inspect.DecimalType
)
_RAW = msgspec.inspect.BytesType | msgspec.inspect.ByteArrayType | msgspec.inspect.MemoryViewType


def check(annotation: Any) -> None:  # noqa: ANN401
    """Check a type for faults that msgspec reports with the first record only, or not at all.

    Raises:
        TypeError: The type is not supported.
    """
    for one in (extra for part in parts(annotation) for extra in metadata(part)):
        if not isinstance(one, msgspec.Meta):
            raise TypeError(
                f"{one!r} is not a marker - Annotated supports Key, Header('name'), Depends(provider) and msgspec.Meta"
            )
    info = msgspec.inspect.type_info(annotation)
    alternatives = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    if any(isinstance(one, _RAW) for one in alternatives):
        raise TypeError("bytes as they are go by `bytes` or `bytes | None` alone")
    for part in _within(info):
        if isinstance(part, msgspec.inspect.CustomType):
            raise TypeError(f"there is no JSON for {described(part.cls)}{_instead_of(part.cls)}")


def _instead_of(kind: type) -> str:
    if is_of_pydantic(kind):
        return " - a type that contains pydantic models must be a pydantic model, too"
    return " - is it a dataclass, a msgspec.Struct, a pydantic model? What is not in the record comes by Depends"


def _within(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and the types of its parts, each once."""
    waiting: list[object] = [info]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if isinstance(one, tuple):
            waiting += one
        elif isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, msgspec.inspect.Type):
                yield one
            waiting += [getattr(one, name) for name in one.__struct_fields__]


def _has_text(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.UnionType):
        return all(map(_has_text, info.types))
    return isinstance(info, _TEXTS)


# ---- pydantic ------------------------------------------------------------------------------------------------------


def is_of_pydantic(annotation: object) -> bool:
    """Return True if a type contains pydantic models, or metadata of pydantic."""
    return any(
        hasattr(part, "__pydantic_validator__")
        if isinstance(part, type)
        else type(part).__module__.partition(".")[0] in {"pydantic", "annotated_types"}
        for part in parts(annotation)
    )


def _pydantic_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

    return TypeAdapter(annotation).validate_json


def _pydantic_encoded(value: Any) -> bytes:  # noqa: ANN401
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    from pydantic_core import to_json  # noqa: PLC0415 - a pydantic dataclass

    return to_json(value)


def _part_for_json(value: Any) -> object:  # noqa: ANN401
    """Return a JSON form of a value that msgspec does not know."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"there is no JSON for {described(type(value))}")


_JSON = msgspec.json.Encoder(enc_hook=_part_for_json)
