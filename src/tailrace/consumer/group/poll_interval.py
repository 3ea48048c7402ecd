"""Check of ``max_poll_interval_ms``: reports a reader that stopped polling to the membership, and its return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from tailrace.consumer.delivery.reader import Reader
from tailrace.core.group.events import GroupEvent, PollingResumed, PollingStalled
from tailrace.core.group.poll_interval import PollIntervalClock
from tailrace.errors import RebalanceError

__all__ = ["run_poll_interval_check"]

_LEFT = (
    "nobody came for a record within max_poll_interval_ms ({:g} s), so this consumer left the group and others have its"
    " partitions - the next call joins again; raise max_poll_interval_ms if handling a record takes that long"
)


async def run_poll_interval_check(reader: Reader, limit_s: float, tell: Callable[[GroupEvent], None]) -> None:
    """Tell of a reader that has not come for ``limit_s``, and of its return at once, for ever."""
    loop, clock = asyncio.get_running_loop(), PollIntervalClock(limit_s)
    while True:
        clock.look(reader.progress, loop.time(), is_owed=reader.is_owed)
        if clock.is_stuck:
            tell(PollingStalled(RebalanceError(_LEFT.format(limit_s))))
            await reader.asked.wait(clock.next_at(loop.time()))
        else:
            tell(PollingResumed())
            await anyio.sleep_until(clock.next_at(loop.time()))
