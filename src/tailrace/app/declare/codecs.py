"""JSON codec, which is the default codec of an app, and decoders for keys and headers.

A codec creates a decoder for each type when the app starts, and raises an error for an unsupported type at that time.
Decoders are plain functions. If a decoder needs data that must be fetched, such as a schema, the app awaits the fetch
before it calls the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import msgspec

from tailrace.app.codec_protocols import Decode, FetchingCodec, TopicReader, TopicReadingCodec
from tailrace.app.declare.annotations import described, metadata, parts, split_none

__all__ = [
    "JsonCodec",
    "check_type",
    "encode_text",
    "needs_pydantic",
    "text_decoder",
    "topic_reader",
]


def topic_reader(codec: object, *, is_key: bool) -> TopicReader | None:
    """Return the reader with which a ``FetchingCodec`` decodes keys or values; None for other codecs."""
    if isinstance(codec, TopicReadingCodec):
        return codec.reader(is_key=is_key)
    return _TopicIgnoringReader(codec) if isinstance(codec, FetchingCodec) else None


class _TopicIgnoringReader:
    """``TopicReader`` of a codec whose decoding does not depend on the topic."""

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
    """Codec for JSON, which uses pydantic for types that contain pydantic models, and msgspec for all other types.

    A value of the type ``bytes`` is read and published unchanged, and a value of the type ``str`` as UTF-8 text without
    quotation marks. Inside other types, ``str`` is a JSON string, and ``bytes`` are a JSON string in base64. In a union
    of ``str`` with another type than None, ``str`` is a JSON string, too; such unions of ``bytes`` are not supported.
    """

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401
        """Return a decoder of a type.

        Raises:
            TypeError: The type is not supported.
        """
        bare, _ = split_none(annotation)
        if bare is bytes:
            return _pass_through
        if bare is str:
            return bytes.decode
        if needs_pydantic(annotation):
            return _pydantic_decoder(annotation)
        kind = Any if bare is object else annotation
        check_type(kind)
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
            return _encode_with_pydantic(value)
        return _JSON.encode(value)


def text_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    """Return a decoder of keys or headers.

    ``bytes`` and ``str`` are decoded as in ``JsonCodec``; numbers, booleans, enums, dates, times, durations and UUIDs
    from text; all other types from JSON.

    Raises:
        TypeError: The type is not supported.
    """
    bare, _ = split_none(annotation)
    if bare is bytes or bare is str or needs_pydantic(bare):
        return JsonCodec().decoder(bare)
    check_type(bare)
    if not _has_text(msgspec.inspect.type_info(bare)):
        return JsonCodec().decoder(bare)

    def from_text(data: bytes) -> object:
        return msgspec.convert(data.decode(), bare, strict=False)

    return from_text


def encode_text(value: object) -> bytes:
    """Encode a key in the form that ``text_decoder`` reads.

    Raises:
        TypeError: The value has no JSON form, or is a number that JSON does not have.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise TypeError(f"{value} has no JSON form")
    builtin = value if isinstance(value, bytes | bytearray | memoryview) else _builtin(value)
    return JsonCodec().encode(builtin if isinstance(builtin, str) else value)


def _builtin(value: object) -> object:
    return msgspec.to_builtins(value, enc_hook=_to_json_type)


def _pass_through(data: bytes) -> bytes:
    return data


# ---- types of msgspec --------------------------------------------------------------------------------------------

_TEXT_TYPES = (
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
"""Types that keys and headers contain as text."""
_BYTES_TYPES = msgspec.inspect.BytesType | msgspec.inspect.ByteArrayType | msgspec.inspect.MemoryViewType


def check_type(annotation: Any) -> None:  # noqa: ANN401
    """Check a type for faults that msgspec reports only when it decodes a value, or not at all.

    Raises:
        TypeError: The type is not supported.
    """
    for one in (extra for part in parts(annotation) for extra in metadata(part)):
        if not isinstance(one, msgspec.Meta):
            raise TypeError(
                f"{one!r} is not supported in Annotated - use Key, Header('name'), Depends(provider) or msgspec.Meta"
            )
    info = msgspec.inspect.type_info(annotation)
    alternatives = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    if any(isinstance(one, _BYTES_TYPES) for one in alternatives):
        raise TypeError("undecoded bytes have the type `bytes` or `bytes | None` - use one of these types")
    for part in _types_in(info):
        if isinstance(part, msgspec.inspect.CustomType):
            raise TypeError(f"{described(part.cls)} cannot be decoded - {_advice_for(part.cls)}")


def _advice_for(kind: type) -> str:
    if needs_pydantic(kind):
        return "a type that contains pydantic models must be a pydantic model, too"
    return "use a dataclass, msgspec.Struct or pydantic model, or mark the parameter with Depends(provider)"


def _types_in(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and all types of its fields, items and members, each once."""
    pending: list[object] = [info]
    seen: set[int] = set()
    while pending:
        one = pending.pop()
        if isinstance(one, tuple):
            pending += one
        elif isinstance(one, msgspec.inspect.Type | msgspec.inspect.Field) and id(one) not in seen:
            seen.add(id(one))
            if isinstance(one, msgspec.inspect.Type):
                yield one
            pending += [getattr(one, name) for name in one.__struct_fields__]


def _has_text(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.UnionType):
        return all(map(_has_text, info.types))
    return isinstance(info, _TEXT_TYPES)


# ---- pydantic ------------------------------------------------------------------------------------------------------


def needs_pydantic(annotation: object) -> bool:
    """Return True if a type contains a pydantic model or metadata of pydantic, so that pydantic must decode it."""
    return any(
        hasattr(part, "__pydantic_validator__")
        if isinstance(part, type)
        else type(part).__module__.partition(".")[0] in {"pydantic", "annotated_types"}
        for part in parts(annotation)
    )


def _pydantic_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

    return TypeAdapter(annotation).validate_json


def _encode_with_pydantic(value: Any) -> bytes:  # noqa: ANN401
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    from pydantic_core import to_json  # noqa: PLC0415 - optional; a pydantic dataclass implies it

    return to_json(value)


def _to_json_type(value: Any) -> object:  # noqa: ANN401
    """Convert a pydantic model to JSON types; msgspec calls this function for values that it does not support."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(
        f"{described(type(value))} cannot be encoded as JSON - use a dataclass, msgspec.Struct, pydantic model or bytes"
    )


_JSON = msgspec.json.Encoder(enc_hook=_to_json_type)
