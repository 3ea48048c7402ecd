"""What a record gives to one parameter: its value, its key, a header, each decoded, or a DecodeError.

Rule of this file: everything that can be known at start is known there; what is left runs once a record.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.app.codecs import AnyCodec, Codec, Decode, FetchingCodec, JsonCodec, RecordCodec, text_decoder
from penstock.app.signatures.annotations import described, split_none
from penstock.app.signatures.parameters import OfHeader, OfKey
from penstock.errors import ConfigurationError, DecodeError
from penstock.records import Record

__all__ = ["ValueReader", "check_codec", "part_reader", "place_of", "value_reader"]

_EMPTY = inspect.Parameter.empty
_MOST_OF_A_PAYLOAD = 80


@dataclass(frozen=True, slots=True)
class ValueReader:
    """How the value of a record becomes the one that a handler takes.

    Attributes:
        decode: of the bytes alone, null ones too; it may raise anything. None where the codec wants the record.
        is_bytes: whether it leaves bytes as they are.
        is_nullable: whether it takes null values.
        read: of the record. What it raises is a DecodeError, or what a codec could not reach.
        error: the DecodeError for what ``decode`` raised.
        fetching: the codec, where it has to be asked first whether it lacks something.
    """

    decode: Decode | None
    is_bytes: bool
    is_nullable: bool
    read: Callable[[Record], object]
    error: Callable[[Record, Exception], DecodeError]
    fetching: FetchingCodec | None = None


def check_codec(codec: AnyCodec, where: str) -> None:
    """Refuse what is no codec.

    Raises:
        ConfigurationError: a method is missing, or would have to be awaited.
    """
    if isinstance(codec, type) or not isinstance(codec, Codec | RecordCodec):
        raise ConfigurationError(
            f"{where}: codec={codec!r} will not do - give an object with decode(data, annotation, record) and"
            " encode(value)"
        )
    for name in ("decoder", "decode", "encode"):
        if inspect.iscoroutinefunction(getattr(codec, name, None)):
            raise ConfigurationError(
                f"{where}: its codec's {name} is `async def`, and nobody waits for a codec - make it a plain function"
            )


def value_reader(annotation: object, codec: AnyCodec, where: str, name: str) -> ValueReader:
    """How the value of a record becomes an ``annotation``, for the parameter ``name`` of the handler ``where``.

    Raises:
        ConfigurationError: the codec does not take it.
    """
    bare, is_nullable = split_none(annotation)

    def failure(record: Record, error: Exception) -> DecodeError:
        if record.value is None:
            what = f"the value is null, and {name!r} is no `{described(annotation)} | None`"
            return DecodeError(f"{place_of(record)}: {where}: {what} - annotate it so to be given null values")
        what = f"the value is no {described(annotation)}"
        return DecodeError(f"{place_of(record)}: {where}: {what}: {_reason(error)}")

    if bare is bytes:
        decode: Decode = _as_it_is if is_nullable else _not_null
    elif isinstance(codec, Codec):
        decode = _made(codec.decoder, annotation, where, name)
        if is_nullable:
            decode = _letting_null_through(decode)
        elif type(codec) is not JsonCodec:
            decode = _refusing_null(decode)  # ours does so without being asked
    else:
        read = _by_record(codec, annotation, failure, is_nullable=is_nullable)
        return ValueReader(None, is_bytes=False, is_nullable=is_nullable, read=read, error=failure)

    def read_value(record: Record) -> object:
        try:
            return decode(record.value)
        except Exception as error:
            raise failure(record, error) from error

    fetching = codec if bare is not bytes and isinstance(codec, FetchingCodec) else None
    return ValueReader(decode, bare is bytes, is_nullable, read_value, failure, fetching)


def part_reader(
    asks: OfKey | OfHeader, where: str, name: str, make: Callable[[Any], Decode] = text_decoder
) -> Callable[[Record], object]:
    """How the key or a header becomes what the parameter ``name`` takes; what it raises is a DecodeError.

    ``make`` makes the decoder of its type.

    Raises:
        ConfigurationError: its type is none that can be read.
    """
    annotation = asks.annotation
    decode = _made(make, annotation, where, name)
    has_default, is_nullable = asks.default is not _EMPTY, split_none(annotation)[1]
    instead = asks.default if has_default else None
    is_required = not has_default and not is_nullable
    find, what = (_key, "key") if isinstance(asks, OfKey) else (_last_header(asks.name), f"header {asks.name!r}")

    def read(record: Record) -> object:
        data = find(record)
        if data is None:
            if is_required:
                raise DecodeError(
                    f"{place_of(record)}: {where}: there is no {what} for {name!r} - annotate it"
                    f" `{described(annotation)} | None`, or give it a default"
                )
            return instead
        try:
            return decode(data)
        except Exception as error:
            reason = f"the {what} is no {described(annotation)}: {_reason(error)}"
            raise DecodeError(f"{place_of(record)}: {where}: {reason}") from error

    return read


def place_of(record: Record) -> str:
    """Where a record is, as errors begin."""
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
    def decode_what_there_is(data: bytes | None) -> object:
        return decode(_not_null(data))

    return decode_what_there_is


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


def _made(make: Callable[[Any], Decode], annotation: object, where: str, name: str) -> Decode:
    try:
        return make(annotation)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: parameter {name!r} cannot be a {described(annotation)}: {_text(error)}"
        ) from error


# ---- keys and headers ----------------------------------------------------------------------------------------------


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


# ---- words for what went wrong -------------------------------------------------------------------------------------


def _reason(error: Exception) -> str:
    """What a decoder says was wrong, with no more of the payload than anyone wants in a log."""
    errors = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic_core") and callable(errors):
        first, *others = errors(include_input=False, include_url=False, include_context=False)
        where = ".".join(map(str, first["loc"]))
        more = f" (and {len(others)} more)" if others else ""
        return _cut(f"{where}: {first['msg']}" if where else first["msg"]) + more
    text = _text(error)
    # msgspec's path has the names of a type's fields, and none of the payload's.
    head, at, path = text.rpartition(" - at `$")
    return f"{_cut(head)}{at}{_cut(path)}" if at else _cut(text)


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_OF_A_PAYLOAD else f"{text[: _MOST_OF_A_PAYLOAD - 1]}…"
