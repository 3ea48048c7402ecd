"""Readers of a record's value, key and headers for the parameters of a handler.

Readers are created at startup, to keep the work for each record small.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tailrace.app.codec_protocols import AnyCodec, Codec, Decode, RecordCodec, TopicReader
from tailrace.app.declare.annotations import described, split_none
from tailrace.app.declare.codecs import JsonCodec, text_decoder, topic_reader
from tailrace.app.declare.parameters import HeaderSource, KeySource
from tailrace.errors import ConfigurationError, DecodeError
from tailrace.records import Record

__all__ = ["ValueReader", "part_reader", "place_of", "value_reader"]

_EMPTY = inspect.Parameter.empty
_MOST_OF_A_PAYLOAD = 80
_T = TypeVar("_T")
_DecodeOfTopic: TypeAlias = Callable[[str, bytes], object]


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reader of the value of a record for the parameter of a handler.

    Attributes:
        decode: Decodes the bytes, or None for a null value; may raise any exception. None if the codec needs the record
            or its topic.
        is_bytes: True if bytes are passed unchanged.
        is_nullable: True if null values are accepted.
        read: Returns the argument for a record. Raises DecodeError, or the OSError of a codec.
        error: Returns the DecodeError for an exception of ``decode``.
        fetching: Reader of the codec, if it may fetch something before ``read``.
    """

    decode: Decode | None
    is_bytes: bool
    is_nullable: bool
    read: Callable[[Record], object]
    error: Callable[[Record, Exception], DecodeError]
    fetching: TopicReader | None = None


def value_reader(
    annotation: object, codec: AnyCodec, where: str, name: str, *, checks_topic: bool = True
) -> ValueReader:
    """Return the reader of values of type ``annotation``, for the parameter ``name`` of the handler ``where``.

    With ``checks_topic=False``, the codec decodes without regard to the topic.

    Raises:
        ConfigurationError: The codec does not support the type.
    """
    bare, is_nullable = split_none(annotation)

    def failure(record: Record, error: Exception) -> DecodeError:
        if record.value is None:
            what = f"the value is null, and {name!r} is no `{described(annotation)} | None`"
            return DecodeError(f"{place_of(record)}: {where}: {what} - annotate it so to be given null values")
        what = f"the value is no {described(annotation)}"
        return DecodeError(f"{place_of(record)}: {where}: {what}: {_reason(error)}")

    fetching = topic_reader(codec, is_key=False) if bare is not bytes and checks_topic else None
    if fetching is not None:
        decode_of_topic = _made(fetching.decoder, annotation, where, name)
        read = _by_topic(decode_of_topic, failure, is_nullable=is_nullable)
        return ValueReader(None, False, is_nullable, read, failure, fetching)
    if bare is bytes:
        decode: Decode = _as_it_is if is_nullable else _not_null
    elif isinstance(codec, Codec):
        decode = _made(codec.decoder, annotation, where, name)
        if is_nullable:
            decode = _letting_null_through(decode)
        elif type(codec) is not JsonCodec:
            decode = _refusing_null(decode)  # JsonCodec refuses null itself
    else:
        read = _by_record(codec, annotation, failure, is_nullable=is_nullable)
        return ValueReader(None, is_bytes=False, is_nullable=is_nullable, read=read, error=failure)

    def read_value(record: Record) -> object:
        try:
            return decode(record.value)
        except Exception as error:
            raise failure(record, error) from error

    return ValueReader(decode, bare is bytes, is_nullable, read_value, failure)


def part_reader(
    source: KeySource | HeaderSource, where: str, name: str, reader: TopicReader | None = None
) -> Callable[[Record], object]:
    """Return the reader of a key or header for the parameter ``name``; it raises DecodeError.

    ``reader`` decodes the bytes; without a reader, they are decoded as text.

    Raises:
        ConfigurationError: The type is not supported.
    """
    annotation = source.annotation
    decode = _made(_text_of_any_topic if reader is None else reader.decoder, annotation, where, name)
    has_default, is_nullable = source.default is not _EMPTY, split_none(annotation)[1]
    instead = source.default if has_default else None
    is_required = not has_default and not is_nullable
    find: Callable[[Record], bytes | None] = _key
    part = "key"
    if isinstance(source, HeaderSource):
        find, part = _last_header(source.name), f"header {source.name!r}"

    def read(record: Record) -> object:
        data = find(record)
        if data is None:
            if is_required:
                raise DecodeError(
                    f"{place_of(record)}: {where}: there is no {part} for {name!r} - annotate it"
                    f" `{described(annotation)} | None`, or give it a default"
                )
            return instead
        try:
            return decode(record.topic, data)
        except Exception as error:
            reason = f"the {part} is no {described(annotation)}: {_reason(error)}"
            raise DecodeError(f"{place_of(record)}: {where}: {reason}") from error

    return read


def place_of(record: Record) -> str:
    """Return the partition and offset of a record, for errors."""
    return f"{record.topic_partition} at offset {record.offset}"


# ---- the value -----------------------------------------------------------------------------------------------------


def _as_it_is(data: bytes | None) -> bytes | None:
    return data


def _letting_null_through(decode: Decode) -> Decode:
    def decode_or_none(data: bytes | None) -> object:
        return None if data is None else decode(data)

    return decode_or_none


def _not_null(data: bytes | None) -> bytes:
    if data is None:
        raise TypeError("the value is null")
    return data


def _refusing_null(decode: Decode) -> Decode:
    def decode_not_null(data: bytes | None) -> object:
        return decode(_not_null(data))

    return decode_not_null


def _by_record(
    codec: RecordCodec,
    annotation: object,
    failure: Callable[[Record, Exception], DecodeError],
    *,
    is_nullable: bool,
) -> Callable[[Record], object]:
    decode = codec.decode

    def read(record: Record) -> object:
        data = record.value
        if data is None:
            if is_nullable:
                return None
            raise failure(record, TypeError("the value is null"))
        try:
            return decode(data, annotation, record)
        except OSError:
            raise
        except Exception as error:
            raise failure(record, error) from error

    return read


def _by_topic(
    decode: _DecodeOfTopic, failure: Callable[[Record, Exception], DecodeError], *, is_nullable: bool
) -> Callable[[Record], object]:
    def read(record: Record) -> object:
        data = record.value
        if data is None:
            if is_nullable:
                return None
            raise failure(record, TypeError("the value is null"))
        try:
            return decode(record.topic, data)
        except Exception as error:
            raise failure(record, error) from error

    return read


def _made(make: Callable[[Any], _T], annotation: object, where: str, name: str) -> _T:
    try:
        return make(annotation)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: parameter {name!r} cannot be a {described(annotation)}: {_text(error)}"
        ) from error


# ---- keys and headers ----------------------------------------------------------------------------------------------


def _text_of_any_topic(annotation: Any) -> _DecodeOfTopic:  # noqa: ANN401 - any type
    decode = text_decoder(annotation)
    return lambda _topic, data: decode(data)


def _key(record: Record) -> bytes | None:
    return record.key


def _last_header(wanted: str) -> Callable[[Record], bytes | None]:
    def find(record: Record) -> bytes | None:
        found = None
        for name, data in record.headers:
            if name == wanted:
                found = data
        return found

    return find


# ---- error messages -------------------------------------------------------------------------------------


def _reason(error: Exception) -> str:
    """Return the message of a decoder's error, cut so that it reveals little of the payload."""
    errors = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic_core") and callable(errors):
        first, *others = errors(include_input=False, include_url=False, include_context=False)
        where = ".".join(map(str, first["loc"]))
        more = f" (and {len(others)} more)" if others else ""
        return _cut(f"{where}: {first['msg']}" if where else first["msg"]) + more
    text = _text(error)
    # msgspec's path contains field names of the type, and nothing of the payload.
    head, at, path = text.rpartition(" - at `$")
    return f"{_cut(head)}{at}{_cut(path)}" if at else _cut(text)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_OF_A_PAYLOAD else f"{text[: _MOST_OF_A_PAYLOAD - 1]}…"
