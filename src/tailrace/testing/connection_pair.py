"""Connection of a client through a proxy: both sides, pending requests, and frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

from tailrace.protocol.api_versions import api_of
from tailrace.testing.apis import api_by_key
from tailrace.testing.faults import Fault, decode_frame

__all__ = ["LENGTH", "ConnectionPair", "ProxiedRequest", "edited", "read_frame"]

LENGTH = struct.Struct(">i")
"""Format of a frame's length, and of a correlation id."""


class ProxiedRequest:
    """Header of a request, kept until the response arrives."""

    def __init__(self, api_key: int, version: int, client_id: str | None) -> None:
        self.api_key, self.version, self.client_id = api_key, version, client_id


class ConnectionPair:
    """Connections from the client to the proxy and from the proxy to the broker."""

    def __init__(self, number: int, task: asyncio.Task[Any], client: asyncio.StreamWriter) -> None:
        self.number, self.task, self.client = number, task, client
        self.upstream: asyncio.StreamWriter | None = None
        self.asked: dict[int, ProxiedRequest] = {}
        self.swallow: set[int] = set()

    def reset(self) -> None:
        """Abort both connections; the client's connection is reset (RST)."""
        for writer in (self.client, self.upstream):
            if writer is None:
                continue
            peer: socket.socket | None = writer.get_extra_info("socket")
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def read_frame(source: asyncio.StreamReader) -> bytes:
    """Return the next frame without its length."""
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    return await source.readexactly(size)


def edited(fault: Fault, asked: ProxiedRequest, correlation_id: int, data: bytes) -> bytes:
    """Return the frame as changed by the fault's ``edit`` function."""
    api = api_by_key(asked.api_key)
    assert api is not None
    assert fault.edit is not None
    message = fault.edit(decode_frame(api, fault.direction, memoryview(data), asked.version))
    if fault.direction == "answer":
        framed = api.encode_response(message, asked.version, correlation_id=correlation_id)
    else:
        framed = api_of(message).encode_request(
            message, asked.version, correlation_id=correlation_id, client_id=asked.client_id
        )
    return bytes(framed[LENGTH.size :])
