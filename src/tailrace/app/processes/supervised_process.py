"""A process that is kept running: started again when it dies, ended when it is asked to.

Rule of this file: when to start again is ``core.processes.worker_plan``'s to say, and whether at all is the owner's.
This one does what they say, and sees to it that no child outlives it. A child that has promised to say how it is, and
does not, hangs: that is seen soon, and after its own word's time it is killed, which is a death like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, get_args

import anyio

from tailrace.app.health.checks import Check, Status
from tailrace.app.processes.child import Child, unpickled
from tailrace.app.processes.parent import MARGIN_S
from tailrace.core.processes.messages import FailedMessage, FromChild, ReadyMessage, StatusMessage, StopMessage
from tailrace.core.processes.worker_plan import Restarts
from tailrace.errors import TailraceError
from tailrace.observe.events import WorkerExited, WorkerStarted
from tailrace.observe.hooks import Observer

__all__ = ["ProcessExit", "ProcessOwner", "SupervisedProcess"]

_UNREAD_S = 1.0
"""How long is waited for the rest of what a dead child has said."""

_BEAT_S = 1.0
"""How often it is looked whether a child has said something; it does as often."""
_BEATS = 3
"""After so many looks in vain it counts as hanging. Looks are counted and not seconds: we may have slept ourselves."""

_STATUSES: dict[str, Status] = {one: one for one in get_args(Status)}


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """An end that nobody asked for."""

    worker: int
    start: int
    exit_code: int
    error: TailraceError | None
    """What it said; None when it could not say anything."""
    trouble: str = ""
    """What was seen from outside: why it could not be started, or had to be killed."""

    @property
    def reason(self) -> str:
        """Why, as far as it is known."""
        return self.trouble if self.error is None else str(self.error)

    def __str__(self) -> str:
        how = f"killed by signal {-self.exit_code}" if self.exit_code < 0 else f"exit code {self.exit_code}"
        return f"{how}: {self.reason}" if self.reason else how


class ProcessOwner(Protocol):
    """Whoever keeps processes."""

    def spec(self, worker: int, start: int) -> Mapping[str, object]:
        """What that worker has to do; ``start`` is a number that no other start of any worker has."""

    def take(self, start: int, message: FromChild) -> None:
        """A process said something."""

    def died(self, death: ProcessExit, pause_s: float) -> float | None:
        """A process has died: the pause before it is started again, or None to leave it until it is asked for."""


class SupervisedProcess:
    """Keeps one process running.

    Attributes:
        worker: its number among its like, from 0.
        child: the process, while there is one.
        start: the number of its last start.
        settled: set when it has started what it is for, or has died for the first time.
        ended: set when it will not be started any more.
        ready: set when it has said, once, that it does its work.
        stop_timeout_s: how long its end may take.
    """

    def __init__(
        self, worker: int, module: str, owner: ProcessOwner, observer: Observer, next_start: Callable[[], int]
    ) -> None:
        self.worker, self._module, self._owner, self._observer = worker, module, owner, observer
        self._next_start = next_start
        self.child: Child | None = None
        self.start = -1
        self.settled = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.stop_timeout_s = 20.0
        self.restarts = Restarts()
        self._asked = asyncio.Event()
        self._is_ending = False
        self._told: tuple[Status, str] = "starting", ""
        self._error: TailraceError | None = None
        """What it said of its end."""
        self._trouble = ""
        self._silence_s: float | None = None
        """How long it may be silent; None while it has promised nothing."""
        self._silent_looks = 0

    # ---- for its owner -----------------------------------------------------------------------------------------

    def end(self) -> None:
        """End it in good order, and do not start it again."""
        self._is_ending = True
        self._asked.set()

    def renew(self) -> None:
        """End it in good order and start it anew."""
        self._asked.set()

    def check(self) -> Check:
        """How it is."""
        name, now = f"worker {self.worker}", asyncio.get_running_loop().time()
        status, detail = self._told
        # Of one that dies and has never worked nobody may count on anything.
        unwell: Status = "degraded" if self.ready.is_set() else "starting"
        if status == "degraded":
            status = unwell
        if self._silent_looks >= _BEATS:
            status, detail = "failed", f"its event loop has not turned for {self._silent_looks * _BEAT_S:.0f} s"
            return Check(name, status, f"{detail}; after {self._silence_s:g} s it is killed and started again")
        if self.restarts.is_unwell(now):
            words = f"has died {self.restarts.deaths(now)} times in a row"
            return Check(name, unwell, f"{words}; {detail}" if detail else words)
        return Check(name, status, detail)

    # ---- life --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep it until it is asked to end.

        Raises:
            TailraceError: what its owner raises for its death, or it cannot be started at all.
        """
        while not self._is_ending:
            self._asked.clear()
            death = await self._live()
            if death is None:
                continue
            loop = asyncio.get_running_loop()
            pause_s = self._owner.died(death, self.restarts.died(loop.time(), random.random()))  # noqa: S311
            then = "" if pause_s is None else f", started again after {pause_s:.1f} s"
            self._told = "degraded", f"{death}{then}"
            self._observer.emit(WorkerExited(self.worker, death.exit_code, death.reason, pause_s))
            self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._asked.wait()
        self.ended.set()

    async def _live(self) -> ProcessExit | None:
        """One life of it; None when its end was asked for."""
        self.start, self._error, self._trouble = self._next_start(), None, ""
        self._silence_s, self._silent_looks = None, 0
        try:
            child = await Child.start(
                self._module, self._owner.spec(self.worker, self.start), {"TAILRACE_WORKER": str(self.worker)}
            )
        except OSError as error:
            # No memory, no more processes, no more files: it may pass.
            return ProcessExit(self.worker, self.start, os.EX_OSERR, None, f"its process could not be started: {error}")
        self.child = child
        self._told = "starting", ""
        self.restarts.started(asyncio.get_running_loop().time())
        self._observer.emit(WorkerStarted(self.worker, child.pid))
        try:
            exit_code = await self._accompany(child)
        finally:
            self.child, self._silent_looks = None, 0
            await child.bury()
        if not self._asked.is_set():
            return ProcessExit(self.worker, self.start, exit_code, self._error, self._trouble)
        if exit_code:
            trouble = "it had to be killed" if exit_code == -signal.SIGKILL else ""
            death = ProcessExit(self.worker, self.start, exit_code, self._error, trouble)
            self._observer.emit(WorkerExited(self.worker, exit_code, death.reason, None if self._is_ending else 0.0))
        return None

    async def _accompany(self, child: Child) -> int:
        async with anyio.create_task_group() as tasks:
            reading = anyio.CancelScope()

            async def notice_end() -> None:
                await child.ended()
                # Whatever it has forked may hold the socket open.
                reading.deadline = anyio.current_time() + _UNREAD_S

            async def end_when_asked() -> None:
                await self._asked.wait()
                child.send(StopMessage())
                await child.ended_within(self.stop_timeout_s + MARGIN_S)

            tasks.start_soon(notice_end)
            tasks.start_soon(self._run_looks, child)
            tasks.start_soon(end_when_asked)
            with reading:
                while (message := await child.next_message()) is not None:
                    self._take(message)
            exit_code = await child.ended_within(self.stop_timeout_s + MARGIN_S)
            tasks.cancel_scope.cancel()
        return exit_code

    async def _run_looks(self, child: Child) -> None:
        """See whether it says what it has promised to, and end it when it has not for too long."""
        while True:
            await asyncio.sleep(_BEAT_S)
            if self._silence_s is None:
                continue
            self._silent_looks += 1
            silent_s = self._silent_looks * _BEAT_S
            if self._silent_looks > _BEATS and silent_s >= self._silence_s and not self._asked.is_set():
                self._trouble = f"its event loop had not turned for {silent_s:.0f} s, so it was killed"
                child.kill()
                return

    def _take(self, message: FromChild) -> None:
        self._silent_looks = 0
        match message:
            case ReadyMessage(stop_timeout_s=stop_timeout_s, status=status):
                self.stop_timeout_s = stop_timeout_s
                self._hear(status, "")
                self.settled.set()
            case StatusMessage(status=status, detail=detail, silence_s=silence_s):
                self._silence_s = silence_s
                self._hear(status, detail)
            case FailedMessage(error=error, text=text):
                self._error = unpickled(error, text)
            case _:
                pass
        self._owner.take(self.start, message)

    def _hear(self, status: str, detail: str) -> None:
        self._told = _STATUSES.get(status, "degraded"), detail
        if status in {"ok", "degraded"}:
            self.ready.set()
