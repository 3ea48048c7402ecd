"""Stop hooks and app-scoped providers, each ended within a time as an app stops.

One that does not end is canceled and named in an event, and those after it are ended all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

from tailrace.app.dispatch.task_results import ended_by, stop_all
from tailrace.app.function_kinds import name_of
from tailrace.awaitables import settled
from tailrace.errors import TailraceError
from tailrace.observe.events import ShutdownTimedOut

__all__ = ["BoundedStack", "Closing", "call_hook"]


class Closing:
    """The step that is under way as an app stops, and those that were cut short.

    Args:
        tell: called with each event.

    Attributes:
        failure: the first step that did not end in time.
    """

    def __init__(self, tell: Callable[[ShutdownTimedOut], None]) -> None:
        self._tell = tell
        self._step, self._began_at = "", 0.0
        self.failure: TailraceError | None = None

    def began(self, step: str) -> None:
        """Note the step that is under way."""
        self._step, self._began_at = step, asyncio.get_running_loop().time()

    def ended(self) -> None:
        """Note that none is under way."""
        self._step = ""

    def cut_short(self, *, is_abandoned: bool) -> None:
        """Emit the event of the step that is under way, if there is one."""
        if not self._step:
            return
        step, waited_s = self._step, asyncio.get_running_loop().time() - self._began_at
        self.ended()
        self._tell(ShutdownTimedOut(step, waited_s, is_abandoned))
        self.failure = self.failure or TailraceError(
            f"{step} did not end within {waited_s:.1f} s and was {'abandoned' if is_abandoned else 'canceled'}"
            " - bound its waits, or raise stop_timeout_ms"
        )

    async def call(self, hook: Callable[[], object], deadline: float, cleaning_up_s: float) -> None:
        """Call a stop hook in a task of its own, so that one that swallows its cancellation can be abandoned.

        Raises:
            Exception: what the hook raised.
        """
        name = f"on_stop hook {name_of(hook)}"
        self.began(name)
        task = asyncio.ensure_future(call_hook(hook))
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline - self._began_at))
        finally:
            if not task.done():
                has_ended = await stop_all([task], cleaning_up_s)
                self.cut_short(is_abandoned=not has_ended)
            elif task.cancelled():
                self.failure = self.failure or TailraceError(f"{name} raised CancelledError, and nobody canceled it")
        was_cut_short, self._step = not self._step, ""
        if not was_cut_short and (error := ended_by(task)) is not None:
            raise error


class BoundedStack(AsyncExitStack):
    """Exit stack of one provider, which is canceled when closing it takes too long.

    It is closed by the task that opened it, as task groups and timeouts in a provider need.

    Args:
        name: of the provider.
        deadline: returns the time until which it may take.
    """

    def __init__(self, closing: Closing, name: str, deadline: Callable[[], float]) -> None:
        super().__init__()
        self._closing, self._name, self._deadline = closing, name, deadline

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is GeneratorExit:
            # An abandoned app is destroyed, when its event loop may be gone.
            return bool(await super().__aexit__(kind, error, trace))
        task = asyncio.current_task()
        assert task is not None
        canceled_before, deadline = task.cancelling(), asyncio.timeout_at(self._deadline())
        self._closing.began(f"provider {self._name}")
        try:
            async with deadline:
                return bool(await super().__aexit__(kind, error, trace))
        except TimeoutError:
            if not deadline.expired():
                raise
            return False
        finally:
            if deadline.expired() or task.cancelling() > canceled_before:
                self._closing.cut_short(is_abandoned=False)
            self._closing.ended()


async def call_hook(hook: Callable[[], object]) -> None:
    """Call a hook, and await what it returns."""
    await settled(hook(), f"hook {name_of(hook)}")
