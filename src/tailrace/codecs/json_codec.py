"""JSON codec, which is the default codec of an app, and decoders for keys and headers.

A codec creates a decoder for each type when the app starts, and raises an error for an unsupported type at that time.
Decoders are plain functions. If a decoder needs data that must be fetched, such as a schema, the app awaits the fetch
before it calls the decoder.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from tailrace.codecs.annotations import described, metadata, parts, split_none
from tailrace.codecs.protocols import Decode, FetchingCodec, TopicReader, TopicReadingCodec

__all__ = [
    "JsonCodec",
    "check_pydantic_type",
    "check_type",
    "dump_pydantic",
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
            ValueError: A number in the value is not finite, so that it has no JSON form.
        """
        if isinstance(value, bytes):
            return value
        if isinstance(value, str) and not isinstance(value, Enum):
            return value.encode()
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        if hasattr(type(value), "__pydantic_serializer__"):
            payload = _encode_with_pydantic(value)
        else:
            payload = _JSON.encode(_with_aliases(value))
        if b"null" in payload:
            _check_finite(value)
        return payload


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
    """Return True if a type or its fields contain pydantic models or metadata, so that pydantic must decode it."""
    return any(
        hasattr(part, "__pydantic_validator__")
        if isinstance(part, type)
        else type(part).__module__.partition(".")[0] in {"pydantic", "annotated_types"}
        for part in parts(annotation, with_fields=True)
    )


def check_pydantic_type(annotation: object) -> None:
    """Check that pydantic supports all parts of a type that needs pydantic.

    Raises:
        TypeError: A part of the type is supported by msgspec only.
    """
    for part in parts(annotation, with_fields=True):
        if isinstance(part, msgspec.Meta):
            raise TypeError(f"pydantic ignores {part!r} in {described(annotation)} - use pydantic.Field")
        if isinstance(part, type) and (issubclass(part, msgspec.Struct) or hasattr(part, "__attrs_attrs__")):
            raise TypeError(
                f"{described(part)} contains pydantic models or metadata, or is inside a type that does, but pydantic"
                " does not support it - use a dataclass or pydantic model in place of it, or msgspec.Meta in place of"
                " pydantic.Field"
            )


def _pydantic_decoder(annotation: Any) -> Decode:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

    check_pydantic_type(annotation)
    return TypeAdapter(annotation).validate_json


def _encode_with_pydantic(value: Any) -> bytes:  # noqa: ANN401
    if hasattr(value, "model_dump_json"):
        text: str = value.model_dump_json(**_alias_option(value))
        return text.encode()
    from pydantic_core import to_json  # noqa: PLC0415 - optional; a pydantic dataclass implies it

    return to_json(value)


def _alias_option(model: Any) -> dict[str, bool]:  # noqa: ANN401
    """Return the option with which a model is dumped as it is read, by aliases, unless its configuration differs."""
    return {} if "serialize_by_alias" in getattr(type(model), "model_config", {}) else {"by_alias": True}


def dump_pydantic(value: Any, **options: Any) -> object:  # noqa: ANN401
    """Return a pydantic model, or dataclass of pydantic, as a dict by aliases.

    Raises:
        TypeError: The value is neither.
    """
    dumped: object
    if hasattr(value, "model_dump"):
        dumped = value.model_dump(**_alias_option(value), **options)
    elif hasattr(type(value), "__pydantic_serializer__"):
        dumped = type(value).__pydantic_serializer__.to_python(value, by_alias=True, **options)
    else:
        raise TypeError(
            f"{described(type(value))} cannot be encoded as JSON - use a dataclass, msgspec.Struct, pydantic model or"
            " bytes"
        )
    return dumped


def _to_json_type(value: Any) -> object:  # noqa: ANN401
    """Convert a pydantic model to JSON types; msgspec calls this function for values that it does not support."""
    return dump_pydantic(value, mode="json")


def _with_aliases(value: Any) -> Any:  # noqa: ANN401
    """Return a value in which dataclasses that pydantic decodes are dicts, because msgspec would ignore their aliases.

    A value without such dataclasses is returned unchanged.
    """
    kind: Any = type(value)
    if "pydantic" not in sys.modules or kind in _PLAIN_TYPES:
        return value
    if kind is dict and not _PLAIN_TYPES.issuperset(map(type, value.values())):
        items = {name: _with_aliases(one) for name, one in value.items()}
        return items if any(items[name] is not one for name, one in value.items()) else value
    if kind in {list, tuple} and not _PLAIN_TYPES.issuperset(map(type, value)):
        copies = [_with_aliases(one) for one in value]
        return copies if any(copy is not one for copy, one in zip(copies, value, strict=True)) else value
    if hasattr(kind, "__dataclass_fields__") and _is_decoded_by_pydantic(kind):
        return _adapter(kind).dump_python(value, mode="json", by_alias=True)
    return value


_PLAIN_TYPES = frozenset({str, int, float, bool, type(None), bytes})


@lru_cache(maxsize=1000)
def _is_decoded_by_pydantic(kind: Any) -> bool:  # noqa: ANN401
    return needs_pydantic(kind)


@lru_cache(maxsize=1000)
def _adapter(kind: Any) -> Any:  # noqa: ANN401
    from pydantic import TypeAdapter  # noqa: PLC0415 - optional; the type implies that it is installed

    return TypeAdapter(kind)


def _check_finite(value: Any) -> None:  # noqa: ANN401
    """Raise ValueError if a number in a value is NaN or infinite, which encoders would replace by null.

    A value is only examined if its JSON contains null.
    """
    pending, seen = [value], set[int]()
    while pending:
        one = pending.pop()
        if isinstance(one, float):
            if not math.isfinite(one):
                raise ValueError(f"{one} has no JSON form - publish None or a string in place of it")
        elif isinstance(one, dict):
            pending += one.keys()
            pending += one.values()
        elif isinstance(one, list | tuple | set | frozenset):
            pending += one
        elif hasattr(type(one), "__pydantic_serializer__"):
            if _config_of(type(one)).get("ser_json_inf_nan", "null") == "null":
                pending.append(dump_pydantic(one))
        elif id(one) not in seen:
            seen.add(id(one))
            fields = getattr(one, "__struct_fields__", None) or getattr(one, "__dataclass_fields__", None)
            fields = fields or [field.name for field in getattr(type(one), "__attrs_attrs__", ())]
            pending += [getattr(one, name) for name in fields]


def _config_of(kind: Any) -> Mapping[str, Any]:  # noqa: ANN401
    config: Mapping[str, Any] = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    return config


_JSON = msgspec.json.Encoder(enc_hook=_to_json_type)
