"""The other side of a connection, played by the test: servers that are no broker, or one that misbehaves.

A ``Peer`` is a TCP server that treats every connection the same way. ``scripted`` makes one that understands Kafka's
frames, by tailrace's own tables, and answers as it is told; what a real broker does is never played here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self

from tailrace.protocol.encoding.api import RequestHeader, read_request_header
from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.message import Request
from tailrace.testing.apis import APIS, api_by_key

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Answer = object
"""A message in the version that was asked; a message and the version it is written in; bytes as they are; or None."""


class Peer:
    """A server on a port of its own for the length of an ``async with``; it ends with its connections.

    Attributes:
        port: where it listens.
        taken: how many connections it took.
    """

    def __init__(self, behave: Behaviour, *, tls: ssl.SSLContext | None = None) -> None:
        self._behave, self._tls = behave, tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.taken = 0

    @property
    def address(self) -> str:
        """As ``bootstrap_servers`` wants it."""
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
        self.taken += 1
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
    """Accept, and say nothing for ever."""
    await asyncio.Event().wait()


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what is said and close, in order."""
    await reader.read(1 << 16)


async def resets(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once, with a reset."""
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says(data: bytes) -> Behaviour:
    """Say ``data`` whatever is asked, and wait."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await silent(reader, writer)

    return behave


def offer(**versions: tuple[int, int]) -> ApiVersionsResponse:
    """Every API in the versions that tailrace speaks, but for those that are named."""
    ranges = {api.name: (api.versions[0], api.versions[-1]) for api in APIS} | versions
    return ApiVersionsResponse(0, tuple(ApiVersionRange(api.key, *ranges[api.name]) for api in APIS))


def scripted(answer: Callable[[Request[Any], RequestHeader], Answer]) -> Behaviour:
    """Answer each request as ``answer`` says; None leaves it unanswered."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for header, request in _requests(reader):
            said = answer(request, header)
            if isinstance(said, bytes):
                writer.write(said)
            elif said is not None:
                message, version = said if isinstance(said, tuple) else (said, header.version)
                api = api_by_key(header.api_key)
                assert api is not None
                writer.write(api.encode_response(message, version, correlation_id=header.correlation_id))

    return behave


def opens_then(answer: Callable[[Request[Any], RequestHeader], Answer]) -> Behaviour:
    """Agree on versions as a broker does, then answer as ``answer`` says."""

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
    """An address whose packets are lost: a listener that never accepts, its queue full (as Linux keeps it)."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody else can while it is in use here."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"
