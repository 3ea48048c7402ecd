"""Connection of a client through a FaultProxy to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

from tailrace.protocol.handshake import api_of
from tailrace.testing.apis import api_by_key
from tailrace.testing.faults import Fault, decode_frame

__all__ = ["LENGTH", "ConnectionPair", "ProxiedRequest", "edit_frame", "read_frame"]

LENGTH = struct.Struct(">i")
"""Format of the length prefix of a frame, and of the correlation id at the start of a response."""


class ProxiedRequest:
    """Header of a request, kept until the proxy has the response."""

    def __init__(self, api_key: int, version: int, client_id: str | None) -> None:
        self.api_key, self.version, self.client_id = api_key, version, client_id


class ConnectionPair:
    """Connection from a client to the proxy, with its connection from the proxy to the broker.

    Attributes:
        number: number of the client's connection, from 1.
        task: task that serves the connections.
        client: writer to the client.
        upstream: writer to the broker; None until the proxy is connected.
        pending: requests without a response, by correlation id.
        answers_to_drop: correlation ids of repeated requests; the first response to each is dropped.
    """

    def __init__(self, number: int, task: asyncio.Task[Any], client: asyncio.StreamWriter) -> None:
        self.number, self.task, self.client = number, task, client
        self.upstream: asyncio.StreamWriter | None = None
        self.pending: dict[int, ProxiedRequest] = {}
        self.answers_to_drop: set[int] = set()

    def reset(self) -> None:
        """Reset both connections, so that client and broker receive a TCP RST."""
        for writer in (self.client, self.upstream):
            if writer is None:
                continue
            peer: socket.socket | None = writer.get_extra_info("socket")
            if peer is not None:
                with contextlib.suppress(OSError):
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


async def read_frame(source: asyncio.StreamReader) -> bytes:
    """Return the next frame without its length prefix."""
    (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    return await source.readexactly(size)


def edit_frame(fault: Fault, request: ProxiedRequest, correlation_id: int, data: bytes) -> bytes:
    """Decode a frame, call the fault's ``edit`` with the message, and return the encoded result as a frame.

    Neither frame has a length prefix.
    """
    api = api_by_key(request.api_key)
    assert api is not None
    assert fault.edit is not None
    message = fault.edit(decode_frame(api, fault.direction, memoryview(data), request.version))
    if fault.direction == "answer":
        frame = api.encode_response(message, request.version, correlation_id=correlation_id)
    else:
        frame = api_of(message).encode_request(
            message, request.version, correlation_id=correlation_id, client_id=request.client_id
        )
    return bytes(frame[LENGTH.size :])
