"""The simulated loop: virtual time, one order of events for each seed, and nothing that reaches beyond the process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
import uuid

import pytest

from tailrace.testing.simulation import SimulatedCluster, SimulationError, simulated


def test_hours_pass_at_once():
    """The clock jumps to the next timer, and ``time.time`` with it."""
    with simulated(1) as loop:
        began, wall = loop.time(), time.time()
        loop.run_until_complete(asyncio.sleep(36_000))

        assert loop.time() - began == pytest.approx(36_000)
        assert time.time() - wall == pytest.approx(36_000)


def test_ids_depend_on_the_seed_only():
    """The same seed gives the same ids, and the next seed others; after the simulation, ids are random again."""
    found = []
    for seed in (1, 1, 2):
        with simulated(seed):
            found.append(uuid.uuid4())

    assert found[0] == found[1] != found[2]
    assert uuid.uuid4() != uuid.uuid4()


def test_a_deadlock_lists_what_waits():
    """If all tasks wait for ever, an error names their coroutines."""

    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    with simulated(1) as loop, pytest.raises(SimulationError, match=r"1 tasks wait for ever.*wait_for_nothing"):
        loop.run_until_complete(wait_for_nothing())


def test_real_sockets_and_threads_raise():
    """Code that reads from a real socket, or starts a thread, gets an error."""
    one, other = socket.socketpair()
    one.setblocking(False)
    with simulated(1) as loop, one, other:
        with pytest.raises(SimulationError, match="real socket"):
            loop.run_until_complete(loop.sock_recv(one, 1))
        with pytest.raises(SimulationError, match="started the thread mine"):
            threading.Thread(target=print, name="mine").start()


def test_a_frozen_process_goes_on_where_it_was():
    """A frozen process runs nothing, and continues when it is thawed."""
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(asyncio.get_running_loop().time())

    async def main() -> None:
        cluster = SimulatedCluster(loop, 1)
        process = cluster.process()
        process.start(tick())
        await asyncio.sleep(2.5)
        process.freeze()
        await asyncio.sleep(5)
        assert len(ticks) == 2
        process.thaw()
        await asyncio.sleep(0.1)
        assert len(ticks) == 3

    with simulated(1) as loop:
        loop.run_until_complete(main())


def test_a_killed_process_runs_no_cleanup():
    """A killed process runs none of its ``finally``."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append("finally")

    async def main() -> None:
        process = SimulatedCluster(loop, 1).process()
        process.start(work())
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(100)
        assert not ended

    with simulated(1) as loop:
        loop.run_until_complete(main())
