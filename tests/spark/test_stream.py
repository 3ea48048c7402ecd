"""Streams: micro-batches and commits to the group after Spark's own."""

from __future__ import annotations

import asyncio
import shutil
import threading

import pytest
from pyspark.errors import StreamingQueryException

from tailrace import (
    App,
    ConfigurationError,
    ConsumerStateError,
    GroupNotEmptyError,
    HandlerFailedError,
    Record,
    TopicPartition,
)
from tailrace.config import resolve
from tailrace.core.offset_map import decode_metadata
from tailrace.observe.hooks import Observer
from tailrace.spark import SparkPipeline
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


class Live:
    """Live member of the group, in a thread for the duration of a ``with`` block."""

    def __init__(self, app: App) -> None:
        self._app, self._loop = app, asyncio.new_event_loop()
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        async def live() -> None:
            async with self._app:
                await self._app.wait_ready()
                self._ready.set()
                await self._end.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(live())

    def __enter__(self) -> None:
        self._thread.start()
        assert self._ready.wait(90)

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)


def test_each_micro_batch_is_committed_to_the_group(world):
    """Each micro-batch is committed to the group while the query runs."""
    world.make_topic(2)
    world.produce((b"%d" % n for n in range(4_000)), keys=(b"%d" % n for n in range(4_000)))
    seen, folder = [0], world.folder

    async def wait(record: Record) -> None:
        # The first records of every other batch wait until the commits of earlier batches were observed.
        while not (folder / f"seen-{record.offset // 500}").exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)

    query = world.pipeline(world.app_with_ledger(first=wait)).start("enter", options={"maxOffsetsPerTrigger": "500"})
    while seen[-1] < 4_000:
        (folder / f"seen-{len(seen) - 1}").touch()
        world.until(lambda: sum(world.committed.values()) != seen[-1])
        seen.append(sum(world.committed.values()))
    query.stop()

    assert seen == sorted(seen)
    assert len(seen) >= 1 + 4
    assert world.committed == world.ends
    assert world.ledger.counts() == {(p, n): 1 for p, end in world.ends.items() for n in range(end)}


def test_stop_lets_the_current_batch_finish(world):
    """stop() waits for the current batch, commits it, and starts no other one."""
    world.make_topic()
    world.produce([b"a"] * 1_000, keys=map(str.encode, map(str, range(1_000))))

    async def slow(_record: Record) -> None:
        await asyncio.sleep(0.01)

    query = world.pipeline(world.app_with_ledger(first=slow)).start("enter", max_records_per_batch=50)
    while not (last := sum(world.committed.values())):
        assert not query.await_termination(0)
    query.stop()

    assert 0 < last <= world.committed[0] < 1_000
    assert world.ledger.counts() == {(0, n): 1 for n in range(world.committed[0])}


def test_a_second_query_or_backfill_is_refused(world):
    """A second query or backfill of a group raises, and the first query continues."""
    world.make_topic()
    world.produce([b"a"])
    pipeline = world.pipeline(world.app_with_ledger())
    query = pipeline.start("enter")
    world.until(lambda: world.committed == {0: 1})

    other, bare = world.pipeline(world.app_with_ledger(), "other"), SparkPipeline(world.app_with_ledger(), world.spark)
    for again in (pipeline.start, pipeline.backfill, other.start, other.backfill, bare.backfill):
        with pytest.raises(
            ConsumerStateError, match=r"a query of .*enter for group .* in this process - stop\(\) it first"
        ):
            again("enter")
    world.produce([b"b"])
    world.until(lambda: world.committed == {0: 2})
    query.stop()

    assert world.ledger.counts() == {(0, 0): 1, (0, 1): 1}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_live_member_is_refused(world, protocol):
    """A query of a group with a live member raises and handles no record, in either group protocol."""
    world.make_topic()
    world.produce([b"a"])
    pipeline = world.pipeline(world.app_with_ledger())
    live = world.app(group_protocol=protocol, client_id="the-live-one")

    @live.handler(world.topic)
    async def handle(record: Record) -> None:
        pass

    with Live(live):
        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            pipeline.backfill("enter")
        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            pipeline.start("enter")

    assert world.ledger.lines() == []


def test_a_member_that_joins_within_a_batch_ends_the_query(world):
    """If a member joins during a batch, the query ends with an error and the batch is not committed."""
    world.make_topic()
    world.produce([b"a"] * 3)
    begun, go_on = world.folder / "begun", world.folder / "go-on"

    async def wait(_record: Record) -> None:
        begun.touch()
        while not go_on.exists():  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.05)

    live = world.app(client_id="the-live-one")

    @live.handler(world.topic, on_failure="pause", retry=None)
    async def handle(record: Record) -> None:
        raise RuntimeError("it commits nothing")

    query = world.pipeline(world.app_with_ledger(first=wait)).start("enter")
    world.until(begun.exists)
    with Live(live):
        go_on.touch()

        with pytest.raises(GroupNotEmptyError, match="the-live-one"):
            query.await_termination(120)

    assert not query.is_active
    assert world.committed == {0: 0}


def test_a_permanent_failure_ends_the_query(world):
    """A permanent failure raises HandlerFailedError, and the batch is not committed."""
    world.make_topic()
    world.produce([b"1", b"nonsense"])
    app = world.app()

    @app.handler(world.topic)
    async def count(number: int) -> None:
        pass

    query = world.pipeline(app).start(count)

    with pytest.raises(HandlerFailedError, match="offset 1"):
        query.await_termination(120)
    assert world.committed == {0: 0}


def test_stop_raises_the_error_that_ended_the_query(world):
    """stop() raises the error of a handler or a sink that ended the query."""
    world.make_topic()
    world.produce([b"1"])
    app = world.app()

    @app.handler(world.topic)
    async def count(number: int) -> int:
        return number

    def sink(_rows, _batch_id: int) -> None:
        raise OSError("the disk is full")

    query = world.pipeline(app).start(count, sink=sink)
    world.until(lambda: not query.is_active)

    with pytest.raises(StreamingQueryException, match="the disk is full"):
        query.stop()
    assert world.committed == {0: 0}


def test_a_deleted_checkpoint_loses_and_repeats_nothing(world):
    """A query without its checkpoint continues at the committed offsets."""
    world.make_topic()
    world.produce([b"a"] * 10)
    world.run_to_the_end()
    shutil.rmtree(world.folder / "checkpoint")
    world.produce([b"b"] * 5)

    world.run_to_the_end()

    assert world.ledger.counts() == {(0, n): 1 for n in range(15)}
    assert world.committed == {0: 15}


def test_a_reset_group_starts_a_new_generation(world):
    """After the group's offsets are reset, the checkpoint starts a new generation."""
    world.make_topic()
    world.produce([b"a"] * 10)
    world.run_to_the_end()
    world.commit(8)

    world.run_to_the_end()

    assert world.ledger.counts() == {(0, n): 2 if n >= 8 else 1 for n in range(10)}
    assert world.committed == {0: 10}


def test_the_next_start_commits_batches_of_sparks_commit_log(world):
    """Batches in Spark's commit log that were not committed to the group are committed and not repeated."""
    world.make_topic()
    world.produce([b"a"] * 10)
    world.run_to_the_end()
    before = decode_metadata(world.metadata, 10).user_text
    world.produce([b"b"] * 5)
    world.run_to_the_end()
    with SparkOffsetStore(resolve(world.app().options), world.group, Observer()) as desk:
        desk.commit({TopicPartition(world.topic, 0): PartitionCommit(10)}, before, may_go_back=True)

    world.run_to_the_end()

    assert before.endswith("batch=0")
    assert world.ledger.counts() == {(0, n): 1 for n in range(15)}
    assert world.committed == {0: 15}


def test_a_checkpoint_of_another_group_is_refused(world):
    """A checkpoint of another group raises an error with its handler and group."""
    world.make_topic()
    world.produce([b"a"])
    world.run_to_the_end()
    other = world.app_with_ledger(group_id=f"{world.group}-other")

    with pytest.raises(ConfigurationError, match=rf"'.*enter' of group '{world.group}'"):
        world.pipeline(other).start("enter")


def test_a_folder_with_other_files_is_refused(world):
    """A folder with other files is refused as checkpoint, and nothing is written to it."""
    world.make_topic()
    (world.folder / "checkpoint").mkdir()
    (world.folder / "checkpoint" / "offsets").mkdir()

    with pytest.raises(ConfigurationError, match="is not empty and not a pipeline's checkpoint"):
        world.pipeline(world.app_with_ledger()).start("enter")
