"""Health as an object and over HTTP: live unless a restart would help, and ready while the app works."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import fastapi
import httpx
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from tailrace import ConfigurationError
from tailrace.app.health.checks import Check, Health, Vitals, examine
from tailrace.app.health.endpoints import health_app

GOOD = {"is_started": True, "was_assigned": True, "max_poll_interval_s": 300.0}


def vitals(**what: object) -> Vitals:
    return Vitals(**{**GOOD, **what})


# ---- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "status", "is_live", "is_ready"),
    [
        ({}, "ok", True, True),
        ({"is_started": False, "was_assigned": False}, "starting", True, False),
        ({"was_assigned": False}, "starting", True, False),
        ({"was_assigned": False, "broker_error": "no broker answers"}, "starting", True, False),
        ({"broker_error": "no broker answers"}, "degraded", True, True),
        ({"is_rebalancing": True}, "ok", True, True),
        ({"waiting": 1}, "degraded", True, True),
        ({"slowest_handler": "charge", "slowest_handler_s": 299.0}, "ok", True, True),
        ({"slowest_handler": "charge", "slowest_handler_s": 301.0}, "failed", False, False),
        ({"loop_blocked_s": 2.0}, "failed", False, False),
        ({"fatal_error": "FencedMemberError: x"}, "failed", False, False),
        ({"is_ending": True}, "stopping", True, False),
        ({"is_ending": True, "was_assigned": False, "waiting": 1}, "stopping", True, False),
        ({"is_ending": True, "fatal_error": "x"}, "failed", False, False),
        ({"fatal_error": "x", "is_started": False, "was_assigned": False}, "failed", False, False),
    ],
    ids=lambda value: ", ".join(value) or "all is well" if isinstance(value, dict) else "",
)
def test_only_conditions_that_a_restart_helps_make_the_app_fail(what, status, is_live, is_ready):
    """A fatal error, a blocked loop and a handler that does not return fail; anything else degrades at most."""
    health = examine(vitals(**what))

    assert (health.status, health.is_live, health.is_ready) == (status, is_live, is_ready)


@pytest.mark.parametrize("what", [{"is_started": False, "was_assigned": False}, {"was_assigned": False}])
def test_an_app_that_needs_no_broker_is_ready_at_once(what):
    """With require_broker=False an app is ready before it reaches a broker or has an assignment."""
    health = examine(vitals(**what), require_broker=False)

    assert (health.status, health.is_ready) == ("ok", True)
    assert "waits for its first assignment" in {check.detail for check in health.checks}


def test_failing_checks_have_details():
    """Each failing check states its reason, so that the answer to a probe suffices."""
    health = examine(
        vitals(
            fatal_error="FencedMemberError: another took its place",
            loop_blocked_s=2.34,
            slowest_handler="shop.charge",
            slowest_handler_s=400.0,
            broker_error="no broker answers",
            waiting=3,
        )
    )

    assert {check.name: (check.status, check.detail) for check in health.checks} == {
        "app": ("failed", "FencedMemberError: another took its place"),
        "loop": ("failed", "blocked for 2.3 s"),
        "handlers": ("failed", "shop.charge has run for 400.0 s, longer than max_poll_interval_ms=300000"),
        "brokers": ("degraded", "no broker answers"),
        "group": ("ok", ""),
        "records": (
            "degraded",
            "records that failed for good, block their lanes and are retried at intervals: 3",
        ),
    }


HEALS_ITSELF = {
    "broker_error": st.sampled_from(["", "no broker answers"]),
    "is_rebalancing": st.booleans(),
    "waiting": st.integers(0, 3),
    "is_started": st.booleans(),
    "was_assigned": st.booleans(),
}


@given(st.fixed_dictionaries(HEALS_ITSELF), st.booleans())
def test_no_outage_makes_the_app_not_live(what, require_broker):
    """Outages of the brokers, the group and single records, alone or combined, leave the app live."""
    assert examine(vitals(**what), require_broker=require_broker).is_live


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([], "ok"),
        (["ok", "degraded"], "degraded"),
        (["degraded", "starting"], "starting"),
        (["starting", "stopping"], "stopping"),
        (["starting", "failed", "stopping", "ok"], "failed"),
    ],
)
def test_the_status_is_that_of_the_worst_check(statuses, status):
    """The status is that of the worst check, in the order failed, stopping, starting, degraded."""
    assert Health.of(Check(str(n), one) for n, one in enumerate(statuses)).status == status


# ---- over HTTP, called directly ------------------------------------------------------------------------------------


async def called(app, method: str, path: str, **scope: object) -> tuple[int, dict[str, str], bytes]:
    """Return the messages that the ASGI app sends for one request."""
    sent = []

    async def send(message) -> None:
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    await app({"type": "http", "method": method, "path": path, "headers": [], **scope}, receive, send)
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, body["body"]


@pytest.mark.parametrize(
    ("health", "live", "ready"),
    [
        (Health("ok"), 200, 200),
        (Health("degraded"), 200, 200),
        (Health("starting"), 200, 503),
        (Health("stopping"), 200, 503),
        (Health("failed"), 503, 503),
    ],
    ids=lambda value: value.status if isinstance(value, Health) else "",
)
async def test_each_path_has_its_status_code(health, live, ready):
    """Each path answers 200 or 503, according to the status."""
    app = health_app(lambda: health)

    assert [(await called(app, "GET", path))[0] for path in ("/livez", "/readyz")] == [live, ready]


async def test_the_response_contains_every_check():
    """The body of a response is JSON with the status and all checks, and must not be cached."""
    health = examine(vitals(broker_error="no broker answers"))

    status, headers, body = await called(health_app(lambda: health), "GET", "/readyz")

    assert status == 200
    assert headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "content-length": str(len(body)),
    }
    answer = json.loads(body)
    assert answer["status"] == "degraded"
    assert {"name": "brokers", "status": "degraded", "detail": "no broker answers"} in answer["checks"]


async def test_head_is_get_without_its_body():
    """A HEAD request has the status code and headers of GET, without the body."""
    app = health_app(lambda: Health("failed", (Check("app", "failed", "gone"),)))

    status, headers, body = await called(app, "GET", "/livez")
    assert await called(app, "HEAD", "/livez") == (status, headers, b"")
    assert body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_are_refused(method):
    """Methods other than GET and HEAD are refused."""
    status, headers, _ = await called(health_app(lambda: Health("ok")), method, "/livez")

    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/livez/", "/healthz", ""])
async def test_other_paths_are_not_found(path):
    """Any other path is not found, and the response names the two valid paths."""
    status, _, body = await called(health_app(lambda: Health("ok")), "GET", path)

    assert status == 404
    assert "/livez or /readyz" in json.loads(body)["error"]


@pytest.mark.parametrize("path", ["/health/livez", "/livez"])
async def test_the_health_app_may_be_mounted(path):
    """The health app answers when mounted in another app, whether that app removes the prefix of the path or not."""
    status, _, _ = await called(health_app(lambda: Health("ok")), "GET", path, root_path="/health")

    assert status == 200


async def test_the_health_app_supports_the_lifespan_protocol():
    """The health app acknowledges startup and then shutdown."""
    asked = iter(["lifespan.startup", "lifespan.shutdown"])
    sent = []

    async def receive():
        return {"type": next(asked)}

    async def send(message) -> None:
        sent.append(message["type"])

    await health_app(lambda: Health("ok"))({"type": "lifespan"}, receive, send)

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_websockets_are_closed():
    """A websocket is closed, and any other scope raises."""
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message) -> None:
        sent.append(message)

    await health_app(lambda: Health("ok"))({"type": "websocket", "path": "/livez"}, receive, send)

    assert sent == [{"type": "websocket.close"}]
    with pytest.raises(ConfigurationError, match="over HTTP"):
        await health_app(lambda: Health("ok"))({"type": "carrier pigeon"}, receive, send)


# ---- over HTTP, by a real server -----------------------------------------------------------------------------------


@asynccontextmanager
async def served(app) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the app with uvicorn, and yield a client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        async with asyncio.TaskGroup() as tasks:
            # The socket listens already, so clients can connect before the server runs.
            tasks.create_task(server.serve(sockets=[listening]))
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=address, timeout=20) as client:
                yield client
            server.should_exit = True


async def test_uvicorn_serves_the_health_app():
    """A client of uvicorn receives the status codes of a starting, ready and failed app."""
    state = Health("starting", (Check("group", "starting", "waits for its first assignment"),))
    async with served(health_app(lambda: state)) as client:
        starting = await client.get("/readyz")
        state = Health("ok")
        ready, head, lost = await client.get("/readyz"), await client.head("/livez"), await client.get("/")
        state = Health("failed")
        failed, refused = await client.get("/livez"), await client.post("/livez")

    assert (starting.status_code, starting.json()["checks"][0]["detail"]) == (503, "waits for its first assignment")
    assert (ready.status_code, ready.json()) == (200, {"status": "ok", "checks": []})
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(ready.content)))
    assert [lost.status_code, failed.status_code, refused.status_code] == [404, 503, 405]


@pytest.mark.parametrize("way", ["routes", "mount"])
async def test_a_service_keeps_its_own_404s_and_redirects(way):
    """Mounted or routed by path, the health app leaves all other paths to the service."""
    web = fastapi.FastAPI()

    @web.get("/orders/")
    async def orders() -> list[str]:
        return []

    under = "" if way == "routes" else "/health"
    if way == "routes":
        web.add_route("/livez", health_app(lambda: Health("ok")))
        web.add_route("/readyz", health_app(lambda: Health("failed")))
    else:
        web.mount("/health", health_app(lambda: Health("failed")))

    assert (await called(web, "GET", f"{under}/readyz"))[0] == 503
    assert (await called(web, "GET", "/nothing"))[2] == b'{"detail":"Not Found"}'
    assert (await called(web, "GET", "/orders"))[0] == 307
