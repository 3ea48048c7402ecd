"""The whole way of one record through a handler, with nothing in it that the handler does not ask for.

From the outside in: ``when=``, what it publishes, its deadline, middleware, decoding and the function itself. So
middleware is timed and may change what is published, and neither sees a record that is not the handler's.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from penstock.app.codecs import AnyCodec
from penstock.app.deadlines import with_deadline
from penstock.app.handlers import Handle, Handler, Middleware
from penstock.app.publisher import Publisher
from penstock.app.publishing import Results, carrying
from penstock.app.reject import Reject
from penstock.app.results import trace_in
from penstock.app.signatures.arguments import Opened
from penstock.app.signatures.prepared import Prepared
from penstock.app.signatures.signature import returns_nothing
from penstock.app.threads import Threads
from penstock.records import Record

__all__ = ["record_call", "wants"]


def record_call(  # noqa: PLR0913 - what a call is made of
    handler: Handler,
    prepared: Prepared,
    *,
    opened: Opened,
    publisher: Publisher,
    codec: AnyCodec,
    middleware: Sequence[Middleware] = (),
) -> Handle:
    """What runs a record to its end; what it raises is the record's failure.

    Args:
        handler: what is said about it.
        prepared: its signature, read.
        opened: what dependencies of the app's scope have given.
        publisher: for what the handler returns.
        codec: makes bytes of that.
        middleware: the outermost first.
    """
    call = _calling(prepared, opened)
    for around in reversed(middleware):
        call = around(call)
    if handler.timeout_ms is not None:
        call = with_deadline(call, handler.timeout_ms / 1000, is_async=prepared.is_async)
        if prepared.ahead is not None:
            # What is slow there is not the handler.
            call = prepared.ahead.then(call)
    # What returns nothing is not looked at: one coroutine less for each record.
    if handler.publish is not None or middleware or not returns_nothing(prepared.function):
        call = _publishing(call, Results(publisher, codec, handler.publish, handler.name))
    call = carrying(call)
    if handler.when is not None:
        call = _with_condition(call, handler.when)
    return call


def wants(handler: Handler, record: Record) -> bool:
    """Whether a record is for this handler; a condition that raises takes it, and raises again where that counts."""
    try:
        return handler.when is None or handler.when(record)
    except Exception:  # noqa: BLE001 - it raises again where that is a failure of the record
        return True


def _calling(prepared: Prepared, opened: Opened) -> Handle:
    if not prepared.is_async:
        threads = Threads()

        async def in_a_thread(record: Record) -> object:
            async with prepared.opened_for(record, opened) as everything:
                args, kwargs = prepared.bind(record, everything)
                return await threads.call(functools.partial(prepared.function, *args, **kwargs))

        return in_a_thread
    function, decode, call = prepared.function, prepared.decode, prepared.call
    if prepared.takes_record:
        return function
    if not prepared.is_simple:
        return lambda record: call(record, opened)

    def simple(record: Record) -> Awaitable[object]:
        try:
            value = decode(record.value)
        except Exception as error:
            raise prepared.decode_error(record, error) from error
        # Not awaited here: one coroutine less for each record.
        called: Awaitable[object] = function(value)
        return called

    return simple


def _publishing(call: Handle, results: Results) -> Handle:
    async def and_publish(record: Record) -> None:
        returned = await call(record)
        if returned is not None:
            # Acknowledged before the record is done, so that no commit is ahead of what it led to.
            await results.publish([(returned, trace_in(record.headers))])

    return and_publish


def _with_condition(call: Handle, when: Callable[[Record], Any]) -> Handle:
    async def if_wanted(record: Record) -> object:
        if not when(record):
            raise Reject("no handler's when= takes this record - say unmatched='skip' if it may be passed over")
        return await call(record)

    return if_wanted
