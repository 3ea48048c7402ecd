"""Check of ``max_poll_interval_ms``: reports to the membership when polling stops and when it resumes."""

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
    "the consumer was not polled within max_poll_interval_ms ({:g} s), so it left the group and its partitions are"
    " reassigned - the next poll joins again; raise max_poll_interval_ms if handling a record takes that long"
)


async def run_poll_interval_check(reader: Reader, limit_s: float, receive: Callable[[GroupEvent], None]) -> None:
    """Report when the reader was not polled for ``limit_s``, and as soon as polling resumes, until canceled."""
    loop, clock = asyncio.get_running_loop(), PollIntervalClock(limit_s)
    while True:
        clock.look(reader.poll_marker, loop.time(), is_owed=reader.awaits_poll)
        if clock.is_stuck:
            receive(PollingStalled(RebalanceError(_LEFT.format(limit_s))))
            await reader.next_poll.wait(clock.next_at(loop.time()))
        else:
            receive(PollingResumed())
            await anyio.sleep_until(clock.next_at(loop.time()))
