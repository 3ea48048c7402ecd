"""The health of an app over HTTP, as an ASGI app that needs nothing: ``/livez`` and ``/readyz``.

Rule of this file: it asks and answers, 200 or 503, and judges nothing. It may be served by itself (uvicorn), or be
mounted in an app of any framework.
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

_QUESTIONS: dict[str, Callable[[Health], bool]] = {
    "/livez": lambda health: health.is_live,
    "/readyz": lambda health: health.is_ready,
}


def health_app(ask: Callable[[], Health]) -> ASGIApp:
    """An ASGI app that answers 200 when the app is live (ready), else 503, with its checks as JSON either way.

    Args:
        ask: says how the app is at that moment; called in the event loop for each request, so it has to be quick.

    Raises:
        ConfigurationError: when it is called, for a scope that is neither HTTP nor one that can be declined.
    """
    return _HealthApp(ask)


class _HealthApp:
    """An object and no function, so that Starlette's ``add_route`` takes it as an ASGI app."""

    def __init__(self, ask: Callable[[], Health]) -> None:
        self._ask = ask

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        match scope["type"]:
            case "http":
                await _answer(self._ask, scope, send)
            case "lifespan":
                await _live(receive, send)
            case "websocket":
                await receive()  # the wish to be connected, which is refused
                await send({"type": "websocket.close"})
            case other:
                raise ConfigurationError(f"health is asked over HTTP - there is no answer to an ASGI scope {other!r}")


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or to stop."""
    while True:
        asked = (await receive())["type"]
        await send({"type": f"{asked}.complete"})
        if asked == "lifespan.shutdown":
            return


async def _answer(ask: Callable[[], Health], scope: Message, send: Send) -> None:
    path: str = scope["path"]
    is_good = _QUESTIONS.get(path.removeprefix(scope.get("root_path", "")) or path)
    body: Health | dict[str, str]
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    if is_good is None:
        status, body = 404, {"error": f"there is no {path} - ask for {' or '.join(_QUESTIONS)}"}
    elif scope["method"] not in {"GET", "HEAD"}:
        status, body = 405, {"error": "ask with GET or HEAD"}
        headers.append((b"allow", b"GET, HEAD"))
    else:
        health = ask()
        status, body = (200 if is_good(health) else 503), health
    content = msgspec.json.encode(body)
    headers.append((b"content-length", b"%d" % len(content)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
