"""Record batches of formats 0 and 1, as brokers before 0.11 wrote them; a topic that is old enough holds some still.

Rule of this file: no length is believed before it is checked. (The C code for these formats does believe those inside
a compressed message, and a garbled one leads it out of its memory.) Such messages are rare, so speed does not matter.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import cramjam

from penstock.errors import MalformedMessageError
from penstock.wire.buffer import Reader

__all__ = ["OldBatch"]

_HEAD = struct.Struct(">qiIbb")
"""Offset, length of what follows it, checksum, format, attributes."""
_CHECKED_FROM = 16
_BEHIND_LENGTH = 6
_TIMESTAMP = struct.Struct(">q")
_CODEC, _LOG_APPEND_TIME = 7, 8
_GZIP, _SNAPPY, _LZ4 = 1, 2, 3
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = 16


class _Message(NamedTuple):
    offset: int
    checksum: int
    magic: int
    attributes: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None


class _OldRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[()] = ()


class OldBatch:
    """One message, or many compressed into the value of one.

    Raises:
        MalformedMessageError: it is not what it says.
    """

    is_control_batch = False
    is_transactional = False
    producer_id: int | None = None

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._outer = _read(Reader(view))
        self.next_offset = self._outer.offset + 1

    def validate_crc(self) -> bool:
        """Whether the bytes are those that were written."""
        return zlib.crc32(self._view[_CHECKED_FROM:]) == self._outer.checksum

    def __iter__(self) -> Iterator[_OldRecord]:
        """The records in it."""
        outer = self._outer
        if not outer.attributes & _CODEC:
            yield _record(outer, outer.offset, outer.timestamp)
            return
        inside = Reader(_decompressed(outer))
        messages = []
        while inside.remaining:
            messages.append(_read(inside))
        # From format 1 on the offsets inside count from the first, and the outer one is the last one's.
        shift = max(0, outer.offset - messages[-1].offset) if outer.magic and messages else 0
        for message in messages:
            if message.attributes & _CODEC:
                raise MalformedMessageError("a message that is compressed twice")
            timestamp = outer.timestamp if outer.attributes & _LOG_APPEND_TIME else message.timestamp
            yield _record(message, message.offset + shift, timestamp)


def _record(message: _Message, offset: int, timestamp: int) -> _OldRecord:
    key = None if message.key is None else bytes(message.key)
    value = None if message.value is None else bytes(message.value)
    return _OldRecord(offset, key, value, timestamp)


def _read(reader: Reader) -> _Message:
    offset, length, checksum, magic, attributes = _HEAD.unpack(reader.view(_HEAD.size))
    body = Reader(reader.view(length - _BEHIND_LENGTH))
    timestamp = _TIMESTAMP.unpack(body.view(_TIMESTAMP.size))[0] if magic else -1
    key, value = _bytes(body), _bytes(body)
    if body.remaining:
        raise MalformedMessageError(f"{body.remaining} bytes left over after a message of format {magic}")
    return _Message(offset, checksum, magic, attributes, timestamp, key, value)


def _bytes(reader: Reader) -> memoryview | None:
    size = reader.int32()
    return None if size == -1 else reader.view(size)


def _decompressed(message: _Message) -> bytes:
    codec, packed = message.attributes & _CODEC, bytes(message.value or b"")
    if codec == _GZIP:
        return bytes(cramjam.gzip.decompress(packed))
    if codec == _SNAPPY:
        return _unsnapped(packed)
    # In format 0, clients and brokers agreed on a checksum that is not LZ4's (KAFKA-3160).
    if codec == _LZ4 and message.magic:
        return bytes(cramjam.lz4.decompress(packed))
    raise MalformedMessageError(
        f"a message of format {message.magic} in codec {codec}, which that format does not have"
    )


def _unsnapped(packed: bytes) -> bytes:
    """Snappy, bare or in the blocks of Java's library."""
    if not packed.startswith(_XERIAL):
        return bytes(cramjam.snappy.decompress_raw(packed))
    reader, blocks = Reader(packed[_XERIAL_HEAD:]), []
    while reader.remaining:
        blocks.append(bytes(cramjam.snappy.decompress_raw(bytes(reader.view(reader.int32())))))
    return b"".join(blocks)
