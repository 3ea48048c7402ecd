"""Reception of frames: one read may receive several small frames, and a large frame is read into its own buffer.

A frame begins with its length. A length that no response can have is rejected before a buffer is allocated: the peer is
not a Kafka broker, and the four bytes of the length often show which kind of server the peer is. Accepted lengths are
not trusted either: the buffer of a frame has at most 8 MiB at first, and grows while bytes arrive.
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
"""Maximum size of a response, in bytes, while the connection is being opened."""
LIMIT = 1 << 30
"""Maximum size of a response, in bytes, on an open connection."""
_FIRST_BUFFER_LIMIT = 8 << 20
"""Maximum size of the first buffer of a frame, in bytes."""
_GROWTH = 4
"""Factor by which the buffer of a frame grows when it is full."""
_READ_AHEAD_BYTES = 16 << 10
"""Size of the buffer for reads that begin between two frames.

The bytes in this buffer are copied into the frames: a larger buffer means more copying, a smaller one more reads.
"""


class FrameProtocol(asyncio.BufferedProtocol):
    """asyncio protocol that passes each frame to ``on_frame``, and calls ``on_lost`` once when the connection ends.

    Attributes:
        limit: maximum size of a frame, in bytes.
        transport: transport of the connection; None before the connection is made and after it is lost.
    """

    def __init__(self, on_frame: Callable[[memoryview], None], on_lost: Callable[[Exception | None], None]) -> None:
        self.limit = OPENING_LIMIT
        self.transport: asyncio.Transport | None = None
        self._on_frame, self._on_lost = on_frame, on_lost
        self._read_ahead = memoryview(bytearray(_READ_AHEAD_BYTES))
        self._body: memoryview | None = None
        """Buffer of a frame that has not completely arrived; None between two frames."""
        self._filled = 0
        """Number of bytes received into ``_body``, or into ``_read_ahead`` between two frames."""
        self._size = 0
        """Size of the frame that ``_body`` receives; ``_body`` may be smaller and then grows."""
        self._rejection: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio.Transport.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the frame's size is known
        return (self._read_ahead if self._body is None else self._body)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._body is None:
            self._split_frames()
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
        self._on_lost(self._rejection or exc)

    def _split_frames(self) -> None:
        """Pass the complete frames in ``_read_ahead`` to ``on_frame``, and move an incomplete frame to ``_body``."""
        start, end, frames = 0, self._filled, []
        while end - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._read_ahead, start)
            if not _LENGTH.size <= size <= self.limit:
                self._reject(start)
                break
            arrived = self._read_ahead[start + _LENGTH.size : min(start + _LENGTH.size + size, end)]
            body = memoryview(new_buffer(min(size, _FIRST_BUFFER_LIMIT)))
            body[: len(arrived)] = arrived
            start += _LENGTH.size + len(arrived)
            if len(arrived) < size:
                self._body, self._size, self._filled = body, size, len(arrived)
                break
            frames.append(body)
        else:
            # At most three bytes are left: the beginning of the next frame's length.
            self._read_ahead[: end - start] = self._read_ahead[start:end]
            self._filled = end - start
        for frame in frames:
            self._on_frame(frame)

    def _grow(self, full: memoryview) -> None:
        # A bytearray cannot be resized here: the transport holds a view of it.
        self._body = memoryview(new_buffer(min(self._size, len(full) * _GROWTH)))
        self._body[: len(full)] = full

    def _reject(self, start: int) -> None:
        """Abort the connection because of the invalid length at ``start`` of ``_read_ahead``."""
        peer = guess_peer(bytes(self._read_ahead[start : start + _LENGTH.size]))
        if peer is not None:
            self._rejection = BrokerConnectionError(peer)
        else:
            (size,) = _LENGTH.unpack_from(self._read_ahead, start)
            self._rejection = MalformedMessageError(f"a response claims {size} bytes - is this a Kafka broker?")
        self._body, self._filled = memoryview(b""), 0
        if self.transport is not None:
            self.transport.abort()


def guess_peer(head: bytes) -> str | None:
    """Return an error message if ``head``, the first four bytes of a response, is of a known protocol, else None."""
    if head.startswith(b"HTTP"):
        return "a web server answered - this is not a Kafka broker's port"
    if head.startswith(b"SSH-"):
        return "an SSH server answered - this is not a Kafka broker's port"
    if head[:2] in {b"\x15\x03", b"\x16\x03"}:
        return "the listener uses TLS - set security_protocol='SSL' (or 'SASL_SSL'), or use a listener without TLS"
    return None
