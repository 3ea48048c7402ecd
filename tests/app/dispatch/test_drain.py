"""A rebalance waits for running handlers of a revoked partition, and for nothing else."""

from __future__ import annotations

import asyncio
import time

import pytest

from tailrace import App, Record, Retry, TopicPartition
from tailrace.app.dispatch.batch_executor import BatchExecutor
from tailrace.app.dispatch.batching import BatchAssembler
from tailrace.app.dispatch.call import HandlerCall
from tailrace.app.dispatch.lanes import Lanes
from tailrace.app.dispatch.record_executor import RecordExecutor, RecordWorker
from tailrace.app.failures.policy import FailuresByIndex
from tailrace.app.policies import Batch
from tailrace.consumer.partition import AssignedPartitions, Partition
from tailrace.observe.events import DrainTimedOut, GroupJoined
from tests.support.consumer_group import until
from tests.support.event_recorder import EventRecorder


@pytest.fixture
def new_app(kafka_server, group):
    """Return a factory of members that revoke all partitions before they rejoin, and drain without limit."""

    def make(**options):
        in_general = {
            "group_id": group,
            "heartbeat_interval_ms": 200,
            "rebalance_drain_ms": 90_000,
            "partition_assignment_strategy": "range",
        }
        return App(bootstrap_servers=kafka_server.bootstrap_servers, **in_general | options)

    return make


async def has_begun_to_drain(app: App) -> None:
    (group,) = app.runtime.started_run.groups
    await until(lambda: any(one.is_halted for one in group.source.consumer._started.partitions))


def other_app(new_app, topic: str, seen: list[int], **options) -> tuple[App, EventRecorder]:
    """Return an app that takes over the partition, and a recorder of its events."""
    events = EventRecorder()
    app = new_app(hooks=[events], **options)

    @app.handler(topic)
    async def note(record: Record) -> None:
        seen.append(record.offset)

    return app, events


@pytest.mark.parametrize("attempts", [1, 9], ids=["given up", "tried again"])
@pytest.mark.parametrize("order_by", ["partition", "none"])
async def test_a_record_that_fails_during_a_drain_is_not_retried(  # noqa: PLR0917 - fixtures
    new_app, new_topic, witness, recorder, order_by, attempts
):
    """A record that fails during a drain is not retried here: the rebalance ends, and the next owner has the record."""
    topic, let_go, seen = new_topic(), asyncio.Event(), []
    witness.produce(topic, [b"0"])
    retry = Retry(attempts=attempts, backoff_ms=60_000, max_backoff_ms=60_000)
    app = new_app(hooks=[recorder], retry=retry, on_failure="pause")

    @app.handler(topic, order_by=order_by, concurrency=4)
    async def fail(record: Record) -> None:
        seen.append("begun")
        await let_go.wait()
        raise ValueError("no")

    other, events = other_app(new_app, topic, seen)
    async with app:
        await until(lambda: seen == ["begun"])
        async with other:
            await has_begun_to_drain(app)
            let_go.set()
            await events.wait_for(GroupJoined, timeout_s=20)
            await recorder.wait_for(GroupJoined, 2, timeout_s=20)
            await until(lambda: len(seen) == 2)

    assert seen[1] in {0, "begun"}
    assert not recorder.of(DrainTimedOut)


async def test_a_drain_waits_for_all_handlers_of_a_topic(new_app, new_topic, witness, group, recorder):
    """If two handlers share a topic by ``when``, the rebalance waits for both."""
    topic, seen, again = new_topic(), [], []
    let_go = {b"a": asyncio.Event(), b"b": asyncio.Event()}
    witness.produce(topic, [b"a", b"b", b"a", b"b"])
    app = new_app(hooks=[recorder])

    async def handle(record: Record) -> None:
        seen.append(record.offset)
        await let_go[record.value].wait()

    @app.handler(topic, when=lambda record: record.value == b"a")
    async def handle_a(record: Record) -> None:
        await handle(record)

    @app.handler(topic, when=lambda record: record.value == b"b")
    async def handle_b(record: Record) -> None:
        await handle(record)

    other, events = other_app(new_app, topic, again)
    async with app:
        await until(lambda: sorted(seen) == [0, 1])
        async with other:
            await has_begun_to_drain(app)
            let_go[b"a"].set()
            with pytest.raises(TimeoutError):
                await events.wait_for(GroupJoined, timeout_s=1)
            let_go[b"b"].set()
            await events.wait_for(GroupJoined, timeout_s=20)
            await until(lambda: len(seen) + len(again) == 4)

    assert sorted(seen + again) == [0, 1, 2, 3]
    assert await witness.committed(group, topic, 1) == {0: 4}
    assert not recorder.of(DrainTimedOut)


async def test_a_stopping_app_starts_no_records_of_new_partitions(new_app, new_topic, witness, group, recorder):
    """A stopping app that is assigned more partitions leaves their records to the next owner."""
    topic, let_go, begun = new_topic(2), asyncio.Event(), []
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    app = new_app(hooks=[recorder], stop_timeout_ms=180_000, **cooperative)

    @app.handler(topic)
    async def handle(record: Record) -> None:
        begun.append(record.topic_partition)
        await let_go.wait()

    other, _ = other_app(new_app, topic, [], **cooperative)
    async with app:
        consumer = app.runtime.started_run.groups[0].source.consumer
        async with other:
            await until(lambda: len(consumer.assignment()) == 1)
            (mine,) = consumer.assignment()
            theirs = TopicPartition(topic, 1 - mine.partition)
            witness.produce(topic, [b"0"], partition=mine.partition)
            await until(lambda: begun == [mine])
            stopping = asyncio.create_task(app.stop())
            await until(lambda: app.health().status == "stopping")
        await until(lambda: theirs in consumer.assignment())
        witness.produce(topic, [b"0"], partition=theirs.partition)
        their_partition = consumer._started.partitions.get(theirs)
        await until(lambda: their_partition.batches or len(begun) > 1)
        let_go.set()
        await stopping

    assert begun == [mine]
    committed = await witness.committed(group, topic, 2)
    assert (committed[mine.partition], committed.get(theirs.partition, 0)) == (1, 0)


@pytest.mark.parametrize("name", ["{topic}", "{topic}.{group}.retry.1m"])
@pytest.mark.parametrize("order_by", ["key", "none"])
async def test_a_drain_waits_for_a_running_batch_after_a_failed_one(  # noqa: PLR0917 - fixtures
    new_app, new_topic, kafka_server, witness, group, recorder, order_by, name
):
    """A drain waits for a running batch only: other records go to the next owner, and finished ones stay finished."""
    topic, let_go, seen = new_topic(), asyncio.Event(), []
    source = name.format(topic=topic, group=group)
    due = [("tailrace-due-at", b"0")]
    if source != topic:
        kafka_server.create_topic(source)
    witness.produce(source, [b"bad", b"good", b"behind"], keys=[b"a", b"b", b"b"], headers=due)
    if source != topic:
        witness.produce(source, [b"not due"])
    retry = Retry(attempts=9, backoff_ms=60_000, max_backoff_ms=60_000, topic_delays_ms=[60_000], allow_reordering=True)
    app = new_app(hooks=[recorder], retry=retry)

    @app.batch_handler(topic, order_by=order_by, max_records=1, concurrency=1)
    async def handle(records: list[Record]) -> None:
        if records[0].value == b"bad" and not seen:
            raise ValueError("no")
        seen.append(records[0].offset)
        await let_go.wait()

    other, events = other_app(new_app, topic, seen)
    async with app:
        await until(lambda: seen == [1])
        async with other:
            await has_begun_to_drain(app)
            with pytest.raises(TimeoutError):
                await events.wait_for(GroupJoined, timeout_s=1)
            let_go.set()
            await events.wait_for(GroupJoined, timeout_s=20)
            await until(lambda: 2 in seen)

    assert seen == [1, 0, 2]
    assert not recorder.of(DrainTimedOut)
    assert await witness.committed(group, source, 1) == {0: 3}


async def test_records_left_by_one_handler_repeat_none_of_another(new_app, new_topic, witness, group, recorder):
    """Records that one handler has not started at a revocation do not repeat records that another has finished."""
    topic, let_go, seen = new_topic(), asyncio.Event(), []
    witness.produce(topic, [b"a", b"a", b"b", b"b"])
    app = new_app(hooks=[recorder])

    @app.handler(topic, when=lambda record: record.value == b"a", order_by="none", concurrency=1)
    async def handle_a(record: Record) -> None:
        await let_go.wait()
        seen.append(record.offset)

    @app.handler(topic, when=lambda record: record.value == b"b")
    async def handle_b(record: Record) -> None:
        seen.append(record.offset)

    other, events = other_app(new_app, topic, seen)
    async with app:
        await until(lambda: seen == [2, 3])
        async with other:
            await has_begun_to_drain(app)
            let_go.set()
            await events.wait_for(GroupJoined, timeout_s=20)
            witness.produce(topic, [b"b"])
            await until(lambda: 4 in seen)

    assert seen == [2, 3, 0, 1, 4]
    assert await witness.committed(group, topic, 1) == {0: 5}


PARTITION = TopicPartition("orders", 0)
RECORD = Record("orders", 0, 0, None, b"0", 0)


def at_the_beginning() -> Partition:
    (position,) = AssignedPartitions().add([PARTITION])
    position.begin(0)
    return position


def drop(executor: RecordExecutor | BatchExecutor, position: Partition) -> None:
    """Drop a partition as ``GroupRuntime`` does."""
    position.progress.halt()
    executor.drop(PARTITION)


async def test_a_record_lost_when_its_pause_ends_is_not_retried():
    """A record is not retried if its partition is lost in the same loop iteration in which its pause ends."""
    loop, tried, waited, position = asyncio.get_running_loop(), [], [], at_the_beginning()

    async def fail(record: Record) -> None:
        tried.append(record.offset)
        raise ValueError("no")

    async def recover(_line: RecordExecutor, work: RecordWorker, _failed: FailuresByIndex) -> None:
        loop.call_later(0.01, drop, line, position)
        # Blocks the loop until both callbacks are due.
        loop.call_soon(time.sleep, 0.1)
        waited.append(await work.pause_all(0.05))

    line = RecordExecutor(Lanes("key", 10), HandlerCall(fail, fail), recover, 1, lambda: None)
    running = asyncio.create_task(line.run(1))
    line.add(position.deliver([RECORD], 1))
    await until(lambda: waited != [])
    running.cancel()
    await asyncio.wait({running})

    assert (tried, waited) == ([0], [False])
    assert position.finished == 0


async def test_a_batch_does_not_start_when_its_partition_was_just_lost():
    """A batch whose task has not run yet does not start if its partition is lost."""
    tried, position = [], at_the_beginning()

    async def attempt(records: list[Record]) -> dict[int, Exception]:
        tried.append(records)
        return {}

    async def recover(*_: object) -> None: ...

    batching = BatchAssembler("partition", Batch(max_records=1), window=10, ahead=1)
    line = BatchExecutor(batching, attempt, recover, 1, lambda: None)
    running = asyncio.create_task(line.run(1))
    line.add(position.deliver([RECORD], 1))
    drop(line, position)
    await until(lambda: not line.workers.in_flight)
    running.cancel()
    await asyncio.wait({running})

    assert tried == []
