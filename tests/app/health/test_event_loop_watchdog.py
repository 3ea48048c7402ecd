"""The watchdog reports a blocked event loop, with the user's line, while the loop is blocked."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Coroutine
from itertools import pairwise

import pytest
import uvloop

from tailrace.app.health.event_loop_watchdog import Watchdog
from tailrace.observe.events import LoopBlocked, LoopUnblocked

LIMIT_S = 0.25
"""Limit above the scheduling delays of a busy machine."""


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return a factory of event loops of one kind; each kind has its own frames below the callbacks."""
    return request.param


class Watched:
    """Runner of coroutines in a watched event loop."""

    def __init__(self, new_loop=asyncio.new_event_loop, *, tell=None) -> None:
        self._new_loop = new_loop
        self._tell = self._take if tell is None else tell
        self.events: queue.SimpleQueue[LoopBlocked | LoopUnblocked] = queue.SimpleQueue()
        self.is_blocked = threading.Event()
        self.threads: list[threading.Thread] = []
        self.watchdog: Watchdog | None = None

    def _take(self, event: LoopBlocked | LoopUnblocked) -> None:
        self.threads.append(threading.current_thread())
        self.events.put(event)
        if isinstance(event, LoopBlocked):
            self.is_blocked.set()

    def run(self, main: Callable[[], Coroutine]) -> list[LoopBlocked | LoopUnblocked]:
        """Run a coroutine, and return the events emitted in between."""

        async def watched() -> None:
            loop = asyncio.get_running_loop()
            self.watchdog = Watchdog(loop, LIMIT_S, running_handler=lambda: "shop.charge", on_event=self._tell)
            self.watchdog.start()
            try:
                await main()
            finally:
                self.watchdog.stop()

        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(watched())
        return self.left()

    def left(self) -> list[LoopBlocked | LoopUnblocked]:
        found = []
        while not self.events.empty():
            found.append(self.events.get())
        return found

    async def next(self) -> LoopBlocked | LoopUnblocked:
        return await asyncio.to_thread(self.events.get, timeout=10)


def line_of(function: Callable[..., object], text: str) -> int:
    """Return the line of the function that contains the text."""
    import inspect  # noqa: PLC0415

    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if text in line)


# ---- blocked -------------------------------------------------------------------------------------------------------


def test_a_block_is_reported_while_it_lasts(new_loop):
    """A coroutine that blocks the loop is reported with its handler, function and line before it returns."""
    watched = Watched(new_loop)
    seen = []

    def block() -> None:
        # Returns once the event was emitted; without one, this takes ten seconds and fails.
        for _ in range(1_000):
            time.sleep(0.01)  # here
            if not watched.events.empty():
                seen.append((watched.events.get(), watched.watchdog.blocked_s))
                return

    async def main() -> None:
        block()
        freed = await watched.next()
        seen.append((freed, watched.watchdog.blocked_s))

    assert watched.run(main) == []
    (blocked, blocked_s), (freed, freed_s) = seen
    assert isinstance(blocked, LoopBlocked)
    assert blocked.handler == "shop.charge"
    assert blocked.where == f"test_event_loop_watchdog.py:{line_of(block, 'here')} in block"
    assert blocked.stack[-1].endswith(" in block")
    assert "test_event_loop_watchdog.py" in blocked.stack[-2]
    assert LIMIT_S <= blocked.seconds <= blocked_s < 5
    assert isinstance(freed, LoopUnblocked)
    assert blocked.seconds < freed.seconds < 5
    assert freed_s == 0.0


def test_each_block_is_reported_once():
    """Each block emits one event when it is detected and one when it ends, however long it lasts."""
    watched = Watched()

    async def main() -> None:
        for _ in range(2):
            assert watched.is_blocked.wait(10)
            watched.is_blocked.clear()
            time.sleep(2 * LIMIT_S)  # noqa: ASYNC251
            assert isinstance(await watched.next(), LoopBlocked)
            assert 3 * LIMIT_S <= (await watched.next()).seconds < 10

    assert watched.run(main) == []


def test_a_blocking_callback_is_reported():
    """A callback that blocks the loop is reported as a coroutine is."""
    watched = Watched()

    def callback() -> None:
        watched.is_blocked.wait(10)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(callback)
        assert (await watched.next()).where.endswith(" in callback")
        await watched.next()

    assert watched.run(main) == []


def test_a_call_into_a_library_is_reported_by_the_users_line():
    """A block in the standard library is reported by the user's line that called it; the stack contains the rest."""
    reading, writing = os.pipe()

    def tell(event: LoopBlocked | LoopUnblocked) -> None:
        watched.events.put(event)
        if isinstance(event, LoopBlocked):
            os.close(writing)

    watched = Watched(tell=tell)

    async def main() -> None:
        subprocess.run(["cat"], stdin=reading, check=True, timeout=10)  # noqa: ASYNC221
        os.close(reading)
        blocked = await watched.next()
        assert blocked.where == f"test_event_loop_watchdog.py:{line_of(main, 'subprocess.run')} in main"
        assert "subprocess.py" in blocked.stack[-1]
        await watched.next()

    assert watched.run(main) == []


def test_the_users_line_in_site_packages_is_reported(tmp_path, monkeypatch):
    """The user's line is reported also if the user's code is installed in site-packages."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "watched_shop.py").write_text(
        "import watched_driver\n\n\nasync def charge(until):\n    watched_driver.call(until)\n"
    )
    (packages / "watched_driver.py").write_text("def call(until):\n    until.wait(10)\n")
    monkeypatch.setattr(sys, "path", [str(packages), *sys.path])
    import watched_shop  # noqa: PLC0415

    watched = Watched()

    async def main() -> None:
        await asyncio.create_task(watched_shop.charge(watched.is_blocked))
        assert (await watched.next()).where == "watched_shop.py:5 in charge"
        await watched.next()

    assert watched.run(main) == []


def test_c_code_that_holds_the_gil_is_reported(new_loop):
    """C code that lets no thread run is reported as soon as it releases the GIL, with its duration and line."""
    watched, sample = Watched(new_loop), 300_000
    sample_s = min(timeit.repeat(lambda: sum(range(sample)), number=1, repeat=10))
    enough = round(sample * 6 * LIMIT_S / sample_s)

    def crunch() -> tuple[float, float]:
        began = time.monotonic()
        sum(range(enough))
        let_go = time.monotonic()
        # On a busy machine the watchdog's thread may not run at once.
        while watched.events.empty():
            time.sleep(0.001)
        return let_go - began, time.monotonic() - began

    async def main() -> None:
        kept_s, told_s = crunch()
        assert kept_s > 1.5 * LIMIT_S, "not long enough to prove anything"
        blocked = await watched.next()
        assert blocked.where.endswith(" in crunch")
        assert LIMIT_S <= blocked.seconds < told_s + LIMIT_S
        await watched.next()

    assert watched.run(main) == []


# ---- not blocked ---------------------------------------------------------------------------------------------------


def test_an_idle_loop_is_not_reported(new_loop):
    watched = Watched(new_loop)

    async def idle() -> None:
        await asyncio.to_thread(time.sleep, 2 * LIMIT_S)

    assert watched.run(idle) == []


def test_a_busy_loop_that_yields_is_not_reported(new_loop):
    """A busy loop that yields is not reported, unless the machine itself suspends it."""
    watched, turned_at = Watched(new_loop), [time.monotonic()]

    async def busy() -> None:
        """Work in small pieces, in several tasks."""
        ends_at = time.monotonic() + 2 * LIMIT_S

        async def work() -> None:
            while time.monotonic() < ends_at:
                sum(range(2_000))
                turned_at.append(time.monotonic())
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(20):
                tasks.create_task(work())

    events = watched.run(busy)
    turned_at.append(time.monotonic())
    stood_still_s = max(later - before for before, later in pairwise(turned_at))

    assert events == [] or stood_still_s >= LIMIT_S


def test_an_idle_loop_with_an_overdue_tick_is_not_reported(new_loop):
    """An idle loop with an overdue tick, as after the process was suspended, is not reported."""
    watched = Watched(new_loop)

    def look(loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        # The call was received when the innermost frame waits in select; the frame of uvloop
        # is not Python's, and its caller is seen instead.
        while sys._current_frames()[thread_id].f_code.co_name not in {"select", "run"}:
            time.sleep(0.001)
        watched.watchdog._check(loop.time() + 3_600)

    async def main() -> None:
        await asyncio.to_thread(look, asyncio.get_running_loop(), threading.get_ident())

    assert watched.run(main) == []


def test_a_loop_that_is_not_running_is_not_reported(new_loop):
    """A loop between two runs is not reported, whatever its thread does."""

    def work(depth: int) -> None:
        if depth:
            work(depth - 1)
        else:
            time.sleep(2 * LIMIT_S)

    events: list[object] = []
    with asyncio.Runner(loop_factory=new_loop) as runner:

        async def start() -> Watchdog:
            watchdog = Watchdog(
                asyncio.get_running_loop(), LIMIT_S, running_handler=lambda: None, on_event=events.append
            )
            watchdog.start()
            return watchdog

        watchdog = runner.run(start())
        work(40)
        runner.run(asyncio.sleep(LIMIT_S))
        watchdog.stop()

    assert events == []


# ---- start and end -------------------------------------------------------------------------------------------------


def thread_of(watchdog: Watchdog) -> threading.Thread:
    assert watchdog._thread is not None
    return watchdog._thread


def test_stop_waits_for_the_thread():
    """The thread has ended when stop() returns; a watchdog can be stopped twice and started again."""
    with asyncio.Runner() as runner:
        watchdog = Watchdog(runner.get_loop(), LIMIT_S, running_handler=lambda: None, on_event=lambda _event: None)

        async def once() -> threading.Thread:
            watchdog.start()
            thread = thread_of(watchdog)
            assert thread.is_alive()
            watchdog.stop()
            watchdog.stop()
            return thread

        first, second = runner.run(once()), runner.run(once())

    assert first is not second
    assert not first.is_alive()
    assert not second.is_alive()


def test_the_thread_ends_with_its_loop(new_loop):
    """The thread ends without an event if its loop is closed first."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        watchdog = Watchdog(runner.get_loop(), 0.05, running_handler=lambda: None, on_event=lambda _event: None)

        async def start() -> None:
            watchdog.start()

        runner.run(start())
        thread = thread_of(watchdog)

    thread.join(10)

    assert not thread.is_alive()
    assert watchdog.blocked_s == 0.0


def test_the_watchdog_does_not_keep_a_program_alive():
    """A program that never stops its watchdog exits at once."""
    program = """
import asyncio
from tailrace.app.health.event_loop_watchdog import Watchdog
async def main():
    Watchdog(asyncio.get_running_loop(), 3600, running_handler=lambda: None, on_event=print).start()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_hook_that_raises_receives_the_next_event(caplog):
    """The error of a hook is logged, and the hook receives the watchdog's next event."""

    def tell(event: LoopBlocked | LoopUnblocked) -> None:
        watched._take(event)
        raise ValueError("no ear")

    watched = Watched(tell=tell)

    async def main() -> None:
        watched.is_blocked.wait(10)
        for _ in range(2):
            await watched.next()

    watched.run(main)

    assert [record.exc_info[1].args for record in caplog.records] == [("no ear",), ("no ear",)]


def test_events_are_emitted_from_the_watchdogs_thread():
    """Events are emitted in the watchdog's thread, because the blocked loop cannot emit them."""
    watched = Watched()

    async def main() -> None:
        watched.is_blocked.wait(10)
        await watched.next()
        await watched.next()

    watched.run(main)

    assert {thread.name for thread in watched.threads} == {"tailrace watchdog"}
