"""Record batches of formats 0 and 1, written before Kafka 0.11.

Each length is checked before use. aiokafka's C code for these formats trusts the lengths inside a compressed message:
with a corrupt length, that code reads outside the message's memory. Such messages are rare, so plain Python suffices.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.batches.decompression import decompressed
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.frame_reader import FrameReader

__all__ = ["LegacyBatch"]

_HEAD = struct.Struct(">qiIbb")
"""Offset, length of the rest, checksum, format, attributes."""
_CHECKED_FROM = 16
_SIZE_AFTER_LENGTH = 6
_TIMESTAMP = struct.Struct(">q")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_CODEC, _LOG_APPEND_TIME = 7, 8
_GZIP, _SNAPPY, _LZ4 = 1, 2, 3


class _LegacyMessage(NamedTuple):
    offset: int
    checksum: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


class _LegacyRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[()] = ()


class LegacyBatch:
    """Message, or a message whose value contains many compressed messages.

    Raises:
        MalformedMessageError: the bytes are invalid.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._outer = _read(FrameReader(view))
        self._inside = memoryview(b"")
        self._shift = 0
        self.next_offset = self._outer.offset + 1

    def validate_crc(self) -> bool:
        """Return True if the checksum matches."""
        return zlib.crc32(self._view[_CHECKED_FROM:]) == self._outer.checksum

    @property
    def codec(self) -> int:
        """Number of the codec; 0 for a message that is not compressed."""
        return self._outer.attributes & _CODEC

    @property
    def timestamp_type(self) -> int | None:
        """0 if producers set the timestamps, 1 if the broker does, None in format 0."""
        return int(self._outer.attributes & _LOG_APPEND_TIME != 0) if self._outer.magic else None

    def decompress(self, limit: int) -> int | None:
        """Decompress the inner messages and return their size in bytes; None if the size exceeds ``limit``."""
        outer, codec = self._outer, self.codec
        # In format 0, the checksum of LZ4 frames differs from LZ4's specification (KAFKA-3160).
        if codec not in {_GZIP, _SNAPPY, _LZ4} or (codec == _LZ4 and not outer.magic):
            raise MalformedMessageError(f"codec {codec} is invalid in a message of format {outer.magic}")
        output = decompressed(codec, memoryview(outer.value or b""), limit)
        if output is None:
            return None
        self._inside = memoryview(output)
        # From format 1 on, inner offsets are relative, and the outer offset is the offset of the last inner message.
        last = _last_offset(self._inside) if outer.magic else None
        self._shift = 0 if last is None else max(0, outer.offset - last)
        return len(output)

    def __iter__(self) -> Iterator[_LegacyRecord]:
        """Yield the records."""
        outer = self._outer
        if not self.codec:
            yield _record(outer, outer.offset, outer.timestamp)
            return
        inside = FrameReader(self._inside)
        while inside.remaining:
            message = _read(inside)
            if message.attributes & _CODEC:
                raise MalformedMessageError("an inner message is compressed as well")
            timestamp = outer.timestamp if outer.attributes & _LOG_APPEND_TIME else message.timestamp
            yield _record(message, message.offset + self._shift, timestamp)


def _last_offset(messages: memoryview) -> int | None:
    """Return the offset of the last message without decoding the messages; there may be millions."""
    reader, last = FrameReader(messages), None
    while reader.remaining:
        last, length = _OFFSET_AND_LENGTH.unpack(reader.view(_OFFSET_AND_LENGTH.size))
        reader.view(length)
    return last


def _record(message: _LegacyMessage, offset: int, timestamp: int) -> _LegacyRecord:
    key = None if message.key is None else bytes(message.key)
    value = None if message.value is None else bytes(message.value)
    return _LegacyRecord(offset, key, value, timestamp)


def _read(reader: FrameReader) -> _LegacyMessage:
    offset, length, checksum, magic, attributes = _HEAD.unpack(reader.view(_HEAD.size))
    body = FrameReader(reader.view(length - _SIZE_AFTER_LENGTH))
    timestamp = _TIMESTAMP.unpack(body.view(_TIMESTAMP.size))[0] if magic else -1
    key, value = _bytes(body), _bytes(body)
    if body.remaining:
        raise MalformedMessageError(f"{body.remaining} bytes left over after a message of format {magic}")
    return _LegacyMessage(offset, checksum, magic, attributes, timestamp, key, value)


def _bytes(reader: FrameReader) -> memoryview | None:
    size = reader.int32()
    return None if size == -1 else reader.view(size)
