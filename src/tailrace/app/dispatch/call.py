"""Construction of a handler's call from its parts, each of which wraps the next one.

The parts are, from the outermost: instrumentation, transaction, ``when=``, publishing, deadline, middleware, decoding
and the function. Middleware runs within the deadline and may change the result to publish. Records that ``when=``
excludes reach neither the middleware nor the function. The call for a record raises if the record fails; the call for a
batch returns the failures (``batch_failures``).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Awaitable, Callable, Container
from typing import Any, NamedTuple, TypeAlias

from tailrace.app.declare.parameters import returns_nothing
from tailrace.app.declare.prepared_handler import ValueCall
from tailrace.app.dispatch.batch_failures import FailuresByIndex, call_batch, raising_if_all_fail, returning_failures
from tailrace.app.dispatch.handler_context import HandlerContext
from tailrace.app.dispatch.threads import in_a_thread
from tailrace.app.dispatch.timeouts import OverdueCalls, with_deadline
from tailrace.app.dispatch.wrapping import wrapped_by
from tailrace.app.failures.dead_letters import as_first_read
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import Handler, ResolvedHandler
from tailrace.app.publish.encoding import results_in
from tailrace.app.publish.results import ResultPublisher
from tailrace.app.publish.traces import BatchTrace, result_trace, with_record_trace, with_span_as_trace
from tailrace.awaitables import resolve_result
from tailrace.errors import ConfigurationError
from tailrace.observe.hooks import HandlerInfo
from tailrace.records import Record

__all__ = ["HandlerCall", "PublishResult", "UnitCall", "handler_call", "matches"]

UnitCall: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler for a record, or for the list of records of a batch."""
PublishResult: TypeAlias = Callable[[Record, object], Awaitable[None]]
"""Publishes the result that a handler returned for a record, after awaiting it if it is awaitable."""


class HandlerCall(NamedTuple):
    """Call of a handler.

    Attributes:
        handle: calls the handler. For a record, it raises if the record fails. For a batch, it returns the failures.
        publish_result: publishes the result of ``handle`` for a record; called unless the result is None.
        value_call: parts of a faster call with the same effect as ``handle``, for records without headers while
            ``is_opentelemetry_imported`` is false; None if there is no faster call.
    """

    handle: UnitCall
    publish_result: PublishResult
    value_call: ValueCall | None = None


def handler_call(handler: ResolvedHandler, context: HandlerContext, overdue_calls: OverdueCalls) -> HandlerCall:
    """Return the call of a handler; ``overdue_calls`` counts the calls that still run after ``timeout_ms``."""
    prepared, is_batch = handler.prepared, handler.batch is not None
    timeout_s = None if handler.timeout_ms is None else handler.timeout_ms / 1000
    middleware: tuple[Callable[..., UnitCall], ...]
    middleware = handler.middleware
    call: UnitCall
    value_call: ValueCall | None = None
    if not prepared.is_async:
        call = in_a_thread(prepared, context.opened, timeout_s)
    else:
        call = prepared.direct_call or (lambda unit: prepared.call(unit, context.opened))
    if middleware:
        call = wrapped_by(with_span_as_trace(call, prepared.name), middleware)
    call = _with_limits(call, handler, timeout_s, overdue_calls)
    results = ResultPublisher(context.publisher, handler.codec, handler.publish, handler.name)
    publish_result = _result_publisher(results, prepared.name)
    if is_batch:
        publishing_call = _publishing_batch(call, results, prepared.name, has_middleware=bool(middleware))
        call = returning_failures(publishing_call, prepared, handler.name)
    else:
        publishing_call = _publishing(call, publish_result)
        # A function that declares no result may be called directly, which saves a coroutine. If it returns a result
        # nevertheless, the executor calls ``publish_result``.
        is_direct = returns_nothing(prepared.function) and handler.publish is None and not middleware
        is_direct = is_direct and context.transactions is None and not context.instrumentations
        if is_direct and handler.when is None and timeout_s is None:
            value_call = prepared.value_call
        call = with_record_trace(call if is_direct else publishing_call, publishing_call)
    if handler.when is not None:
        call = _batch_checking_when(call, handler.when) if is_batch else _checking_when(call, handler.when)
    if middleware or handler.when is not None or not prepared.sees_values_only:
        call = _with_first_read(call, context.own_topics, is_batch=is_batch)
    if context.transactions is not None:
        call = context.transactions.wrap_call(raising_if_all_fail(call) if is_batch else call)
    return HandlerCall(
        _instrumented(functools.partial(call_batch, call) if is_batch else call, handler, context),
        publish_result,
        value_call,
    )


def _with_limits(
    call: UnitCall, handler: ResolvedHandler, timeout_s: float | None, overdue_calls: OverdueCalls
) -> UnitCall:
    """Return a call with the deadline of the handler, and for a plain handler with a strict limit of its threads."""
    prepared = handler.prepared
    if timeout_s is not None:
        call = with_deadline(call, timeout_s, prepared.name, overdue_calls, is_async=prepared.is_async)
        if prepared.prefetch is not None:
            # Schemas are fetched from the schema registry before the deadline starts.
            call = prepared.prefetch.then(call)
    if prepared.is_async:
        return call
    # An attempt after a failure starts even if ``concurrency`` other calls run. The threads may share an object that
    # permits no more, such as a connection.
    places, limited = asyncio.Semaphore(handler.concurrency), call

    async def call_in_place(unit: object) -> object:
        async with places:
            return await limited(unit)

    return call_in_place


def _instrumented(call: UnitCall, handler: Handler, context: HandlerContext) -> UnitCall:
    for instrumentation in reversed(context.instrumentations):
        info = HandlerInfo(handler.name, context.group_id, is_batch=handler.batch is not None)
        call = instrumentation.around_handler(call, info)
    return call


def matches(handler: Handler, record: Record) -> bool:
    """Return True if a handler receives a record.

    If ``when=`` raises, the handler receives the record. The handler's call evaluates ``when=`` again, and the record
    fails with the error.
    """
    try:
        return handler.when is None or _result_of(handler.when, record)
    except Exception:  # noqa: BLE001 - the user's predicate may raise any exception
        return True


def _result_publisher(results: ResultPublisher, where: str) -> PublishResult:
    async def publish_result(record: Record, returned: object) -> None:
        returned = await resolve_result(returned, where)
        if returned is not None:
            # The record is finished only after the acknowledgment, so no offset is committed before its results.
            await results.publish([(returned, result_trace(record))])

    return publish_result


def _publishing(call: UnitCall, publish_result: PublishResult) -> UnitCall:
    async def call_and_publish(record: Record) -> None:
        returned = await call(record)
        if returned is not None:
            await publish_result(record, returned)

    return call_and_publish


def _publishing_batch(call: UnitCall, results: ResultPublisher, where: str, *, has_middleware: bool) -> UnitCall:
    async def call_and_publish(records: list[Record]) -> None:
        with BatchTrace() as trace:
            # Middleware may change the list that it receives, so it receives a copy.
            returned = await call(list(records) if has_middleware else records)
            if returned is None or (returned := await resolve_result(returned, where)) is None:
                return
            items = results_in(returned)
            # With one item per record, each item gets the trace of its record. Otherwise it is unknown which record an
            # item belongs to.
            is_one_each = len(items) == len(records)
            headers = (record.headers for record in records) if is_one_each else itertools.repeat(())
            # The batch is finished only after the acknowledgment, so no offset is committed before its results.
            await results.publish(zip(items, map(trace.of, headers), strict=False))

    return call_and_publish


def _with_first_read(call: UnitCall, own_topics: Container[str], *, is_batch: bool) -> UnitCall:
    """Return a call in which each record of ``own_topics`` is replaced by the record as it was first read."""

    def original(record: Record) -> Record:
        return as_first_read(record) if record.topic in own_topics else record

    if not is_batch:
        return lambda record: call(original(record))

    def call_with_originals(records: list[Record]) -> Awaitable[Any]:
        has_copies = any(record.topic in own_topics for record in records)
        return call([original(record) for record in records] if has_copies else records)

    return call_with_originals


def _checking_when(call: UnitCall, when: Callable[[Record], object]) -> UnitCall:
    """Return a call that rejects records for which ``when`` is false."""

    async def checked_call(record: Record) -> object:
        _check(when, record)
        return await call(record)

    return checked_call


def _batch_checking_when(call: UnitCall, when: Callable[[Record], object]) -> UnitCall:
    """Return a call that passes on the records of a batch for which ``when`` is true; the other records fail."""

    async def checked_call(records: list[Record]) -> FailuresByIndex:
        failed: dict[int, Exception] = {}
        for index, record in enumerate(records):
            try:
                _check(when, record)
            except Exception as error:  # noqa: BLE001 - the user's predicate may raise any exception
                failed[index] = error
        matching = [index for index in range(len(records)) if index not in failed]
        if matching:
            call_failures = await call_batch(call, [records[index] for index in matching])
            failed.update((matching[index], error) for index, error in call_failures.items())
        return failed

    return checked_call


def _check(when: Callable[[Record], object], record: Record) -> None:
    if not _result_of(when, record):
        raise Reject(
            "no handler's when= matches this record - to skip such records, set unmatched='skip' in all handlers of the"
            " topic"
        )


def _result_of(when: Callable[[Record], object], record: Record) -> bool:
    """Return the result of a ``when=`` predicate.

    Raises:
        ConfigurationError: the result is an awaitable, which would count as true.
    """
    result = when(record)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise ConfigurationError(f"when={when!r} returned an awaitable - write a plain function that returns a bool")
    return bool(result)
