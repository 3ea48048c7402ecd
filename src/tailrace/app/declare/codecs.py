"""JSON codec, the default of an app.

A codec makes one decoder for each type, at start, and refuses a type there that it cannot decode. Decoding never waits:
it runs between a record and its handler, and what has to be fetched for it is awaited before.
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
    """JSON by msgspec, and by pydantic where a type is pydantic's; ``bytes`` are as they are, ``str`` is UTF-8.

    So is what they are encoded to. Within anything else, a union too, text is JSON's.
    """

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401
        """A function of bytes that gives such a value, or raises.

        Raises:
            TypeError: neither msgspec nor pydantic takes this type, or it would not mean what it says.
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
        """A value as ``decoder`` of its type reads it.

        Raises:
            TypeError: there is no JSON for such a value.
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
    """The decoder of a key or a header: what has a text (numbers, dates, UUIDs, enums) is read from it, else JSON.

    Raises:
        TypeError: the type is none that can be read.
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


# ---- what msgspec takes --------------------------------------------------------------------------------------------

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
    """Refuse what msgspec would find out with the first record, or read as something else than it says.

    Raises:
        TypeError: saying what is wrong with it.
    """
    for one in (extra for part in parts(annotation) for extra in metadata(part)):
        if not isinstance(one, msgspec.Meta):
            raise TypeError(
                f"{one!r} is no marker - Annotated knows Key, Header('name'), Depends(provider) and msgspec.Meta"
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
        return " - what has pydantic models in it has to be pydantic's, too"
    return " - is it a dataclass, a msgspec.Struct, a pydantic model? What is not in the record comes by Depends"


def _within(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """The type and all that it is made of, each once."""
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
    """Whether a type has models of pydantic in it, or is annotated in its words."""
    return any(
        hasattr(part, "__pydantic_validator__")
        if isinstance(part, type)
        else type(part).__module__.partition(".")[0] in {"pydantic", "annotated_types"}
        for part in parts(annotation)
    )


def _pydantic_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional: whoever has such a type has it

    return TypeAdapter(annotation).validate_json


def _pydantic_encoded(value: Any) -> bytes:  # noqa: ANN401
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json()
        return text.encode()
    from pydantic_core import to_json  # noqa: PLC0415 - of one of its dataclasses

    return to_json(value)


def _part_for_json(value: Any) -> object:  # noqa: ANN401
    """What msgspec does not know, within what it knows."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"there is no JSON for {described(type(value))}")


_JSON = msgspec.json.Encoder(enc_hook=_part_for_json)
