"""Kafka's plain types as bytes: numbers, ids, text, byte strings, and how a length is written.

Rule of this file: a type gives two functions for one version of the message around it, and knows of no structure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
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
    "NOT_ASKED_FOR",
    "RECORDS",
    "STRING",
    "UUIDS",
    "Decode",
    "Encode",
    "length_reader",
    "write_length",
]

NOT_ASKED_FOR = -(1 << 31)
"""What the protocol says of authorized operations when nobody asked for them."""

Encode = Callable[[bytearray, Any], None]
Decode = Callable[[FrameReader], Any]


# ---- numbers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Fixed:
    layout: struct.Struct
    label: str

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:  # noqa: ARG002 - one size for all
        pack = self.layout.pack

        def encode(out: bytearray, value: object) -> None:
            try:
                out += pack(value)
            except struct.error as error:
                raise MalformedMessageError(f"{value!r} does not fit {self.label}") from error

        return encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:  # noqa: ARG002 - one size for all
        layout = self.layout
        return lambda reader: reader.fixed(layout)


class _Uuid:
    label = "uuid"

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:  # noqa: ARG002 - one size for all
        def encode(out: bytearray, value: UUID) -> None:
            out += value.bytes

        return encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:  # noqa: ARG002 - one size for all
        return FrameReader.uuid


# ---- what has a length -----------------------------------------------------------------------------------------


def write_length(out: bytearray, length: int | None, *, flexible: bool, short: bool) -> None:
    """Append a length, None for null: a varint in flexible versions, else two bytes (``short``) or four.

    Raises:
        MalformedMessageError: so many cannot be said.
    """
    if flexible:
        write_uvarint(out, 0 if length is None else length + 1)
        return
    limit = 0x7FFF if short else 0x7FFFFFFF
    if length is not None and length > limit:
        raise MalformedMessageError(f"a value of {length} bytes is longer than the {limit} that the protocol can say")
    out += (-1 if length is None else length).to_bytes(2 if short else 4, "big", signed=True)


def length_reader(*, flexible: bool, short: bool) -> Callable[[FrameReader], int]:
    """What reads such a length; -1 is null."""
    if flexible:
        return lambda reader: reader.uvarint() - 1
    return FrameReader.int16 if short else FrameReader.int32


@dataclass(frozen=True, slots=True)
class _Sized:
    """Strings and byte strings: a length, then so many bytes."""

    label: str
    short: bool
    """Whether the length has two bytes (strings) or four, in versions that are not flexible."""
    to_bytes: Callable[[Any], bytes]
    from_view: Callable[[memoryview], Any]

    def encoder(self, version: int, *, flexible: bool, nullable: bool) -> Encode:  # noqa: ARG002 - alike in all
        def encode(out: bytearray, value: object) -> None:
            if value is None:
                if not nullable:
                    raise MalformedMessageError(f"None where the protocol wants a {self.label}")
                write_length(out, None, flexible=flexible, short=self.short)
                return
            try:
                raw = self.to_bytes(value)
            except UnicodeEncodeError as error:
                raise MalformedMessageError(f"{value!r} cannot be written as UTF-8") from error
            write_length(out, len(raw), flexible=flexible, short=self.short)
            out += raw

        return encode

    def decoder(self, version: int, *, flexible: bool, nullable: bool) -> Decode:  # noqa: ARG002 - alike in all
        read_length = length_reader(flexible=flexible, short=self.short)
        from_view = self.from_view

        def decode(reader: FrameReader) -> object:
            length = read_length(reader)
            if length == -1 and nullable:
                return None
            return from_view(reader.view(length))

        return decode


def _utf8(view: memoryview) -> str:
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"a string that is not UTF-8: {bytes(view[:40])!r}") from error


BOOL = _Fixed(struct.Struct(">?"), "bool")
INT8 = _Fixed(struct.Struct(">b"), "int8")
INT16 = _Fixed(struct.Struct(">h"), "int16")
INT32 = _Fixed(struct.Struct(">i"), "int32")
INT64 = _Fixed(struct.Struct(">q"), "int64")
UUIDS = _Uuid()
STRING = _Sized("string", short=True, to_bytes=lambda text: text.encode(), from_view=_utf8)
BYTES = _Sized("bytes", short=False, to_bytes=bytes, from_view=bytes)
RECORDS = _Sized("records", short=False, to_bytes=bytes, from_view=lambda view: view)
"""Record batches; not copied when read, so they keep their whole frame alive."""
