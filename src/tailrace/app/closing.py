"""Time limits for stop hooks and for app-scoped providers while an app stops.

A hook or provider that exceeds its time limit is canceled, and an event names the hook or provider. The next hooks are
still called, and the next providers are still closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

from tailrace.app.dispatch.task_results import stop_all, task_error
from tailrace.app.function_kinds import name_of
from tailrace.awaitables import settled
from tailrace.errors import TailraceError
from tailrace.observe.events import ShutdownTimedOut

__all__ = ["BoundedStack", "ShutdownTracker", "call_hook"]


class ShutdownTracker:
    """Tracks the current step of an app's shutdown, and reports steps that do not end in time.

    A step is the call of a stop hook, or the closing of a provider.

    Args:
        emit: receives an event for each step that did not end in time.

    Attributes:
        failure: error about the first step that did not end in time or canceled itself; None if there is none.
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
        """End the current step, if there is one: emit an event that the step did not end in time, and set ``failure``.

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
            cleaning_up_s: seconds after the cancellation after which the hook is abandoned.

        Raises:
            Exception: raised by the hook.
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
        was_cut_short, self._step = not self._step, ""
        if not was_cut_short and (error := task_error(task)) is not None:
            raise error


class BoundedStack(AsyncExitStack):
    """Exit stack of one provider that cancels the provider if closing it takes too long.

    The provider is closed by the task that opened it, as task groups and timeouts inside the provider require.

    Args:
        shutdown: tracks the step.
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
        canceled_before, deadline = task.cancelling(), asyncio.timeout_at(self._deadline())
        self._shutdown.start_step(f"provider {self._name}")
        try:
            async with deadline:
                return bool(await super().__aexit__(kind, error, trace))
        except TimeoutError:
            if not deadline.expired():
                raise
            return False
        finally:
            if deadline.expired() or task.cancelling() > canceled_before:
                self._shutdown.report_timeout(is_abandoned=False)
            self._shutdown.end_step()


async def call_hook(hook: Callable[[], object]) -> None:
    """Call a hook, and await the result if it is awaitable."""
    await settled(hook(), f"hook {name_of(hook)}")
