"""Backfills: existing records in batches, with a commit after each."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import pytest
from confluent_kafka import TopicPartition as ConfluentTopicPartition

from tailrace import HandlerFailedError, OffsetOutOfRangeError, Record, TopicPartition
from tailrace.observe.events import OffsetReset

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


def event_recorder():
    """Return a hook that keeps the events of the driver; workers get copies, as its class is pickled."""

    class EventRecorder:
        """Hook that keeps events in the driver."""

        def __init__(self) -> None:
            self.events = []

        def on_event(self, event) -> None:
            self.events.append(event)

    return EventRecorder()


def test_each_record_is_handled_once_with_a_commit_after_each_batch(world):
    """A backfill handles each record once in batches of limited size, and commits after each."""
    world.make_topic(2)
    world.produce((b"%d" % n for n in range(5_000)), keys=(b"%d" % n for n in range(5_000)))
    seen = []

    report = world.pipeline(world.app_with_ledger()).backfill(
        "enter", max_records_per_batch=2_000, on_progress=seen.append
    )

    ends = world.ends
    assert world.ledger.counts() == {(p, offset): 1 for p in range(2) for offset in range(ends[p])}
    assert world.committed == ends
    assert (report.records, report.failures, report.batches) == (5_000, 0, 3)
    assert {one.partition: offset for one, offset in report.offsets.items()} == ends
    assert [one.done for one in seen] == [0, 2_000, 4_000, 5_000]
    assert {one.total for one in seen} == {5_000}


def test_a_backfill_continues_at_the_committed_offsets(world):
    """A later backfill continues at the committed offsets and ignores ``since``."""
    world.make_topic()
    world.produce([b"a"] * 30)
    pipeline = world.pipeline(world.app_with_ledger())
    first = pipeline.backfill("enter")
    world.produce([b"b"] * 12)

    second, third = pipeline.backfill("enter", since="earliest"), pipeline.backfill("enter")

    assert (first.records, second.records, third.records) == (30, 12, 0)
    assert world.ledger.counts() == {(0, offset): 1 for offset in range(42)}
    assert pipeline.group_status("enter").lag == 0


def test_since_and_until_bound_a_backfill(world):
    """Offsets and times limit the backfill of a new group."""
    world.make_topic()
    world.produce([b"a"] * 20)
    pipeline = world.pipeline(world.app_with_ledger())
    place = TopicPartition(world.topic, 0)

    by_offsets = pipeline.backfill("enter", since={place: 5}, until={place: 9})
    by_time = pipeline.backfill("enter", until=dt.datetime(2000, 1, 1, tzinfo=dt.UTC))

    assert (by_offsets.records, by_time.records) == (4, 0)
    assert sorted(world.ledger.counts()) == [(0, offset) for offset in range(5, 9)]
    assert world.committed == {0: 9}


def test_records_finished_by_the_app_are_skipped(world):
    """A backfill skips the records that the group's offset map lists."""
    world.make_topic()
    world.produce(b"%d" % n for n in range(100))
    live, done, others = world.app(stop_timeout_ms=2_000), set(), asyncio.Event()

    @live.handler(world.topic, order_by="none", concurrency=8)
    async def handle(record: Record) -> None:
        if record.offset in {3, 50}:
            await asyncio.Event().wait()
        done.add(record.offset)
        if len(done) == 98:
            others.set()

    async def until_all_others() -> None:
        async with live:
            await others.wait()

    asyncio.run(asyncio.wait_for(until_all_others(), 120))
    world.produce([b"more"] * 5)
    report = world.pipeline(world.app_with_ledger()).backfill("enter", max_records_per_batch=30)

    assert sorted(world.ledger.lines()) == [(0, 3), (0, 50), *((0, offset) for offset in range(100, 105))]
    assert (report.records, report.already_finished) == (7, 95)
    assert world.committed == {0: 105}


def test_deleted_offsets_are_counted(world):
    """Deleted offsets are counted in an event and the report, and auto_offset_reset applies."""
    world.make_topic()
    world.produce([b"a"] * 20)
    world.commit(4)
    deleted = world.admin.delete_records([ConfluentTopicPartition(world.topic, 0, 15)])
    next(iter(deleted.values())).result(20)
    hook = event_recorder()

    with pytest.raises(OffsetOutOfRangeError):
        world.pipeline(world.app_with_ledger(auto_offset_reset="none")).backfill("enter")
    report = world.pipeline(world.app_with_ledger(hooks=(hook,))).backfill("enter")

    resets = [one for one in hook.events if isinstance(one, OffsetReset)]
    assert (report.records, report.lost) == (5, 11)
    assert [(one.before, one.after, one.lost) for one in resets] == [(4, 15, 11)]
    assert sorted(world.ledger.lines()) == [(0, offset) for offset in range(15, 20)]


def test_a_permanent_failure_ends_the_backfill_without_a_commit(world):
    """Without dead letters, a permanent failure raises HandlerFailedError and nothing is committed."""
    world.make_topic()
    world.produce([b"1", b"nonsense", b"3"])
    app = world.app()

    @app.handler(world.topic)
    async def count(number: int) -> None:
        pass

    with pytest.raises(HandlerFailedError, match=r"count failed at .*\[0\] offset 1"):
        world.pipeline(app).backfill(count)

    assert world.committed == {0: 0}


def test_skipped_records_are_counted(world):
    """With ``on_failure="skip"``, a backfill continues and its report counts the failures."""
    world.make_topic()
    world.produce([b"1", b"nonsense", b"3"])
    app = world.app(on_failure="skip")

    @app.handler(world.topic)
    async def count(number: int) -> None:
        pass

    report = world.pipeline(app).backfill(count)

    assert (report.records, report.failures, report.dead_letters) == (3, 1, 0)
    assert world.committed == {0: 3}


def test_members_continue_exactly_where_spark_ended(world):
    """Live members continue where a backfill ended, and each of 200,000 records is handled once."""
    half = 100_000
    world.make_topic(4)
    keys = [b"%d" % n for n in range(half)]
    world.produce(keys, keys=keys)
    producing = threading.Thread(target=world.produce, args=(keys[:-1_000],), kwargs={"keys": keys[:-1_000]})
    producing.start()

    report = world.pipeline(world.app_with_ledger()).backfill("enter", max_records_per_batch=40_000)
    producing.join(120)
    # Some records must be produced after Spark has ended.
    world.produce(keys[-1_000:], keys=keys[-1_000:])
    world.continue_live()

    counts = world.ledger.counts()
    assert half <= report.records < 2 * half
    assert len(counts) == 2 * half
    assert set(counts.values()) == {1}
