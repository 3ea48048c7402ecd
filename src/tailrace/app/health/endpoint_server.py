"""HTTP server for probes and metrics, in a thread of its own.

Requests are answered by the app's event loop. A blocked loop does not answer; the thread then reports health and
metrics itself, so that ``/livez`` tells why.
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

_ANSWER_S = 2.0
"""Maximum time to wait for the event loop."""

Render: TypeAlias = Callable[[], HttpAnswer]
"""Returns the response; called in the thread of the request."""


class Route(NamedTuple):
    """Answers to the requests for one path."""

    collect: Callable[[str], Awaitable[Render]]
    """Collects what a response needs; called in the event loop with the request's Accept header."""
    without_loop: Callable[[str], HttpAnswer] | None = None
    """Returns the response while the loop is blocked; called in the thread of the request.

    It may raise RuntimeError if the state changes meanwhile.
    """
    timeout_s: float = _ANSWER_S
    """Maximum time to wait for ``collect``."""


_IDLE_S = 5.0
"""Maximum time to wait for a request on an open connection."""
_MOST_REQUESTS = 16
"""Maximum number of requests that are answered at once; further ones get the status 503."""
_UNANSWERED = HttpAnswer(503, b"the event loop of the app does not answer\n", "text/plain")

_log = logging.getLogger("tailrace")


class EndpointServer:
    """HTTP server from ``__aenter__`` to ``__aexit__``.

    Args:
        endpoints: answers for health and lag.
        port: TCP port; 0 for any free port.
        host: address to listen at; by default all addresses.
        routes: further paths.

    Attributes:
        port: port at which the server listens.
    """

    def __init__(
        self, endpoints: HealthEndpoints, *, port: int, host: str = "", routes: Mapping[str, Route] | None = None
    ) -> None:
        self._endpoints, self._routes, self._host, self.port = endpoints, routes or {}, host, port
        self._server: _Server | None = None

    async def __aenter__(self) -> Self:
        """Start the server.

        Raises:
            ConfigurationError: the port is in use, or the address is not one of this machine.
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
        except RuntimeError:  # the loop is closed
            collecting.close()
            return _UNANSWERED
        try:
            render = future.result(route.timeout_s if (route := self._routes.get(path)) else _ANSWER_S)
        except (TimeoutError, asyncio.CancelledError):
            future.cancel()
            return self._without_loop(path, accept)
        return render()

    def _without_loop(self, path: str, accept: str) -> HttpAnswer:
        """Return health or metrics as far as another thread can tell while the loop is blocked."""
        route = self._routes.get(path)
        try:
            if path in {"/livez", "/readyz"}:
                return self._endpoints.health(path)
            return _UNANSWERED if route is None or route.without_loop is None else route.without_loop(accept)
        except RuntimeError:  # the state was changed meanwhile, so the loop runs again
            return _UNANSWERED


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, listening.getsockname()[:2]
        self._slots = threading.BoundedSemaphore(_MOST_REQUESTS)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of socketserver
        """Answer the requests of a connection, unless there are too many connections."""
        if not self._slots.acquire(timeout=_ANSWER_S):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - of socketserver
        """Log an error at the level of details: a client has closed its connection early."""
        _log.debug("a request for health or metrics failed", exc_info=True)


class _RequestHandler(BaseHTTPRequestHandler):
    server_version, sys_version = "tailrace", ""
    timeout = _IDLE_S
    get_answer: Callable[[str, str, str], HttpAnswer]

    def _respond(self) -> None:
        try:
            answer = self.get_answer(self.path, self.command, self.headers.get("accept", ""))
        except Exception:  # noqa: BLE001 - a collector of the user may raise anything
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
        """Log requests at the level of details only."""
        _log.debug("http: %s", format % args)


def _listening_socket(host: str, port: int) -> socket.socket:
    if host:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
