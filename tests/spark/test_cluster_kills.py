"""Kills of every kind of process on the way of 200,000 records, from a standalone cluster to the live app."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import World
from tests.spark.test_kills import until_gone
from tests.support.standalone_spark import submit_environment

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(900)]

_DRIVER = Path(__file__).with_name("kill_driver.py")
_HALF, _SLICE = 25_000, 5_000
"""Records of each of four partitions that Spark handles, and how many of them are in a batch."""
_KILLED_BATCHES = {1, 2, 3}


def started(world: World, way: str, master: str = "") -> subprocess.Popen:
    names = [world.server.bootstrap_servers, world.group, world.topic, str(world.folder)]
    with (world.folder / f"log-{way}").open("a") as log:
        return subprocess.Popen(
            [sys.executable, str(_DRIVER), way, master, *names], env=submit_environment(), stderr=log
        )


def handled(world: World) -> list[tuple[int, int]]:
    """Return partition and offset of all calls of the handler, in the order of their times on this machine."""
    lines = [line for file in world.ledger.folder.iterdir() for line in file.read_text().splitlines()]
    calls = sorted(tuple(map(int, line.split())) for line in lines)
    return [(partition, offset) for _, partition, offset in calls]


@pytest.mark.parametrize("way", ["pipeline", "results"])
def test_kills_of_all_processes_lose_and_reorder_no_record(standalone, kafka_server, tmp_path, way):
    """Killed workers, executors, drivers and members lose no record, and only records of killed batches repeat."""
    world = World(None, kafka_server, tmp_path)
    world.make_topic(4)
    values = [b"%d" % number for number in range(_HALF)]
    for partition in range(4):
        world.produce(values, partition=partition)

    # The handlers kill a worker in the second batch and an executor in the third.
    driver = started(world, way, standalone.url)
    waiting = threading.Event()
    while not (world.folder / "driver").exists() and driver.poll() is None:
        waiting.wait(0.1)
    driver.kill()
    driver.wait(60)
    until_gone(world.ledger.pids)
    assert started(world, way, standalone.url).wait(400) == 0, (world.folder / f"log-{way}").read_text()
    assert world.committed == dict.fromkeys(range(4), _HALF)
    for partition in range(4):
        world.produce(values, partition=partition)
    assert started(world, "live").wait(240) == -9
    committed = world.committed
    live = started(world, "live")
    world.until(lambda: world.committed == world.ends)
    live.terminate()
    live.wait(60)

    calls = handled(world)
    assert {one.name for one in world.folder.iterdir()} >= {"worker", "executor", "driver", "live"}
    for number in range(4):
        first_calls = list(dict.fromkeys(offset for partition, offset in calls if partition == number))
        assert first_calls == list(range(2 * _HALF))
    repeated = [(partition, offset) for (partition, offset), times in Counter(calls).items() if times > 1]
    assert {offset // _SLICE for _, offset in repeated if offset < _HALF} <= _KILLED_BATCHES
    assert all(offset >= committed[partition] for partition, offset in repeated if offset >= _HALF)
    if way == "results":
        assert rows_of(world.folder / "table") == [
            (partition, offset) for partition in range(4) for offset in range(_HALF)
        ]


def rows_of(table: Path) -> list[tuple[int, int]]:
    """Return partition and offset of the rows in the files that Spark's file sink has committed."""
    logs = [file.read_text().splitlines()[1:] for file in (table / "_spark_metadata").iterdir() if file.name.isdigit()]
    files = [json.loads(line)["path"].removeprefix("file://") for log in logs for line in log]
    columns = [pq.read_table(file, columns=["partition", "offset"]).to_pydict() for file in files]
    return sorted(pair for one in columns for pair in zip(one["partition"], one["offset"], strict=True))
