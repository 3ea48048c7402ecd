"""Record batches of formats 0 and 1, written before Kafka 0.11.

aiokafka's C code for these formats is not used, because it does not check the lengths inside a compressed message: if a
length is corrupt, it reads outside the message's memory. This module checks each length. The formats are rare, so
Python is fast enough.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tailrace.batches.decompression import decompress
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.primitives import FrameReader

__all__ = ["LegacyBatch"]

_HEAD = struct.Struct(">qiIbb")
"""Offset, length of the bytes that follow the length, checksum, format, attributes."""
_CHECKED_FROM = 16
"""Index of the first byte that the checksum covers."""
_SIZE_AFTER_LENGTH = 6
"""Size in bytes of checksum, format and attributes, which is part of the length."""
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
    """Batch that is one uncompressed message, or an outer message whose value is the compressed inner messages.

    Raises:
        MalformedMessageError: the bytes are invalid.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._outer = _read_message(FrameReader(view))
        self._inner_messages = memoryview(b"")
        """Decompressed inner messages; empty before ``decompress``."""
        self._base_offset = 0
        """Number to add to the offsets of the inner messages; 0 in format 0, where these offsets are absolute."""
        self.next_offset = self._outer.offset + 1

    def checksum_holds(self) -> bool:
        return zlib.crc32(self._view[_CHECKED_FROM:]) == self._outer.checksum

    @property
    def codec(self) -> int:
        """Number of the codec; 0 for a message that is not compressed."""
        return self._outer.attributes & _CODEC

    @property
    def timestamp_type(self) -> int | None:
        """0 if the producer set the timestamps, 1 if the broker did; None in format 0, which has no timestamps."""
        return int(self._outer.attributes & _LOG_APPEND_TIME != 0) if self._outer.magic else None

    def decompress(self, limit: int) -> int | None:
        """Decompress the inner messages and return their size in bytes; None if the size exceeds ``limit``."""
        outer, codec = self._outer, self.codec
        # In format 0, the checksum of LZ4 frames differs from LZ4's specification (KAFKA-3160).
        if codec not in {_GZIP, _SNAPPY, _LZ4} or (codec == _LZ4 and not outer.magic):
            raise MalformedMessageError(f"codec {codec} is invalid in a message of format {outer.magic}")
        output = decompress(codec, memoryview(outer.value or b""), limit)
        if output is None:
            return None
        self._inner_messages = memoryview(output)
        # From format 1 on, inner offsets are relative, and the outer offset is that of the last inner message.
        last = _last_offset(self._inner_messages) if outer.magic else None
        self._base_offset = 0 if last is None else max(0, outer.offset - last)
        return len(output)

    def __iter__(self) -> Iterator[_LegacyRecord]:
        outer = self._outer
        if not self.codec:
            yield _record(outer, outer.offset, outer.timestamp)
            return
        reader = FrameReader(self._inner_messages)
        while reader.remaining:
            message = _read_message(reader)
            if message.attributes & _CODEC:
                raise MalformedMessageError("an inner message is compressed as well")
            timestamp = outer.timestamp if outer.attributes & _LOG_APPEND_TIME else message.timestamp
            yield _record(message, message.offset + self._base_offset, timestamp)


def _last_offset(messages: memoryview) -> int | None:
    """Return the offset of the last message; None if there are no messages.

    Only offsets and lengths are read, because there may be millions of messages.
    """
    reader, last = FrameReader(messages), None
    while reader.remaining:
        last, length = _OFFSET_AND_LENGTH.unpack(reader.view(_OFFSET_AND_LENGTH.size))
        reader.view(length)
    return last


def _record(message: _LegacyMessage, offset: int, timestamp: int) -> _LegacyRecord:
    key = None if message.key is None else bytes(message.key)
    value = None if message.value is None else bytes(message.value)
    return _LegacyRecord(offset, key, value, timestamp)


def _read_message(reader: FrameReader) -> _LegacyMessage:
    offset, length, checksum, magic, attributes = _HEAD.unpack(reader.view(_HEAD.size))
    body = FrameReader(reader.view(length - _SIZE_AFTER_LENGTH))
    timestamp = _TIMESTAMP.unpack(body.view(_TIMESTAMP.size))[0] if magic else -1
    key, value = _read_bytes(body), _read_bytes(body)
    if body.remaining:
        raise MalformedMessageError(f"{body.remaining} bytes left over after a message of format {magic}")
    return _LegacyMessage(offset, checksum, magic, attributes, timestamp, key, value)


def _read_bytes(reader: FrameReader) -> memoryview | None:
    size = reader.int32()
    return None if size == -1 else reader.view(size)
