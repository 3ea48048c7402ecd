"""Handlers of records and of batches with their signatures read, ready to be called with a unit of work."""

from __future__ import annotations

import types
import typing
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from tailrace.app.argument_checks import check_codec
from tailrace.app.codec_protocols import AnyCodec
from tailrace.app.declare.annotations import described, parts
from tailrace.app.declare.arguments import NOTHING_OPENED, Bind, Binding, Opened, Reader, binding
from tailrace.app.declare.dependencies import Dependency, DependencyPlan, Overrides, open_dependencies, open_into
from tailrace.app.declare.parameter_readers import ValueReader, value_reader
from tailrace.app.declare.parameters import Parameter, RecordSource, ValueSource
from tailrace.app.declare.prefetch import Prefetch, ahead_of, ahead_of_each
from tailrace.app.declare.signature import read_signature
from tailrace.app.declare.tables import TABLES, table_reader
from tailrace.app.function_kinds import FunctionKind, handler_kind, name_of
from tailrace.errors import ConfigurationError, ConsumerStateError, DecodeError
from tailrace.records import Record

__all__ = ["Call", "PreparedHandler", "ValueCall", "prepare"]

NO_OVERRIDES: Overrides = types.MappingProxyType({})

Direct: TypeAlias = Callable[[Any], Awaitable[object]]


class ValueCall(NamedTuple):
    """Call of a handler that takes the value of a record alone: ``function(decode(record.value))``.

    Attributes:
        function: the handler.
        decode: decodes the bytes, or None for a null value; may raise any exception. None if the handler is given
            bytes; a null value must not be passed then.
    """

    function: Callable[..., Awaitable[object]]
    decode: Callable[[bytes | None], object] | None


class Call(Protocol):
    """Calls an async handler for a record, or for a batch, with what is open in the scope of the app."""

    def __call__(self, unit: Any, opened: Opened = ..., /) -> Awaitable[object]: ...  # noqa: ANN401


@dataclass(frozen=True, slots=True, eq=False)
class PreparedHandler:
    """Handler whose signature was read; its unit of work is a record, or the list of records of a batch.

    An async one is called by ``await call(unit, opened)``, a plain one in a thread::

        async with prepared.opened_for(unit, opened) as everything:
            args, kwargs = prepared.bind(unit, everything)
            await to_thread(prepared.function, *args, **kwargs)

    Attributes:
        name: name of the handler in errors.
        function: the handler as it was given.
        is_async: True if the result of ``function`` is awaited.
        sees_values_only: True if the handler is given decoded values, and nothing else of its records.
        decode_one: decodes the value of a single record. Raises DecodeError.
        bind: returns the arguments for a unit and what is open. Raises DecodeError.
        call: calls an async handler. Raises DecodeError and what the handler and its providers raise. A generator that
            catches the handler's error and does not raise it again has dealt with it, as in contextlib.
        direct: ``call`` for handlers that take the value, the record or the batch alone, without a coroutine of its
            own; None for all others.
        value_call: parts of ``direct``, for compiled code; None unless the handler takes the value of a record alone.
        app_dependencies: dependencies to open once, at start, each after those that it needs.
        record_dependencies: dependencies that ``opened_for`` opens for each unit.
        ahead: what ``call`` and ``opened_for`` fetch first, where the codec has to; ``direct`` is None then.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    sees_values_only: bool
    decode_one: Callable[[Record], object]
    bind: Bind
    call: Call
    direct: Direct | None
    value_call: ValueCall | None
    app_dependencies: tuple[Dependency, ...]
    record_dependencies: tuple[Dependency, ...]
    ahead: Prefetch | None

    def opened_for(
        self, unit: object, opened: Opened = NOTHING_OPENED
    ) -> AbstractAsyncContextManager[Opened, bool | None]:
        """Open what ``bind`` needs for a unit, for as long as the ``async with`` lasts."""
        dependencies = open_dependencies(self.record_dependencies, unit, opened)
        return dependencies if self.ahead is None else self.ahead.before(unit, dependencies)


class _Values(NamedTuple):
    """Readers of the parameter that takes the value of a record, or the values of a batch.

    Attributes:
        read: returns the argument for a unit. Raises DecodeError.
        of_one: reader of a single value; None where records are given as they are.
    """

    read: Callable[[Any], object]
    of_one: ValueReader | None


def prepare(
    function: Callable[..., Any], codec: AnyCodec, *, overrides: Overrides = NO_OVERRIDES, is_batch: bool = False
) -> PreparedHandler:
    """Read the signature of a handler.

    Args:
        function: ``async def`` or plain; a function, a method, a partial or a callable object.
        codec: decodes the values.
        overrides: providers to call instead of those that ``Depends`` names.
        is_batch: True if the handler takes batches, as a list or table.

    Raises:
        ConfigurationError: the signature asks for what a record, or a batch, does not have; it names the handler and
            what to write instead.
    """
    is_async, where = handler_kind(function) is FunctionKind.COROUTINE, f"handler {name_of(function)}"
    check_codec(codec, where)
    plan = DependencyPlan(where, overrides, is_batch=is_batch, codec=None if is_batch else codec)
    values: _Values | None = None
    readers: list[Reader] = []
    parameters = read_signature(function, where)
    for one in parameters:
        if isinstance(one.source, ValueSource):
            values = (_values_of_batch if is_batch else _value_of_record)(one, one.source.annotation, codec, where)
            readers.append(_of_unit(values.read))
        else:
            readers.append(plan.reader(one, where))
    if is_batch and values is None:
        raise ConfigurationError(f"{where} takes no batch - give it a parameter for it, such as `values: list[bytes]`")
    if not parameters:
        raise ConfigurationError(f"{where} takes nothing - give it a parameter for the value, such as `value: bytes`")
    bound = binding(parameters, readers)
    of_one = values.of_one if values is not None else None
    ahead = ahead_of(of_one.fetching if of_one is not None else None, plan.fetching)
    if is_batch and ahead is not None:
        ahead = ahead_of_each(ahead)
    is_alone = len(bound.positional) == 1 and not bound.by_keyword and ahead is None
    direct: Direct | None = None
    if is_async and is_alone:
        if isinstance(parameters[0].source, RecordSource):
            direct = function
        elif values is not None:
            direct = _direct(function, values, is_batch=is_batch)
    return PreparedHandler(
        name=name_of(function),
        function=function,
        is_async=is_async,
        sees_values_only=is_alone and of_one is not None and of_one.decode is not None,
        decode_one=_itself if of_one is None else of_one.read,
        bind=bound.bind,
        call=_call(function, bound, plan.of_scope("record"), ahead) if is_async else _not_async(where),
        direct=direct,
        value_call=None if direct is None or is_batch else _value_call(function, of_one),
        app_dependencies=plan.of_scope("app"),
        record_dependencies=plan.of_scope("record"),
        ahead=ahead,
    )


# ---- the call --------------------------------------------------------------------------------------------------------


def _call(
    function: Callable[..., Any], bound: Binding, record_dependencies: Sequence[Dependency], ahead: Prefetch | None
) -> Call:
    """Return the call of an async function, with a frame and a stack only if there is something to put into them."""
    call = _call_without_prefetch(function, bound, record_dependencies)
    if ahead is None:
        return call
    lacks, fetch = ahead.lacks, ahead.fetch

    async def call_after_fetch(unit: object, opened: Opened = NOTHING_OPENED, /) -> object:
        if lacks(unit):
            await fetch(unit)
        return await call(unit, opened)

    return call_after_fetch


def _call_without_prefetch(
    function: Callable[..., Any], bound: Binding, record_dependencies: Sequence[Dependency]
) -> Call:
    bind = bound.bind

    async def call_within(unit: object, opened: Opened = NOTHING_OPENED, /) -> object:
        async with AsyncExitStack() as stack:
            args, kwargs = bind(unit, await open_into(stack, record_dependencies, unit, opened))
            return await function(*args, **kwargs)

    async def call_by_name(unit: object, opened: Opened = NOTHING_OPENED, /) -> object:
        args, kwargs = bind(unit, opened)
        return await function(*args, **kwargs)

    # Returns the function's own coroutine: one less for each record.
    def call(unit: object, opened: Opened = NOTHING_OPENED, /) -> Awaitable[object]:
        called: Awaitable[object] = function(*[read(unit, opened) for read in bound.positional])
        return called

    if record_dependencies:
        return call_within
    return call_by_name if bound.by_keyword else call


def _direct(function: Callable[..., Any], values: _Values, *, is_batch: bool) -> Direct:
    read, of_one = values.read, values.of_one
    if is_batch or of_one is None or of_one.decode is None:
        return lambda unit: function(read(unit))
    decode, decode_error = of_one.decode, of_one.error

    def direct_bytes(record: Record) -> Awaitable[object]:
        value = record.value
        called: Awaitable[object] = function(read(record) if value is None else value)
        return called

    if of_one.is_bytes:
        return direct_bytes

    def direct(record: Record) -> Awaitable[object]:
        # As ``read``, with one frame less for each record.
        try:
            value = decode(record.value)
        except Exception as error:
            raise decode_error(record, error) from error
        called: Awaitable[object] = function(value)
        return called

    return direct


def _value_call(function: Callable[..., Any], of_one: ValueReader | None) -> ValueCall | None:
    if of_one is None or of_one.decode is None:
        return None
    return ValueCall(function, None if of_one.is_bytes else of_one.decode)


def _not_async(where: str) -> Call:
    """Return a call that refuses to run a plain function, which would block the event loop."""

    async def refuse(_unit: object, _opened: Opened = NOTHING_OPENED, /) -> NoReturn:
        raise ConsumerStateError(f"{where} is a plain function - bind() its arguments and call it in a thread")

    return refuse


# ---- values ----------------------------------------------------------------------------------------------------------


def _value_of_record(parameter: Parameter, annotation: object, codec: AnyCodec, where: str) -> _Values:
    if any(part is Record for part in parts(annotation)):
        raise ConfigurationError(
            f"{where}: parameter {parameter.name!r}: `Record` stands alone, for it is never null - many of them, as"
            " `list[Record]`, are for a batch handler"
        )
    value = value_reader(annotation, codec, where, parameter.name)
    return _Values(value.read, value)


def _values_of_batch(parameter: Parameter, annotation: object, codec: AnyCodec, where: str) -> _Values:
    of = f"{where}: parameter {parameter.name!r}"
    if (read_table := table_reader(annotation, of)) is not None:
        return _Values(read_table, None)
    if typing.get_origin(annotation) is not list:
        raise ConfigurationError(
            f"{of} is {described(annotation)}, and a batch is a list - write `list[bytes]`, `list[Order]` or such,"
            f" or `list[Record]`, or for a table {TABLES}"
        )
    (item,) = typing.get_args(annotation)
    if item is Record:
        # The list is the handler's own, which may change it.
        return _Values(list, None)
    if any(part is Record for part in parts(item)):
        raise ConfigurationError(f"{of}: a record stands alone, for it is never null - write `list[Record]`")
    value = value_reader(item, codec, where, parameter.name)
    return _Values(_decoder_of_batch(value), value)


def _decoder_of_batch(value: ValueReader) -> Callable[[list[Record]], list[object]]:
    """Return a decoder of all values or none; its DecodeError names the index of the record that does not decode."""
    decode, read = value.decode, value.read

    def take_values(records: list[Record]) -> list[object]:
        values: list[object] = [record.value for record in records]
        # The search for null is slow; it is needed only if a value is null or empty.
        if not value.is_nullable and not all(values) and None in values:
            index = values.index(None)
            error = TypeError("the value is null")
            raise DecodeError(f"index {index} of the batch: {value.error(records[index], error)}") from error
        return values

    def decode_records(records: list[Record]) -> list[object]:
        values: list[object] = []
        try:
            for record in records:
                values.append(read(record))  # noqa: PERF401 - its length is the index of the one that fails
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
            raise DecodeError(f"index {index} of the batch: {value.error(records[index], error)}") from error
        return values

    if value.is_bytes:
        return take_values
    return decode_records if decode is None else decode_values


def _of_unit(read: Callable[[Any], object]) -> Reader:
    return lambda unit, _opened: read(unit)


def _itself(record: Record) -> Record:
    return record
