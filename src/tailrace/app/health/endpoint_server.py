"""HTTP server for probes and metrics, with a thread for each connection.

Responses are computed in the event loop of the app. If the loop is blocked, the thread computes them, so that
``/livez`` reports the blocked loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from tailrace.app.health.endpoints import HealthEndpoints, HttpAnswer
from tailrace.errors import ConfigurationError

__all__ = ["EndpointServer", "Render", "Route"]

_ANSWER_TIMEOUT_S = 2.0
"""Maximum time in seconds to wait for the event loop, and for another connection to end."""

Render: TypeAlias = Callable[[], HttpAnswer]
"""Returns the response; called in the thread of the request."""


class Route(NamedTuple):
    """Functions that answer the requests for one path."""

    collect: Callable[[str], Awaitable[Render]]
    """Collects the data for a response; called in the event loop with the request's Accept header."""
    without_loop: Callable[[str], HttpAnswer] | None = None
    """Returns the response while the loop is blocked; called in the thread with the request's Accept header.

    It may raise RuntimeError if the loop changes the state at the same time.
    """
    timeout_s: float = _ANSWER_TIMEOUT_S
    """Maximum time to wait for ``collect``, in seconds."""


_IDLE_TIMEOUT_S = 5.0
"""Maximum time in seconds to wait for a request on an open connection."""
_MAX_CONNECTIONS = 16
"""Maximum number of connections at the same time; further ones are closed if none ends in ``_ANSWER_TIMEOUT_S``."""
_NO_ANSWER = HttpAnswer(503, b"the event loop of the app does not answer\n", "text/plain")

_log = logging.getLogger("tailrace")


class EndpointServer:
    """HTTP server that runs within ``async with``.

    Args:
        endpoints: answers the requests for health and lag.
        port: TCP port; 0 for any free port.
        host: address to listen on; empty for all addresses.
        routes: answers to requests for further paths, by path.

    Attributes:
        port: port on which the server listens.
    """

    def __init__(
        self, endpoints: HealthEndpoints, *, port: int, host: str = "", routes: Mapping[str, Route] | None = None
    ) -> None:
        self._endpoints, self._routes, self._host, self.port = endpoints, routes or {}, host, port
        self._server: _Server | None = None

    async def __aenter__(self) -> Self:
        """Start the server.

        Raises:
            ConfigurationError: the port is in use or invalid, or the address does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = _Server(_listening_socket(self._host, self.port), self._handler(loop))
        except (OSError, OverflowError) as error:
            where = f"{self._host or '*'}:{self.port}"
            raise ConfigurationError(f"cannot serve HTTP at {where}: {error} - choose another port") from error
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="tailrace http", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()

    def _handler(self, loop: asyncio.AbstractEventLoop) -> type[BaseHTTPRequestHandler]:
        def answer(path: str, method: str, accept: str) -> HttpAnswer:
            return self._answer(loop, path.partition("?")[0], method, accept)

        class Handler(_RequestHandler):
            get_answer = staticmethod(answer)

        return Handler

    def _answer(self, loop: asyncio.AbstractEventLoop, path: str, method: str, accept: str) -> HttpAnswer:
        """Return the response to a request; called in the thread of the request."""

        async def collect() -> Render:
            if path in self._routes and method in {"GET", "HEAD"}:
                return await self._routes[path].collect(accept)
            answer = await self._endpoints.answer(path, method)
            return lambda: answer

        collecting = collect()
        try:
            future = asyncio.run_coroutine_threadsafe(collecting, loop)
        except RuntimeError:  # The loop is closed.
            collecting.close()
            return _NO_ANSWER
        try:
            render = future.result(route.timeout_s if (route := self._routes.get(path)) else _ANSWER_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            future.cancel()
            return self._without_loop(path, accept)
        return render()

    def _without_loop(self, path: str, accept: str) -> HttpAnswer:
        """Return the response to a request while the loop is blocked; called in the thread of the request."""
        route = self._routes.get(path)
        try:
            if path in {"/livez", "/readyz"}:
                return self._endpoints.health(path)
            return _NO_ANSWER if route is None or route.without_loop is None else route.without_loop(accept)
        except RuntimeError:  # The loop has changed the state at the same time, so it is no longer blocked.
            return _NO_ANSWER


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, listening.getsockname()[:2]
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of socketserver
        """Serve a connection, or close it if too many other connections stay open."""
        if not self._slots.acquire(timeout=_ANSWER_TIMEOUT_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - of socketserver
        """Log an error, such as for a connection that the client has closed, at the level DEBUG."""
        _log.debug("a request for health or metrics failed", exc_info=True)


class _RequestHandler(BaseHTTPRequestHandler):
    server_version, sys_version = "tailrace", ""
    timeout = _IDLE_TIMEOUT_S
    get_answer: Callable[[str, str, str], HttpAnswer]

    def _respond(self) -> None:
        try:
            answer = self.get_answer(self.path, self.command, self.headers.get("accept", ""))
        except Exception:  # noqa: BLE001 - collectors of users may raise any error
            _log.exception("a request for %s failed", self.path)
            answer = HttpAnswer(500, b"the request failed - see the log\n", "text/plain")
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        self.send_header("content-length", str(len(answer.body)))
        self.send_header("cache-control", "no-store")
        if answer.allowed is not None:
            self.send_header("allow", answer.allowed)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _respond  # noqa: N815 - of http.server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of http.server
        """Log a request at the level DEBUG."""
        _log.debug("http: %s", format % args)


def _listening_socket(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
