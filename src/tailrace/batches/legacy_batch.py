"""Record batches of formats 0 and 1, as brokers before 0.11 wrote them; a topic that is old enough holds some still.

Rule of this file: no length is believed before it is checked. (The C code for these formats does believe those inside
a compressed message, and a garbled one leads it out of its memory.) Such messages are rare, so speed does not matter.
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
"""Offset, length of what follows it, checksum, format, attributes."""
_CHECKED_FROM = 16
_BEHIND_LENGTH = 6
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
    """One message, or many compressed into the value of one.

    Raises:
        MalformedMessageError: it is not what it says.
    """

    is_control_batch = False
    is_transactional = False
    producer_id: int | None = None

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._outer = _read(FrameReader(view))
        self._inside = memoryview(b"")
        self._shift = 0
        self.next_offset = self._outer.offset + 1

    def validate_crc(self) -> bool:
        """Whether the bytes are those that were written."""
        return zlib.crc32(self._view[_CHECKED_FROM:]) == self._outer.checksum

    @property
    def codec(self) -> int:
        """Number of the codec; 0 for a message that is not compressed."""
        return self._outer.attributes & _CODEC

    def decompress(self, limit: int) -> int | None:
        """Decompress the messages inside, to be read by iterating; None if they are more than ``limit`` bytes.

        Returns the number of bytes that are kept.
        """
        outer, codec = self._outer, self.codec
        # In format 0, clients and brokers agreed on a checksum that is not LZ4's (KAFKA-3160).
        if codec not in {_GZIP, _SNAPPY, _LZ4} or (codec == _LZ4 and not outer.magic):
            raise MalformedMessageError(
                f"a message of format {outer.magic} in codec {codec}, which that format does not have"
            )
        output = decompressed(codec, memoryview(outer.value or b""), limit)
        if output is None:
            return None
        self._inside = memoryview(output)
        # From format 1 on the offsets inside count from the first, and the outer one is the last one's.
        last = _last_offset(self._inside) if outer.magic else None
        self._shift = 0 if last is None else max(0, outer.offset - last)
        return len(output)

    def __iter__(self) -> Iterator[_LegacyRecord]:
        """The records in it."""
        outer = self._outer
        if not self.codec:
            yield _record(outer, outer.offset, outer.timestamp)
            return
        inside = FrameReader(self._inside)
        while inside.remaining:
            message = _read(inside)
            if message.attributes & _CODEC:
                raise MalformedMessageError("a message that is compressed twice")
            timestamp = outer.timestamp if outer.attributes & _LOG_APPEND_TIME else message.timestamp
            yield _record(message, message.offset + self._shift, timestamp)


def _last_offset(messages: memoryview) -> int | None:
    """Return the offset of the last message without reading the messages themselves: there may be millions."""
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
    body = FrameReader(reader.view(length - _BEHIND_LENGTH))
    timestamp = _TIMESTAMP.unpack(body.view(_TIMESTAMP.size))[0] if magic else -1
    key, value = _bytes(body), _bytes(body)
    if body.remaining:
        raise MalformedMessageError(f"{body.remaining} bytes left over after a message of format {magic}")
    return _LegacyMessage(offset, checksum, magic, attributes, timestamp, key, value)


def _bytes(reader: FrameReader) -> memoryview | None:
    size = reader.int32()
    return None if size == -1 else reader.view(size)
