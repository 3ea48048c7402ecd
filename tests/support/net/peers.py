"""Servers that are no broker, or that misbehave.

A ``Peer`` is a TCP server that treats all connections alike. ``scripted`` makes one that decodes Kafka's frames and
gives prepared responses; it does not simulate a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.message import Request, RequestHeader, read_request_header
from tailrace.testing.faults import APIS, api_by_key

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answer = object
"""A message in the version that was asked; a message and the version it is written in; bytes as they are; or None."""


class Peer:
    """Server on its own port within an ``async with`` block, which closes its connections.

    Attributes:
        port: port of the listener.
        accepted: number of accepted connections.
    """

    def __init__(self, behave: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self._behave, self._tls = behave, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.accepted = 0

    @property
    def address(self) -> str:
        """Host and port for ``bootstrap_servers``."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._behave(reader, writer)
        finally:
            writer.transport.abort()


async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Accept connections and send nothing."""
    await asyncio.Event().wait()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read and close cleanly."""
    await reader.read(1 << 16)


async def resets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reset the connection immediately."""
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def sends(data: bytes) -> Behaviour:
    """Send ``data`` and wait."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await silent(reader, writer)

    return behave


def offer(**versions: tuple[int, int]) -> ApiVersionsResponse:
    """Return an ApiVersions response with all supported versions, except the given ones."""
    ranges = {api.name: (api.versions[0], api.versions[-1]) for api in APIS} | versions
    return ApiVersionsResponse(0, tuple(ApiVersionRange(api.key, *ranges[api.name]) for api in APIS))


def scripted(answer: Callable[[Request[Any], RequestHeader], Answer]) -> Behaviour:
    """Respond to each request with the result of ``answer``, and not at all if that is None."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for header, request in _requests(reader):
            response = answer(request, header)
            if isinstance(response, bytes):
                writer.write(response)
            elif response is not None:
                message, version = response if isinstance(response, tuple) else (response, header.version)
                api = api_by_key(header.api_key)
                assert api is not None
                writer.write(api.encode_response(message, version, correlation_id=header.correlation_id))

    return behave


def opens_then(answer: Callable[[Request[Any], RequestHeader], Answer]) -> Behaviour:
    """Negotiate versions as a broker does, then respond with the results of ``answer``."""

    def first(request: Request[Any], header: RequestHeader) -> Answer:
        return offer() if isinstance(request, ApiVersionsRequest) else answer(request, header)

    return scripted(first)


async def _requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[RequestHeader, Request[Any]]]:
    while True:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        frame = memoryview(await reader.readexactly(size))
        header = read_request_header(frame)
        api = api_by_key(header.api_key)
        assert api is not None
        yield header, api.decode_request(frame, header.version)


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Provide an address whose packets are dropped: a listener with a full backlog that never accepts (on Linux)."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def closed_port() -> Iterator[str]:
    """Provide the address of a bound port without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
