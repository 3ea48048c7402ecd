"""Executor of records and the event loop."""

from __future__ import annotations

import asyncio
import contextvars

from tailrace import App, Record, TopicPartition
from tailrace.app.dispatch.call import HandlerCall
from tailrace.app.dispatch.lanes import Lanes
from tailrace.app.dispatch.record_executor import RecordExecutor, RecordWorker
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.consumer.partition import AssignedPartitions
from tests.support.loop_turns import LoopTurns

PARTITION = TopicPartition("orders", 0)
COUNT = 50_000


async def test_failures_without_a_pause_do_not_starve_the_event_loop():
    """While thousands of consecutive records fail and are skipped, other tasks of the event loop run."""
    turns, (position,) = 0, AssignedPartitions().add([PARTITION])
    position.begin(0)

    async def fail(_record: Record) -> None:
        raise ValueError("no")

    async def skip(_line: RecordExecutor, work: RecordWorker, _failed: FailuresByIndex) -> None:
        assert work.is_ours(work.records[0])

    line = RecordExecutor(Lanes("partition", COUNT), HandlerCall(fail, fail), skip, 1, lambda: None)
    running = asyncio.create_task(line.run(1))
    line.add(position.deliver([Record("orders", 0, offset, None, b"", 0) for offset in range(COUNT)], COUNT))
    while line.waiting:
        await asyncio.sleep(0)
        turns += 1
    running.cancel()
    await asyncio.wait({running})

    assert turns > 5


async def test_a_context_variable_ends_with_its_record():
    """A context variable that a handler sets without suspending is not set for the next record."""
    variable, seen, (position,) = (
        contextvars.ContextVar("variable", default=0),
        [],
        AssignedPartitions().add([PARTITION]),
    )
    all_seen = asyncio.Event()
    position.begin(0)

    async def handle(record: Record) -> None:
        seen.append(variable.get())
        if record.offset % 10 == 5:
            variable.set(record.offset)
        if len(seen) == 100:
            all_seen.set()

    async def recover(_executor: RecordExecutor, _work: RecordWorker, _failed: FailuresByIndex) -> None:
        pass

    executor = RecordExecutor(Lanes("partition", 100), HandlerCall(handle, handle), recover, 1, lambda: None)
    running = asyncio.create_task(executor.run(1))
    executor.add(position.deliver([Record("orders", 0, offset, None, b"", 0) for offset in range(100)], 100))
    await asyncio.wait_for(all_seen.wait(), 10)
    running.cancel()
    await asyncio.wait({running})

    assert set(seen) == {0}


async def test_small_batches_are_handled_together(kafka_server, group, new_topic, witness):
    """Batches of one record, as some producers write them, do not need an iteration of the event loop each."""
    topic, partitions, count, turns_at = new_topic(partitions=2), 2, 400, []
    for partition in range(partitions):
        witness.produce(topic, [b"%d" % n for n in range(count)], partition=partition, batch_bytes=1)
    app, all_handled = App(bootstrap_servers=kafka_server.bootstrap_servers, group_id=group), asyncio.Event()

    with LoopTurns() as turns:

        @app.handler(topic)
        async def handle(_value: bytes) -> None:
            turns_at.append(turns.count)
            if len(turns_at) == partitions * count:
                all_handled.set()

        async with app:
            await asyncio.wait_for(all_handled.wait(), 30)

    assert turns_at[-1] - turns_at[0] < partitions * count / 4
