"""Reception of frames: small frames in one read, and the rest of a large one into a buffer of its exact size.

An impossible length is rejected before a buffer is allocated: the peer is no Kafka broker, and the first four bytes
often show which kind of server the peer is. A possible length is not trusted either: the buffer of a large frame grows
as the bytes arrive, which copies about a third of the frame.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from tailrace.compiled import new_buffer
from tailrace.errors import BrokerConnectionError, MalformedMessageError

__all__ = ["LIMIT", "FrameProtocol", "guess_peer"]

_LENGTH = struct.Struct(">i")

OPENING_LIMIT = 1 << 20
"""Maximum size of a response while the connection is being opened."""
LIMIT = 1 << 30
"""Maximum size of any response."""
_CLAIM_LIMIT = 8 << 20
"""Maximum memory allocated for a frame before its bytes arrive."""
_GROWTH = 4
_READ_AHEAD = 16 << 10
"""Number of bytes to read between two frames; more of them would be copied, fewer would need a second read."""


class FrameProtocol(asyncio.BufferedProtocol):
    """Passes each frame to ``on_frame``, and calls ``on_lost`` once when the connection ends."""

    def __init__(self, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.limit = OPENING_LIMIT
        self.transport: asyncio.Transport | None = None
        self._on_frame, self._on_lost = on_frame, on_lost
        self._ahead = memoryview(bytearray(_READ_AHEAD))
        self._body: memoryview | None = None
        """Frame of which a part has arrived; None between two frames."""
        self._filled = self._size = 0
        self._refused: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame's size is known
        return (self._ahead if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._body is None:
            self._take_frames()
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

    def _take_frames(self) -> None:
        """Pass on the frames that were read ahead, and continue with the one that has arrived in part."""
        start, end, frames = 0, self._filled, []
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._ahead, start)
            if not _LENGTH.size <= size <= self.limit:
                self._refuse(start)
                break
            arrived = self._ahead[start + _LENGTH.size : min(start + _LENGTH.size + size, end)]
            body = memoryview(new_buffer(min(size, _CLAIM_LIMIT)))
            body[: len(arrived)] = arrived
            start += _LENGTH.size + len(arrived)
            if len(arrived) < size:
                self._body, self._size, self._filled = body, size, len(arrived)
                break
            frames.append(body)
        else:
            # A part of the next frame's length, at most.
            self._ahead[: end - start] = self._ahead[start:end]
            self._filled = end - start
        for frame in frames:
            self._on_frame(frame)

    def _grow(self, full: memoryview) -> None:
        # A bytearray cannot be resized here: the transport holds a view of it.
        self._body = memoryview(new_buffer(min(self._size, len(full) * _GROWTH)))
        self._body[: len(full)] = full

    def _refuse(self, start: int) -> None:
        """Abort the connection for the length at ``start``, and read nothing more."""
        peer = guess_peer(bytes(self._ahead[start : start + _LENGTH.size]))
        if peer is not None:
            self._refused = BrokerConnectionError(peer)
        else:
            (size,) = _LENGTH.unpack_from(self._ahead, start)
            self._refused = MalformedMessageError(f"a response claims {size} bytes - is this a Kafka broker?")
        self._body, self._filled = memoryview(b""), 0
        if self.transport is not None:
            self.transport.abort()


def guess_peer(head: bytes) -> str | None:
    """Return an error message if the first four bytes of a response show that the peer is another server."""
    if head.startswith(b"HTTP"):
        return "a web server answered - this is not a Kafka broker's port"
    if head.startswith(b"SSH-"):
        return "an SSH server answered - this is not a Kafka broker's port"
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return (
            "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL'), or use the port of a plain listener"
        )
    return None
