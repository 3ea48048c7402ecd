"""The example services as real servers with a real broker: probes, and how they end."""

from __future__ import annotations

import asyncio
import json
import signal

import httpx
import pytest

from tailrace.protocol.groups import JoinGroupRequest
from tailrace.protocol.records import FetchRequest
from tests.support.consumer_group import until

TOTAL = 600
LONG_TO_STOP = {"TAILRACE_STOP_TIMEOUT_MS": "50000"}
"""Waits take at least half of it, so that an end within ``SOON_S`` has waited for nothing."""
SOON_S = 15

pytestmark = pytest.mark.timeout(300)


async def place(service, total):
    """Place an order until it is accepted, although a refused one may be published, too."""
    async with asyncio.timeout(60):
        while (status := await service.order("ann", total)) == 503:
            pass
    assert status in {200, 202}


@pytest.mark.slow
async def test_orders_are_handled_before_and_after_an_outage(home):
    """A service is not ready before its first assignment, stays ready in an outage, and handles orders after it."""
    server = home.server
    # The broker of one service is killed, that of the other paused.
    begin, end = (server.kill, server.restart) if home.kind == "fastapi" else (server.pause, server.resume)
    quick = {"DEFAULT_API_TIMEOUT_MS": "1000", "METADATA_MAX_AGE_MS": "500", "SESSION_TIMEOUT_MS": "3000"}
    with server.proxy.hold_answer(JoinGroupRequest, times=None) as held:
        service = home.start(**{f"TAILRACE_{name}": value for name, value in quick.items()})
        await asyncio.wait_for(held.wait_applied(), 90)
        await service.wait_for_status("/livez", 200)
        before = await service.http.get("/readyz")
    await service.wait_for_status("/readyz", 200)

    assert before.status_code == 503
    assert {one["name"]: one["status"] for one in before.json()["checks"]}["group"] == "starting"
    assert (await service.http.post("/orders", content=b"{")).status_code in {400, 422}
    await place(service, 5)
    await until(lambda: 5 in home.charged())
    await service.wait_until_ready()

    await asyncio.to_thread(begin)
    try:
        await service.wait_for_check("brokers", "degraded")

        assert [await service.status(path) for path in ("/livez", "/readyz")] == [200, 200]
        assert await service.order("ann", 1) == 503
    finally:
        await asyncio.to_thread(end)
    await place(service, 6)
    await until(lambda: 6 in home.charged())
    await service.wait_for_check("brokers", "ok")


async def test_the_liveness_probe_fails_if_a_restart_helps(home, tmp_path):
    """The liveness probe does not answer while the loop is blocked, and returns 503 when the app has failed.

    The service still answers after that, and exits on SIGTERM.
    """
    free = tmp_path / "free"
    service = home.start(is_spoiled=True, **LONG_TO_STOP)
    await service.wait_for_status("/readyz", 200)
    home.witness.produce("blocks", [str(free).encode()])
    # Its loop may be blocked while it starts on a busy machine, too.
    line = await service.wait_for_log("handler=block")
    with pytest.raises(httpx.TimeoutException):
        await service.http.get("/livez", timeout=0.5)
    was_blocked_all_along = "loop unblocked" not in service.log.partition(line)[2]
    free.touch()
    await service.wait_for_status("/livez", 200)
    await until(lambda: "loop unblocked" in service.log.partition(line)[2])

    assert was_blocked_all_along
    assert "loop blocked" in line
    assert 'where="spoils.py:' in line
    await service.wait_until_ready()

    home.witness.produce("fatal", [b"customer bob"])
    failed = await service.wait_for_check("app", "failed")

    assert "there is no customer bob" in failed["detail"]
    assert [await service.status(path) for path in ("/livez", "/readyz")] == [503, 503]
    assert await service.end() < SOON_S


@pytest.mark.slow
async def test_sigterm_loses_and_repeats_nothing(home):
    """On SIGTERM started records are handled and committed, and the next start handles the rest."""
    for partition in range(3):
        numbers = range(partition, TOTAL, 3)
        orders = [json.dumps({"customer": f"c{n % 20}", "total": n}).encode() for n in numbers]
        keys = [b"c%d" % (n % 20) for n in numbers]
        home.witness.produce("orders", orders, partition=partition, keys=keys, batch_bytes=500)

    # Some records remain, however late this runs: each fetch returns one batch, and there are at most thirty of them.
    kept = home.server.proxy.hold_answer(FetchRequest, skip=30, times=None)
    service = home.start(TAILRACE_FETCH_MAX_BYTES="1", **LONG_TO_STOP)
    await until(lambda: home.how_many() > 20, 90)
    took_s = await service.end()
    kept.end()
    handled, committed = home.charged(), await home.witness.committed("billing", "orders", 3)
    following = home.start()
    await until(lambda: home.how_many() >= TOTAL, timeout_s=90)
    await following.end()

    assert took_s < SOON_S
    assert 20 < len(handled) < TOTAL
    # Committed records were handled. Ordered by key, some after them were, too: they are in the offset map.
    behind = {n for n in range(TOTAL) if n // 3 < committed.get(n % 3, 0)}
    assert behind <= set(handled)
    assert home.kind == "fastapi" or behind == set(handled)
    assert sorted(home.charged()) == list(range(TOTAL))
    assert sum((await home.witness.committed("billing", "orders", 3)).values()) == TOTAL
    # uvicorn ends by the signal itself after its shutdown; aiohttp exits with 0.
    assert {one.process.returncode for one in home.started} == {{"fastapi": -signal.SIGTERM, "aiohttp": 0}[home.kind]}
    assert "Traceback" not in service.log + following.log
