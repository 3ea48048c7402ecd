"""HTTP server for probes and metrics, with a thread for each connection.

Responses are computed in the event loop of the app. If the loop is blocked, the thread computes them, so that
``/livez`` reports the blocked loop.

A connection serves one request. A client that sends or reads slowly keeps its connection for a limited time, and only
while no other client needs it, so that slow clients cannot silence the probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

from tailrace.app.health.endpoints import GET_ONLY, HealthEndpoints, HttpAnswer
from tailrace.errors import ConfigurationError

__all__ = ["EndpointServer", "Render", "Route"]

_ANSWER_TIMEOUT_S = 2.0
"""Maximum time in seconds to wait for the event loop, and for a client that has received its response."""

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


_REQUEST_TIMEOUT_S = 5.0
"""Maximum time in seconds from the start of a connection to the end of the request's head."""
_RESPONSE_TIMEOUT_S = 30.0
"""Maximum time in seconds to send a response."""
_MAX_CONNECTIONS = 16
"""Maximum number of connections at the same time, and of threads.

A further connection replaces the oldest one that waits for its client; without one, the new connection is closed.
"""
_MAX_SCRAPES = 12
"""Maximum number of concurrent responses for one path of ``routes``, so that slow collectors leave room for probes."""
_MAX_UNREAD_BYTES = 1_048_576
"""Maximum size of the data that is read and discarded behind a request, such as the body of a POST."""
_BUSY = HttpAnswer(503, b"too many concurrent requests\n", "text/plain")
_NO_ANSWER = HttpAnswer(503, b"the event loop of the app does not answer\n", "text/plain")

_log = logging.getLogger("tailrace")


class EndpointServer:
    """HTTP server that runs within ``async with``.

    Args:
        port: TCP port; 0 for any free port.
        host: address to listen on; empty for all addresses.
        routes: answers to requests for further paths, by path.
    """

    def __init__(
        self, endpoints: HealthEndpoints, *, port: int, host: str = "", routes: Mapping[str, Route] | None = None
    ) -> None:
        self._endpoints, self._routes, self._host, self.port = endpoints, routes or {}, host, port
        self._scrapes = {path: threading.BoundedSemaphore(_MAX_SCRAPES) for path in self._routes}
        self._server: _Server | None = None

    async def __aenter__(self) -> Self:
        """Start the server.

        Raises:
            ConfigurationError: the port is in use or invalid, or the address does not belong to this machine.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = _Server(_listening_socket(self._host, self.port), self._handler(loop), loop.time)
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
        if path not in self._routes:
            return self._collected(loop, path, method, accept)
        if method not in {"GET", "HEAD"}:
            return GET_ONLY
        if not self._scrapes[path].acquire(blocking=False):
            return _BUSY
        try:
            return self._collected(loop, path, method, accept)
        finally:
            self._scrapes[path].release()

    def _collected(self, loop: asyncio.AbstractEventLoop, path: str, method: str, accept: str) -> HttpAnswer:
        async def collect() -> Render:
            if path in self._routes:
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


class _ClientConnection:
    """Open connection.

    Attributes:
        deadline: time at which the connection is closed if it waits for its client, to send or to read; None while the
            response is computed.
    """

    def __init__(self, client: socket.socket, deadline: float) -> None:
        self._client = client
        self.deadline: float | None = deadline

    def abort(self) -> None:
        """End the connection, so that its thread ends, too."""
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, listening: socket.socket, handler: type[BaseHTTPRequestHandler], clock: Callable[[], float]
    ) -> None:
        self._clock = clock
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listening, listening.getsockname()[:2]
        self._connections: dict[Any, _ClientConnection] = {}
        """Connections by socket, the oldest first."""
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of socketserver
        """Start the thread of a connection; called in the thread that accepts connections."""
        with self._lock:
            if len(self._connections) >= _MAX_CONNECTIONS and not self._abort_oldest():
                request.close()
                return
            self._connections[request] = _ClientConnection(request, self._clock() + _REQUEST_TIMEOUT_S)
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread can be started.
            self._remove(request)
            request.close()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of socketserver
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._remove(request)

    def shutdown(self) -> None:
        """Stop accepting connections, and wait for the thread that accepts them."""
        # Linux then ends the wait of serve_forever, which looks for the end only every half second. Others refuse.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        super().shutdown()

    def service_actions(self) -> None:
        """Close connections whose clients are too slow; called every half second."""
        now = self._clock()
        with self._lock:
            for one in self._connections.values():
                if one.deadline is not None and one.deadline < now:
                    one.abort()

    def set_deadline(self, request: Any, timeout_s: float | None) -> None:  # noqa: ANN401 - of socketserver
        """Set the time limit of a connection that waits for its client; None if it does not wait."""
        with self._lock:
            if (connection := self._connections.get(request)) is not None:
                connection.deadline = None if timeout_s is None else self._clock() + timeout_s

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - of socketserver
        """Close a connection after the client has received the response.

        The system discards a response that is not yet received if the socket is closed with unread data.
        """
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_WR)
            request.settimeout(_ANSWER_TIMEOUT_S)
            unread = 0
            while unread <= _MAX_UNREAD_BYTES and (data := request.recv(65_536)):
                unread += len(data)
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - of socketserver
        """Log an error, such as for a connection that the client has closed, at the level DEBUG."""
        _log.debug("a request for health or metrics failed", exc_info=True)

    def _abort_oldest(self) -> bool:
        """End the oldest connection that waits for its client; return False if there is none."""
        for request, one in self._connections.items():
            if one.deadline is not None:
                one.abort()
                del self._connections[request]
                return True
        return False

    def _remove(self, request: Any) -> None:  # noqa: ANN401 - of socketserver
        with self._lock:
            self._connections.pop(request, None)


class _RequestHandler(BaseHTTPRequestHandler):
    server_version, sys_version = "tailrace", ""
    timeout = _RESPONSE_TIMEOUT_S
    server: _Server
    get_answer: Callable[[str, str, str], HttpAnswer]

    def _respond(self) -> None:
        self.server.set_deadline(self.request, None)
        try:
            answer = self.get_answer(self.path, self.command, self.headers.get("accept", ""))
        except Exception:  # noqa: BLE001 - collectors of users may raise any error
            _log.exception("a request for %s failed", self.path)
            answer = HttpAnswer(500, b"the request failed - see the log\n", "text/plain")
        self.server.set_deadline(self.request, _RESPONSE_TIMEOUT_S)
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        self.send_header("content-length", str(len(answer.body)))
        self.send_header("cache-control", "no-store")
        if answer.allowed is not None:
            self.send_header("allow", answer.allowed)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _respond  # noqa: N815 - of http.server

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
