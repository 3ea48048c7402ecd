"""Executor of records and the event loop."""

from __future__ import annotations

import asyncio

from tailrace import Record, TopicPartition
from tailrace.app.dispatch.batch_failures import Failed
from tailrace.app.dispatch.call import HandlerCall
from tailrace.app.dispatch.executor import ExecutorOptions
from tailrace.app.dispatch.record_executor import RecordExecutor
from tailrace.app.dispatch.work import Worker
from tailrace.core.delivery.positions import Positions

PARTITION = TopicPartition("orders", 0)
COUNT = 50_000


async def test_failures_without_a_pause_do_not_starve_the_event_loop():
    """Thousands of consecutive records that fail and are skipped do not starve heartbeats."""
    turns, (position,) = 0, Positions().add([PARTITION])
    position.begin(0)

    async def fail(_record: Record) -> None:
        raise ValueError("no")

    async def skip(line: RecordExecutor, work: Worker, _failed: Failed) -> None:
        assert line.is_ours(work.records[0])

    options = ExecutorOptions(order_by="partition", concurrency=1, window=COUNT, on_progress=lambda: None)
    line = RecordExecutor(HandlerCall(fail, fail), skip, options)
    running = asyncio.create_task(line.run(1))
    line.add(position.deliver([Record("orders", 0, offset, None, b"", 0) for offset in range(COUNT)], COUNT))
    while line.waiting:
        await asyncio.sleep(0)
        turns += 1
    running.cancel()
    await asyncio.wait({running})

    assert turns > 5
