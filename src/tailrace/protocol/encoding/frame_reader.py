"""Cursor over the bytes of a frame.

Each length in a frame is checked against the remaining bytes before memory is allocated, so that a hostile or
corrupt frame raises MalformedMessageError in bounded time and memory.
"""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from tailrace.errors import MalformedMessageError

__all__ = ["FrameReader", "write_uvarint"]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class FrameReader:
    """Cursor over a frame; returned ``memoryview`` objects share the frame's memory."""

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._size = len(self._data)
        self._at = 0

    @property
    def remaining(self) -> int:
        """Number of bytes not read yet."""
        return self._size - self._at

    def view(self, size: int) -> memoryview:
        """Return the next ``size`` bytes without copying them."""
        start = self._at
        end = start + size
        if size < 0 or end > self._size:
            raise MalformedMessageError(
                f"a field claims {size} bytes at {start} of a message of {self._size} - "
                "the peer is no Kafka broker, or the bytes are corrupt"
            )
        self._at = end
        return self._data[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next numbers, unpacked by ``layout``."""
        start = self._at
        end = start + layout.size
        if end > self._size:
            self.view(layout.size)
        self._at = end
        return layout.unpack_from(self._data, start)

    def int16(self) -> int:
        """Return a signed 16-bit number."""
        number: int = self.unpack(_INT16)[0]
        return number

    def int32(self) -> int:
        """Return a signed 32-bit number."""
        number: int = self.unpack(_INT32)[0]
        return number

    def uvarint(self) -> int:
        """Return an unsigned varint of at most 32 bits (KIP-482)."""
        data, size, at = self._data, self._size, self._at
        value = 0
        for shift in range(0, 35, 7):
            if at >= size:
                self.view(size - self._at + 1)
            byte = data[at]
            at += 1
            if byte < 0x80:
                self._at = at
                return value | byte << shift
            value |= (byte & 0x7F) << shift
        raise MalformedMessageError(f"a varint at {at} has more than five bytes")

    def uuid(self) -> UUID:
        """Return the UUID of the next sixteen bytes."""
        return UUID(bytes=bytes(self.view(16)))

    def skip_tagged_fields(self) -> None:
        """Skip all tagged fields of a structure."""
        at = self._at
        if at < self._size and not self._data[at]:
            self._at = at + 1
            return
        for _ in range(self.count(self.uvarint())):
            self.uvarint()
            self.view(self.uvarint())

    def count(self, claimed: int) -> int:
        """Return ``claimed``, a number of elements, if the remaining bytes may hold that many.

        Raises:
            MalformedMessageError: there are fewer remaining bytes than elements, although each element takes at least
                one byte.
        """
        if claimed > self._size - self._at:
            raise MalformedMessageError(f"an array claims {claimed} elements with {self.remaining} bytes left")
        return claimed


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (KIP-482)."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
