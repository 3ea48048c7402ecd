"""The whole way of one record through a handler, with nothing in it that the handler does not ask for.

From the outside in: ``when=``, what it publishes, its deadline, middleware, decoding and the function itself. So
middleware is timed and may change what is published, and neither sees a record that is not the handler's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.codecs import AnyCodec
from tailrace.app.declare.prepared_handler import PreparedHandler
from tailrace.app.declare.signature import returns_nothing
from tailrace.app.dispatch.threads import in_a_thread
from tailrace.app.dispatch.timeouts import Overdue, with_deadline
from tailrace.app.dispatch.wrapping import wrapped_by
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import Handle, Handler, Middleware
from tailrace.app.publish.results import ResultPublisher, carrying, noting_span, result_trace
from tailrace.awaitables import settled
from tailrace.errors import ConfigurationError
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["Finish", "RecordCall", "holds", "record_call", "wants"]

Finish: TypeAlias = Callable[[Record, object], Awaitable[None]]
"""Awaits and publishes what a handler returned for a record."""


class RecordCall(NamedTuple):
    """The call of a handler for a record.

    Attributes:
        handle: calls the handler; it has failed if this raises.
        finish: to be given what ``handle`` results in, unless that is None.
    """

    handle: Handle
    finish: Finish


def record_call(  # noqa: PLR0913 - what a call is made of
    handler: Handler,
    prepared: PreparedHandler,
    *,
    opened: Opened,
    publisher: Publisher,
    codec: AnyCodec,
    overdue: Overdue,
    middleware: Sequence[Middleware] = (),
    is_in_transaction: bool = False,
) -> RecordCall:
    """Return the call of a handler; what it raises is the record's failure.

    Args:
        handler: what is said about it.
        prepared: its signature, read.
        opened: what dependencies of the app's scope have given.
        publisher: for what the handler returns.
        codec: makes bytes of that.
        overdue: counts the calls that do not end with ``timeout_ms``.
        middleware: the outermost first.
        is_in_transaction: True if results belong to an attempt, so that ``handle`` has to finish them.
    """
    timeout_s = None if handler.timeout_ms is None else handler.timeout_ms / 1000
    call = _calling(prepared, opened, timeout_s)
    if middleware:
        call = wrapped_by(noting_span(call, prepared.name), middleware)
    if timeout_s is not None:
        call = with_deadline(call, timeout_s, prepared.name, overdue, is_async=prepared.is_async)
        if prepared.ahead is not None:
            # What is slow there is not the handler.
            call = prepared.ahead.then(call)
    finish = _finishing(ResultPublisher(publisher, codec, handler.publish, handler.name), prepared.name)
    finished = _finished(call, finish)
    # A handler that is to return nothing is finished by its executor, if at all: one coroutine less for each record.
    is_lean = returns_nothing(prepared.function) and handler.publish is None and not middleware
    call = carrying(call if is_lean and not is_in_transaction else finished, finished)
    if handler.when is not None:
        call = _with_condition(call, handler.when)
    return RecordCall(call, finish)


def wants(handler: Handler, record: Record) -> bool:
    """Whether a record is for this handler; a condition that raises takes it, and raises again where that counts."""
    try:
        return handler.when is None or holds(handler.when, record)
    except Exception:  # noqa: BLE001 - it raises again where that is a failure of the record
        return True


def holds(when: Callable[[Record], object], record: Record) -> bool:
    """Return the answer of a condition.

    Raises:
        ConfigurationError: the answer is an awaitable, which would always be true.
    """
    answer = when(record)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigurationError(f"when={when!r} returned an awaitable - write a plain function that returns a bool")
    return bool(answer)


def _calling(prepared: PreparedHandler, opened: Opened, timeout_s: float | None) -> Handle:
    if not prepared.is_async:
        return in_a_thread(prepared, opened, timeout_s)
    call = prepared.call
    return prepared.direct or (lambda record: call(record, opened))


def _finishing(results: ResultPublisher, where: str) -> Finish:
    async def finish(record: Record, returned: object) -> None:
        returned = await settled(returned, where)
        if returned is not None:
            # Acknowledged before the record is done, so that no commit is ahead of what it led to.
            await results.publish([(returned, result_trace(record))])

    return finish


def _finished(call: Handle, finish: Finish) -> Handle:
    async def finished(record: Record) -> None:
        returned = await call(record)
        if returned is not None:
            await finish(record, returned)

    return finished


def _with_condition(call: Handle, when: Callable[[Record], Any]) -> Handle:
    async def if_wanted(record: Record) -> object:
        if not holds(when, record):
            raise Reject("no handler's when= takes this record - say unmatched='skip' if it may be passed over")
        return await call(record)

    return if_wanted
