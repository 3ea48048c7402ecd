"""Known problems of other Kafka clients, on the real broker.

The full list, with tests in other files, is docs/explanation/fifteen-pains.md.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections import Counter
from itertools import pairwise

import psutil
import pytest
from confluent_kafka import Producer

from tailrace import App, Consumer, Record, Retry
from tailrace.observe.events import GroupJoined, GroupRequestCompleted, OffsetsCommitted, PartitionsLost
from tests.support.consumer_group import until
from tests.support.expulsion import expel
from tests.support.loop_turns import LoopTurns

HASTY = {"rebalance_drain_ms": 500, "stop_timeout_ms": 60_000}
"""Options that give handlers half a second to end, and the final commit all the time that it needs."""

SESSION_S = 3


@pytest.fixture
def options(kafka_server, group):
    """Return options of a consumer or an app in this test's group."""
    return {"bootstrap_servers": kafka_server.bootstrap_servers, "group_id": group}


# ---- rebalances ----------------------------------------------------------------------------------------------------


async def test_a_rebalance_does_not_break_a_commit_loop(options, new_topic, witness, group):
    """While members join and leave, commits in a getmany loop do not fail, and each record is delivered once."""
    topic, handled, waiting = new_topic(6), Counter(), asyncio.Event()

    async def loop(consumer: Consumer) -> None:
        while sum(handled.values()) < 3_000:
            for record in await consumer.getmany(max_records=20, timeout_ms=100):
                handled[record.partition, record.offset] += 1
                await asyncio.sleep(0.001)
            await consumer.commit()

    async def passing_by() -> None:
        async with Consumer(topic, **quick) as guest:
            while len(handled) < 1_500:
                for record in await guest.getmany(max_records=20, timeout_ms=100):
                    handled[record.partition, record.offset] += 1
                await guest.commit()
        waiting.set()

    quick = {**options, "enable_auto_commit": False, "heartbeat_interval_ms": 200}
    async with Consumer(topic, **quick) as one, Consumer(topic, **quick) as other:
        for partition in range(6):
            witness.produce(topic, (b"%d" % n for n in range(500)), partition=partition)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for consumer in (one, other):
                tasks.create_task(loop(consumer))
            await until(lambda: len(handled) > 300)
            tasks.create_task(passing_by())

    assert waiting.is_set()
    assert len(handled) == sum(handled.values()) == 3_000
    assert await witness.committed(group, topic, 6) == dict.fromkeys(range(6), 500)


async def test_a_listener_may_wait_for_the_lock_of_the_reading_loop(options, new_topic, witness):
    """A rebalance completes although its listener needs a lock that the reading loop has around getmany()."""
    topic, lock, handled, revoked = new_topic(4), asyncio.Lock(), Counter(), []

    class Listener:
        async def on_partitions_revoked(self, partitions: frozenset) -> None:
            async with lock:
                revoked.append(len(partitions))

    async def read(consumer: Consumer) -> None:
        while sum(handled.values()) < 400:
            async with lock:
                for record in await consumer.getmany(timeout_ms=200):
                    handled[record.partition, record.offset] += 1
                    await asyncio.sleep(0.001)

    quick = {**options, "rebalance_listener": Listener(), "heartbeat_interval_ms": 200}
    async with Consumer(topic, **quick) as first:
        reading = asyncio.create_task(read(first))
        await until(lambda: len(first.assignment()) == 4)
        async with asyncio.timeout(30), Consumer(topic, **quick) as second:
            await until(lambda: len(second.assignment()) == 2)
            for partition in range(4):
                witness.produce(topic, (b"%d" % n for n in range(100)), partition=partition)
            await asyncio.gather(reading, read(second))

    assert revoked[0] == 2
    assert set(handled.values()) == {1}


async def test_an_app_removed_from_its_group_rejoins(options, new_topic, witness, group, recorder):
    """An app whose partitions are lost and whose commits are refused rejoins, and handles all records."""
    topic, handled, is_free = new_topic(2), Counter(), asyncio.Event()
    app = App(**options, hooks=[recorder], heartbeat_interval_ms=200, auto_commit_interval_ms=100)
    for partition in range(2):
        witness.produce(topic, (b"%d" % n for n in range(50)), partition=partition)

    @app.handler(topic)
    async def handle(record: Record) -> None:
        if record.offset == 20:
            await is_free.wait()
        handled[record.partition, record.offset] += 1

    async with app:
        await until(lambda: len(handled) == 40)
        await expel(options["bootstrap_servers"], group, next(iter(await witness.members(group))))
        await recorder.wait_for(PartitionsLost)
        is_free.set()
        await until(lambda: len(handled) == 100)
        await until(lambda: app.health().status == "ok")

    assert await witness.committed(group, topic, 2) == {0: 50, 1: 50}


# ---- handlers that take long ---------------------------------------------------------------------------------------


async def test_a_handler_that_blocks_its_thread_keeps_the_membership(options, new_topic, witness, group, recorder):
    """While a plain function blocks beyond the session timeout, heartbeats continue and no rebalance occurs."""
    topic, handled, begun, is_free = new_topic(), [], [], threading.Event()
    app = App(**options, hooks=[recorder], session_timeout_ms=SESSION_S * 1_000, heartbeat_interval_ms=200)
    witness.produce(topic, [b"0", b"1"])

    @app.handler(topic)
    def handle(value: bytes) -> None:
        begun.append(time.monotonic())
        # In the event loop this would block the heartbeats.
        assert is_free.wait(20)
        handled.append(value)

    async with app:
        await until(lambda: bool(begun))
        while time.monotonic() < begun[0] + SESSION_S:
            await recorder.wait_for(GroupRequestCompleted, len(recorder.of(GroupRequestCompleted)) + 1)
        is_free.set()
        await until(lambda: len(handled) == 2)

    assert handled == [b"0", b"1"]
    assert len(begun) == 2
    assert len(recorder.of(GroupJoined)) == 1
    assert not recorder.of(PartitionsLost)
    assert await witness.committed(group, topic, 1) == {0: 2}


# ---- commits -------------------------------------------------------------------------------------------------------


async def test_b15_commits_pass_gaps_and_no_unfinished_records(  # noqa: PLR0917 - fixtures
    options, new_topic, witness, kafka_server, group, recorder
):
    """A record in flight holds back the commit; gaps of transaction markers and aborted records do not."""
    topic, handled, is_free = new_topic(), [], asyncio.Event()
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap_servers, "transactional.id": group})
    await asyncio.to_thread(producer.init_transactions, 20)
    for number in range(6):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"aborted" if number % 2 else b"good")
        await asyncio.to_thread(producer.flush, 20)
        await asyncio.to_thread(producer.abort_transaction if number % 2 else producer.commit_transaction, 20)
    app = App(**options, hooks=[recorder], isolation_level="read_committed", auto_commit_interval_ms=50)

    @app.handler(topic, order_by="none")
    async def handle(record: Record) -> None:
        if record.offset == 12:
            await is_free.wait()
        handled.append(record.offset)

    async with app:
        await until(lambda: len(handled) == 14)
        await recorder.wait_for(OffsetsCommitted, where=lambda event: 12 in event.offsets.values())
        held = await witness.committed(group, topic, 1)
        is_free.set()
        await recorder.wait_for(OffsetsCommitted, where=lambda event: 36 in event.offsets.values())

    assert held == {0: 12}
    assert sorted(handled) == [n for n in range(36) if n % 12 < 5]
    assert await witness.committed(group, topic, 1) == await witness.ends(topic, 1) == {0: 36}


@pytest.mark.parametrize("raises", [asyncio.CancelledError, ConnectionError])
async def test_the_record_of_a_handler_canceled_by_the_stop_is_not_finished(options, new_topic, witness, group, raises):
    """The record of a handler that is canceled at shutdown is not committed, and the next start handles it.

    Nor is the record dead-lettered if the handler turns the cancellation into another error.
    """
    topic, dead, begun, cancelled, handled = new_topic(), new_topic(), [], [], []
    witness.produce(topic, (b"%d" % n for n in range(10)))
    app, following = App(**options, **HASTY, dead_letter=dead, retry=Retry(attempts=1)), App(**options)

    @app.handler(topic)
    async def never_comes_back(n: int) -> None:
        begun.append(n)
        try:
            await asyncio.sleep(3600 if n == 4 else 0)
        except asyncio.CancelledError as error:
            cancelled.append(n)
            raise raises from error

    @following.handler(topic)
    async def handle(n: int) -> None:
        handled.append(n)

    async with app:
        await until(lambda: 4 in begun)
        stopping_at = time.monotonic()
    took_s = time.monotonic() - stopping_at
    held = await witness.committed(group, topic, 1)
    async with following:
        await until(lambda: len(handled) == 6)

    assert took_s < 15
    assert cancelled == [4]
    assert held == {0: 4}
    assert handled == [4, 5, 6, 7, 8, 9]
    assert await witness.ends(dead, 1) == {0: 0}


# ---- failures ------------------------------------------------------------------------------------------------------


async def test_a_failing_record_is_retried_without_a_busy_loop(options, new_topic, witness, group):
    """A record that always fails is retried a few times a second without a busy loop, and is not committed."""
    topic, attempts, good = new_topic(), [], []
    app = App(**options, retry=Retry(attempts=2, backoff_ms=100, max_backoff_ms=300, jitter=False))
    witness.produce(topic, [b"poison", b"good"], keys=[b"a", b"b"])

    @app.handler(topic, order_by="key")
    async def handle(value: bytes) -> None:
        if value == b"poison":
            attempts.append(time.monotonic())
            raise ValueError("no")
        good.append(value)

    async with app:
        await until(lambda: bool(attempts))
        with LoopTurns() as turns:
            await until(lambda: len(attempts) >= 5)

    assert good == [b"good"]
    assert min(later - before for before, later in pairwise(attempts)) >= 0.1
    assert turns.per_second < 500
    assert (await witness.committed(group, topic, 1)).get(0, 0) == 0


# ---- start, stop and long runs ---------------------------------------------------------------------------------------


async def test_many_consumers_stop_at_once(options, new_topic):
    """Twenty members of a group that stop at the same time all end."""
    topic = new_topic(20)
    quick = {**options, "heartbeat_interval_ms": 100, "stop_timeout_ms": 60_000}
    members = [Consumer(topic, **quick) for _ in range(20)]
    await asyncio.gather(*(one.start() for one in members))
    await until(lambda: all(len(one.assignment()) == 1 for one in members), 60)

    began_at = time.monotonic()
    await asyncio.gather(*(one.stop() for one in members))

    assert time.monotonic() - began_at < 20
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_starting_and_stopping_leaves_nothing_behind(options, new_topic, witness):
    """After repeated starts and stops of consumers and apps, no objects, tasks, threads or open files remain."""
    topic = new_topic()
    witness.produce(topic, [b"0"] * 40)

    async def come_and_go() -> None:
        async with Consumer(topic, **options) as consumer:
            assert (await consumer.getone(timeout_ms=30_000)) is not None
        app, done = App(**options), asyncio.Event()

        @app.handler(topic)
        async def handle(value: bytes) -> None:
            done.set()

        async with app, asyncio.timeout(30):
            await done.wait()

    def left() -> Counter[str]:
        gc.collect()
        counted = Counter(str(type(one).__module__).partition(".")[0] for one in gc.get_objects())
        return Counter(
            objects=counted["tailrace"] + counted["aiokafka"],
            tasks=len(asyncio.all_tasks()),
            threads=threading.active_count(),
            files=psutil.Process().num_fds(),
        )

    for _ in range(2):
        await come_and_go()
        witness.produce(topic, [b"0"])
    before, rounds = left(), 8
    for _ in range(rounds):
        witness.produce(topic, [b"0"])
        await come_and_go()

    # Other tests have objects in this process, too; a leak would add at least one per round.
    await until(lambda: all(count < before[what] + rounds for what, count in left().items()))


async def test_waiting_for_long_leaves_nothing_behind(options, new_topic):
    """The number of objects does not grow over thousands of calls that are canceled or time out."""

    async def wait_in_vain(consumer: Consumer, times: int) -> None:
        for _ in range(times):
            assert await consumer.getmany(timeout_ms=0) == []
            assert await consumer.getone(timeout_ms=0) is None
            waiting = asyncio.create_task(consumer.getone())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})

    async with Consumer(new_topic(), **options) as consumer:
        await until(lambda: len(consumer.assignment()) == 1)
        await wait_in_vain(consumer, 200)
        gc.collect()
        before = len(gc.get_objects())
        await wait_in_vain(consumer, 2_000)
        gc.collect()

        assert len(gc.get_objects()) - before < 1_500


async def test_an_empty_handler_is_fast(options, new_topic, witness):
    """A handler with an empty body handles a hundred thousand records within seconds, also under load."""
    topic, app, handled = new_topic(2), App(**options), 0
    witness.produce(topic, (b"." * 100 for _ in range(100_000)))
    everything = asyncio.Event()

    @app.handler(topic)
    async def handle(value: bytes) -> None:
        nonlocal handled
        handled += 1
        if handled == 100_000:
            everything.set()

    async with app, asyncio.timeout(60):
        await app.wait_ready()
        began_at = time.monotonic()
        await everything.wait()

    # Other frameworks handle a few hundred a second; on an idle machine this handles some hundred thousand.
    assert time.monotonic() - began_at < 20
