"""Drivers and executors that are killed, separate executors, and a machine without any Java of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(280)]

_DRIVER = Path(__file__).with_name("driver.py")
_WAIT_S = 150


def started(world, *, how: str, master: str = "local[2]", without_java: bool = False) -> subprocess.Popen:
    """A driver in a process of its own."""
    environment = dict(os.environ)
    if without_java:
        environment.pop("JAVA_HOME", None)
        places = environment["PATH"].split(os.pathsep)
        environment["PATH"] = os.pathsep.join(one for one in places if not Path(one, "java").exists())
        environment["PATH"] += os.pathsep + str(commands_of(world.folder))
    arguments = [world.server.bootstrap_servers, world.group, world.topic, str(world.folder), master, how]
    with (world.folder / "stderr").open("w") as said:
        return subprocess.Popen(
            [sys.executable, str(_DRIVER), *arguments], env=environment, stdout=subprocess.PIPE, stderr=said, text=True
        )


def commands_of(folder: Path) -> Path:
    """All that a system has but Java, which stands beside it."""
    place = folder / "commands"
    place.mkdir()
    for home in ("/bin", "/usr/bin"):
        for command in Path(home).iterdir():
            if command.name != "java" and not (place / command.name).is_symlink():
                (place / command.name).symlink_to(command)
    return place


def until_gone(pids: list[int]) -> None:
    """Wait until the processes have ended, as the workers of a driver that is gone do."""
    waiting = threading.Event()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            for _ in range(600):
                os.kill(pid, 0)
                waiting.wait(0.05)
            raise AssertionError(f"{pid} is still there")


def test_a_driver_killed_in_mid_batch_loses_nothing(world):
    """SIGKILL of the driver: the next one goes on where the group stands, and repeats are of the killed batch alone."""
    world.make_topic(2)
    world.produce([b"a"] * 1_500, partition=0)
    world.produce([b"b"] * 1_500, partition=1)
    driver = started(world, how="hang", without_java=True)
    waiting = threading.Event()
    for _ in range(_WAIT_S * 10):
        if (world.folder / "happened").exists() or driver.poll() is not None:
            break
        waiting.wait(0.1)
    assert (world.folder / "happened").exists(), (world.folder / "stderr").read_text()
    driver.kill()
    driver.communicate(timeout=30)
    until_gone(world.ledger.pids)
    committed = world.committed

    report = world.pipeline(world.entering(), "another").backfill("enter")

    counts = world.ledger.counts()
    assert committed == {0: 500, 1: 500}
    assert set(counts) == {(p, n) for p in range(2) for n in range(1_500)}
    assert set(counts.values()) <= {1, 2}
    assert {(p, n) for (p, n), times in counts.items() if times > 1} <= {
        (p, n) for p in (0, 1) for n in range(500, 1_000)
    }
    assert report.records == 2_000
    assert world.committed == {0: 1_500, 1: 1_500}


def test_a_killed_executor_is_made_good_by_the_other(world):
    """On separate executors a task whose executor is killed runs again; the rest of it is as on one machine."""
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
