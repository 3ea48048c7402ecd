"""Handlers whose signatures were read, so that they can be called with a unit.

A unit is a record, or the list of records of a batch.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from tailrace.app.declare.arguments import (
    NOTHING_OPENED,
    Bind,
    Binding,
    Opened,
    Reader,
    ValueReader,
    create_binding,
    create_value_reader,
    ignoring_opened,
)
from tailrace.app.declare.dependencies import Dependency, DependencyPlan, Overrides, open_into
from tailrace.app.declare.parameters import Parameter, read_signature
from tailrace.app.function_kinds import FunctionKind, handler_kind, name_of
from tailrace.batches.columns import arrow_of
from tailrace.codecs.annotations import described, parts
from tailrace.codecs.protocols import AnyCodec, TopicReader
from tailrace.context_managers import AsyncExitStack, asynccontextmanager
from tailrace.errors import ConfigurationError, ConsumerStateError, DecodeError
from tailrace.records import Record

__all__ = [
    "TABLES",
    "Call",
    "Prefetch",
    "PreparedHandler",
    "ValueCall",
    "batch_prefetch",
    "prepare",
    "record_prefetch",
    "table_reader",
]

# ---- fetches of data that a codec needs before it decodes a record, such as the schema of the record -----------------


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Functions that fetch data before a unit is decoded; a unit is a record, or the list of records of a batch.

    Attributes:
        lacks: Returns True if ``fetch`` must be awaited before the unit can be decoded.
        fetch: Fetches the data for the unit; may raise any error of the codec.
    """

    lacks: Callable[[Any], bool]
    fetch: Callable[[Any], Awaitable[None]]

    def then(self, call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        """Return a function that fetches if necessary, and then awaits ``call``."""

        async def call_after_fetch(unit: object, *opened: Opened) -> object:
            if self.lacks(unit):
                await self.fetch(unit)
            return await call(unit, *opened)

        return call_after_fetch


def record_prefetch(value_reader: TopicReader | None, key_reader: TopicReader | None) -> Prefetch | None:
    """Return the prefetch for records whose values and keys are decoded by these readers; None without a reader."""
    if value_reader is None and key_reader is None:
        return None

    def lacks(record: Record) -> bool:
        if value_reader is not None and record.value is not None and value_reader.lacks(record.topic, record.value):
            return True
        return key_reader is not None and record.key is not None and key_reader.lacks(record.topic, record.key)

    async def fetch(record: Record) -> None:
        for reader, data in ((value_reader, record.value), (key_reader, record.key)):
            if reader is not None and data is not None and reader.lacks(record.topic, data):
                await reader.fetch(record.topic, data)

    return Prefetch(lacks, fetch)


def batch_prefetch(one_record: Prefetch) -> Prefetch:
    """Return the prefetch for batches, which applies ``one_record`` to each record of a batch, in order."""

    def any_lacks(records: Sequence[Record]) -> bool:
        return any(map(one_record.lacks, records))

    async def fetch_all(records: Sequence[Record]) -> None:
        for record in records:
            if one_record.lacks(record):
                await one_record.fetch(record)

    return Prefetch(any_lacks, fetch_all)


# ---- batches of records as tables ------------------------------------------------------------------------------------

TABLES = "`pyarrow.RecordBatch`, `polars.DataFrame` or `pandas.DataFrame`"

_TableReader: TypeAlias = Callable[[Sequence[Record]], object]


def table_reader(annotation: object, where: str) -> _TableReader | None:
    """Return the function that converts records to a table of the type ``annotation``; None for other types.

    The table has the columns of ``Consumer.arrow_batches``, and a row for each record, in order.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    if not isinstance(annotation, type):
        return None
    convert = _converter(annotation)
    if convert is not None:
        try:
            convert(())  # Raises now if pyarrow is not installed, and imports modules before the first record.
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
    return convert


def _converter(kind: type) -> _TableReader | None:
    if kind is _class_of("pyarrow", "RecordBatch"):
        return arrow_of
    if kind is _class_of("polars", "DataFrame"):
        from_arrow = sys.modules["polars"].from_arrow
        return lambda records: from_arrow(arrow_of(records))
    if kind is _class_of("pandas", "DataFrame"):
        return lambda records: arrow_of(records).to_pandas()
    return None


def _class_of(package: str, name: str) -> Any:  # noqa: ANN401 - a class of an untyped package
    """Return a class of a package; None if the package is not loaded."""
    return getattr(sys.modules.get(package), name, None)


# ---- handlers whose signatures were read, so that they can be called with a unit -------------------------------------

NO_OVERRIDES: Overrides = types.MappingProxyType({})


class ValueCall(NamedTuple):
    """Call of an async handler whose only parameter is the value of a record: ``function(decode(record.value))``.

    Attributes:
        function: the handler.
        decode: function that decodes a value (None for a tombstone) to the argument, and may raise any exception. The
            attribute is None if the handler takes undecoded bytes; ``direct_call`` must then be used for tombstones.
    """

    function: Callable[..., Awaitable[object]]
    decode: Callable[[bytes | None], object] | None


class Call(Protocol):
    """Calls an async handler with a unit and the dependencies that are open in the scope of the app."""

    def __call__(self, unit: Any, opened: Opened = ..., /) -> Awaitable[object]: ...  # noqa: ANN401


@dataclass(frozen=True, slots=True, eq=False)
class PreparedHandler:
    """Handler whose signature was read.

    An async handler is called by ``await call(unit, opened)``, a plain function in a thread::

        async with prepared.opened_for(unit, opened) as all_opened:
            args, kwargs = prepared.bind(unit, all_opened)
            await to_thread(prepared.function, *args, **kwargs)

    Attributes:
        name: name of the handler in errors.
        function: function that was passed to ``prepare``.
        is_async: True if the result of ``function`` is awaited.
        sees_values_only: True if the value, or the list of values, is the only parameter, and its decoding does not
            depend on the rest of the record.
        decode_one: returns the decoded value of one record, or the record itself if the handler takes records or a
            table. Raises DecodeError.
        bind: returns the arguments for a unit and the open dependencies. Raises DecodeError.
        call: calls an async handler; raises ConsumerStateError if the handler is not async. Raises DecodeError and the
            errors of the handler and its providers. As in contextlib, a generator provider can suppress the handler's
            error by catching it.
        direct_call: faster ``call`` for an async handler whose only parameter is the value, the record or the batch;
            None for other handlers and if ``prefetch`` is set.
        value_call: function and decoder of ``direct_call``, for compiled code; None unless the only parameter is a
            record's value, whose decoding does not depend on the rest of the record.
        app_dependencies: dependencies to open once, when the app starts, each after those that it needs.
        record_dependencies: dependencies that ``call`` and ``opened_for`` open for each unit.
        prefetch: fetches data for the codec, before ``call`` and ``opened_for`` do anything else; None if the codec
            never fetches.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    sees_values_only: bool
    decode_one: Callable[[Record], object]
    bind: Bind
    call: Call
    direct_call: Callable[[Any], Awaitable[object]] | None
    value_call: ValueCall | None
    app_dependencies: tuple[Dependency, ...]
    record_dependencies: tuple[Dependency, ...]
    prefetch: Prefetch | None

    @asynccontextmanager
    async def opened_for(self, unit: object, opened: Opened = NOTHING_OPENED) -> AsyncIterator[Opened]:
        """Open the dependencies of a unit for the duration of a context, and yield them together with ``opened``.

        The fetch of ``prefetch`` is awaited first if it is necessary.
        """
        if self.prefetch is not None and self.prefetch.lacks(unit):
            await self.prefetch.fetch(unit)
        async with AsyncExitStack() as stack:
            yield await open_into(stack, self.record_dependencies, unit, opened)


class _UnitReader(NamedTuple):
    """Reader of the parameter for the value of a record, or for the values, records or table of a batch.

    Attributes:
        read: returns the argument for a unit. Raises DecodeError.
        value_reader: reader of the value of one record; None if the parameter takes records or a table.
    """

    read: Callable[[Any], object]
    value_reader: ValueReader | None


def prepare(
    function: Callable[..., Any], codec: AnyCodec, *, overrides: Overrides = NO_OVERRIDES, is_batch: bool = False
) -> PreparedHandler:
    """Read the signature of a handler.

    The codec decodes the values, and the keys if its ``keys`` is True. With ``is_batch``, the handler receives a batch,
    as a list or table.

    Raises:
        ConfigurationError: a parameter has no source for its argument, or has an unsupported type.
    """
    is_async, where = handler_kind(function) is FunctionKind.COROUTINE, f"handler {name_of(function)}"
    plan = DependencyPlan(where, overrides, is_batch=is_batch, codec=None if is_batch else codec)
    unit_reader: _UnitReader | None = None
    readers: list[Reader] = []
    parameters = read_signature(function, where)
    for one in parameters:
        if one.source == "value":
            unit_reader = (_batch_reader if is_batch else _record_reader)(one, codec, where)
            readers.append(ignoring_opened(unit_reader.read))
        else:
            readers.append(plan.reader(one, where))
    if is_batch and unit_reader is None:
        raise ConfigurationError(f"{where} has no parameter for the batch - add one, such as `values: list[bytes]`")
    if not parameters:
        raise ConfigurationError(f"{where} has no parameter for the record - add one, such as `value: bytes`")
    bound = create_binding(parameters, readers)
    value_reader = unit_reader.value_reader if unit_reader is not None else None
    prefetch = record_prefetch(value_reader.prefetch_reader if value_reader is not None else None, plan.prefetch_reader)
    if is_batch and prefetch is not None:
        prefetch = batch_prefetch(prefetch)
    call = _call(function, bound, plan.dependencies("record")) if is_async else _refuse_call(where)
    can_call_directly = len(bound.positional) == 1 and not bound.by_keyword and prefetch is None
    direct_call: Callable[[Any], Awaitable[object]] | None = None
    if is_async and can_call_directly:
        if parameters[0].source == "record":
            direct_call = function
        elif unit_reader is not None:
            direct_call = _direct_call(function, unit_reader, is_batch=is_batch)
    return PreparedHandler(
        name=name_of(function),
        function=function,
        is_async=is_async,
        sees_values_only=can_call_directly and value_reader is not None and value_reader.decode is not None,
        decode_one=_return_record if value_reader is None else value_reader.read,
        bind=bound.bind,
        call=call if prefetch is None or not is_async else prefetch.then(call),
        direct_call=direct_call,
        value_call=None if direct_call is None or is_batch else _value_call(function, value_reader),
        app_dependencies=plan.dependencies("app"),
        record_dependencies=plan.dependencies("record"),
        prefetch=prefetch,
    )


# ---- calls -----------------------------------------------------------------------------------------------------------


def _call(function: Callable[..., Any], bound: Binding, record_dependencies: Sequence[Dependency]) -> Call:
    """Return a function that calls an async handler, with only those steps that the handler needs."""
    bind = bound.bind

    async def call_with_dependencies(unit: object, opened: Opened = NOTHING_OPENED, /) -> object:
        async with AsyncExitStack() as stack:
            args, kwargs = bind(unit, await open_into(stack, record_dependencies, unit, opened))
            return await function(*args, **kwargs)

    async def call_with_keywords(unit: object, opened: Opened = NOTHING_OPENED, /) -> object:
        args, kwargs = bind(unit, opened)
        return await function(*args, **kwargs)

    # Not async: returning the function's own coroutine saves a coroutine for each record.
    def call(unit: object, opened: Opened = NOTHING_OPENED, /) -> Awaitable[object]:
        called: Awaitable[object] = function(*[read(unit, opened) for read in bound.positional])
        return called

    if record_dependencies:
        return call_with_dependencies
    return call_with_keywords if bound.by_keyword else call


def _direct_call(
    function: Callable[..., Any], unit_reader: _UnitReader, *, is_batch: bool
) -> Callable[[Any], Awaitable[object]]:
    read, value_reader = unit_reader.read, unit_reader.value_reader
    if is_batch or value_reader is None or value_reader.decode is None:
        return lambda unit: function(read(unit))
    decode, decode_error = value_reader.decode, value_reader.error

    def call_with_bytes(record: Record) -> Awaitable[object]:
        value = record.value
        called: Awaitable[object] = function(read(record) if value is None else value)
        return called

    if value_reader.is_bytes:
        return call_with_bytes

    def call_with_value(record: Record) -> Awaitable[object]:
        # Does the same as ``read``, but saves a stack frame for each record.
        try:
            value = decode(record.value)
        except Exception as error:
            raise decode_error(record, error) from error
        called: Awaitable[object] = function(value)
        return called

    return call_with_value


def _value_call(function: Callable[..., Any], value_reader: ValueReader | None) -> ValueCall | None:
    if value_reader is None or value_reader.decode is None:
        return None
    return ValueCall(function, None if value_reader.is_bytes else value_reader.decode)


def _refuse_call(where: str) -> Call:
    """Return a function that raises an error, because a plain handler would block the event loop."""

    async def refuse(_unit: object, _opened: Opened = NOTHING_OPENED, /) -> NoReturn:
        raise ConsumerStateError(f"{where} is a plain function - call it in a thread with the arguments of bind()")

    return refuse


# ---- readers ---------------------------------------------------------------------------------------------------------


def _record_reader(parameter: Parameter, codec: AnyCodec, where: str) -> _UnitReader:
    if any(part is Record for part in parts(parameter.annotation)):
        raise ConfigurationError(
            f"{where}: parameter {parameter.name!r}: a record is never null, and only a batch handler receives several"
            " - annotate the parameter with `Record`, or declare the handler with batch=Batch()"
        )
    value_reader = create_value_reader(parameter.annotation, codec, where, parameter.name)
    return _UnitReader(value_reader.read, value_reader)


def _batch_reader(parameter: Parameter, codec: AnyCodec, where: str) -> _UnitReader:
    annotation, label = parameter.annotation, f"{where}: parameter {parameter.name!r}"
    if (read_table := table_reader(annotation, label)) is not None:
        return _UnitReader(read_table, None)
    if typing.get_origin(annotation) is not list:
        raise ConfigurationError(
            f"{label} has the type {described(annotation)}, but a batch is a list or a table - annotate the parameter"
            f" with a list of values such as `list[bytes]`, with `list[Record]`, or with {TABLES}"
        )
    (item,) = typing.get_args(annotation)
    if item is Record:
        # A copy, because the handler may change the list.
        return _UnitReader(list, None)
    if any(part is Record for part in parts(item)):
        raise ConfigurationError(f"{label}: a record is never null - annotate the parameter with `list[Record]`")
    value_reader = create_value_reader(item, codec, where, parameter.name)
    return _UnitReader(_batch_decoder(value_reader), value_reader)


def _batch_decoder(value_reader: ValueReader) -> Callable[[list[Record]], list[object]]:
    """Return a decoder of all values of a batch; its DecodeError contains the index of the record that failed."""
    decode, read = value_reader.decode, value_reader.read

    def return_bytes(records: list[Record]) -> list[object]:
        values: list[object] = [record.value for record in records]
        # The search for null is slow; it is needed only if a value is null or empty.
        if not value_reader.is_nullable and not all(values) and None in values:
            index = values.index(None)
            error = TypeError("the value is null")
            raise DecodeError(f"index {index} of the batch: {value_reader.error(records[index], error)}") from error
        return values

    def decode_records(records: list[Record]) -> list[object]:
        values: list[object] = []
        try:
            for record in records:
                values.append(read(record))  # noqa: PERF401 - len(values) is needed on error
        except DecodeError as error:
            raise DecodeError(f"index {len(values)} of the batch: {error}") from error.__cause__
        return values

    def decode_values(records: list[Record]) -> list[object]:
        assert decode is not None
        values: list[object] = []
        try:
            for record in records:
                values.append(decode(record.value))  # noqa: PERF401
        except Exception as error:
            index = len(values)
            raise DecodeError(f"index {index} of the batch: {value_reader.error(records[index], error)}") from error
        return values

    if value_reader.is_bytes:
        return return_bytes
    return decode_records if decode is None else decode_values


def _return_record(record: Record) -> Record:
    return record
