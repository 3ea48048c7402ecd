"""Check of ``max_poll_interval_ms``, which tells the membership whether the application polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from tailrace.consumer.delivery.reader import Reader
from tailrace.core.group.events import GroupEvent, PollingResumed, PollingStalled
from tailrace.core.group.poll_interval import PollIntervalClock
from tailrace.errors import RebalanceError

__all__ = ["run_poll_interval_check"]

_NOT_POLLED = (
    "the consumer was not polled within max_poll_interval_ms ({:g} s), so it left the group and its partitions are"
    " reassigned - the next poll joins again; raise max_poll_interval_ms if handling a record takes that long"
)


async def run_poll_interval_check(reader: Reader, limit_s: float, receive: Callable[[GroupEvent], None]) -> None:
    """Check until canceled whether the application polls, and pass the result to ``receive``.

    Args:
        reader: reader of the consumer that the application polls.
        limit_s: ``max_poll_interval_ms``, in seconds.
        receive: called with ``PollingStalled`` or ``PollingResumed`` after each check; the events may repeat.
    """
    loop, clock = asyncio.get_running_loop(), PollIntervalClock(limit_s)
    while True:
        clock.look(reader.poll_marker, loop.time(), awaits_poll=reader.awaits_poll)
        if clock.is_stuck:
            receive(PollingStalled(RebalanceError(_NOT_POLLED.format(limit_s))))
            await reader.next_poll.wait(clock.next_at(loop.time()))
        else:
            receive(PollingResumed())
            await anyio.sleep_until(clock.next_at(loop.time()))
