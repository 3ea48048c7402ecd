"""Call of a handler: everything that surrounds the user's function, in one order.

From the outermost; a handler pays only for what it uses:

1. instrumentation, and the transaction;
2. replacement of a record of a retry or replay topic by the record as it was first read;
3. ``when=``, so records that it excludes reach neither the middleware nor the function;
4. the trace of the record, and publishing of the result;
5. the limits: of the threads for a plain function, then of the duration, which excludes fetches of schemas;
6. middleware, which may change the result to publish;
7. decoding and the function, for a plain function in a thread.

``record_call`` and ``batch_call`` contain steps 1 to 4, ``_limited_call`` contains steps 5 to 7. The call for a record
raises if the record fails; the call for a batch returns the failures.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import sys
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.parameters import returns_nothing
from tailrace.app.declare.prepared_handler import PreparedHandler, ValueCall
from tailrace.app.dispatch.threads import Threads
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.failures.dead_letters import as_first_read
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.app.failures.reject import Reject
from tailrace.app.function_kinds import name_of
from tailrace.app.handlers import Handler, ResolvedHandler
from tailrace.app.publish.delays import PublishDelays
from tailrace.app.publish.encoding import results_in
from tailrace.app.publish.results import ResultPublisher
from tailrace.app.publish.traces import BatchTrace, result_trace, with_span_as_trace
from tailrace.app.sources import Transactions
from tailrace.awaitables import resolve_call, resolve_result
from tailrace.errors import ConfigurationError, DecodeError, HandlerFailedError, PartialFailureError
from tailrace.observe.events import HandlerOverdue
from tailrace.observe.hooks import HandlerInfo, Observer, instrumentations_of
from tailrace.producer.publisher import Publisher
from tailrace.producer.traces import OPENTELEMETRY, record_trace, trace_in
from tailrace.records import Record

__all__ = ["BatchCall", "GroupParts", "HandlerCall", "OverdueCalls", "UnitCall", "batch_call", "matches", "record_call"]

UnitCall: TypeAlias = Callable[[Any], Awaitable[Any]]
"""Calls a handler for a record, or for the list of records of a batch."""
BatchCall: TypeAlias = Callable[[list[Record]], Awaitable[FailuresByIndex]]
"""Calls a handler for a batch; returns the failures, or raises an error with which all records of the batch fail."""
PublishResult: TypeAlias = Callable[[Record, object], Awaitable[None]]
"""Publishes the result that a handler returned for a record, after awaiting it if it is awaitable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupParts:
    """Objects of a consumer group that its handlers share."""

    opened: Opened
    """Values of app-scoped dependencies."""
    publisher: Publisher
    """Publisher of results."""
    delays: PublishDelays | None
    """Declared delays of delayed messages; None if there are none."""
    dead_letter_publisher: DeadLetterPublisher
    transactions: Transactions | None
    """Transactions in which results are published; None for at-least-once delivery."""
    observer: Observer
    own_topics: Container[str]
    """Retry and replay topics of the group; handlers receive each of the records there as it was first read."""
    delay_of: Callable[[str], int | None]
    """Returns the delay in milliseconds of a topic whose records wait; None for other topics."""
    window: int
    """Maximum number of records that wait for one handler."""
    on_progress: Callable[[], None]
    """Called when a record is finished or there is room for more records."""
    on_full: Callable[[Handler, Record, int], None]
    """Called when so many records wait for a record that no more records of its partition are read.

    The arguments are the handler, that record, and the number of records that wait in its lane or partition.
    """


# ---- the whole call, from the outermost step -------------------------------------------------------------------------


class HandlerCall(NamedTuple):
    """Call of a handler for a record.

    Attributes:
        handle: calls the handler; raises if the record fails.
        publish_result: publishes the result of ``handle``; called unless the result is None.
        value_call: parts of a faster call with the same effect as ``handle``, for records without headers while
            ``is_opentelemetry_imported`` is false; None if there is no faster call.
        collected: ``ResolvedHandler.collected``, to which the caller may append the record and a result for which
            ``must_resolve`` is false, in place of a call of ``publish_result``; None if it must call that.
    """

    handle: UnitCall
    publish_result: PublishResult
    value_call: ValueCall | None = None
    collected: list[object] | None = None


def record_call(handler: ResolvedHandler, group: GroupParts, overdue_calls: OverdueCalls) -> HandlerCall:
    """Return the call of a handler for a record; ``overdue_calls`` counts calls that still run after ``timeout_ms``."""
    when, own_topics = handler.when, _own_topics(handler, group)
    function = _limited_call(handler, group.opened, overdue_calls)
    publish_result = _result_publisher(handler, group)
    modules = sys.modules  # OpenTelemetry may be imported later.

    async def handle(record: Record) -> None:
        if own_topics is not None and record.topic in own_topics:
            record = as_first_read(record)
        if when is not None:
            _check(when, record)
        token = record_trace.set(trace_in(record.headers)) if record.headers or OPENTELEMETRY in modules else None
        try:
            if (returned := await function(record)) is not None:
                await publish_result(record, returned)
        finally:
            if token is not None:
                record_trace.reset(token)

    def handle_directly(record: Record) -> Awaitable[object]:
        # Without headers, a record is as it was first read, and has no trace.
        return handle(record) if record.headers or OPENTELEMETRY in modules else function(record)

    # Steps 1 to 4 do nothing for most handlers that are annotated "-> None", or whose results are only collected. To
    # leave them out saves a coroutine. If a function of the first kind returns a result nevertheless, the executor
    # publishes it.
    options = (handler.publish, when, group.transactions)
    is_surrounded = handler.middleware or instrumentations_of(group.observer) or any(one is not None for one in options)
    if (returns_nothing(handler.function) or handler.collected is not None) and not is_surrounded:
        value_call = handler.prepared.value_call if handler.timeout_ms is None else None
        return HandlerCall(handle_directly, publish_result, value_call, handler.collected)
    call: UnitCall = handle
    if group.transactions is not None:
        call = group.transactions.wrap_call(call)
    return HandlerCall(_instrumented(call, handler, group.observer), publish_result)


def _result_publisher(handler: ResolvedHandler, group: GroupParts) -> PublishResult:
    results, collected = _results_of(handler, group), handler.collected

    async def publish_result(record: Record, returned: object) -> None:
        returned = await resolve_result(returned, handler.prepared.name)
        if returned is not None:
            # The record is finished only after the acknowledgment, so no offset is committed before its results.
            await results.publish([(returned, result_trace(record))], record.key)
            if collected is not None:
                collected.extend((record, returned))

    return publish_result


def _results_of(handler: ResolvedHandler, group: GroupParts) -> ResultPublisher:
    return ResultPublisher(group.publisher, handler.codec, handler.publish, handler.name, group.delays)


def batch_call(handler: ResolvedHandler, group: GroupParts, overdue_calls: OverdueCalls) -> BatchCall:
    """Return the call of a handler for a batch; ``overdue_calls`` counts calls that run after ``timeout_ms``."""
    prepared, when, own_topics = handler.prepared, handler.when, _own_topics(handler, group)
    function = _limited_call(handler, group.opened, overdue_calls)
    results = _results_of(handler, group)

    async def handle(records: list[Record]) -> FailuresByIndex:
        if own_topics is not None and any(record.topic in own_topics for record in records):
            records = [as_first_read(record) if record.topic in own_topics else record for record in records]
        if when is None:
            return await decodable_call(records)
        return await _call_others(decodable_call, records, _unmatched(when, records))

    async def call_and_publish(records: list[Record]) -> None:
        with BatchTrace() as trace:
            # Middleware may change the list that it receives, so it receives a copy.
            returned = await function(list(records) if handler.middleware else records)
            if returned is None or (returned := await resolve_result(returned, prepared.name)) is None:
                return
            items = results_in(returned)
            # With one item per record, each item gets the trace of its record. Otherwise it is unknown which record an
            # item belongs to. Results have no key of a record: a wrong key would be stored.
            is_one_each = len(items) == len(records)
            headers = (record.headers for record in records) if is_one_each else itertools.repeat(())
            # The batch is finished only after the acknowledgment, so no offset is committed before its results.
            await results.publish(zip(items, map(trace.of, headers), strict=False))

    decodable_call = _returning_failures(call_and_publish, prepared, handler.name)
    call: UnitCall = handle
    if group.transactions is not None:
        call = group.transactions.wrap_call(_raising_if_all_fail(call))
    return _instrumented(functools.partial(_call_batch, call), handler, group.observer)


def _limited_call(handler: ResolvedHandler, opened: Opened, overdue_calls: OverdueCalls) -> UnitCall:
    """Return the call of the function, with its middleware, deadline and limit of threads."""
    prepared, timeout_s = handler.prepared, None if handler.timeout_ms is None else handler.timeout_ms / 1000
    call: UnitCall
    if not prepared.is_async:
        call = _in_a_thread(prepared, opened, timeout_s)
    else:
        call = prepared.direct_call or (lambda unit: prepared.call(unit, opened))
    if handler.middleware:
        call = _wrapped_by(with_span_as_trace(call, prepared.name), handler.middleware)
    if timeout_s is not None:
        call = _with_deadline(call, timeout_s, prepared, overdue_calls)
    if prepared.is_async:
        return call
    # An attempt after a failure starts even if ``concurrency`` other calls run. The threads may share an object that
    # permits no more, such as a connection.
    places, in_thread = asyncio.Semaphore(handler.concurrency), call

    async def call_in_place(unit: object) -> object:
        async with places:
            return await in_thread(unit)

    return call_in_place


def _own_topics(handler: ResolvedHandler, group: GroupParts) -> Container[str] | None:
    """Return the topics whose records the handler receives as they were first read; None if it sees values only."""
    sees_places = handler.middleware or handler.when is not None or not handler.prepared.sees_values_only
    return group.own_topics if sees_places else None


def _instrumented(call: UnitCall, handler: ResolvedHandler, observer: Observer) -> UnitCall:
    for instrumentation in reversed(instrumentations_of(observer)):
        info = HandlerInfo(handler.name, handler.group_id, is_batch=handler.batch is not None)
        call = instrumentation.around_handler(call, info)
    return call


# ---- when= -----------------------------------------------------------------------------------------------------------


def matches(handler: Handler, record: Record) -> bool:
    """Return True if a handler receives a record.

    If ``when=`` raises, the handler receives the record. The handler's call evaluates ``when=`` again, and the record
    fails with the error.
    """
    try:
        return handler.when is None or _result_of(handler.when, record)
    except Exception:  # noqa: BLE001 - the user's predicate may raise any exception
        return True


def _unmatched(when: Callable[[Record], object], records: Sequence[Record]) -> dict[int, Exception]:
    """Return the failures of the records that ``when`` excludes, by their index."""
    failed: dict[int, Exception] = {}
    for index, record in enumerate(records):
        try:
            _check(when, record)
        except Exception as error:  # noqa: BLE001 - the user's predicate may raise any exception
            failed[index] = error
    return failed


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


# ---- threads and deadlines of calls ----------------------------------------------------------------------------------

_GRACE_S = 1.0
"""Seconds that a canceled handler has to clean up before its call counts as overdue."""


def _timeout_error(seconds: float) -> TimeoutError:
    """Return the error of a call that was canceled after ``seconds``."""
    return TimeoutError(f"the handler took longer than timeout_ms={seconds * 1000:.0f}")


class OverdueCalls:
    """Counter of one handler's overdue calls, which still run after ``timeout_ms`` and the time to clean up.

    Attributes:
        count: number of overdue calls.
    """

    def __init__(self, handler: str, observer: Observer) -> None:
        self._handler, self._observer = handler, observer
        self.count = 0

    def start(self, first: Record, timeout_s: float) -> None:
        """Count a call as overdue, and emit HandlerOverdue for its first record."""
        self.count += 1
        self._observer.emit(HandlerOverdue(self._handler, first.topic_partition, first.offset, timeout_s))

    def end(self) -> None:
        """Count an overdue call as ended."""
        self.count -= 1


class _Deadline:
    """Variant of ``asyncio.timeout`` for handlers that may swallow their cancellation or run in a thread."""

    def __init__(self, seconds: float, overdue_calls: OverdueCalls, first: Record, *, may_cancel: bool) -> None:
        self._seconds, self._overdue_calls = seconds, overdue_calls
        self._first, self._may_cancel = first, may_cancel
        self._has_expired = self._is_overdue = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling, self._loop = task, task.cancelling(), asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._timer = self._loop.call_later(self._seconds, self._expire)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        self._timer.cancel()
        if self._is_overdue:
            self._overdue_calls.end()
        took_s = self._loop.time() - self._began_at
        if not self._may_cancel:
            if error is None and took_s > self._seconds:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and a thread"
                    " cannot be canceled"
                )
        elif self._has_expired:
            is_only_cancellation = self._task.uncancel() <= self._cancelling
            if kind is None:
                raise TimeoutError(
                    f"the handler took {took_s:.1f} s, longer than timeout_ms={self._seconds * 1000:.0f}, and swallowed"
                    " its cancellation"
                )
            if is_only_cancellation and issubclass(kind, asyncio.CancelledError):
                raise _timeout_error(self._seconds) from error

    def _expire(self) -> None:
        self._has_expired = True
        if self._may_cancel:
            self._task.cancel()
        self._timer = self._loop.call_later(_GRACE_S, self._report_overdue)

    def _report_overdue(self) -> None:
        self._is_overdue = True
        self._overdue_calls.start(self._first, self._seconds)


def _with_deadline(call: UnitCall, seconds: float, prepared: PreparedHandler, overdue_calls: OverdueCalls) -> UnitCall:
    """Return a call that raises TimeoutError if ``call`` takes longer than ``seconds``.

    An async handler is canceled at its deadline, and fails even if it returns a result after that. A plain handler
    fails only when it returns, because its thread cannot be stopped, and the next attempt must not run concurrently.
    ``overdue_calls`` counts calls that still run one second after the deadline.
    """
    prefetch = prepared.prefetch

    async def within(unit: Any) -> object:  # noqa: ANN401 - a record or a batch
        if prefetch is not None and prefetch.lacks(unit):
            # Schemas are fetched from the schema registry before the deadline starts.
            await prefetch.fetch(unit)
        first = unit if isinstance(unit, Record) else unit[0]
        async with _Deadline(seconds, overdue_calls, first, may_cancel=prepared.is_async):
            returned = await call(unit)
            return returned if returned is None else await resolve_result(returned, prepared.name)

    return within


def _in_a_thread(prepared: PreparedHandler, opened: Opened, timeout_s: float | None) -> UnitCall:
    """Return a call that runs a plain handler in a thread, and awaits the result if the handler returns an awaitable.

    The awaitable, but not the thread, is canceled ``timeout_s`` seconds after the start of the call.
    """
    threads = Threads()

    async def call(unit: Any) -> object:  # noqa: ANN401 - a record or a batch
        ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        async with prepared.opened_for(unit, opened) as all_opened:
            args, kwargs = prepared.bind(unit, all_opened)
            returned = await threads.call(functools.partial(prepared.function, *args, **kwargs))
            if returned is None:
                return None
            timeout = asyncio.timeout_at(ends_at)
            try:
                async with timeout:
                    return await resolve_call(returned, prepared.name)
            except TimeoutError as error:
                if timeout_s is None or not timeout.expired():
                    raise
                raise _timeout_error(timeout_s) from error

    return call


# ---- middleware around the call of a handler -------------------------------------------------------------------------

WorkT = TypeVar("WorkT")


_calls: ContextVar[list[CoroutineType[Any, Any, object] | None] | None] = ContextVar("tailrace_calls", default=None)
"""Coroutines that the current call of a middleware has created by ``call(record)``; None follows once it has ended."""


def _wrapped_by(
    call: Callable[[WorkT], Coroutine[Any, Any, object]],
    middleware: Sequence[Callable[[Callable[[WorkT], Awaitable[object]]], Callable[[WorkT], Awaitable[object]]]],
) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` wrapped in ``middleware``; the first function of ``middleware`` is the outermost.

    Raises:
        ConfigurationError: a middleware does not return a function.
    """
    for wrap in reversed(middleware):
        where = f"middleware {name_of(wrap)}"
        wrapped = _wrapped(wrap, _recording(call))
        if not callable(wrapped):
            if inspect.iscoroutine(wrapped):
                wrapped.close()
            raise ConfigurationError(
                f"{where} returned {wrapped!r} - write a plain function of one parameter `call`, which returns"
                " an `async def` of one parameter `record`, which awaits `call(record)`"
            )
        call = _checked(wrapped, where)
    return call


def _wrapped(wrap: Callable[..., Any], call: object) -> Any:  # noqa: ANN401 - the user's function may return anything
    return wrap(call)


def _recording(call: Callable[[WorkT], Coroutine[Any, Any, object]]) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    def recording(work: WorkT) -> Coroutine[Any, Any, object]:
        awaitable, calls = call(work), _calls.get()
        # In a long-lived task of a middleware, the context may still hold the list of an earlier call, which ends with
        # None.
        if calls is not None and None not in calls:
            calls.append(cast("CoroutineType[Any, Any, object]", awaitable))
        return awaitable

    return recording


def _checked(call: Callable[[WorkT], Awaitable[object]], where: str) -> Callable[[WorkT], Coroutine[Any, Any, object]]:
    """Return ``call`` with a check: it raises if the middleware returns before its ``call(record)`` has ended.

    A plain function that returns ``call(record)`` without ``await`` passes, because its result is awaited here.
    """

    async def checked_call(work: WorkT) -> object:
        calls: list[CoroutineType[Any, Any, object] | None] = []
        token = _calls.set(calls)
        try:
            result: object = call(work)
            # Comparing the type first is cheaper.
            if type(result) is not CoroutineType and not inspect.isawaitable(result):
                _close(calls)
                raise ConfigurationError(
                    f"{where}: its function returned {result!r}, which is not awaitable - write it as `async def`, with"
                    " `return await call(record)`"
                )
            returned = await cast("Awaitable[object]", result)
            if returned is not None:
                returned = await resolve_result(returned, where)
            for inner in calls:
                if inner is not None and inner.cr_frame is not None:
                    raise _unawaited(calls, where)
        finally:
            _calls.reset(token)
            calls.append(None)
        return returned

    return checked_call


def _unawaited(calls: Iterable[CoroutineType[Any, Any, object] | None], where: str) -> ConfigurationError:
    _close(calls)
    return ConfigurationError(f"{where} returned before its call(record) had ended - write `return await call(record)`")


def _close(calls: Iterable[CoroutineType[Any, Any, object] | None]) -> None:
    """Close coroutines that have not started, so that they cannot run later, while the record is tried again."""
    for inner in calls:
        if inner is not None and inspect.getcoroutinestate(inner) == inspect.CORO_CREATED:
            inner.close()


# ---- failures of a batch ---------------------------------------------------------------------------------------------


class _AllFailedError(Exception):
    """All records of a batch failed, each with its own error."""

    def __init__(self, failed: FailuresByIndex) -> None:
        self.failed = failed


async def _call_batch(call: UnitCall, records: list[Record]) -> FailuresByIndex:
    """Call a handler for a batch and return the failures; if the call raises, all records have failed."""
    try:
        return await call(records) or {}
    except _AllFailedError as error:
        return error.failed
    except Exception as error:  # noqa: BLE001 - a handler may raise any exception
        return dict.fromkeys(range(len(records)), error)


async def _call_others(call: BatchCall, records: list[Record], failed: dict[int, Exception]) -> FailuresByIndex:
    """Call a handler for the records of a batch that are not in ``failed``; return all failures."""
    others = [index for index in range(len(records)) if index not in failed]
    if others:
        later_failures = await _call_batch(call, [records[index] for index in others])
        failed.update((others[index], error) for index, error in later_failures.items())
    return failed


def _returning_failures(call: UnitCall, prepared: PreparedHandler, where: str) -> BatchCall:
    """Return a call that returns failures of single records instead of raising an error.

    A record fails alone if a PartialFailureError names it, or if it cannot be decoded. In the second case, the handler
    is called again for the other records. Any other error is raised.
    """

    async def call_returning_failures(records: list[Record]) -> FailuresByIndex:
        try:
            await call(records)
        except PartialFailureError as error:
            return _failures_named_by(error, len(records), where)
        except DecodeError:
            failed = _decode_failures(prepared, records)
            if not failed:
                # All records can be decoded, so the handler itself raised the DecodeError.
                raise
            return await _call_others(call_returning_failures, records, failed)
        return {}

    return call_returning_failures


def _raising_if_all_fail(call: BatchCall) -> BatchCall:
    """Return a call that raises an error if all records fail, so that nothing that the handler published is sent.

    If only some records fail, it is sent, because it contains the results of the other records.
    """

    async def call_raising_if_all_fail(records: list[Record]) -> FailuresByIndex:
        failed = await _call_batch(call, records)
        if len(failed) == len(records):
            raise _AllFailedError(failed)
        return failed

    return call_raising_if_all_fail


def _decode_failures(prepared: PreparedHandler, records: Iterable[Record]) -> dict[int, Exception]:
    failed: dict[int, Exception] = {}
    for index, record in enumerate(records):
        try:
            prepared.decode_one(record)
        except DecodeError as error:
            failed[index] = error
    return failed


def _failures_named_by(error: PartialFailureError, count: int, where: str) -> FailuresByIndex:
    """Return the failures that a PartialFailureError names.

    A record that is named without an exception fails with the cause of the PartialFailureError, or with that error.

    Raises:
        HandlerFailedError: ``error`` names no record, or contains an invalid index or exception.
    """
    wrong = "" if error.failed else "no index"
    default = error.__cause__ if isinstance(error.__cause__, Exception) else error
    failed: dict[int, Exception] = {}
    for index, failure in _unchecked_entries(error):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            wrong = f"index {index!r}"
        elif failure is None:
            failed[index] = default
        elif isinstance(failure, Exception):
            failed[index] = failure
        else:
            wrong = f"{failure!r}, which is not an exception, at index {index}"
    if wrong:
        raise HandlerFailedError(
            f"{where} raised PartialFailureError with {wrong}, for a batch of {count} records, so the whole batch has"
            f" failed - pass the index of each failed record, from 0 to {count - 1}, with its exception"
        ) from error
    return failed


def _unchecked_entries(error: PartialFailureError) -> Iterable[tuple[object, object]]:
    """Return the entries of ``error.failed`` as objects: the handler may have used other types than declared."""
    return error.failed.items()
