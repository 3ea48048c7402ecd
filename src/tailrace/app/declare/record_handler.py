"""A handler, looked at once: its signature becomes a call that does for a record no more than it has to.

Rule of this file: ``prepare`` decides everything; what it returns is values and functions. No thread, no retry and no
task starts here: whoever calls does that.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from tailrace.app.declare.annotations import parts
from tailrace.app.declare.arguments import NOTHING_OPENED, Bind, Binding, Opened, Reader, binding
from tailrace.app.declare.codecs import AnyCodec, Decode
from tailrace.app.declare.dependencies import Dependency, DependencyPlan, Overrides, open_dependencies, open_into
from tailrace.app.declare.parameter_readers import ValueReader, value_reader
from tailrace.app.declare.parameters import Value, WholeRecord
from tailrace.app.declare.prefetch import Prefetch, ahead_of
from tailrace.app.declare.signature import read_signature
from tailrace.app.function_kinds import FunctionKind, handler_kind, name_of
from tailrace.app.given_objects import check_codec
from tailrace.errors import ConfigurationError, ConsumerStateError, DecodeError
from tailrace.records import Record

__all__ = ["NO_OVERRIDES", "Call", "PreparedHandler", "caller", "check_handler", "not_async", "prepare"]

NO_OVERRIDES: Overrides = types.MappingProxyType({})


class Call(Protocol):
    """Calls an async handler for a record, or for a batch, with what is open in the scope of the app."""

    def __call__(self, subject: Any, opened: Opened = ..., /) -> Awaitable[object]: ...  # noqa: ANN401


@dataclass(frozen=True, slots=True, eq=False)
class PreparedHandler:
    """A handler of single records, ready to be called.

    Every handler goes by ``await call(record, opened)``. The commonest, those of one value and nothing else
    (``is_simple``), go without anything in between::

        try:
            value = prepared.decode(record.value)
        except Exception as error:
            raise prepared.decode_error(record, error) from error
        await prepared.function(value)

    One that is not ``is_async`` goes into a thread::

        async with prepared.opened_for(record, opened) as everything:
            args, kwargs = prepared.bind(record, everything)
            await to_thread(prepared.function, *args, **kwargs)

    Attributes:
        name: the handler's, as errors have it.
        function: the handler as it was given.
        is_async: whether what it returns is awaited.
        is_simple: whether ``function(decode(record.value))`` is the whole call.
        takes_record: whether ``function(record)`` is.
        takes_bytes: whether ``decode`` leaves bytes as they are.
        takes_null: whether the value may be null.
        decode: of the bytes of a value, or None, if ``is_simple``; what it raises is for ``decode_error``.
        decode_error: the DecodeError for it.
        bind: the arguments, of a record and what is open. Raises DecodeError.
        call: the whole call of an async handler. Raises DecodeError and what the handler and its providers raise. A
            generator that catches the handler's error and does not raise it again has dealt with it, as in contextlib.
        app_dependencies: to be opened once, at start, each behind what it needs; see ``open_dependencies``.
        record_dependencies: what ``opened_for`` opens.
        ahead: what ``call`` and ``opened_for`` fetch before anything else, where the codec has to.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    is_simple: bool
    takes_record: bool
    takes_bytes: bool
    takes_null: bool
    decode: Decode
    decode_error: Callable[[Record, Exception], DecodeError]
    bind: Bind
    call: Call
    app_dependencies: tuple[Dependency, ...]
    record_dependencies: tuple[Dependency, ...]
    ahead: Prefetch | None = None

    def opened_for(
        self, record: Record, opened: Opened = NOTHING_OPENED
    ) -> AbstractAsyncContextManager[Opened, bool | None]:
        """What ``bind`` needs for this record, open as long as the ``async with`` lasts."""
        dependencies = open_dependencies(self.record_dependencies, record, opened)
        return dependencies if self.ahead is None else self.ahead.before(record, dependencies)


def prepare(function: Callable[..., Any], codec: AnyCodec, *, overrides: Overrides = NO_OVERRIDES) -> PreparedHandler:
    """Make a handler of single records ready to be called.

    Args:
        function: ``async def`` or plain; a function, a method, a partial or a callable object.
        codec: decodes the value.
        overrides: providers to call instead of those that ``Depends`` names.

    Raises:
        ConfigurationError: the signature asks for what no record has; naming the handler and what to write instead.
    """
    where, is_async = check_handler(function, codec)
    parameters = read_signature(function, where)
    if not parameters:
        raise ConfigurationError(f"{where} takes nothing - give it a parameter for the value, such as `value: bytes`")
    plan = DependencyPlan(where, overrides, codec=codec)
    value: ValueReader | None = None
    readers: list[Reader] = []
    for one in parameters:
        if isinstance(one.asks, Value):
            value = _value(one.asks.annotation, codec, where, one.name)
            readers.append(_of_subject(value.read))
        else:
            readers.append(plan.reader(one, where))
    bound = binding(parameters, readers)
    is_alone = len(bound.positional) == 1 and not bound.by_keyword
    ahead = ahead_of(value.fetching if value is not None else None, plan.fetching)
    decode = value.decode if value is not None and is_alone and ahead is None else None
    return PreparedHandler(
        name=name_of(function),
        function=function,
        is_async=is_async,
        is_simple=decode is not None,
        takes_record=is_alone and isinstance(parameters[0].asks, WholeRecord),
        takes_bytes=value is not None and value.is_bytes,
        takes_null=value is None or value.is_nullable,
        decode=_not_simple if decode is None else decode,
        decode_error=value.error if value is not None else _other_error,
        bind=bound.bind,
        call=caller(function, bound, plan.of_scope("record"), ahead) if is_async else not_async(where),
        app_dependencies=plan.of_scope("app"),
        record_dependencies=plan.of_scope("record"),
        ahead=ahead,
    )


def check_handler(function: object, codec: AnyCodec) -> tuple[str, bool]:
    """What a handler is called in errors, and whether it is async.

    Raises:
        ConfigurationError: it is nothing that handles a record, or its codec is none.
    """
    kind, where = handler_kind(function), f"handler {name_of(function)}"
    check_codec(codec, where)
    return where, kind is FunctionKind.COROUTINE


def caller(
    function: Callable[..., Any],
    bound: Binding,
    record_dependencies: Sequence[Dependency],
    ahead: Prefetch | None = None,
) -> Call:
    """The call of an async function, with a frame and a stack only if there is something to put into them."""
    call = _caller(function, bound, record_dependencies)
    if ahead is None:
        return call
    lacks, fetch = ahead.lacks, ahead.fetch

    async def call_when_all_is_there(subject: object, opened: Opened = NOTHING_OPENED, /) -> object:
        if lacks(subject):
            await fetch(subject)
        return await call(subject, opened)

    return call_when_all_is_there


def _caller(function: Callable[..., Any], bound: Binding, record_dependencies: Sequence[Dependency]) -> Call:
    bind = bound.bind

    async def call_within(subject: object, opened: Opened = NOTHING_OPENED, /) -> object:
        async with AsyncExitStack() as stack:
            args, kwargs = bind(subject, await open_into(stack, record_dependencies, subject, opened))
            return await function(*args, **kwargs)

    async def call_by_name(subject: object, opened: Opened = NOTHING_OPENED, /) -> object:
        args, kwargs = bind(subject, opened)
        return await function(*args, **kwargs)

    # What follows is no coroutine of its own, but gives the function's: one less for each record.
    def call(subject: object, opened: Opened = NOTHING_OPENED, /) -> Awaitable[object]:
        called: Awaitable[object] = function(*[read(subject, opened) for read in bound.positional])
        return called

    if record_dependencies:
        return call_within
    if bound.by_keyword:
        return call_by_name
    if len(bound.positional) > 1:
        return call
    (only,) = bound.positional

    def call_with_one(subject: object, opened: Opened = NOTHING_OPENED, /) -> Awaitable[object]:
        called: Awaitable[object] = function(only(subject, opened))
        return called

    return call_with_one


def not_async(where: str) -> Call:
    """What stands for the call of a plain function, which would hold up the event loop."""

    async def refuse(_subject: object, _opened: Opened = NOTHING_OPENED, /) -> NoReturn:
        raise ConsumerStateError(f"{where} is a plain function - bind() its arguments and call it in a thread")

    return refuse


def _value(annotation: object, codec: AnyCodec, where: str, name: str) -> ValueReader:
    if any(part is Record for part in parts(annotation)):
        raise ConfigurationError(
            f"{where}: parameter {name!r}: `Record` stands alone, for it is never null - many of them, as"
            " `list[Record]`, are for a batch handler"
        )
    return value_reader(annotation, codec, where, name)


def _of_subject(read: Callable[[Record], object]) -> Reader:
    return lambda record, _opened: read(record)


def _not_simple(_data: object) -> NoReturn:
    raise ConsumerStateError("the handler takes more than the bytes of a value - call() it, or bind() its arguments")


def _other_error(_record: Record, error: Exception) -> DecodeError:
    return DecodeError(str(error))
