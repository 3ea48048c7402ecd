"""Frames off a socket, each received in place: one buffer of its exact size, filled by the kernel, not copied.

Rule of this file: it knows lengths and nothing else. A length that cannot be is told before anything is allocated:
the peer is no Kafka broker then, and often enough its first four bytes say what it is. A length that can be is only a
claim: the buffer of a large frame grows as its bytes arrive, at the price of copying a third of them.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from tailrace.errors import BrokerConnectionError, MalformedMessageError

__all__ = ["LIMIT", "FrameProtocol", "guess_peer"]

_LENGTH = struct.Struct(">i")

OPENING_LIMIT = 1 << 20
"""No answer during the opening of a connection is larger."""
LIMIT = 1 << 30
"""No answer ever is."""
_CLAIM_LIMIT = 8 << 20
"""Memory that a frame gets before any byte of it has arrived."""
_GROWTH = 4


class FrameProtocol(asyncio.BufferedProtocol):
    """Gives each frame to ``on_frame`` and the end of the connection, once, to ``on_lost``."""

    def __init__(self, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.limit = OPENING_LIMIT
        self.transport: asyncio.Transport | None = None
        self._on_frame, self._on_lost = on_frame, on_lost
        self._head = memoryview(bytearray(_LENGTH.size))
        self._body: memoryview | None = None
        self._filled = self._size = 0
        self._refused: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's behaves as one, and is none by its class.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a frame knows its size better
        return (self._head if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._body is None:
            if self._filled == _LENGTH.size:
                self._begin_body()
        elif self._filled == len(self._body):
            if self._filled < self._size:
                self._grow(self._body)
                return
            body, self._body, self._filled = self._body, None, 0
            self._on_frame(body)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._on_lost(self._refused or exc)

    def _begin_body(self) -> None:
        (size,) = _LENGTH.unpack(self._head)
        if not _LENGTH.size <= size <= self.limit:
            self._refuse(size)
            return
        self._size, self._filled = size, 0
        self._body = memoryview(bytearray(min(size, _CLAIM_LIMIT)))

    def _grow(self, full: memoryview) -> None:
        # A bytearray cannot be resized here: the transport holds a view of it.
        self._body = memoryview(bytearray(min(self._size, len(full) * _GROWTH)))
        self._body[: len(full)] = full

    def _refuse(self, size: int) -> None:
        peer = guess_peer(bytes(self._head))
        if peer is not None:
            self._refused = BrokerConnectionError(peer)
        else:
            self._refused = MalformedMessageError(f"an answer that claims {size} bytes - is there a Kafka broker?")
        if self.transport is not None:
            self.transport.abort()


def guess_peer(head: bytes) -> str | None:
    """What speaks like that, if its first four bytes tell."""
    if head.startswith(b"HTTP"):
        return "a web server answered - this is not a Kafka broker's port"
    if head.startswith(b"SSH-"):
        return "an SSH server answered - this is not a Kafka broker's port"
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "it speaks TLS - set security_protocol='SSL' (or 'SASL_SSL'), or use the port of a plain listener"
    return None
