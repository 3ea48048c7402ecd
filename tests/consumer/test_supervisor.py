"""The task in which a consumer runs: its start, and its end in any state."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from tailrace import ConsumerStateError, TailraceError
from tailrace.consumer.supervisor import Supervisor


class Body:
    """Body that runs until ``let_go`` is set, and counts its cancellations."""

    def __init__(self, *, is_ready: bool = True, stubborn: int = 0) -> None:
        self.is_ready, self.stubborn = is_ready, stubborn
        self.cancelled = 0
        self.has_begun, self.is_over, self.let_go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run(self, supervisor: Supervisor) -> None:
        self.has_begun.set()
        if self.is_ready:
            supervisor.ready.set()
        try:
            while True:
                try:
                    await self.let_go.wait()
                except asyncio.CancelledError:
                    self.cancelled += 1
                    if self.cancelled > self.stubborn:
                        raise
                else:
                    return
        finally:
            self.is_over.set()


async def started(body: Body) -> Supervisor:
    supervisor = Supervisor(body.run, "a body")
    await supervisor.start()
    return supervisor


async def test_a_canceled_stop_cancels_the_body_at_once():
    """If stop() is canceled, the body is canceled at once."""
    body = Body()
    supervisor = await started(body)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(supervisor.stop(60), 0.01)

    assert body.is_over.is_set()
    assert body.cancelled == 1
    assert supervisor.is_over


async def test_a_body_that_swallows_a_cancellation_is_canceled_again():
    """stop() cancels a body again if it swallows the first cancellation."""
    body = Body(stubborn=1)
    supervisor = await started(body)

    async with asyncio.timeout(20):
        await supervisor.stop(0, ending_s=0.1)

    assert body.cancelled == 2
    assert supervisor.is_over


async def test_stop_raises_if_the_body_does_not_end():
    """stop() raises in bounded time if the body swallows all cancellations."""
    body = Body(stubborn=100)
    supervisor = await started(body)

    with pytest.raises(TailraceError, match="a body has not ended"):
        async with asyncio.timeout(20):
            await supervisor.stop(0, ending_s=0.1)

    body.let_go.set()
    await body.is_over.wait()


async def test_a_canceled_start_is_bounded():
    """start() that is canceled ends in bounded time, even if the body swallows all cancellations."""
    body = Body(is_ready=False, stubborn=100)
    supervisor = Supervisor(body.run, "a body")
    starting = asyncio.create_task(supervisor.start(ending_s=0.1))
    await body.has_begun.wait()
    starting.cancel()

    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await starting

    body.let_go.set()
    await body.is_over.wait()


async def test_start_raises_if_the_body_is_stopped_meanwhile():
    """start() raises ConsumerStateError if another task calls stop() meanwhile."""
    body = Body(is_ready=False)
    supervisor = Supervisor(body.run, "a body")
    starting = asyncio.create_task(supervisor.start())
    await body.has_begun.wait()
    await supervisor.stop(0)

    with pytest.raises(ConsumerStateError, match="a body was stopped before it had started"):
        await starting


async def test_a_start_may_be_given_up():
    """start() returns if the given event is set, and the body runs until stop()."""
    body, given_up = Body(is_ready=False), asyncio.Event()
    supervisor = Supervisor(body.run, "a body")
    given_up.set()
    await supervisor.start(given_up)

    assert not body.is_over.is_set()

    await supervisor.stop(0)

    assert body.is_over.is_set()


async def test_a_canceled_scope_does_not_hurry_stop():
    """stop() waits for the end of the body even inside a canceled scope."""
    body = Body()
    supervisor = await started(body)

    asyncio.get_running_loop().call_later(0.01, body.let_go.set)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await supervisor.stop(60)

    assert body.is_over.is_set()
    assert body.cancelled == 0
