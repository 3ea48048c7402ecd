"""A handler of batches, looked at once: ``list[T]`` of the values, or ``list[Record]``, and what providers give.

Rule of this file: a batch is decoded whole or not at all; which record it was that did not decode is told.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tailrace.app.declare.annotations import described, parts
from tailrace.app.declare.arguments import NOTHING_OPENED, Bind, Opened, Reader, binding
from tailrace.app.declare.codecs import AnyCodec
from tailrace.app.declare.dependencies import Dependency, DependencyPlan, Overrides, open_dependencies
from tailrace.app.declare.parameter_readers import ValueReader, value_reader
from tailrace.app.declare.parameters import Parameter, Value
from tailrace.app.declare.prefetch import Prefetch, ahead_of, ahead_of_each
from tailrace.app.declare.record_handler import NO_OVERRIDES, Call, caller, check_handler, not_async
from tailrace.app.declare.signature import read_signature
from tailrace.app.function_kinds import name_of
from tailrace.errors import ConfigurationError, DecodeError
from tailrace.records import Record

__all__ = ["PreparedBatch", "prepare_batch"]

DecodeBatch: TypeAlias = Callable[[list[Record]], list[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedBatch:
    """A handler of batches, ready to be called: ``await call(records, opened)``.

    Attributes:
        name: the handler's, as errors have it.
        function: the handler as it was given.
        is_async: whether what it returns is awaited; if not, it goes into a thread, as ``Prepared`` has it.
        is_simple: whether ``function(decode(records))`` is the whole call.
        takes_records: whether ``decode`` leaves records as they are.
        decode: the list that the handler takes. Raises DecodeError, which names the index of the record.
        decode_one: the same of one record, to tell the others from the one that does not decode.
        bind: the arguments, of the records and what is open. Raises DecodeError.
        call: the whole call of an async handler.
        app_dependencies: to be opened once, at start, each behind what it needs; see ``open_dependencies``.
        record_dependencies: what ``opened_for`` opens, once a batch.
        ahead: what ``call`` and ``opened_for`` fetch before anything else, where the codec has to.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    is_simple: bool
    takes_records: bool
    decode: DecodeBatch
    decode_one: Callable[[Record], object]
    bind: Bind
    call: Call
    app_dependencies: tuple[Dependency, ...]
    record_dependencies: tuple[Dependency, ...]
    ahead: Prefetch | None = None

    def opened_for(
        self, records: list[Record], opened: Opened = NOTHING_OPENED
    ) -> AbstractAsyncContextManager[Opened, bool | None]:
        """What ``bind`` needs for these records, open as long as the ``async with`` lasts."""
        dependencies = open_dependencies(self.record_dependencies, records, opened)
        return dependencies if self.ahead is None else self.ahead.before(records, dependencies)


def prepare_batch(
    function: Callable[..., Any], codec: AnyCodec, *, overrides: Overrides = NO_OVERRIDES
) -> PreparedBatch:
    """Make a handler of batches ready to be called; its arguments are those of ``prepare``.

    Raises:
        ConfigurationError: it does not take a list first, or asks for what only one record has.
    """
    where, is_async = check_handler(function, codec)
    plan = DependencyPlan(where, overrides, is_batch=True)
    decode: DecodeBatch | None = None
    decode_one: Callable[[Record], object] = _itself
    ahead: Prefetch | None = None
    readers: list[Reader] = []
    parameters = read_signature(function, where)
    for one in parameters:
        if not isinstance(one.asks, Value):
            readers.append(plan.reader(one, where))
            continue
        item = _item(one, one.asks.annotation, where)
        if item is Record:
            decode = _as_it_is
        else:
            value = value_reader(item, codec, where, one.name)
            decode, decode_one = _decoder(value), value.read
            of_one = ahead_of(value.fetching, None)
            ahead = None if of_one is None else ahead_of_each(of_one)
        readers.append(_of_batch(decode))
    if decode is None:
        raise ConfigurationError(f"{where} takes no batch - give it a parameter for it, such as `values: list[bytes]`")
    bound = binding(parameters, readers)
    return PreparedBatch(
        name=name_of(function),
        function=function,
        is_async=is_async,
        is_simple=len(bound.positional) == 1 and not bound.by_keyword and ahead is None,
        takes_records=decode is _as_it_is,
        decode=decode,
        decode_one=decode_one,
        bind=bound.bind,
        call=caller(function, bound, plan.of_scope("record"), ahead) if is_async else not_async(where),
        app_dependencies=plan.of_scope("app"),
        record_dependencies=plan.of_scope("record"),
        ahead=ahead,
    )


def _item(parameter: Parameter, annotation: object, where: str) -> object:
    """What the list of a batch handler is a list of."""
    of = f"{where}: parameter {parameter.name!r}"
    if typing.get_origin(annotation) is not list:
        raise ConfigurationError(
            f"{of} is {described(annotation)}, and a batch is a list - write `list[bytes]`, `list[Order]` or such,"
            " or `list[Record]`"
        )
    (item,) = typing.get_args(annotation)
    if item is not Record and any(part is Record for part in parts(item)):
        raise ConfigurationError(f"{of}: a record stands alone, for it is never null - write `list[Record]`")
    return item


def _decoder(value: ValueReader) -> DecodeBatch:
    """Decodes the values one after the other; the error of one names its index."""
    decode, read = value.decode, value.read

    def take_values(records: list[Record]) -> list[object]:
        values: list[object] = [record.value for record in records]
        if None in values and not value.is_nullable:
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


def _of_batch(decode: DecodeBatch) -> Reader:
    return lambda records, _opened: decode(records)


def _as_it_is(records: list[Record]) -> list[Record]:
    return list(records)  # the handler's own, to do with as it likes


def _itself(record: Record) -> Record:
    return record
