"""Cursor over the bytes of a frame.

All methods raise MalformedMessageError for bytes that do not follow the protocol. A length is compared with the number
of remaining bytes before memory is allocated, so that hostile or corrupt frames need limited time and memory.
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
                f"a field claims {size} bytes at byte {start} of a message of {self._size} bytes - "
                "the peer is not a Kafka broker, or the bytes are corrupt"
            )
        self._at = end
        return self._data[start:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next numbers, unpacked with ``layout``."""
        start = self._at
        end = start + layout.size
        if end > self._size:
            self.view(layout.size)  # This raises MalformedMessageError.
        self._at = end
        return layout.unpack_from(self._data, start)

    def int16(self) -> int:
        """Return the next signed 16-bit number."""
        number: int = self.unpack(_INT16)[0]
        return number

    def int32(self) -> int:
        """Return the next signed 32-bit number."""
        number: int = self.unpack(_INT32)[0]
        return number

    def uvarint(self) -> int:
        """Return the next unsigned varint, which has at most 32 bits (KIP-482)."""
        data, size, at = self._data, self._size, self._at
        value = 0
        for shift in range(0, 35, 7):
            if at >= size:
                self.view(size - self._at + 1)  # This raises MalformedMessageError.
            byte = data[at]
            at += 1
            if byte < 0x80:
                self._at = at
                return value | byte << shift
            value |= (byte & 0x7F) << shift
        raise MalformedMessageError(f"the varint before byte {at} has more than five bytes")

    def varint(self) -> int:
        """Return the next zigzag varint, which has at most 64 bits, as in record batches of format 2."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.view(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise MalformedMessageError(f"the varint before byte {self._at} has more than ten bytes")

    def uuid(self) -> UUID:
        """Return the next sixteen bytes as a UUID."""
        return UUID(bytes=bytes(self.view(16)))

    def skip_tagged_fields(self) -> None:
        """Skip all tagged fields of a structure (KIP-482)."""
        at = self._at
        if at < self._size and not self._data[at]:
            self._at = at + 1
            return
        for _ in range(self.checked_count(self.uvarint())):
            self.uvarint()
            self.view(self.uvarint())

    def checked_count(self, claimed: int) -> int:
        """Return ``claimed``, the number of elements in an array.

        Raises:
            MalformedMessageError: ``claimed`` is negative, or fewer than ``claimed`` bytes remain, but each element
                takes at least one byte.
        """
        if not 0 <= claimed <= self._size - self._at:
            raise MalformedMessageError(f"an array claims {claimed} elements with {self.remaining} bytes left")
        return claimed


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint (KIP-482)."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
