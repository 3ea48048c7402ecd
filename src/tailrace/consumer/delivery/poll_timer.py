"""Timeouts of polls (``consumer_timeout_ms``, ``when_timed_out``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tailrace.config import ConsumerConfig
from tailrace.errors import ConsumerStateError, ConsumerTimeoutError

__all__ = ["poll_or_stop", "poll_within", "poll_within_timeout"]

ResultT = TypeVar("ResultT")


async def poll_or_stop(
    work: Callable[[], Awaitable[ResultT]], config: ConsumerConfig | None, is_stopped: Callable[[], bool]
) -> ResultT:
    """Await ``work``, one poll of an ``async for`` loop, and return its result.

    Raises:
        StopAsyncIteration: the consumer was stopped, or timed out with ``when_timed_out="stop"``.
        ConsumerTimeoutError: no record arrived in time.
    """
    try:
        return await poll_within_timeout(work, None if config is None else config.consumer_timeout_ms)
    except ConsumerStateError:
        if is_stopped():
            raise StopAsyncIteration from None
        raise
    except ConsumerTimeoutError:
        if config is not None and config.when_timed_out == "stop":
            raise StopAsyncIteration from None
        raise


async def poll_within_timeout(work: Callable[[], Awaitable[ResultT]], limit_ms: int | None) -> ResultT:
    """Await ``work`` for ``limit_ms`` at most, or without a limit if it is None, and return the result.

    Raises:
        ConsumerTimeoutError: ``work`` took longer than ``limit_ms`` and was canceled; the consumer can be polled again.
    """
    if limit_ms is None:
        return await work()
    found = await poll_within(work, limit_ms)
    if found is None:
        raise ConsumerTimeoutError(
            f"no record arrived within consumer_timeout_ms={limit_ms} - poll again to keep waiting"
        )
    return found


async def poll_within(work: Callable[[], Awaitable[ResultT]], limit_ms: int | None) -> ResultT | None:
    """Await ``work`` and return its result; cancel it and return None if it takes longer than ``limit_ms``."""
    waiting = asyncio.timeout(None if limit_ms is None else limit_ms / 1000)
    try:
        async with waiting:
            return await work()
    except TimeoutError:
        if not waiting.expired():
            raise
        return None
