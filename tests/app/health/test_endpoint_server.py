"""The HTTP server of probes and metrics answers, whatever other clients send or leave unread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import httpx
import pytest

from tailrace import App
from tailrace.app.health import endpoint_server
from tailrace.app.health.checks import Health
from tailrace.app.health.endpoint_server import EndpointServer, Render, Route
from tailrace.app.health.endpoints import HealthEndpoints, HttpAnswer
from tailrace.integrations.endpoints import serve
from tailrace.integrations.prometheus import metrics_app
from tailrace.observe.log_format import configure_logging
from tests.support.consumer_group import until

LARGE = HttpAnswer(200, b"x" * 50_000_000, "text/plain")


def returning(answer: HttpAnswer) -> Route:
    async def collect(_accept: str) -> Render:
        return lambda: answer

    return Route(collect)


@asynccontextmanager
async def server(routes: Mapping[str, Route] | None = None) -> AsyncIterator[int]:
    endpoints = HealthEndpoints(lambda: Health("ok"))
    async with EndpointServer(endpoints, port=0, host="127.0.0.1", routes=routes) as running:
        yield running.port


@contextlib.contextmanager
def clients(port: int, count: int, request: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
        for one in opened:
            one.sendall(request)
        yield opened


async def status(port: int, path: str = "/livez", method: str = "GET", **options: object) -> int:
    async with httpx.AsyncClient(timeout=10) as client:
        return (await client.request(method, f"http://127.0.0.1:{port}{path}", **options)).status_code


def received(client: socket.socket) -> bytes:
    """Read until the server ends the connection."""
    client.settimeout(20)
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65_536):
            data += part
    return data


# ---- slow clients --------------------------------------------------------------------------------------------------


async def test_dripping_clients_do_not_silence_the_probes():
    """Clients that send a byte now and then lose their connections to a client that sends a whole request."""
    async with server() as port:
        with clients(port, 40) as slow:
            for _ in range(5):
                for one in slow:
                    with contextlib.suppress(OSError):
                        one.sendall(b"G")
                assert await status(port) == 200


async def test_idle_connections_start_no_threads_beyond_the_limit():
    """The limit of connections is checked before a thread starts."""
    before = threading.active_count()
    async with server() as port:
        with clients(port, 200):
            assert await status(port) == 200
            await until(lambda: threading.active_count() <= before + 20)


async def test_a_dripping_client_is_disconnected(monkeypatch):
    """The time limit holds for the whole head of a request, and not for each byte."""
    monkeypatch.setattr(endpoint_server, "_REQUEST_TIMEOUT_S", 0.5)
    async with server() as port:
        with clients(port, 1) as (slow,):
            slow.settimeout(0.05)
            began_at = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() < began_at + 20:
                    slow.sendall(b"G")
                    with contextlib.suppress(TimeoutError):
                        assert await asyncio.to_thread(slow.recv, 1) == b""
                        break
            assert time.monotonic() < began_at + 15


async def test_clients_that_do_not_read_do_not_silence_the_probes():
    """Clients that leave a large response unread lose their connections to other clients."""
    async with server({"/metrics": returning(LARGE)}) as port:
        with clients(port, 30, b"GET /metrics HTTP/1.1\r\n\r\n"):
            assert [await status(port, path) for path in ("/livez", "/readyz")] == [200, 200]
            assert await status(port, "/metrics") == 200


async def test_hanging_collectors_do_not_silence_the_probes():
    """Collectors that never return take some of the connections only."""
    let_go = threading.Event()

    async def collect(_accept: str) -> Render:
        def render() -> HttpAnswer:
            let_go.wait(60)
            return HttpAnswer(200, b"", "text/plain")

        return render

    async with server({"/metrics": Route(collect)}) as port:
        try:
            with clients(port, 40, b"GET /metrics HTTP/1.1\r\n\r\n"):
                assert [await status(port) for _ in range(3)] == [200] * 3
        finally:
            let_go.set()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not end the wait for connections")
async def test_a_server_without_requests_stops_at_once():
    """The end of the server does not wait until it looks for slow clients again, every half second."""
    took_s = []
    for _ in range(10):
        began_at = time.monotonic()
        async with server():
            pass
        took_s.append(time.monotonic() - began_at)

    assert min(took_s) < 0.25


# ---- unusual requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "first_line"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\nGET /readyz HTTP/1.1\r\n\r\n" * 500, b"HTTP/1.0 200"),
        (b"POST /livez HTTP/1.1\r\ncontent-length: 500000\r\n\r\n" + b"x" * 500_000, b"HTTP/1.0 405"),
        (b"POST /metrics HTTP/1.1\r\ncontent-length: 500000\r\n\r\n" + b"x" * 500_000, b"HTTP/1.0 405"),
        (b"OPTIONS /livez HTTP/1.1\r\n\r\n", b"HTTP/1.0 405"),
        (b"BREW /livez HTTP/1.1\r\n\r\n", b"HTTP/1.0 501"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.0 200"),
        (b"GET /livez%zz%\xff HTTP/1.1\r\n\r\n", b"HTTP/1.0 404"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"HTTP/1.0 414"),
        (b"GET /livez HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"HTTP/1.0 431"),
        (b"GET /livez HTTP/1.1\r\na: " + b"b" * 100_000 + b"\r\n\r\n", b"HTTP/1.0 431"),
        # Before Python 3.15, an answer of HTTP/0.9.
        (b"GET /livez HTTP/9.9.9\r\n\r\n", (b"HTTP/1.0 400", b"<!DOCTYPE HTML>")),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b""),
    ],
    ids=lambda value: repr(value[:30]),
)
async def test_a_client_receives_the_whole_answer(request_bytes, first_line):
    """Pipelined requests, bodies and huge or malformed heads get one complete answer, and probes go on."""
    async with server({"/metrics": returning(HttpAnswer(200, b"metrics", "text/plain"))}) as port:
        with clients(port, 1, request_bytes) as (client,):
            answer = await asyncio.to_thread(received, client)
            assert answer.startswith(first_line), answer[:200]
            assert (b"metrics" in answer) is False
        assert await status(port) == 200


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=x",
        "application/openmetrics-text; version=",
        "application/openmetrics-text; version=1.0.0.x; escaping=\x1b",
        "text/plain; version=\u00e9",
        "text/plain;version=1..0;escaping=",
        ";;;,,,",
        "a" * 60_000,
    ],
)
async def test_a_malformed_accept_header_selects_the_text_format(accept, caplog):
    """A malformed Accept header is no reason to refuse metrics, and no error in the log."""
    sent = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async with serve(App(group_id="g"), port=0, host="127.0.0.1") as running:
        headers = {"accept": accept.encode("latin-1")}
        assert await status(running.port, "/metrics", headers=headers) == 200
    scope = {"type": "http", "method": "GET", "headers": [(b"accept", headers["accept"])]}
    await metrics_app(App(group_id="g"))(scope, None, send)

    assert sent[0]["status"] == 200
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


# ---- log -----------------------------------------------------------------------------------------------------------


async def test_requests_cannot_control_a_terminal_that_shows_the_log(caplog):
    """Escape sequences in a path, a method and a header are escaped in each log line, also with a raised error."""

    async def collect(accept: str) -> Render:
        raise ValueError(f"no {accept}")

    paths = (b"/metrics?\x1b[2J\x9b31m", b"/else\x1b[2J", b"/livez?\x1b]0;x\x07")
    with caplog.at_level(logging.DEBUG, "tailrace"):
        async with server({"/metrics": Route(collect)}) as port:
            for line in (
                *(b"GET %s HTTP/1.1" % path for path in paths),
                b"\x1b[2J / HTTP/1.1",
                b"GET /\x1b[2J HTTP/\x1b",
            ):
                with clients(port, 1, line + b"\r\naccept: \x1b[2J\r\n\r\n") as (client,):
                    await asyncio.to_thread(received, client)

    messages = [one.getMessage() for one in caplog.records if one.name == "tailrace"]
    assert [one for one in messages if not one.isprintable()] == []
    assert any("\\x1b[2J\\x9b31m" in one for one in messages)
    assert all((one.exc_text or "").replace("\n", "").isprintable() for one in caplog.records)


@pytest.mark.parametrize("log_format", ["console", "json"])
@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "\u202eevil", "\r", "\x00", "\u2066"])
def test_no_logger_writes_control_characters(log_format, text, capsys):
    """`tailrace run` escapes the messages, fields and tracebacks of every logger."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        configure_logging("info", log_format)
        shop = logging.getLogger("shop")
        shop.info("charged %s", f"ann{text}", extra={"key": text})
        try:
            {}[f"no {text}"]
        except KeyError:
            shop.exception("not charged")
        shop.warning("refused", exc_info=ValueError(f"no {text}"))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

    written = capsys.readouterr().err
    assert "charged ann" in written
    assert written.replace("\n", "").isprintable()
