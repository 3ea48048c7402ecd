"""Endpoints ``/livez``, ``/readyz`` and ``/lag`` for the health and lag of an app, and an ASGI app that serves them.

The ASGI app can be served on its own, for example by uvicorn, or mounted in an app of an ASGI framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tailrace.app.health.checks import Health
from tailrace.errors import ConfigurationError
from tailrace.observe.log_format import escaped
from tailrace.observe.statistics import AppStatistics

__all__ = [
    "GET_ONLY",
    "ASGIApp",
    "HealthEndpoints",
    "HttpAnswer",
    "LagReport",
    "Message",
    "Receive",
    "Send",
    "health_app",
    "lag_report",
    "send_answer",
    "serve_lifespan",
]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_JSON = "application/json"


class HttpAnswer(NamedTuple):
    """Response to a request."""

    status: int
    body: bytes
    content_type: str = _JSON
    allowed: str | None = None
    """Value of the header Allow; None to omit the header."""


GET_ONLY = HttpAnswer(405, b"use GET or HEAD\n", "text/plain", allowed="GET, HEAD")
"""Response to another method at a path that only returns data."""


class LagReport(msgspec.Struct, frozen=True):
    """Lag of all partitions that are assigned to an app, or to the workers of a pool, for autoscalers.

    Partitions whose lag is not known yet count as 0.
    """

    lag: int
    """Sum of the lags of all partitions."""
    work_lag: int
    """Sum of the work lags of all partitions; a work lag is the number of offsets that are not finished."""
    lag_seconds: float
    """Age of the oldest unfinished record in seconds; 0 if there is none or its timestamp is unknown."""
    partitions: int
    """Number of assigned partitions."""


GetLag: TypeAlias = Callable[[], Awaitable[LagReport]]


def lag_report(apps: Iterable[AppStatistics]) -> LagReport:
    """Return the total lag of several apps, such as the workers of a pool."""
    partitions = [partition for app in apps for consumer in app.consumers for partition in consumer.partitions]
    return LagReport(
        sum(one.lag or 0 for one in partitions),
        sum(one.work_lag or 0 for one in partitions),
        max((one.lag_s or 0.0 for one in partitions), default=0.0),
        len(partitions),
    )


class HealthEndpoints:
    """Answers requests for health and lag, independent of the HTTP server.

    Args:
        get_lag: returns the current lag; None to omit ``/lag``.
    """

    def __init__(self, get_health: Callable[[], Health], get_lag: GetLag | None = None) -> None:
        self._get_health, self._get_lag = get_health, get_lag
        self._paths = ("/livez", "/readyz") if get_lag is None else ("/livez", "/readyz", "/lag")

    async def answer(self, path: str, method: str = "GET") -> HttpAnswer:
        """Return the response to a request."""
        if path not in self._paths:
            error = {"error": f"{escaped(path)} not found - request {', '.join(self._paths[:-1])} or {self._paths[-1]}"}
            return HttpAnswer(404, msgspec.json.encode(error))
        if method not in {"GET", "HEAD"}:
            error = {"error": f"method {escaped(method)} not allowed - use GET or HEAD"}
            return HttpAnswer(405, msgspec.json.encode(error), allowed="GET, HEAD")
        if path == "/lag" and self._get_lag is not None:
            return HttpAnswer(200, msgspec.json.encode(await self._get_lag()))
        return self.health(path)

    def health(self, path: str) -> HttpAnswer:
        """Return the response to a request for ``/livez`` or ``/readyz``."""
        health = self._get_health()
        is_passing = health.is_live if path == "/livez" else health.is_ready
        return HttpAnswer(200 if is_passing else 503, msgspec.json.encode(health))


def health_app(get_health: Callable[[], Health], get_lag: GetLag | None = None) -> ASGIApp:
    """Return an ASGI app that reports health and lag as JSON.

    ``/livez`` returns the status 200 if the app is live, ``/readyz`` returns it if the app is ready; otherwise they
    return 503. ``/lag`` returns a ``LagReport``.

    The ASGI app raises ConfigurationError for scopes other than HTTP, lifespan and websocket.

    Args:
        get_health: returns the current health; must be fast, because it is called in the event loop for each request.
        get_lag: returns the current lag; None to omit ``/lag``.
    """
    return _HealthApp(HealthEndpoints(get_health, get_lag))


class _HealthApp:
    """ASGI app; not a function, because ``add_route`` of Starlette would use a function as a request handler."""

    def __init__(self, endpoints: HealthEndpoints) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        match scope["type"]:
            case "http":
                path: str = scope["path"]
                path = path.removeprefix(scope.get("root_path", "")) or path
                await send_answer(await self._endpoints.answer(path, scope["method"]), scope, send)
            case "lifespan":
                await serve_lifespan(receive, send)
            case "websocket":
                await receive()  # websocket.connect
                await send({"type": "websocket.close"})
            case other:
                raise ConfigurationError(f"ASGI scope {other!r} is not supported - request health over HTTP")


async def serve_lifespan(receive: Receive, send: Send) -> None:
    """Answer the ASGI server's lifespan events until shutdown, without doing anything else."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def send_answer(answer: HttpAnswer, scope: Message, send: Send) -> None:
    """Send a response to an ASGI server."""
    headers = [
        (b"content-type", answer.content_type.encode()),
        (b"cache-control", b"no-store"),
        (b"content-length", b"%d" % len(answer.body)),
    ]
    if answer.allowed is not None:
        headers.append((b"allow", answer.allowed.encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer.body})
