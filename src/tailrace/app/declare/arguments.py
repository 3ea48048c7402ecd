"""Arguments of handlers and providers: the readers of a record's value, key and headers, and their binding.

Each parameter has a reader, a function that returns its argument. Readers are created when the app starts, so that
reading a record takes little time. A unit is the record, or the list of records of a batch, for which a handler is
called.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tailrace.app.declare.parameters import Header, Parameter
from tailrace.codecs.annotations import described, split_none
from tailrace.codecs.json_codec import JsonCodec, text_decoder, topic_reader
from tailrace.codecs.protocols import AnyCodec, Codec, Decode, RecordCodec, TopicReader
from tailrace.errors import ConfigurationError, DecodeError
from tailrace.records import Record
from tailrace.user_exceptions import message_of

__all__ = [
    "NOTHING_OPENED",
    "Arguments",
    "Bind",
    "Binding",
    "DependencyKey",
    "Opened",
    "Reader",
    "ValueReader",
    "create_binding",
    "create_key_or_header_reader",
    "create_value_reader",
    "ignoring_opened",
    "place_of",
]

# ---- binding of arguments to the parameters of a handler or provider -------------------------------------------------

DependencyKey: TypeAlias = tuple[int | str, ...]
"""Identity of a provider, and scope."""
Opened: TypeAlias = Mapping[DependencyKey, object]
"""Values of open dependencies, by ``Dependency.key``."""
NOTHING_OPENED: Opened = types.MappingProxyType({})

Reader: TypeAlias = Callable[[Any, Opened], object]
"""Returns the argument for one parameter; called with a unit and the open dependencies."""
Arguments: TypeAlias = tuple[list[object], dict[str, object]]
"""Positional and keyword arguments of a call."""
Bind: TypeAlias = Callable[[Any, Opened], Arguments]
"""Returns all arguments of a call; called with a unit and the open dependencies."""


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """Readers of the arguments of a call.

    Attributes:
        positional: Readers of positional parameters, in order.
        by_keyword: Names and readers of keyword-only parameters.
        bind: Calls all readers and returns their results.
    """

    positional: tuple[Reader, ...]
    by_keyword: tuple[tuple[str, Reader], ...]
    bind: Bind


def ignoring_opened(read: Callable[[Any], object]) -> Reader:
    """Return a reader that calls ``read`` with the unit only."""
    return lambda unit, _opened: read(unit)


def create_binding(parameters: Sequence[Parameter], readers: Sequence[Reader]) -> Binding:
    """Return a binding in which each reader reads the argument for the parameter at the same index."""
    pairs = list(zip(parameters, readers, strict=True))
    positional = tuple(reader for parameter, reader in pairs if not parameter.by_keyword)
    by_keyword = tuple((parameter.name, reader) for parameter, reader in pairs if parameter.by_keyword)

    def bind(unit: object, opened: Opened) -> Arguments:
        args = [read(unit, opened) for read in positional]
        return args, {name: read(unit, opened) for name, read in by_keyword}

    return Binding(positional, by_keyword, bind)


# ---- readers of a record's value, key and headers for the parameters of a handler ------------------------------------

_EMPTY = inspect.Parameter.empty
_MAX_REASON_CHARS = 80
_T = TypeVar("_T")
_DecodeOfTopic: TypeAlias = Callable[[str, bytes], object]
"""Decodes bytes of a record of the given topic."""


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reader of the value of a record for the parameter of a handler.

    Attributes:
        decode: Function that decodes a value (None for a tombstone) to the argument, and may raise any exception. The
            attribute is None if the codec needs the record or its topic.
        is_bytes: True if the handler takes the bytes of the value unchanged.
        is_nullable: True if null values are accepted.
        read: Returns the argument for a record. Raises DecodeError, or the OSError of a codec.
        error: Returns the DecodeError for an exception of ``decode``.
        prefetch_reader: Reader whose ``fetch`` must be awaited before ``read`` is called if its ``lacks`` returns True;
            None if the codec never fetches.
    """

    decode: Decode | None
    is_bytes: bool
    is_nullable: bool
    read: Callable[[Record], object]
    error: Callable[[Record, Exception], DecodeError]
    prefetch_reader: TopicReader | None = None


def create_value_reader(
    annotation: object, codec: AnyCodec, where: str, name: str, *, checks_topic: bool = True
) -> ValueReader:
    """Return a reader of values for a parameter.

    With ``checks_topic=False``, the reader ignores the topics of records and has no ``prefetch_reader``, even for a
    codec that fetches.

    Raises:
        ConfigurationError: The codec does not support the type.
    """
    bare, is_nullable = split_none(annotation)

    def failure(record: Record, error: Exception) -> DecodeError:
        if record.value is None:
            advice = f"annotate {name!r} with `{described(annotation)} | None` to accept null values"
            return DecodeError(f"{place_of(record)}: {where}: the value is null - {advice}")
        reason = f"the value cannot be decoded as {described(annotation)}: {_reason(error)}"
        return DecodeError(f"{place_of(record)}: {where}: {reason}")

    prefetch_reader = topic_reader(codec, is_key=False) if bare is not bytes and checks_topic else None
    if prefetch_reader is not None:
        decode_of_topic = _create_decoder(prefetch_reader.decoder, annotation, where, name)
        read = _topic_value_reader(decode_of_topic, failure, is_nullable=is_nullable)
        return ValueReader(None, False, is_nullable, read, failure, prefetch_reader)
    if bare is bytes:
        decode: Decode = _pass_through if is_nullable else _check_not_null
    elif isinstance(codec, Codec):
        decode = _create_decoder(codec.decoder, annotation, where, name)
        if is_nullable:
            decode = _accept_null(decode)
        elif type(codec) is not JsonCodec:
            decode = _reject_null(decode)  # Decoders of JsonCodec raise for null without this wrapper.
    else:
        read = _record_value_reader(codec, annotation, failure, is_nullable=is_nullable)
        return ValueReader(None, is_bytes=False, is_nullable=is_nullable, read=read, error=failure)

    def read_value(record: Record) -> object:
        try:
            return decode(record.value)
        except Exception as error:
            raise failure(record, error) from error

    return ValueReader(decode, bare is bytes, is_nullable, read_value, failure)


def create_key_or_header_reader(
    parameter: Parameter, where: str, reader: TopicReader | None = None
) -> Callable[[Record], object]:
    """Return a function that reads the argument for a parameter from a record's key or header.

    The function raises DecodeError if the key or header cannot be decoded, or is missing and required.

    ``text_decoder`` decodes unless a ``reader`` is given.

    Raises:
        ConfigurationError: The type is not supported.
    """
    name, annotation, source = parameter.name, parameter.annotation, parameter.source
    decode = _create_decoder(
        _topic_ignoring_text_decoder if reader is None else reader.decoder, annotation, where, name
    )
    has_default, is_nullable = parameter.default is not _EMPTY, split_none(annotation)[1]
    default = parameter.default if has_default else None
    is_required = not has_default and not is_nullable
    find: Callable[[Record], bytes | None] = _key
    part = "key"
    if isinstance(source, Header):
        find, part = _last_header(source.name), f"header {source.name!r}"

    def read(record: Record) -> object:
        data = find(record)
        if data is None:
            if is_required:
                raise DecodeError(
                    f"{place_of(record)}: {where}: the record has no {part} for {name!r} - annotate the parameter"
                    f" with `{described(annotation)} | None`, or give it a default"
                )
            return default
        try:
            return decode(record.topic, data)
        except Exception as error:
            reason = f"the {part} cannot be decoded as {described(annotation)}: {_reason(error)}"
            raise DecodeError(f"{place_of(record)}: {where}: {reason}") from error

    return read


def place_of(record: Record) -> str:
    """Return the partition and offset of a record, for errors."""
    return f"{record.topic_partition} at offset {record.offset}"


# ---- values -----------------------------------------------------------------------------------------------------


def _pass_through(data: bytes | None) -> bytes | None:
    return data


def _accept_null(decode: Decode) -> Decode:
    def decode_or_none(data: bytes | None) -> object:
        return None if data is None else decode(data)

    return decode_or_none


def _check_not_null(data: bytes | None) -> bytes:
    if data is None:
        raise TypeError("the value is null")
    return data


def _reject_null(decode: Decode) -> Decode:
    def decode_not_null(data: bytes | None) -> object:
        return decode(_check_not_null(data))

    return decode_not_null


def _record_value_reader(
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


def _topic_value_reader(
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


def _create_decoder(create: Callable[[Any], _T], annotation: object, where: str, name: str) -> _T:
    try:
        return create(annotation)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: parameter {name!r} cannot have the type {described(annotation)}: {_text(error)}"
        ) from error


# ---- keys and headers ----------------------------------------------------------------------------------------------


def _topic_ignoring_text_decoder(annotation: Any) -> _DecodeOfTopic:  # noqa: ANN401 - any type
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
    """Return the message of a decoder's error, shortened because it may contain parts of the payload."""
    errors = getattr(error, "errors", None)
    if type(error).__module__.startswith("pydantic_core") and callable(errors):
        first, *others = errors(include_input=False, include_url=False, include_context=False)
        where = ".".join(map(str, first["loc"]))
        more = f" (and {len(others)} more)" if others else ""
        return _shorten(f"{where}: {first['msg']}" if where else first["msg"]) + more
    text = _text(error)
    # The path in msgspec's message contains field names of the type, but no parts of the payload.
    head, at, path = text.rpartition(" - at `$")
    return f"{_shorten(head)}{at}{_shorten(path)}" if at else _shorten(text)


def _text(error: Exception) -> str:
    return message_of(error) or type(error).__name__


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 1]}…"
