"""ASGI app without dependencies that serves the health of an app: ``/livez`` and ``/readyz``.

The ASGI app can be served on its own, for example by uvicorn, or mounted in an app of any framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec

from tailrace.app.health.checks import Health
from tailrace.errors import ConfigurationError

__all__ = ["ASGIApp", "health_app"]

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_PATHS: dict[str, Callable[[Health], bool]] = {
    "/livez": lambda health: health.is_live,
    "/readyz": lambda health: health.is_ready,
}


def health_app(get_health: Callable[[], Health]) -> ASGIApp:
    """Return an ASGI app that reports health as JSON.

    ``/livez`` answers 200 if the app is live, and ``/readyz`` if it is ready; otherwise they answer 503. Other paths
    answer 404, and methods other than GET and HEAD 405. The ASGI app raises ConfigurationError for a scope other than
    HTTP, lifespan and websocket.

    Args:
        get_health: returns the current health; must be fast, because it is called in the event loop for each request.
    """
    return _HealthApp(get_health)


class _HealthApp:
    """ASGI app; not a function, because Starlette's ``add_route`` would take a function as a request handler."""

    def __init__(self, get_health: Callable[[], Health]) -> None:
        self._get_health = get_health

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        match scope["type"]:
            case "http":
                await _serve_http(self._get_health, scope, send)
            case "lifespan":
                await _serve_lifespan(receive, send)
            case "websocket":
                await receive()  # websocket.connect
                await send({"type": "websocket.close"})
            case other:
                raise ConfigurationError(f"ASGI scope {other!r} is not supported - request health over HTTP")


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    """Acknowledge startup and shutdown without doing anything."""
    while True:
        event = (await receive())["type"]
        await send({"type": f"{event}.complete"})
        if event == "lifespan.shutdown":
            return


async def _serve_http(get_health: Callable[[], Health], scope: Message, send: Send) -> None:
    path: str = scope["path"]
    is_passing = _PATHS.get(path.removeprefix(scope.get("root_path", "")) or path)
    body: Health | dict[str, str]
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if is_passing is None:
        status, body = 404, {"error": f"{path} not found - request {' or '.join(_PATHS)}"}
    elif scope["method"] not in {"GET", "HEAD"}:
        status, body = 405, {"error": f"method {scope['method']} not allowed - use GET or HEAD"}
        headers.append((b"allow", b"GET, HEAD"))
    else:
        health = get_health()
        status, body = (200 if is_passing(health) else 503), health
    content = msgspec.json.encode(body)
    headers.append((b"content-length", b"%d" % len(content)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
