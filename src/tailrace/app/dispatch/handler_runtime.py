"""Construction of a handler's runtime: its call, its executor and its failure policy."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from tailrace.app.declare.plan import BoundHandler
from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.call import handler_call
from tailrace.app.dispatch.executor import Executor, ExecutorOptions
from tailrace.app.dispatch.handler_context import HandlerContext
from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.dispatch.recovery import Recovery
from tailrace.app.dispatch.timeouts import OverdueCalls
from tailrace.app.failures.policy import FailurePolicy
from tailrace.app.handlers import Handler
from tailrace.app.health.handler_events import HandlerEvents
from tailrace.observe.statistics import HandlerStatistics

__all__ = ["HandlerRuntime", "handler_runtime"]


@dataclass(frozen=True, slots=True, eq=False)
class HandlerRuntime:
    """Parts that run one handler."""

    handler: Handler
    executor: Executor[Any]
    recovery: Recovery
    overdue_calls: OverdueCalls
    events: HandlerEvents

    def statistics(self, group_id: str) -> HandlerStatistics:
        """Return the statistics of the handler."""
        executor, events, meter = self.executor, self.events, self.executor.meter
        return HandlerStatistics(
            group_id=group_id,
            handler=self.handler.name,
            concurrency=self.handler.concurrency,
            records=meter.records,
            batches=meter.batches if executor.handles_batches else None,
            calls=meter.durations,
            in_flight=executor.in_flight,
            waiting=executor.waiting,
            failures=events.failures,
            retries=self.recovery.retries,
            delayed=events.delayed,
            dead_letters=events.dead_letters,
            skipped=events.skipped,
            is_paused=executor.is_paused,
        )


def handler_runtime(bound: BoundHandler, context: HandlerContext) -> HandlerRuntime:
    """Build the runtime of a handler; in transactions, a handler without ``timeout_ms`` gets a default."""
    handler = bound.handler
    limits = handler.batch
    if context.transactions is not None and handler.timeout_ms is None:
        timeout_ms = context.transactions.default_timeout_ms(0 if limits is None else limits.max_wait_ms)
        handler = replace(handler, timeout_ms=timeout_ms)
        bound = replace(bound, handler=handler)
    events = HandlerEvents()
    observer = context.observer.with_hooks(events)
    overdue_calls = OverdueCalls(handler.name, observer)
    call = handler_call(bound, context, overdue_calls)
    policy = FailurePolicy(
        handler,
        bound.resolved,
        dead_letter_publisher=context.dead_letter_publisher,
        observer=observer,
        transactions=context.transactions,
        delay_of=context.delay_of,
    )
    recovery = Recovery(handler.name, policy, observer, is_batch=limits is not None)
    options = ExecutorOptions(
        order_by=handler.order_by,
        concurrency=handler.concurrency,
        window=context.window,
        on_progress=context.on_progress,
        on_full=functools.partial(context.on_full, handler),
    )
    executor: Executor[Any]
    if limits is None:
        executor = RecordExecutor(call, recovery.recover, options, is_shared=handler.when is not None)
    else:
        executor = BatchExecutor(call.handle, recovery.recover, options, limits)
    return HandlerRuntime(handler, executor, recovery, overdue_calls, events)
