"""Sequences of interrupted backfills and queries over one checkpoint write each row once."""

from __future__ import annotations

import contextlib
import itertools
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tailrace.spark import overwritten_folders
from tests.support.commands import environment

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(280)]

_DRIVER = Path(__file__).with_name("sequence_driver.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sink", ["folders", "delta"])
def test_killed_backfills_and_queries_write_each_row_once(world, sink):
    """Drivers are killed before and after the write of a batch, and the next call is the other one, or the same."""
    count = 40_000
    world.make_topic(2)
    world.produce((b"%d" % n for n in range(count)), keys=(b"%d" % n for n in range(count)))
    arguments = [world.server.bootstrap_servers, world.group, world.topic, str(world.folder)]
    sequence = [
        ("backfill", "after"),
        ("start", "after"),
        ("backfill", "before"),
        ("start", "late"),
        ("backfill", "after"),
        ("start", "never"),
    ]

    for call, point in sequence:
        done = subprocess.run(
            [sys.executable, str(_DRIVER), *arguments, call, sink, point],
            capture_output=True,
            text=True,
            timeout=250,
            env=environment(),
            check=False,
        )
        assert done.returncode == (0 if point == "never" else -signal.SIGKILL), done.stderr

    assert done.stdout == f"{count} {count}"
    assert sum(world.committed.values()) == count


def test_failed_batches_are_repeated_by_the_other_call(world):
    """A batch that was written but not committed is repeated with its number, by a backfill and by a query."""
    world.make_topic(2)
    world.produce((b"%d" % n for n in range(60)), keys=(b"%d" % n for n in range(60)))
    app, place = world.app(), str(world.folder / "table")

    @app.handler(world.topic)
    async def same(number: int) -> int:
        return number

    write, calls = overwritten_folders(place), itertools.count(1)

    def sink(rows, number: int) -> None:
        write(rows, number)
        if next(calls) % 2 == 0:
            raise OSError("written, but not committed")

    pipeline = world.pipeline(app)
    for call in itertools.cycle(["backfill", "start", "start", "backfill"]):
        if sum(world.committed.values()) == 60:
            break
        with contextlib.suppress(OSError, StreamingQueryException):
            if call == "backfill":
                pipeline.backfill(same, sink=sink, max_records_per_batch=8)
            else:
                pipeline.start(same, sink=sink, max_records_per_batch=12, trigger="available_now").await_termination(90)

    found = sorted(row.value for row in world.spark.read.parquet(place).collect())
    assert found == list(range(60))
