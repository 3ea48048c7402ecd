"""Ends of sessions, drivers and queries: no batch is lost and no connection remains open."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace import ConsumerStateError, HandlerFailedError, Record
from tailrace.observe.events import SparkQueryFailed
from tests.support.commands import environment
from tests.support.event_recorder import EventRecorder

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(180)]

_DRIVER = Path(__file__).with_name("ending_driver.py")


def ended(world, how: str) -> subprocess.CompletedProcess[str]:
    """Run a driver that ends in its second batch of ten records."""
    world.make_topic()
    world.produce([b"a"] * 40)
    arguments = [world.server.bootstrap_servers, world.group, world.topic, str(world.folder), how]
    return subprocess.run(
        [sys.executable, str(_DRIVER), *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env=environment(),
        check=False,
    )


def flushed(world) -> list[int]:
    files = world.folder.glob("flushed-*")
    return sorted(int(line) for file in files for line in file.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("stop", 0), ("raise", 1), ("exit", 5), ("none", 0)])
def test_the_current_batch_ends_before_the_session(world, how, code):
    """When a driver ends in any way, its current batch is flushed and committed first."""
    driver = ended(world, how)

    assert driver.returncode == code, driver.stderr
    assert world.committed == {0: 20}, driver.stderr
    assert flushed(world) == list(range(20))
    opened, stopped = (len(list(world.folder.glob(f"{name}-*"))) for name in ("opened", "stopped"))
    assert opened == stopped > 0


@pytest.mark.slow
def test_a_stopped_spark_context_is_named_in_the_error(world):
    """After the Spark context was stopped, an error names it, and the next run handles the batch again."""
    driver = ended(world, "context")

    assert "the Spark session was stopped while the query ran" in driver.stdout, driver.stderr
    assert driver.stdout.endswith("closed\n")
    assert world.committed == {0: 10}
    assert flushed(world) == list(range(10))


def test_a_failed_query_emits_an_event_without_await_termination(world):
    """A failed query emits an event and closes its connections, even without await_termination()."""
    world.make_topic()
    world.produce([b"a"] * 10)
    events = EventRecorder()

    async def fail(record: Record) -> None:
        if record.offset == 5:
            raise OSError("the disk is full")

    app = world.app_with_ledger(first=fail, declared={"on_failure": "stop"}, hooks=(events,))
    before = {one for one in threading.enumerate() if one.name == "tailrace spark"}
    query = world.pipeline(app).start("enter")
    world.until(lambda: events.of(SparkQueryFailed))

    (event,) = events.of(SparkQueryFailed)
    assert (event.group_id, "the disk is full" in event.error) == (world.group, True)
    assert isinstance(event.exception, HandlerFailedError)
    assert {one for one in threading.enumerate() if one.name == "tailrace spark"} <= before
    assert not query.is_active
    with pytest.raises(HandlerFailedError):
        query.await_termination(60)


def test_a_second_backfill_is_refused_while_one_runs(world):
    """A second backfill raises while one runs, and no record is handled twice."""
    world.make_topic()
    world.produce([b"a"] * 40)
    pipeline, refused = world.pipeline(world.app_with_ledger()), []

    def second() -> None:
        with pytest.raises(ConsumerStateError, match=r"a backfill of .*enter for group .* wait until it ends") as e:
            pipeline.backfill("enter", on_progress=lambda _: None)
        refused.append(e)

    def meanwhile(progress) -> None:
        if progress.done == 10:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join(60)

    report = pipeline.backfill("enter", max_records_per_batch=10, on_progress=meanwhile)

    assert len(refused) == 1
    assert report.records == 40
    assert world.ledger.counts() == {(0, n): 1 for n in range(40)}
    assert pipeline.backfill("enter").records == 0
