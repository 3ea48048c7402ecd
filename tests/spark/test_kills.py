"""Killed drivers, executors and workers; separate executors."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.commands import environment, without_java

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(280)]

_DRIVER = Path(__file__).with_name("driver.py")
_WAIT_S = 150


def started(
    world, *, how: str, master: str = "local[2]", hides_java: bool = False, batch: int = 1_000, at: int = 700
) -> subprocess.Popen:
    """Start a driver in its own process, in which the failure ``how`` happens at an offset."""
    variables = without_java(environment(), world.folder) if hides_java else environment()
    names = [world.server.bootstrap_servers, world.group, world.topic, str(world.folder)]
    arguments = [*names, master, how, str(batch), str(at)]
    with (world.folder / "stderr").open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, str(_DRIVER), *arguments], env=variables, stdout=subprocess.PIPE, stderr=stderr, text=True
        )


def until_gone(pids: list[int]) -> None:
    """Wait until the processes have ended, as workers do without their driver."""
    waiting = threading.Event()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for _ in range(1_200):
                os.kill(pid, 0)
                waiting.wait(0.05)
            raise AssertionError(f"{pid} is still there")


def killed_in_its_second_batch(world, how: str, **options) -> dict[int, int]:
    """Kill a driver in its second batch and return the committed offsets."""
    driver = started(world, how=how, **options)
    waiting, happened = threading.Event(), world.folder / "happened"
    try:
        for _ in range(_WAIT_S * 10):
            # A stream commits when Spark reports the batch, maybe during the next one.
            if driver.poll() is not None or (happened.exists() and sum(world.committed.values()) > 0):
                break
            waiting.wait(0.1)
        assert happened.exists(), (world.folder / "stderr").read_text()
    finally:
        driver.kill()
        driver.communicate(timeout=60)
    until_gone(world.ledger.pids)
    return world.committed


def test_a_killed_backfill_repeats_only_its_last_batch(world):
    """After a driver is killed, only records after the last commit are repeated, and none of 200,000 is lost."""
    half, batch = 100_000, 40_000
    world.make_topic(4)
    keys = [b"%d" % n for n in range(half)]
    world.produce(keys, keys=keys)
    producing = threading.Thread(target=world.produce, args=(keys[:-1_000],), kwargs={"keys": keys[:-1_000]})
    producing.start()

    committed = killed_in_its_second_batch(world, "hang", hides_java=True, batch=batch, at=12_000)
    report = world.pipeline(world.app_with_ledger(), "another").backfill("enter", max_records_per_batch=batch)
    producing.join(120)
    # Some records must be produced after Spark has ended.
    world.produce(keys[-1_000:], keys=keys[-1_000:])
    world.continue_live()

    counts = world.ledger.counts()
    repeated = [(p, n) for (p, n), times in counts.items() if times > 1]
    assert sum(committed.values()) == batch
    assert half <= batch + report.records < 2 * half
    assert len(counts) == 2 * half
    assert set(counts.values()) <= {1, 2}
    assert 0 < len(repeated) <= batch
    assert all(committed[p] <= n for p, n in repeated)


def test_a_killed_stream_repeats_only_its_last_batch(world):
    """After a driver is killed, the next stream continues the checkpoint and repeats only the last batch."""
    world.make_topic(2)
    world.produce([b"a"] * 1_500, partition=0)
    world.produce([b"b"] * 1_500, partition=1)

    committed = killed_in_its_second_batch(world, "stream")
    query = world.pipeline(world.app_with_ledger(named="enter")).start("enter", trigger="available_now")
    assert query.await_termination(120)

    counts = world.ledger.counts()
    assert committed == {0: 500, 1: 500}
    assert (world.folder / "checkpoint" / "generation-1").exists()
    assert not (world.folder / "checkpoint" / "generation-2").exists()
    assert set(counts) == {(p, n) for p in range(2) for n in range(1_500)}
    assert set(counts.values()) <= {1, 2}
    assert {n // 500 for (_, n), times in counts.items() if times > 1} <= {1}
    assert world.committed == {0: 1_500, 1: 1_500}


def test_a_crashed_python_worker_does_not_end_the_query(world):
    """If a Python worker crashes, its task runs again and the query continues."""
    world.make_topic()
    world.produce([b"a"] * 1_500)

    driver = started(world, how="kill-worker", master="")
    out, _ = driver.communicate(timeout=_WAIT_S)

    assert driver.returncode == 0, (world.folder / "stderr").read_text()
    assert (world.folder / "happened").exists()
    assert out.split() == ["1500"]
    assert set(world.ledger.counts()) == {(0, n) for n in range(1_500)}
    assert world.committed == {0: 1_500}


def test_tasks_of_a_killed_executor_run_again(world):
    """If an executor is killed, its tasks run again on another one."""
    world.make_topic(2)
    world.produce([b"a"] * 1_500, partition=0)
    world.produce([b"b"] * 1_500, partition=1)

    driver = started(world, how="kill-executor", master="local-cluster[2,1,1024]")
    out, _ = driver.communicate(timeout=_WAIT_S)

    counts = world.ledger.counts()
    assert driver.returncode == 0, (world.folder / "stderr").read_text()
    assert (world.folder / "happened").exists()
    assert out.split() == ["3000"]
    assert set(counts) == {(p, n) for p in range(2) for n in range(1_500)}
    assert {n // 500 for (_, n), times in counts.items() if times > 1} <= {1}
    assert world.committed == {0: 1_500, 1: 1_500}
