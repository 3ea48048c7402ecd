"""Threads of plain handlers.

A thread cannot be ended from outside. A thread whose handler does not return is abandoned and ends with the process,
because these threads are daemons. The interpreter would wait at its end for threads of asyncio and anyio. Only the
event loop tracks which threads are free.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias, TypeVar

# claim_worker_thread makes anyio.from_thread work in these threads. anyio has no public API for that, and anyio's own
# threads are not daemons, so that the interpreter waits for them before it ends.
from anyio._core._eventloop import claim_worker_thread, get_async_backend

from tailrace.app.declare.arguments import Opened
from tailrace.app.declare.prepared_handler import PreparedHandler
from tailrace.awaitables import settled

__all__ = ["Threads", "in_a_thread"]

ResultT = TypeVar("ResultT")

_MAX_IDLE_S = 10.0

# Each thread has its own queue. With several readers, CPython's SimpleQueue waits forever if the timeout of a reader
# expires while another reader takes the item that it was about to take.
_CallQueue: TypeAlias = "SimpleQueue[_Call | None]"


class _Call(NamedTuple):
    function: Callable[[], Any]
    context: Context
    returned: asyncio.Future[Any]


def in_a_thread(
    prepared: PreparedHandler, opened: Opened, timeout_s: float | None
) -> Callable[[Any], Awaitable[object]]:
    """Return the call of a plain handler; if the handler returns an awaitable, it is awaited within ``timeout_s``."""
    threads = Threads()

    async def call(subject: Any) -> object:  # noqa: ANN401 - a record or a batch
        ends_at = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        async with prepared.opened_for(subject, opened) as everything:
            args, kwargs = prepared.bind(subject, everything)
            returned = await threads.call(functools.partial(prepared.function, *args, **kwargs))
            if returned is None:
                return None
            async with asyncio.timeout_at(ends_at):
                return await settled(returned, prepared.name)

    return call


class Threads:
    """Calls each function in a free thread or a new thread; threads that are idle for long end.

    The caller limits the number of concurrent calls.
    """

    def __init__(self) -> None:
        self._free: list[_CallQueue] = []

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call a function in the current context and wait for it; the function may use ``anyio.from_thread``.

        A canceled call ends only when the function has returned, so that the function's dependencies stay open until
        then. A call that is canceled a second time abandons the thread.
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

    # ---- in the loop -------------------------------------------------------------------------------------------

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
                if call is None or not _call_in_loop(loop, self._return, calls, call.returned, *_outcome(call)):
                    return
                del call


def _outcome(call: _Call) -> tuple[object, BaseException | None]:
    try:
        return call.context.run(call.function), None
    except StopIteration as error:
        failure = RuntimeError("the function raised StopIteration")
        failure.__cause__ = error
        return None, failure
    except BaseException as error:  # noqa: BLE001 - the error is raised where the call is awaited
        return None, error


def _call_in_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> bool:
    """Schedule a call in the loop; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
