"""Event loop in virtual time whose order of events is determined by a seed.

Nothing waits: when no callback is ready, the clock jumps to the next timer. The loop has no files, so real sockets,
subprocesses and threads raise an error instead of mixing real time into virtual time. While it runs, ``time.time``,
the functions of ``random`` and ``uuid.uuid4`` depend on the seed, too.

A ``Process`` is a part of the program that fails as one, such as a consumer: its tasks can be frozen, as by SIGSTOP, or
killed, after which none of its code runs.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar

from tailrace.context_managers import contextmanager
from tailrace.errors import SimulationError

__all__ = ["Connector", "Process", "SimulatedLoop", "current_process", "simulated"]

_STARTED_AT_S = 1_000.0
"""First value of the loop's clock, in seconds; 0 would hide errors of code that takes 0 for "never"."""
_WALL_CLOCK_S = 1_800_000_000.0
"""Time since the epoch at which each simulation begins, in seconds."""

ResultT = TypeVar("ResultT")


class Connector(Protocol):
    """Network to which the loop connects sockets."""

    def addresses_of(self, host: str, port: int) -> list[Any]:
        """Return addresses as ``getaddrinfo`` does."""
        ...

    async def connect(self, sock: socket.socket, address: tuple[str, int]) -> None:
        """Connect a socket to an address."""
        ...

    def open(self, sock: socket.socket, protocol: Any) -> tuple[asyncio.Transport, Any]:  # noqa: ANN401
        """Return the transport of a connected socket, and its protocol."""
        ...


class Process:
    """Part of the program that is frozen or killed as one.

    Attributes:
        name: name in the trace of the simulation and in faults.
        is_frozen: True between ``freeze`` and ``thaw``; callbacks are postponed.
        is_killed: True after ``kill``; no code of the process runs any more.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop, self.name = loop, name
        self.is_frozen = self.is_killed = False
        self._postponed: deque[tuple[Callable[..., object], tuple[Any, ...], Context]] = deque()
        self.tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    def start(self, body: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Run a coroutine as a task of the process, together with all that it starts."""
        context = copy_context()
        context.run(current_process.set, self)
        task = self._loop.create_task(body, context=context)
        self.tasks.append(task)
        return task

    def freeze(self) -> None:
        """Stop the execution of the process; its connections stay open, and timers become due meanwhile."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Continue the execution where it was frozen."""
        self.is_frozen = False
        while self._postponed:
            callback, arguments, context = self._postponed.popleft()
            self._loop.call_soon(callback, *arguments, context=context)

    def kill(self) -> None:
        """End the execution for ever: no ``finally`` and no handler of an exception runs."""
        self.is_killed = True
        self._postponed.clear()

    def run(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context) -> None:
        """Call ``callback``, unless the process is frozen or killed."""
        if self.is_frozen:
            self._postponed.append((callback, arguments, context))
        elif not self.is_killed:
            callback(*arguments)


current_process: ContextVar[Process | None] = ContextVar("current_process", default=None)
"""Process to which the running code belongs; None for the simulation itself."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop in virtual time, without files.

    Attributes:
        network: network to which ``sock_connect`` and ``create_connection`` lead.
        is_guarded: False while the loop ends, and callbacks of killed processes run again.
    """

    network: Connector

    def __init__(self) -> None:
        self._now_s = _STARTED_AT_S
        self._timers = _Timers(self)
        self._tasks_made = 0
        self.is_guarded = True
        super().__init__(self._timers)
        self._timers.is_open = False
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let the clock jump to the next timer."""
        self._now_s += seconds

    def wall_clock(self) -> float:
        """Return the virtual time in seconds since the epoch."""
        return _WALL_CLOCK_S + self._now_s

    # ---- processes ---------------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]
        self,
        callback: Any,  # noqa: ANN401
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call ``callback`` soon, unless its process is frozen or killed by then."""
        context = copy_context() if context is None else context
        process = context.get(current_process)
        if process is None or not self.is_guarded:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.run, callback, args, context, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Any,  # noqa: ANN401
        *args: Any,  # noqa: ANN401
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call ``callback`` at ``when``, unless its process is frozen or killed then."""
        context = copy_context() if context is None else context
        process = context.get(current_process)
        if process is None or not self.is_guarded:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.run, callback, args, context, context=context)

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Any,  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> asyncio.Task[Any]:
        self._tasks_made += 1
        return _Task(coroutine, self._tasks_made, loop=loop, **options)

    # ---- what reaches beyond the process -----------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # noqa: ANN401, ARG002
        """Call the function at once: a thread would finish at a time that no seed determines."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to the awaiting task
            future.set_exception(error)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> Any:  # noqa: ANN401
        """Resolve a name of the simulated network."""
        return self.network.addresses_of(host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:  # noqa: ANN401
        """Connect to a listener of the simulated network; the socket itself stays unconnected."""
        await self.network.connect(sock, address)

    async def create_connection(self, protocol_factory: Any, *args: Any, sock: Any = None, **options: Any) -> Any:  # noqa: ANN401
        """Give a connected socket a transport of the simulated network."""
        if sock is None or args or options.get("ssl"):
            raise SimulationError("only connected sockets without TLS have a simulated transport")
        return self.network.open(sock, protocol_factory())


class _Task(asyncio.Task[Any]):
    """Task whose place in a set does not depend on its address in memory."""

    def __init__(self, coroutine: Any, number: int, **options: Any) -> None:  # noqa: ANN401
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class _Timers(selectors.BaseSelector):
    """Selector without files: it lets the clock jump to the next timer."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}
        self.is_open = True
        """True while asyncio registers the file by which threads wake the loop."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401
        if not self.is_open:
            raise SimulationError("code in a simulation has reached for a real socket or pipe")
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401
        return self._keys[fileobj]

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            waiting = sorted(str(task.get_coro()) for task in asyncio.all_tasks(self._loop))
            raise SimulationError(f"all {len(waiting)} tasks wait for ever: {'; '.join(waiting)}")
        if timeout > 0:
            self._loop.advance(timeout)
        return []


@contextmanager
def simulated(seed: int) -> Iterator[SimulatedLoop]:
    """Provide an event loop; time, chance and ids depend on ``seed`` while the context is open.

    When the context ends, tasks that are left, also of killed processes, are canceled.
    """
    loop, chance = SimulatedLoop(), random.Random(f"{seed} ids")  # noqa: S311 - not for secrets
    kept = time.time, uuid.uuid4, random.getstate(), threading.Thread.start
    time.time = loop.wall_clock
    uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128), version=4)
    threading.Thread.start = _refuse_thread  # type: ignore[method-assign,assignment]
    random.seed(seed)
    try:
        yield loop
        _end_tasks(loop)
    finally:
        time.time, uuid.uuid4, state, threading.Thread.start = kept  # type: ignore[method-assign]
        random.setstate(state)
        loop.close()


_start_thread = threading.Thread.start
_WATCHDOG = "tailrace watchdog"


def _refuse_thread(thread: threading.Thread) -> None:
    if thread.name != _WATCHDOG:
        raise SimulationError(f"code in a simulation has started the thread {thread.name}")
    # The watchdog compares the loop with real time, and would have nothing to say.
    thread.run = lambda: None  # type: ignore[method-assign]
    _start_thread(thread)


def _end_tasks(loop: SimulatedLoop) -> None:
    loop.is_guarded = False
    left = sorted(asyncio.all_tasks(loop), key=hash)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=600))
