"""Reading a frame: a cursor over bytes that never reads past their end.

Rule of this file: every length that a peer claims is checked against what is there before anything is made of it,
so a hostile or garbled frame gives MalformedMessageError in bounded time and memory.
"""

from __future__ import annotations

import struct
from uuid import UUID

from tailrace.errors import MalformedMessageError

__all__ = ["FrameReader", "write_uvarint"]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class FrameReader:
    """A cursor over one frame; what it hands out as ``memoryview`` shares the frame's memory."""

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._size = len(self._data)
        self._at = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self._size - self._at

    def view(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        start, end = self._at, self._at + size
        if size < 0 or end > self._size:
            raise MalformedMessageError(
                f"a field claims {size} bytes at {start} of a message of {self._size} - "
                "the peer is no Kafka broker, or something between changed the bytes"
            )
        self._at = end
        return self._data[start:end]

    def fixed(self, layout: struct.Struct) -> object:
        """One number of a fixed size."""
        return layout.unpack(self.view(layout.size))[0]

    def int16(self) -> int:
        """A signed number of two bytes."""
        return int.from_bytes(self.view(2), "big", signed=True)

    def int32(self) -> int:
        """A signed number of four bytes."""
        return int.from_bytes(self.view(4), "big", signed=True)

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits (KIP-482)."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.view(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedMessageError(f"a varint at {self._at} has more than five bytes")

    def uuid(self) -> UUID:
        """Sixteen bytes."""
        return UUID(bytes=bytes(self.view(16)))

    def skip_tagged_fields(self) -> None:
        """Pass over fields that nobody here asks for."""
        for _ in range(self.count(self.uvarint())):
            self.uvarint()
            self.view(self.uvarint())

    def count(self, claimed: int) -> int:
        """A number of elements, each of which takes at least one byte, so more than the bytes left is a lie."""
        if claimed > self.remaining:
            raise MalformedMessageError(f"an array claims {claimed} elements with {self.remaining} bytes left")
        return claimed


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (KIP-482)."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
