"""Handlers put together: the call, its line, and what becomes of what fails.

Rule of this file: it only joins; what the parts do is theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.plan import BoundHandler
from tailrace.app.dispatch.batch_call import batch_call, counting
from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.batch_recovery import BatchRecovery
from tailrace.app.dispatch.record_call import record_call
from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.dispatch.record_recovery import RecordRecovery
from tailrace.app.dispatch.timeouts import Overdue
from tailrace.app.failures.dead_letter_publisher import DeadLetterPublisher
from tailrace.app.failures.dead_letters import first_read
from tailrace.app.failures.policy import FailurePolicy
from tailrace.app.handlers import Handle, Handler
from tailrace.app.sources import Transactions
from tailrace.observe.hooks import Observer
from tailrace.producer.publisher import Publisher
from tailrace.records import Record

__all__ = ["HandlerContext", "HandlerRuntime", "handler_runtime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """What a group has that all its handlers stand on."""

    opened: Opened
    """What dependencies of the app's scope have given."""
    publisher: Publisher
    """For results."""
    letter_publisher: DeadLetterPublisher
    transactions: Transactions | None
    observer: Observer
    origins: Container[str]
    """The topics of the group's own, whose records are to look as they did in their first one."""
    delay_of: Callable[[str], int | None]
    """The delay of a retry topic in milliseconds; None of other topics."""
    window: int
    """How many records may wait in a line."""
    on_progress: Callable[[], None]
    """Told when something is done."""
    on_full: Callable[[Handler, Record, int], None]
    """Told of the last record that a lane or a partition takes, and how many wait there."""


@dataclass(frozen=True, slots=True, eq=False)
class HandlerRuntime:
    """One handler at work."""

    handler: Handler
    executor: RecordExecutor | BatchExecutor
    failures: RecordRecovery | BatchRecovery
    overdue: Overdue


def handler_runtime(ready: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    """A handler on its site."""
    if context.transactions is not None and ready.handler.timeout_ms is None:
        batches = ready.handler.batches
        share_ms = context.transactions.work_share_ms(0 if batches is None else batches.max_wait_ms)
        ready = replace(ready, handler=replace(ready.handler, timeout_ms=share_ms))
    return (_record_runtime if ready.handler.batches is None else _batch_runtime)(ready, context)


def _record_runtime(ready: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    handler, resolved = ready.handler, ready.resolved
    overdue = Overdue(handler.name, context.observer)
    handle, finish = record_call(
        handler,
        ready.prepared,
        opened=context.opened,
        publisher=context.publisher,
        codec=resolved.codec,
        overdue=overdue,
        middleware=resolved.middleware,
        is_in_transaction=context.transactions is not None,
    )

    if not ready.prepared.sees_values_only or resolved.middleware or handler.when is not None:
        handle = _as_first_read(handle, context.origins)
    if context.transactions is not None:
        handle = context.transactions.around(handle)
    failures = RecordRecovery(handler.name, _policy(ready, context), context.observer)
    executor = RecordExecutor(
        handle,
        lambda record, error: failures.recover(executor, record, error),
        finish=finish,
        order_by=handler.order_by,
        concurrency=handler.concurrency,
        window=context.window,
        on_progress=context.on_progress,
        on_full=functools.partial(context.on_full, handler),
        is_shared=handler.when is not None,
    )
    return HandlerRuntime(handler, executor, failures, overdue)


def _batch_runtime(ready: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    handler = ready.handler
    assert handler.batches is not None
    overdue = Overdue(handler.name, context.observer)
    attempt = batch_call(
        handler,
        ready.prepared,
        opened=context.opened,
        publisher=context.publisher,
        codec=ready.resolved.codec,
        overdue=overdue,
        origins=context.origins,
    )
    if context.transactions is not None:
        attempt = counting(context.transactions, attempt)
    failures = BatchRecovery(handler.name, _policy(ready, context), context.observer)
    executor = BatchExecutor(
        attempt,
        failures.recover,
        order_by=handler.order_by,
        limits=handler.batches,
        concurrency=handler.concurrency,
        window=context.window,
        on_progress=context.on_progress,
        on_full=functools.partial(context.on_full, handler),
    )
    return HandlerRuntime(handler, executor, failures, overdue)


def _policy(ready: BoundHandler, context: HandlerContext) -> FailurePolicy:
    return FailurePolicy(
        ready.handler,
        ready.resolved,
        letter_publisher=context.letter_publisher,
        observer=context.observer,
        transactions=context.transactions,
        delay_of=context.delay_of,
    )


def _as_first_read(handle: Handle, origins: Container[str]) -> Handle:
    """For handlers that may see more of a record than its value: from a topic of the group's own it looks as before."""
    return lambda record: handle(first_read(record) if record.topic in origins else record)
