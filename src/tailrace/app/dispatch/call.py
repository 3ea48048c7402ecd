"""Call path of a handler: instrumentation, ``when=``, publishing, deadline, middleware, decoding and the function.

The outermost part comes first in this list.

Middleware runs within the deadline and may change the result to publish. Records that ``when=`` excludes reach neither
the middleware nor the function. The call for a record raises if the record fails; the call for a batch returns the
failed records (``batch_failures``).
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Container
from typing import Any, NamedTuple, TypeAlias

from tailrace.app.declare.plan import BoundHandler
from tailrace.app.declare.prepared_handler import ValueCall
from tailrace.app.declare.signature import returns_nothing
from tailrace.app.dispatch.batch_failures import Failed, failures_of, naming_failures, raising_if_all_fail
from tailrace.app.dispatch.handler_context import HandlerContext
from tailrace.app.dispatch.threads import in_a_thread
from tailrace.app.dispatch.timeouts import Overdue, with_deadline
from tailrace.app.dispatch.wrapping import wrapped_by
from tailrace.app.failures.dead_letters import first_read
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import Handler
from tailrace.app.publish.encoding import results_in
from tailrace.app.publish.results import (
    ResultPublisher,
    batch_span,
    result_trace,
    with_record_trace,
    with_span_as_trace,
)
from tailrace.awaitables import settled
from tailrace.errors import ConfigurationError
from tailrace.observe.instrumentation import HandlerInfo
from tailrace.records import Record

__all__ = ["Finish", "HandlerCall", "UnitCall", "handler_call", "matches"]

UnitCall: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler for a record, or for the list of records of a batch."""
Finish: TypeAlias = Callable[[Record, object], Awaitable[None]]
"""Publishes the result that a handler returned for a record, after awaiting it if it is awaitable."""


class HandlerCall(NamedTuple):
    """Call of a handler.

    Attributes:
        handle: calls the handler. For a record, it raises if the record fails. For a batch, it returns the failed
            records.
        value_call: what ``handle`` comes down to for a record without headers while ``is_opentelemetry_imported``
            returns False, or None.
        finish: called with the result of ``handle`` for a record, unless the result is None.
    """

    handle: UnitCall
    finish: Finish
    value_call: ValueCall | None = None


def handler_call(ready: BoundHandler, context: HandlerContext, overdue: Overdue) -> HandlerCall:
    """Return the call of a handler; ``overdue`` counts calls that still run after ``timeout_ms``."""
    handler, prepared, is_batch = ready.handler, ready.prepared, ready.handler.batch is not None
    timeout_s = None if handler.timeout_ms is None else handler.timeout_ms / 1000
    middleware: tuple[Callable[..., UnitCall], ...]
    middleware = ready.resolved.middleware
    call: UnitCall
    value_call: ValueCall | None = None
    if not prepared.is_async:
        call = in_a_thread(prepared, context.opened, timeout_s)
    else:
        call = prepared.direct_call or (lambda unit: prepared.call(unit, context.opened))
    if middleware:
        call = wrapped_by(with_span_as_trace(call, prepared.name), middleware)
    if timeout_s is not None:
        call = with_deadline(call, timeout_s, prepared.name, overdue, is_async=prepared.is_async)
        if prepared.prefetch is not None:
            # Requests to the schema registry are sent before the deadline starts.
            call = prepared.prefetch.then(call)
    results = ResultPublisher(context.publisher, ready.resolved.codec, handler.publish, handler.name)
    finish = _finish(results, prepared.name)
    if is_batch:
        call = naming_failures(_published_together(call, results, prepared.name), prepared, handler.name)
    else:
        finished = _finished(call, finish)
        # For a function that declares no result, the executor calls ``finish`` if needed, which saves a coroutine.
        is_lean = returns_nothing(prepared.function) and handler.publish is None and not middleware
        is_lean = is_lean and context.transactions is None and not context.instrumentations
        if is_lean and handler.when is None and timeout_s is None:
            value_call = prepared.value_call
        call = with_record_trace(call if is_lean else finished, finished)
    if handler.when is not None:
        call = _checking_when_of_batch(call, handler.when) if is_batch else _checking_when(call, handler.when)
    if middleware or handler.when is not None or not prepared.sees_values_only:
        call = _as_first_read(call, context.origins, is_batch=is_batch)
    if context.transactions is not None:
        call = context.transactions.around(raising_if_all_fail(call) if is_batch else call)
    return HandlerCall(
        _instrumented(functools.partial(failures_of, call) if is_batch else call, handler, context), finish, value_call
    )


def _instrumented(call: UnitCall, handler: Handler, context: HandlerContext) -> UnitCall:
    for instrumentation in reversed(context.instrumentations):
        info = HandlerInfo(handler.name, context.group_id, is_batch=handler.batch is not None)
        call = instrumentation.around_handler(call, info)
    return call


def matches(handler: Handler, record: Record) -> bool:
    """Return True if a handler receives a record.

    If ``when=`` raises, the handler receives the record, which then fails in the handler's call.
    """
    try:
        return handler.when is None or _result_of(handler.when, record)
    except Exception:  # noqa: BLE001 - the handler's call evaluates when= again, and there the error fails the record
        return True


def _finish(results: ResultPublisher, where: str) -> Finish:
    async def finish(record: Record, returned: object) -> None:
        returned = await settled(returned, where)
        if returned is not None:
            # Await acknowledgment before the record is finished, so that no offset is committed before its results.
            await results.publish([(returned, result_trace(record))])

    return finish


def _finished(call: UnitCall, finish: Finish) -> UnitCall:
    async def finished(record: Record) -> None:
        returned = await call(record)
        if returned is not None:
            await finish(record, returned)

    return finished


def _published_together(call: UnitCall, results: ResultPublisher, where: str) -> UnitCall:
    async def and_publish(records: list[Record]) -> None:
        # Middleware and the handler may change the list that they receive.
        given = tuple(records)
        with batch_span() as trace_of:
            returned = await call(list(records))
            if returned is None or (returned := await settled(returned, where)) is None:
                return
            items = results_in(returned)
            # If there are as many items as records, each item belongs to one record; otherwise an item belongs to none.
            is_one_each = len(items) == len(given)
            headers = (record.headers for record in given) if is_one_each else itertools.repeat(())
            # Await acknowledgment before the batch is finished, so that no offset is committed before its results.
            await results.publish(zip(items, map(trace_of, headers), strict=False))

    return and_publish


def _as_first_read(call: UnitCall, origins: Container[str], *, is_batch: bool) -> UnitCall:
    """Return a ``call`` that passes records of the group's own topics as they were in their origin topic."""

    def seen(record: Record) -> Record:
        return first_read(record) if record.topic in origins else record

    if not is_batch:
        return lambda record: call(seen(record))

    def as_first_read(records: list[Record]) -> Awaitable[Any]:
        return call([seen(record) for record in records] if any(one.topic in origins for one in records) else records)

    return as_first_read


def _checking_when(call: UnitCall, when: Callable[[Record], object]) -> UnitCall:
    """Return a ``call`` that rejects records for which ``when`` is false."""

    async def called(record: Record) -> object:
        _check(when, record)
        return await call(record)

    return called


def _checking_when_of_batch(call: UnitCall, when: Callable[[Record], object]) -> UnitCall:
    """Return a ``call`` that passes on the records of a batch for which ``when`` is true; the other records fail."""

    async def called(records: list[Record]) -> Failed:
        failed: dict[int, Exception] = {}
        for index, record in enumerate(records):
            try:
                _check(when, record)
            except Exception as error:  # noqa: BLE001 - the record fails if the user's predicate raises
                failed[index] = error
        matching = [index for index in range(len(records)) if index not in failed]
        if matching:
            of_matching = await failures_of(call, [records[index] for index in matching])
            failed.update((matching[index], one) for index, one in of_matching.items())
        return failed

    return called


def _check(when: Callable[[Record], object], record: Record) -> None:
    if not _result_of(when, record):
        raise Reject("no handler's when= matches this record - set unmatched='skip' to skip such records")


def _result_of(when: Callable[[Record], object], record: Record) -> bool:
    """Return the result of a ``when=`` predicate.

    Raises:
        ConfigurationError: the result is an awaitable, which would always be true.
    """
    answer = when(record)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise ConfigurationError(f"when={when!r} returned an awaitable - write a plain function that returns a bool")
    return bool(answer)
