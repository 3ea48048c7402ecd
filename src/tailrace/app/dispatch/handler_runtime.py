"""Handlers put together: the call, its line, and what becomes of what fails.

Rule of this file: it only joins; what the parts do is theirs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from tailrace.app.declare.plan import BoundHandler
from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.call import handler_call
from tailrace.app.dispatch.handler_context import HandlerContext
from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.dispatch.recovery import Recovery
from tailrace.app.dispatch.timeouts import Overdue
from tailrace.app.failures.policy import FailurePolicy
from tailrace.app.handlers import Handler

__all__ = ["HandlerRuntime", "handler_runtime"]


@dataclass(frozen=True, slots=True, eq=False)
class HandlerRuntime:
    """One handler at work."""

    handler: Handler
    executor: RecordExecutor | BatchExecutor
    failures: Recovery
    overdue: Overdue


def handler_runtime(ready: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    """A handler on its site."""
    if context.transactions is not None and ready.handler.timeout_ms is None:
        batches = ready.handler.batches
        share_ms = context.transactions.work_share_ms(0 if batches is None else batches.max_wait_ms)
        ready = replace(ready, handler=replace(ready.handler, timeout_ms=share_ms))
    return (_record_runtime if ready.handler.batches is None else _batch_runtime)(ready, context)


def _record_runtime(ready: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    handler, overdue = ready.handler, Overdue(ready.handler.name, context.observer)
    handle, finish = handler_call(ready, context, overdue)
    failures = _recovery(ready, context)
    executor = RecordExecutor(
        handle,
        failures.recover,
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
    handler, overdue = ready.handler, Overdue(ready.handler.name, context.observer)
    assert handler.batches is not None
    failures = _recovery(ready, context)
    executor = BatchExecutor(
        handler_call(ready, context, overdue).handle,
        failures.recover,
        order_by=handler.order_by,
        limits=handler.batches,
        concurrency=handler.concurrency,
        window=context.window,
        on_progress=context.on_progress,
        on_full=functools.partial(context.on_full, handler),
    )
    return HandlerRuntime(handler, executor, failures, overdue)


def _recovery(ready: BoundHandler, context: HandlerContext) -> Recovery:
    policy = FailurePolicy(
        ready.handler,
        ready.resolved,
        letter_publisher=context.letter_publisher,
        observer=context.observer,
        transactions=context.transactions,
        delay_of=context.delay_of,
    )
    return Recovery(ready.handler.name, policy, context.observer, is_batch=ready.handler.batches is not None)
