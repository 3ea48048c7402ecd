"""Offset maps of a group on Spark after a log was truncated."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import TailraceError, TopicPartition
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap, decode_metadata
from tailrace.observe.events import OffsetMapIgnored
from tailrace.observe.hooks import Observer
from tailrace.spark.offsets.store import PartitionCommit, SparkOffsetStore
from tailrace.testing import KafkaServer
from tests.spark.conftest import World
from tests.support.event_recorder import EventRecorder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[KafkaServer]:
    """Start a broker that the tests of this module may kill."""
    with KafkaServer() as started:
        yield started


@pytest.fixture
def world(spark, mortal_server, tmp_path) -> World:
    return World(spark, mortal_server, tmp_path)


def commit(world: World, offset: int, known: OffsetMap) -> None:
    """Commit an offset map as the app does."""
    with SparkOffsetStore(resolve(world.app().options), world.group, Observer()) as store:
        store.commit({TopicPartition(world.topic, 0): PartitionCommit(offset, known)}, "")


def cut_log(folder: Path, offset: int) -> None:
    """Truncate a partition's log to the records below `offset`, which must be the start of a batch."""
    log = folder / f"{0:020}.log"
    data, end = log.read_bytes(), 0
    while True:
        base, length = struct.unpack_from(">qi", data, end)
        if base >= offset:
            break
        end += 12 + length
    assert base == offset
    log.write_bytes(data[:end])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["backfill", "stream"])
def test_records_written_after_a_truncation_are_not_skipped(world, engine):
    """Records that a later leader wrote are handled, even at offsets that the offset map lists."""
    world.make_topic()
    world.produce(b"%d" % n for n in range(10))
    world.server.restart()
    world.produce(b"%d" % n for n in range(20))
    commit(world, 3, OffsetMap(3, 20, (3, 15), leader_epoch=0))
    events = EventRecorder()
    app = world.app_with_ledger()
    app.configure(hooks=(events,))
    pipeline = world.pipeline(app)

    if engine == "backfill":
        pipeline.backfill("enter")
    else:
        assert pipeline.start("enter", trigger="available_now").await_termination(120)

    assert sorted(world.ledger.lines()) == [(0, n) for n in range(3, 30)]
    assert "ends that epoch at 10" in events.of(OffsetMapIgnored)[0].reason
    assert (world.committed, decode_metadata(world.metadata, 30).offset_map) == ({0: 30}, None)


@pytest.mark.slow
def test_a_truncation_during_a_backfill_ends_it(world):
    """A truncation ends a backfill, and the next one handles the records written again."""
    world.make_topic()
    for batch in range(4):
        world.produce([b"old"] * 10, partition=0)
        assert world.ends == {0: 10 * (batch + 1)}
    commit(world, 0, OffsetMap(0, 40, range(10), leader_epoch=0))

    def truncate(progress) -> None:
        if progress.done == 10:
            world.server.kill()
            cut_log(world.server.node.data / f"{world.topic}-0", 20)
            world.server.restart()
            world.produce([b"new"] * 30, partition=0)

    pipeline = world.pipeline(world.app_with_ledger())
    with pytest.raises(TailraceError, match=r"was truncated: .* - start again"):
        pipeline.backfill("enter", max_records_per_batch=10, on_progress=truncate)
    assert sorted(world.ledger.lines()) == [(0, n) for n in range(10)]
    report = pipeline.backfill("enter")

    assert report.already_finished == 0
    assert sorted(world.ledger.lines()) == [(0, n) for n in range(50)]
    assert world.committed == {0: 50}
