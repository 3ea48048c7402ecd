"""Threads of plain handlers: handlers that are not ``async def``.

A thread cannot be stopped from outside. These threads are daemons, so the interpreter can end while a handler still
runs in an abandoned thread; it would wait for the threads of asyncio and anyio. The list of free threads is changed in
the event loop only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

# claim_worker_thread makes anyio.from_thread work in these threads. anyio has no public API for that, and anyio's own
# threads are not daemons, so that the interpreter waits for them before it ends.
from anyio._core._eventloop import claim_worker_thread, get_async_backend

__all__ = ["Threads", "outcome_of"]

ResultT = TypeVar("ResultT")

_MAX_IDLE_S = 10.0
"""Seconds without a call after which a thread ends."""

# Each thread has its own queue. With several readers, CPython's SimpleQueue waits forever if the timeout of a reader
# expires while another reader takes the item that the first was about to take.
_CallQueue: TypeAlias = "SimpleQueue[_Call | None]"


class _Call(NamedTuple):
    function: Callable[[], Any]
    context: Context
    returned: asyncio.Future[Any]


class Threads:
    """Pool of threads without a limit; the caller limits the number of concurrent calls."""

    def __init__(self) -> None:
        self._free: list[_CallQueue] = []

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function in a free or new thread with the current context; the function may use ``anyio.from_thread``.

        A cancellation takes effect when the function has returned, because dependencies of the function must stay open
        until then. A second cancellation takes effect at once, and abandons the thread.
        """
        loop = asyncio.get_running_loop()
        returned: asyncio.Future[ResultT] = loop.create_future()
        if self._free:
            calls = self._free.pop()
        else:
            calls = SimpleQueue()
            threading.Thread(target=self._work, args=(loop, calls), name="tailrace handler", daemon=True).start()
        calls.put(_Call(function, copy_context(), returned))
        try:
            return await asyncio.shield(returned)
        except asyncio.CancelledError:
            try:
                await asyncio.wait({returned})
            finally:
                returned.cancel()
            raise

    # ---- in the event loop -------------------------------------------------------------------------------------

    def _return(
        self, calls: _CallQueue, returned: asyncio.Future[Any], result: object, error: BaseException | None
    ) -> None:
        self._free.append(calls)
        if returned.done():
            return
        if error is None:
            returned.set_result(result)
        else:
            returned.set_exception(error)

    def _end(self, calls: _CallQueue) -> None:
        if calls in self._free:
            self._free.remove(calls)
            calls.put(None)

    # ---- in a thread -------------------------------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop, calls: _CallQueue) -> None:
        with claim_worker_thread(get_async_backend("asyncio"), loop):
            while True:
                try:
                    call = calls.get(timeout=_MAX_IDLE_S)
                except Empty:
                    if not _call_in_loop(loop, self._end, calls):
                        return
                    continue
                if call is None:
                    return
                outcome = outcome_of(call.function, call.context)
                if not _call_in_loop(loop, self._return, calls, call.returned, *outcome):
                    return
                del call, outcome


def outcome_of(function: Callable[[], object], context: Context) -> tuple[object, BaseException | None]:
    """Call a function in a context; return its result or its error, of which the other is None."""
    try:
        return context.run(function), None
    except (StopIteration, GeneratorExit) as error:
        # Raised through a future, they would end the coroutine that waits for it.
        failure = RuntimeError(f"the function raised {type(error).__name__}")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - the error is raised where the call is awaited
        return None, error


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> bool:
    """Schedule a call in the event loop; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
