"""Looks whether the user still comes for records, and tells the membership: performs what ``core.stalls`` decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from penstock.consumer.reader import Reader
from penstock.core.membership_events import GroupEvent, Returned, Stalled
from penstock.core.stalls import StallClock
from penstock.errors import RebalanceError

__all__ = ["run_stall_watch"]

_LEFT = (
    "nobody came for a record within max_poll_interval_ms ({:g} s), so this consumer left the group and others have its"
    " partitions - the next call joins again; raise max_poll_interval_ms if handling a record takes that long"
)


async def run_stall_watch(reader: Reader, limit_s: float, tell: Callable[[GroupEvent], None]) -> None:
    """Tell of a reader that has not come for ``limit_s``, and of its return at once, for ever."""
    loop, clock = asyncio.get_running_loop(), StallClock(limit_s)
    while True:
        clock.look(reader.progress, loop.time(), is_owed=reader.is_owed)
        if clock.is_stuck:
            tell(Stalled(RebalanceError(_LEFT.format(limit_s))))
            await reader.asked.wait(clock.next_at(loop.time()))
        else:
            tell(Returned())
            await anyio.sleep_until(clock.next_at(loop.time()))
