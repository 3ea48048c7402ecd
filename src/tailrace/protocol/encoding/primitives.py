"""Kafka's primitive types.

Flexible versions (KIP-482) encode lengths as varints; earlier versions encode them in two or four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.frame_reader import FrameReader, write_uvarint

__all__ = [
    "BOOL",
    "BYTES",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "RECORDS",
    "STRING",
    "UUIDS",
    "Decode",
    "Encode",
    "Number",
    "Primitive",
    "Sized",
    "int8",
    "int16",
    "int32",
    "int64",
    "length_reader",
    "write_length",
]

Encode = Callable[[bytearray, Any], None]
Decode = Callable[[FrameReader], Any]


# ---- lengths ---------------------------------------------------------------------------------------------------


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


def length_reader(*, flexible: bool, short: bool = False) -> Callable[[FrameReader], int]:
    """Return the function that reads a length; the function returns -1 for null."""
    if flexible:
        return lambda reader: reader.uvarint() - 1
    return FrameReader.int16 if short else FrameReader.int32


# ---- types -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """Number of fixed size."""

    name: str
    """Name in Kafka's message definitions."""
    code: str
    """Format character of ``struct``."""

    def encoder(self, *, flexible: bool, nullable: bool) -> Encode:  # noqa: ARG002 - the same in all versions
        """Return the function that appends one number."""
        pack = struct.Struct(f">{self.code}").pack

        def encode(out: bytearray, value: object) -> None:
            try:
                out += pack(value)
            except struct.error as error:
                raise MalformedMessageError(f"{value!r} does not fit {self.name}") from error

        return encode

    def decoder(self, *, flexible: bool, nullable: bool) -> Decode:  # noqa: ARG002 - the same in all versions
        """Return the function that reads one number."""
        layout = struct.Struct(f">{self.code}")
        return lambda reader: reader.unpack(layout)[0]


class _Uuid:
    name = "uuid"

    def encoder(self, *, flexible: bool, nullable: bool) -> Encode:  # noqa: ARG002 - the same in all versions
        def encode(out: bytearray, value: UUID) -> None:
            out += value.bytes

        return encode

    def decoder(self, *, flexible: bool, nullable: bool) -> Decode:  # noqa: ARG002 - the same in all versions
        return FrameReader.uuid


@dataclass(frozen=True, slots=True)
class Sized:
    """Type whose values are encoded as a length and the bytes of the value."""

    name: str
    """Name in Kafka's message definitions."""
    short: bool
    """True if versions before the first flexible one encode the length in two bytes; False if in four."""
    to_bytes: Callable[[Any], bytes]
    from_view: Callable[[memoryview], Any]

    def encoder(self, *, flexible: bool, nullable: bool) -> Encode:
        """Return the function that appends one value, which may be None if ``nullable``."""
        to_bytes, short = self.to_bytes, self.short

        def encode(out: bytearray, value: object) -> None:
            if value is None:
                if not nullable:
                    raise MalformedMessageError(f"the protocol requires a value of type {self.name}, not None")
                write_length(out, None, flexible=flexible, short=short)
                return
            try:
                raw = to_bytes(value)
            except UnicodeEncodeError as error:
                raise MalformedMessageError(f"{value!r} cannot be encoded as UTF-8") from error
            if flexible and (length := len(raw)) < 0x7F:
                out.append(length + 1)
            else:
                write_length(out, len(raw), flexible=flexible, short=short)
            out += raw

        return encode

    def decoder(self, *, flexible: bool, nullable: bool) -> Decode:
        """Return the function that reads one value, which may be None if ``nullable``."""
        read_length = length_reader(flexible=flexible, short=self.short)
        from_view = self.from_view

        def decode(reader: FrameReader) -> object:
            length = read_length(reader)
            if length == -1 and nullable:
                return None
            return from_view(reader.view(length))

        return decode


Primitive = Number | Sized | _Uuid


def _utf8(view: memoryview) -> str:
    """Decode a string; as in Java's client, bytes that are not UTF-8 become U+FFFD.

    Texts such as the metadata of a commit, or topics in the subscription of a member, come from other clients. Neither
    the members of a group nor every broker checks them.
    """
    return str(view, "utf-8", "replace")


BOOL = Number("bool", "?")
INT8 = Number("int8", "b")
INT16 = Number("int16", "h")
INT32 = Number("int32", "i")
INT64 = Number("int64", "q")
UUIDS = _Uuid()
STRING = Sized("string", short=True, to_bytes=str.encode, from_view=_utf8)
BYTES = Sized("bytes", short=False, to_bytes=lambda data: data, from_view=bytes)
RECORDS = Sized("records", short=False, to_bytes=lambda data: data, from_view=lambda view: view)
"""Type of record batches. They are read as a view of the frame, which keeps the whole frame in memory."""

int8 = Annotated[int, INT8]
int16 = Annotated[int, INT16]
int32 = Annotated[int, INT32]
int64 = Annotated[int, INT64]
