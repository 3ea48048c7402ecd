"""Kafka's primitive types, and a cursor over the bytes of a frame.

Flexible versions (KIP-482) encode lengths as varints; earlier versions encode them in two or four bytes. A length is
compared with the number of remaining bytes before memory is allocated, so that hostile or corrupt frames need limited
time and memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn
from uuid import UUID

from tailrace.errors import MalformedMessageError

__all__ = [
    "BOOL",
    "BYTES",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "NULL",
    "PRESENT",
    "RECORDS",
    "STRING",
    "UUIDS",
    "Decode",
    "Encode",
    "FrameReader",
    "Number",
    "Primitive",
    "Sized",
    "Uuid",
    "grouped",
    "int8",
    "int16",
    "int32",
    "int64",
    "packed",
    "raise_misfit",
    "write_count",
    "write_length",
    "write_sized",
    "write_tags",
    "write_uvarint",
]

# ---- frames ----------------------------------------------------------------------------------------------------------

NULL, PRESENT = 0xFF, 0x01
"""Values of the byte before a nullable structure, in all versions (KIP-893)."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class FrameReader:
    """Cursor over a frame; returned ``memoryview`` objects share the frame's memory.

    All methods raise MalformedMessageError for bytes that do not follow the protocol.
    """

    __slots__ = ("_at", "_data", "_size")

    def __init__(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        self._data = memoryview(data)
        self._size = len(self._data)
        self._at = at

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

    def tagged_field(self) -> tuple[int, FrameReader]:
        """Return the tag of the next tagged field, and a reader of its value."""
        return self.uvarint(), FrameReader(self.view(self.uvarint()))

    def is_present(self) -> bool:
        """Read the byte before a nullable structure, and return True if the structure follows."""
        first = self.view(1)[0]
        if first not in {NULL, PRESENT}:
            raise MalformedMessageError(f"the byte before a nullable structure must be 0x01 or 0xff, not 0x{first:02x}")
        return first == PRESENT

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


Encode = Callable[[bytearray, Any], None]
Decode = Callable[[FrameReader], Any]


# ---- lengths ---------------------------------------------------------------------------------------------------------


def write_length(out: bytearray, length: int | None, *, flexible: bool, short: bool = False) -> None:
    """Append a length; None is the length of null.

    Flexible versions encode a length as a varint; earlier versions in two bytes if ``short`` is True, else in four.

    Raises:
        MalformedMessageError: the length does not fit into two or four bytes.
    """
    if flexible:
        write_uvarint(out, 0 if length is None else length + 1)
        return
    limit = 0x7FFF if short else 0x7FFFFFFF
    if length is not None and length > limit:
        raise MalformedMessageError(f"a value of {length} bytes exceeds the protocol's limit of {limit}")
    out += (-1 if length is None else length).to_bytes(2 if short else 4, "big", signed=True)


# ---- types -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """Number of fixed size."""

    name: str
    """Name in Kafka's message definitions."""
    code: str
    """Format character of ``struct``."""


@dataclass(frozen=True, slots=True)
class Uuid:
    """Type of UUIDs, which have sixteen bytes."""


@dataclass(frozen=True, slots=True)
class Sized:
    """Type whose values are encoded as a length and the bytes of the value."""

    name: str
    """Name in Kafka's message definitions."""
    short: bool
    """True if versions before the first flexible one encode the length in two bytes; False if in four."""
    from_view: str
    """Expression that makes a value of the bytes ``{}``."""
    is_text: bool = False


Primitive = Number | Sized | Uuid

BOOL = Number("bool", "?")
INT8 = Number("int8", "b")
INT16 = Number("int16", "h")
INT32 = Number("int32", "i")
INT64 = Number("int64", "q")
UUIDS = Uuid()
STRING = Sized("string", short=True, from_view="str({}, 'utf-8', 'replace')", is_text=True)
"""Type of strings. As in Java's client, bytes that are not UTF-8 become U+FFFD.

Texts such as the metadata of a commit, or topics in the subscription of a member, come from other clients. Neither the
members of a group nor every broker checks them.
"""
BYTES = Sized("bytes", short=False, from_view="bytes({})")
RECORDS = Sized("records", short=False, from_view="{}")
"""Type of record batches. They are read as a view of the frame, which keeps the whole frame in memory."""

int8 = Annotated[int, INT8]
int16 = Annotated[int, INT16]
int32 = Annotated[int, INT32]
int64 = Annotated[int, INT64]

# ---- values and arrays, written by the encoders that ``codec`` generates ---------------------------------------------


def write_count(out: bytearray, items: Collection[Any] | None, flexible: bool, nullable: bool) -> None:  # noqa: FBT001
    if items is None and not nullable:
        raise MalformedMessageError("the protocol requires an array, not None")
    write_length(out, None if items is None else len(items), flexible=flexible)


def write_sized(out: bytearray, value: Any, kind: Sized, flexible: bool, nullable: bool) -> None:  # noqa: FBT001
    if value is None:
        if not nullable:
            raise MalformedMessageError(f"the protocol requires a value of type {kind.name}, not None")
        write_length(out, None, flexible=flexible, short=kind.short)
        return
    try:
        raw = value.encode() if kind.is_text else value
    except UnicodeEncodeError as error:
        raise MalformedMessageError(f"{value!r} cannot be encoded as UTF-8") from error
    if flexible and (length := len(raw)) < 0x7F:
        out.append(length + 1)
    else:
        write_length(out, len(raw), flexible=flexible, short=kind.short)
    out += raw


def write_tags(out: bytearray, tags: Sequence[tuple[int, bytearray]]) -> None:
    out.append(len(tags))
    for tag, body in tags:
        write_uvarint(out, tag)
        write_uvarint(out, len(body))
        out += body


def grouped(entries: Iterable[Any] | None, key_of: Callable[[Any], Any]) -> Collection[Sequence[Any]] | None:
    """Return the entries of each topic; None for None."""
    if entries is None:
        return None
    topics: dict[Any, list[Any]] = {}
    for entry in entries:
        topics.setdefault(key_of(entry), []).append(entry)
    return topics.values()


def packed(values: Any, number: Number, count: int | None = None) -> bytes:
    """Return a number, or ``count`` numbers, as bytes."""
    numbers = [values] if count is None else values
    try:
        return struct.pack(f">{len(numbers)}{number.code}", *numbers)
    except struct.error:
        raise_misfit([number] * len(numbers), numbers)


def raise_misfit(types: Sequence[Number], values: Sequence[Any]) -> NoReturn:
    """Raise MalformedMessageError for the first value that does not fit its type."""
    for one, value in zip(types, values, strict=True):
        try:
            struct.pack(f">{one.code}", value)
        except struct.error as error:
            raise MalformedMessageError(f"{value!r} does not fit {one.name}") from error
    raise AssertionError(f"all of {values!r} fit their types")
