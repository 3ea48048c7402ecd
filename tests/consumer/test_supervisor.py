"""The task in which a consumer lives: how it starts, and that it ends whatever it is in the middle of."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from tailrace import ConsumerStateError, TailraceError
from tailrace.consumer.supervisor import Supervisor


class Body:
    """Ends when its last wait does; notes what it was told."""

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


async def test_a_stop_that_is_cancelled_ends_the_body_at_once():
    """Whoever has waited for long enough leaves nothing behind: no time is left then for an end in good order."""
    body = Body()
    supervisor = await started(body)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(supervisor.stop(60), 0.01)

    assert body.is_over.is_set()
    assert body.cancelled == 1
    assert supervisor.is_over


async def test_a_body_is_cancelled_again_when_it_goes_on():
    """What swallows one cancellation, as the clean-up that hangs in its turn does, is cut short by the next."""
    body = Body(stubborn=1)
    supervisor = await started(body)

    async with asyncio.timeout(20):
        await supervisor.stop(0, ending_s=0.1)

    assert body.cancelled == 2
    assert supervisor.is_over


async def test_a_body_that_does_not_end_is_told():
    """Stopping is bounded whatever the body does, and does not keep silent about what it leaves behind."""
    body = Body(stubborn=100)
    supervisor = await started(body)

    with pytest.raises(TailraceError, match="a body has not ended"):
        async with asyncio.timeout(20):
            await supervisor.stop(0, ending_s=0.1)

    body.let_go.set()
    await body.is_over.wait()


async def test_a_start_that_is_cancelled_is_bounded_too():
    """The body may hang in its clean-up: the start ends all the same, as the cancellation that it is."""
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


async def test_who_starts_is_told_of_a_stop_meanwhile():
    """A stop from elsewhere is no cancellation of whoever waits for the start."""
    body = Body(is_ready=False)
    supervisor = Supervisor(body.run, "a body")
    starting = asyncio.create_task(supervisor.start())
    await body.has_begun.wait()
    await supervisor.stop(0)

    with pytest.raises(ConsumerStateError, match="a body was stopped before it had started"):
        await starting


async def test_a_start_may_be_given_up():
    """Whoever waits for an event beside it has the body in hand still, and stops it."""
    body, given_up = Body(is_ready=False), asyncio.Event()
    supervisor = Supervisor(body.run, "a body")
    given_up.set()
    await supervisor.start(given_up)

    assert not body.is_over.is_set()

    await supervisor.stop(0)

    assert body.is_over.is_set()


async def test_a_scope_that_is_cancelled_lets_the_end_be_in_order():
    """A task group that is cancelled around it, as when another task fails, does not cut an orderly end short."""
    body = Body()
    supervisor = await started(body)

    asyncio.get_running_loop().call_later(0.01, body.let_go.set)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await supervisor.stop(60)

    assert body.is_over.is_set()
    assert body.cancelled == 0
