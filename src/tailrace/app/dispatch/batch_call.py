"""The whole way of one batch through a handler, and what failed of it.

From the outside in: ``when=``, what it publishes, its deadline, middleware, decoding and the function itself; as
``app.dispatch.record_call`` has it for single records. What comes out is not an error but which records failed, each
with its own: those that do not decode, those that the handler has named, or all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Sequence
from typing import Any, cast

from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.codecs import AnyCodec
from tailrace.app.declare.prepared_handler import PreparedHandler
from tailrace.app.dispatch.batch_run import Attempt, Failed
from tailrace.app.dispatch.record_call import holds
from tailrace.app.dispatch.threads import in_a_thread
from tailrace.app.dispatch.timeouts import Overdue, with_deadline
from tailrace.app.dispatch.wrapping import wrapped_by
from tailrace.app.failures.dead_letters import first_read
from tailrace.app.failures.reject import Reject
from tailrace.app.handlers import BatchHandle, Handler
from tailrace.app.publish.encoding import results_in
from tailrace.app.publish.results import ResultPublisher, batch_span, noting_span
from tailrace.app.sources import Transactions
from tailrace.awaitables import settled
from tailrace.errors import DecodeError, HandlerFailedError, PartialFailureError
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["batch_call", "counting"]

_NONE: Failed = {}


def batch_call(  # noqa: PLR0913 - what a call is made of
    handler: Handler,
    prepared: PreparedHandler,
    *,
    opened: Opened,
    publisher: Publisher,
    codec: AnyCodec,
    overdue: Overdue,
    origins: Container[str] = (),
) -> Attempt:
    """What runs a batch, and gives what failed of it.

    Args:
        handler: what is said about it.
        prepared: its signature, read.
        opened: what dependencies of the app's scope have given.
        publisher: for what the handler returns.
        codec: makes bytes of that.
        overdue: counts the calls that do not end with ``timeout_ms``.
        origins: the topics of the group's own, whose records are to look as they did in their first one.
    """
    timeout_s = None if handler.timeout_ms is None else handler.timeout_ms / 1000
    called = _calling(prepared, opened, timeout_s)
    settling = noting_span(called, prepared.name) if handler.batch_middleware else _settled(called, prepared.name)
    call: BatchHandle = wrapped_by(settling, handler.batch_middleware)
    if timeout_s is not None:
        call = with_deadline(call, timeout_s, prepared.name, overdue, is_async=prepared.is_async)
        if prepared.ahead is not None:
            # What is slow there is not the handler.
            call = prepared.ahead.then(call)
    call = _publishing(call, ResultPublisher(publisher, codec, handler.publish, handler.name))
    attempt = _telling_what_failed(call, prepared, handler.name)
    if handler.when is not None:
        attempt = _with_condition(attempt, handler.when)
    if handler.when is not None or handler.batch_middleware or not prepared.sees_values_only:
        attempt = _as_first_read(attempt, origins)
    return attempt


def counting(transactions: Transactions, attempt: Attempt) -> Attempt:
    """``attempt`` within transactions: what was published for a batch counts, unless all of it failed.

    A handler that names those that failed has published for the others.
    """

    async def raising(records: list[Record]) -> Failed:
        failed = await attempt(records)
        if len(failed) == len(records):
            raise _AllFailedError(failed)
        return failed

    around = transactions.around(raising)

    async def counted(records: list[Record]) -> Failed:
        try:
            return cast("Failed", await around(records))
        except _AllFailedError as error:
            return error.failed
        except Exception as error:  # noqa: BLE001 - what was published is too large, or has no place any more
            return dict.fromkeys(range(len(records)), error)

    return counted


class _AllFailedError(Exception):
    """Nothing of an attempt is done."""

    def __init__(self, failed: Failed) -> None:
        self.failed = failed


def _calling(prepared: PreparedHandler, opened: Opened, timeout_s: float | None) -> BatchHandle:
    if not prepared.is_async:
        return in_a_thread(prepared, opened, timeout_s)
    return prepared.direct or (lambda records: prepared.call(records, opened))


def _settled(call: BatchHandle, where: str) -> Callable[[list[Record]], Coroutine[Any, Any, object]]:
    async def called(records: list[Record]) -> object:
        returned = await call(records)
        return returned if returned is None else await settled(returned, where)

    return called


def _publishing(call: BatchHandle, results: ResultPublisher) -> BatchHandle:
    async def and_publish(records: list[Record]) -> None:
        # The list is the handler's own, who may change it.
        given = tuple(records)
        with batch_span() as trace_of:
            returned = await call(records)
            if returned is None:
                return
            items = results_in(returned)
            # As many as there are records: each is of its own. Of others nobody knows which record led to what.
            is_one_each = len(items) == len(given)
            headers = (record.headers for record in given) if is_one_each else itertools.repeat(())
            # Acknowledged before the batch is done, so that no commit is ahead of what it led to.
            await results.publish(zip(items, map(trace_of, headers), strict=False))

    return and_publish


def _telling_what_failed(call: BatchHandle, prepared: PreparedHandler, where: str) -> Attempt:
    async def attempt(records: list[Record]) -> Failed:
        try:
            # They are given away: middleware and the handler may change their list.
            await call(list(records))
        except PartialFailureError as error:
            return _named(error, len(records), where)
        except DecodeError as error:
            return await without_what_does_not_decode(records, error)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises
            return dict.fromkeys(range(len(records)), error)
        return _NONE

    async def without_what_does_not_decode(records: list[Record], error: DecodeError) -> Failed:
        try:
            failed = dict(_undecodable(prepared, records))
        except Exception as other:  # noqa: BLE001 - a codec could not reach what it needs, and may the next time
            return dict.fromkeys(range(len(records)), other)
        if not failed:
            # It is the handler's own, about something that it has decoded itself.
            return dict.fromkeys(range(len(records)), error)
        good = [index for index in range(len(records)) if index not in failed]
        if good:
            of_good = await attempt([records[index] for index in good])
            failed.update((good[index], one) for index, one in of_good.items())
        return failed

    return attempt


def _undecodable(prepared: PreparedHandler, records: Sequence[Record]) -> Iterator[tuple[int, Exception]]:
    for index, record in enumerate(records):
        try:
            prepared.decode_one(record)
        except DecodeError as error:
            yield index, error


def _named(error: PartialFailureError, count: int, where: str) -> Failed:
    """What the handler says has failed; everything, if what it says cannot be."""
    said = "" if error.failed else "no index"
    instead = error.__cause__ if isinstance(error.__cause__, Exception) else error
    failed: dict[int, Exception] = {}
    for index, one in _as_said(error):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
            said = f"index {index!r}"
        elif one is None:
            failed[index] = instead
        elif isinstance(one, Exception):
            failed[index] = one
        else:
            said = f"{one!r}, which is no exception, at index {index}"
    if not said:
        return failed
    wrong = HandlerFailedError(
        f"{where} raised PartialFailureError with {said}, for a batch of {count} records - name those that failed,"
        f" from 0 to {count - 1}, each with its exception; until then all of them count as failed"
    )
    wrong.__cause__ = error
    return dict.fromkeys(range(count), wrong)


def _as_said(error: PartialFailureError) -> Iterable[tuple[object, object]]:
    """Whatever the handler has put there."""
    return error.failed.items()


def _as_first_read(attempt: Attempt, origins: Container[str]) -> Attempt:
    async def as_first_read(records: list[Record]) -> Failed:
        if any(record.topic in origins for record in records):
            records = [first_read(record) if record.topic in origins else record for record in records]
        return await attempt(records)

    return as_first_read


def _with_condition(attempt: Attempt, when: Callable[[Record], object]) -> Attempt:
    async def if_wanted(records: list[Record]) -> Failed:
        failed: dict[int, Exception] = {}
        wanted: list[int] = []
        for index, record in enumerate(records):
            try:
                if holds(when, record):
                    wanted.append(index)
                    continue
                reason = "no handler's when= takes this record - say unmatched='skip' if it may be passed over"
                failed[index] = Reject(reason)
            except Exception as error:  # noqa: BLE001 - the user's condition: that record has failed
                failed[index] = error
        if not failed:
            return await attempt(records)
        if wanted:
            of_wanted = await attempt([records[index] for index in wanted])
            failed.update((wanted[index], one) for index, one in of_wanted.items())
        return failed

    return if_wanted
