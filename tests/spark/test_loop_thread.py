"""Event loop in a thread: tasks end properly, however the loop ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Iterator

import anyio
import pytest

from tailrace import TailraceError
from tailrace.app.lifecycle import wait_for_any
from tailrace.spark.loop_thread import LoopThread


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    made = LoopThread("a test's")
    yield made
    made.close()


async def leave() -> None:
    sys.exit("the config is missing")


def test_close_waits_for_cleanup_after_sys_exit(loop_thread, monkeypatch):
    """close() waits for the cleanup of tasks after one of them has called sys.exit()."""
    began, ended, may_end = threading.Event(), [], asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            began.set()
            await may_end.wait()
            await wait_for_any(may_end)
            ended.append("work")

    async def both() -> None:
        working = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.gather(working, leave())

    future = asyncio.run_coroutine_threadsafe(both(), loop_thread.loop)
    assert began.wait(20)
    call = loop_thread.loop.call_soon_threadsafe

    def call_and_go_on(*arguments: object) -> None:
        call(*arguments)
        call(may_end.set)

    monkeypatch.setattr(loop_thread.loop, "call_soon_threadsafe", call_and_go_on)
    loop_thread.close()

    assert ended == ["work"]
    assert loop_thread.loop.is_closed()
    assert future.done()


def test_a_second_sys_exit_interrupts_no_cleanup(loop_thread):
    """If a task calls sys.exit() while it is canceled, the other tasks still end properly."""
    ended, has_left = [], asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await has_left.wait()
            await wait_for_any(has_left)
            ended.append("work")

    async def leave_again() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            has_left.set()
            await leave()

    async def all_of_them() -> None:
        tasks = [asyncio.create_task(work()), asyncio.create_task(leave_again())]
        await asyncio.sleep(0)
        await asyncio.gather(*tasks, leave())

    with pytest.raises(TailraceError, match=r"ended by SystemExit: the config is missing"):
        loop_thread.call(all_of_them())

    assert ended == ["work"]


def test_tasks_that_have_not_started_are_awaited():
    """After sys.exit(), no coroutine of a task group remains unawaited."""

    async def ends() -> None:
        sys.exit("no more")

    async def spawns() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)

    async def side_by_side() -> None:
        # The second call ends the loop after the task is created and before its first step.
        await asyncio.wait({asyncio.create_task(spawns()), asyncio.create_task(ends())})

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        thread = LoopThread("a test")
        with pytest.raises(TailraceError, match="no more"):
            thread.call(side_by_side())
        thread.close()
        del thread
        gc.collect()

    assert not [str(one.message) for one in warned if "never awaited" in str(one.message)]
