"""CPU time per record of the hot paths, divided by that of a reference loop in the same process.

The ratios were recorded with Python 3.11. They depend little on the machine and its load, since each is the lowest CPU
time of several tries. A test fails if the ratio is more than twice the recorded one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import thread_time

import pytest

from tailrace.app.dispatch.call import HandlerCall
from tailrace.app.dispatch.lanes import Lanes
from tailrace.app.dispatch.record_executor import RecordExecutor, RecordWorker
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.batches import record_batch
from tailrace.batches.record_batch import split
from tailrace.consumer.delivery.polled_records import PolledRecords
from tailrace.consumer.partition import AssignedPartitions
from tailrace.core.progress import Progress
from tailrace.installation import COMPILED
from tailrace.records import Record, TopicPartition
from tests.support.protocol.built_batches import SentRecord, batch
from tests.support.simulation.cpu_time import cpu_time

PARTITION = TopicPartition("orders", 0)
RECORDS, SLICE, TRIES, MOST = 10_000, 500, 30, 2.0

RECORDED = {
    "decode": 0.9,
    "decode in pure Python": 2.6,
    "take one by one": 0.15,
    "take and finish out of order": 3.1,
    "handle": 1.5,
}
"""CPU time per record, divided by that of an iteration of the reference loop."""


def reference() -> float:
    """Return the CPU time of an iteration that creates an object and calls a function, as a hot path does."""
    made = []
    add = made.append
    began = thread_time()
    for number in range(RECORDS):
        add((number, str(number)))
        if len(made) == SLICE:
            made.clear()
    return (thread_time() - began) / RECORDS


def assert_cost(name: str, cost: Callable[[], float]) -> None:
    """Compare the lowest cost per record of several tries with the lowest of the reference loop.

    Tries end with the first one that is low enough: a busy machine may slow some of them, and a regression slows all.
    """
    costs, references = [], []
    with cpu_time():
        for _ in range(TRIES):
            references.append(reference())
            costs.append(cost())
            ratio = min(costs) / min(references)
            if ratio <= RECORDED[name] * MOST:
                return
    raise AssertionError(f"{name} costs {ratio:.2f} reference iterations per record, recorded are {RECORDED[name]:g}")


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [Record(*PARTITION, offset, b"k", b"v" * 100, 1_000) for offset in range(RECORDS)]


@pytest.fixture(scope="module")
def encoded() -> bytes:
    return batch(*(SentRecord(b"k%d" % number, b"v" * 100) for number in range(RECORDS)))


def decode(encoded: bytes) -> float:
    began = thread_time()
    decoder = split(memoryview(encoded))[0].decode(*PARTITION, 0)
    count = 0
    while taken := decoder.take(SLICE):
        count += len(taken)
    took = thread_time() - began
    assert count == RECORDS
    return took / RECORDS


@pytest.mark.skipif(not COMPILED, reason="tailrace was installed without its compiled module")
def test_decoding_costs_no_more_than_recorded(encoded):
    """The compiled decoder costs at most twice the recorded CPU time per record."""
    assert_cost("decode", lambda: decode(encoded))


def test_decoding_in_pure_python_costs_no_more_than_recorded(encoded, monkeypatch):
    """The decoder in pure Python costs at most twice the recorded CPU time per record."""
    monkeypatch.setattr(record_batch, "_BatchDecoder", None)

    assert_cost("decode in pure Python", lambda: decode(encoded))


def test_taking_records_costs_no_more_than_recorded(records):
    """Delivery to a polling loop costs at most twice the recorded CPU time per record."""

    def take() -> float:
        progress, polled = Progress(PARTITION, 0), PolledRecords()
        began = thread_time()
        for first in range(0, RECORDS, SLICE):
            polled.finish()
            polled.begin(progress.deliver(records[first : first + SLICE], first + SLICE))
            for _record in polled.remaining:
                pass
        polled.finish()
        took = thread_time() - began
        assert progress.finished == RECORDS
        return took / RECORDS

    assert_cost("take one by one", take)


def test_finishing_out_of_order_costs_no_more_than_recorded(records):
    """Progress of records that finish in reverse order costs at most twice the recorded CPU time per record."""

    def take() -> float:
        progress = Progress(PARTITION, 0)
        began = thread_time()
        for first in range(0, RECORDS, SLICE):
            lease = progress.deliver(records[first : first + SLICE], first + SLICE)
            for record in lease.left:
                lease.start(record)
            lease.finish()
            for offset in reversed(range(first, first + SLICE)):
                progress.finish(offset)
        took = thread_time() - began
        assert progress.finished == RECORDS
        return took / RECORDS

    assert_cost("take and finish out of order", take)


def test_handling_costs_no_more_than_recorded(records):
    """The executor with an empty handler costs at most twice the recorded CPU time per record."""

    async def run() -> float:
        (position,), done, count = AssignedPartitions().add([PARTITION]), asyncio.Event(), 0
        position.begin(0)

        async def handle(_record: Record) -> None:
            nonlocal count
            count += 1
            if count == RECORDS:
                done.set()

        async def recover(_executor: RecordExecutor, _work: RecordWorker, _failed: FailuresByIndex) -> None:
            raise AssertionError("no record fails")

        executor = RecordExecutor(Lanes("partition", RECORDS), HandlerCall(handle, handle), recover, 64, lambda: None)
        running = asyncio.create_task(executor.run(1))
        began = thread_time()
        executor.add(position.deliver(records, RECORDS))
        await asyncio.wait_for(done.wait(), 60)
        took = thread_time() - began
        running.cancel()
        await asyncio.wait({running})
        return took / RECORDS

    assert_cost("handle", lambda: asyncio.run(run()))
