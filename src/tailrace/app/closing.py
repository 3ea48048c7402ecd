"""Time limits for stop hooks, and for closing app-scoped providers, while an app stops.

A hook or provider that exceeds its time limit is canceled, and an event names it. The remaining hooks are still called,
and the remaining providers are still closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from tailrace.app.dispatch.task_results import stop_all, task_error
from tailrace.app.function_kinds import name_of
from tailrace.awaitables import resolve_call
from tailrace.context_managers import AsyncExitStack
from tailrace.errors import TailraceError
from tailrace.observe.events import ShutdownTimedOut

__all__ = ["BoundedStack", "ShutdownTracker", "call_hook"]


class ShutdownTracker:
    """Tracks the current step of an app's shutdown, and reports steps that do not end in time.

    A step is the call of a stop hook, or the closing of a provider.

    Args:
        emit: receives an event for each step that did not end in time.

    Attributes:
        failure: error about the first step that did not end in time, or that raised CancelledError without being
            canceled; None if there is none.
    """

    def __init__(self, emit: Callable[[ShutdownTimedOut], None]) -> None:
        self._emit = emit
        self._step, self._began_at = "", 0.0
        self.failure: TailraceError | None = None

    def start_step(self, step: str) -> None:
        """Note that a step has started."""
        self._step, self._began_at = step, asyncio.get_running_loop().time()

    def end_step(self) -> None:
        """Note that the current step has ended."""
        self._step = ""

    def report_timeout(self, *, is_abandoned: bool) -> None:
        """Report that the current step did not end in time: emit an event, set ``failure`` and end the step.

        Without a current step, do nothing.

        Args:
            is_abandoned: True if the step still runs; False if it has ended after its cancellation.
        """
        if not self._step:
            return
        step, waited_s = self._step, asyncio.get_running_loop().time() - self._began_at
        self.end_step()
        self._emit(ShutdownTimedOut(step, waited_s, is_abandoned))
        self.failure = self.failure or TailraceError(
            f"{step} did not end within {waited_s:.1f} s and was {'abandoned' if is_abandoned else 'canceled'}"
            " - limit the time for which it waits, or raise stop_timeout_ms"
        )

    async def call(self, hook: Callable[[], object], deadline: float, cleaning_up_s: float) -> None:
        """Call a stop hook in a separate task, so that a hook that swallows its cancellation can be abandoned.

        Args:
            hook: stop hook.
            deadline: event loop time at which the hook is canceled.
            cleaning_up_s: time in seconds for a canceled hook to end before it is abandoned.

        Raises:
            Exception: raised by the hook before the deadline.
        """
        name = f"on_stop hook {name_of(hook)}"
        self.start_step(name)
        task = asyncio.ensure_future(call_hook(hook))
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - self._began_at))
        finally:
            if not task.done():
                has_ended = await stop_all([task], cleaning_up_s)
                self.report_timeout(is_abandoned=not has_ended)
            elif task.cancelled():
                self.failure = self.failure or TailraceError(
                    f"{name} raised CancelledError without being canceled - let it return or raise another exception"
                )
        # report_timeout() has ended the step if the hook was canceled.
        was_canceled, self._step = not self._step, ""
        if not was_canceled and (error := task_error(task)) is not None:
            raise error


class BoundedStack(AsyncExitStack):
    """Exit stack of one provider, with a time limit for closing the provider.

    The provider is closed by the task that opened it, as task groups and timeouts inside the provider require. At the
    time limit, the closing is canceled.

    Args:
        shutdown: tracks the closing as a step.
        name: name of the provider.
        deadline: returns the event loop time by which the provider must be closed.
    """

    def __init__(self, shutdown: ShutdownTracker, name: str, deadline: Callable[[], float]) -> None:
        super().__init__()
        self._shutdown, self._name, self._deadline = shutdown, name, deadline

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is GeneratorExit:
            # The app was abandoned and is being garbage collected, so its event loop may be closed.
            return bool(await super().__aexit__(kind, error, trace))
        task = asyncio.current_task()
        assert task is not None
        cancellations, time_limit = task.cancelling(), asyncio.timeout_at(self._deadline())
        self._shutdown.start_step(f"provider {self._name}")
        try:
            async with time_limit:
                return bool(await super().__aexit__(kind, error, trace))
        except TimeoutError:
            if not time_limit.expired():
                raise
            return False
        finally:
            if time_limit.expired() or task.cancelling() > cancellations:
                self._shutdown.report_timeout(is_abandoned=False)
            self._shutdown.end_step()


async def call_hook(hook: Callable[[], object]) -> None:
    """Call a hook, and await the result if it is awaitable."""
    await resolve_call(hook(), f"hook {name_of(hook)}")
