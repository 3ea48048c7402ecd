"""Hook that records events and waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tailrace.observe.events import Event

EventT = TypeVar("EventT", bound=Event)


class EventRecorder:
    """Recorder of events; pass it as ``hooks=[recorder]``."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Return the events of a type so far."""
        return [event for event in self.events if isinstance(event, kind)]

    async def wait_for(
        self,
        kind: type[EventT],
        count: int = 1,
        *,
        where: Callable[[EventT], bool] = lambda _event: True,
        timeout_s: float = 30,
    ) -> EventT:
        """Wait for the ``count``-th event of a type that satisfies ``where``."""
        async with asyncio.timeout(timeout_s):
            while len(found := [event for event in self.of(kind) if where(event)]) < count:
                self._news.clear()
                await self._news.wait()
        return found[count - 1]
