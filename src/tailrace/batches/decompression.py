"""Decompression of record batches with bounded memory.

Sizes in headers are not trusted: each codec writes into a buffer that grows in steps up to the limit, and the codec
stops at the end of the buffer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cramjam
from isal import isal_zlib

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.frame_reader import FrameReader

__all__ = ["decompressed"]

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_STREAMS: dict[int, Callable[[memoryview, memoryview], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
_FILLS = 0xA5, 0x5A
"""Values of the last byte of the buffer, set before the codec writes; see ``_written``."""

_FIRST_BUFFER = 1 << 20
_GROWTH = 4
_LARGEST_KEPT = 5 << 20
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEAD = 16


class _Buffers(threading.local):
    """Buffer of each thread, used for one batch after the other.

    A result of unknown size would need a buffer much larger than itself, which takes longer to allocate and clear than
    many a batch to decompress.
    """

    def __init__(self) -> None:
        self.kept = bytearray(_FIRST_BUFFER)


_BUFFERS = _Buffers()


def decompressed(codec: int, packed: memoryview, limit: int, head: bytes | bytearray = b"") -> bytes | bytearray | None:
    """Return ``head`` followed by the decompressed bytes; None if these are more than ``limit``.

    Raises:
        MalformedMessageError: the codec is unknown, or a length points past the end of the bytes.
        cramjam.DecompressionError: the bytes are invalid.
    """
    if codec == _SNAPPY:
        return _from_snappy(packed, limit, head)
    if codec == _GZIP and (content := _from_one_gzip_stream(packed, limit)) is not None:
        return None if len(content) > limit else b"".join((head, content))
    decompress_into = _STREAMS.get(codec)
    if decompress_into is None:
        raise MalformedMessageError(f"unknown codec {codec}")
    buffer = _BUFFERS.kept
    while True:
        buffer[: len(head)] = head
        size = min(limit, len(buffer) - len(head))
        with memoryview(buffer) as view:
            with view[len(head) : len(head) + size] as room:
                written = _written(decompress_into, packed, room)
            if written is not None:
                return bytes(view[: len(head) + written])
        if size == limit:
            return None
        buffer = bytearray(len(head) + min(limit, size * _GROWTH))
        if len(buffer) <= _LARGEST_KEPT:
            _BUFFERS.kept = buffer


def _from_one_gzip_stream(packed: memoryview, limit: int) -> bytes | None:
    """Return up to ``limit`` + 1 decompressed bytes; None if the bytes are not exactly one gzip stream.

    isal takes about half of cramjam's time, which reads several streams and raises the errors for invalid bytes.
    """
    stream = isal_zlib.decompressobj(wbits=31)  # 31: with gzip's header and trailer
    try:
        content = stream.decompress(packed, limit + 1)
    except isal_zlib.error:  # type: ignore[misc]  # isal's stub declares an instance
        return None
    is_whole = stream.eof and not stream.unused_data
    return content if is_whole or len(content) > limit else None


def _written(
    decompress_into: Callable[[memoryview, memoryview], int], packed: memoryview, room: memoryview
) -> int | None:
    """Return the number of bytes of ``room`` that the codec wrote; None if ``room`` is too small.

    cramjam's error for a buffer that is too small differs from its other errors only in the text, which is not stable.
    Instead, the last byte is set to a fill value before the codec runs. If the codec fails and the byte has changed,
    the codec reached the end of the buffer. A second fill value is tried because the codec may write the first one.
    """
    failure = None
    for fill in _FILLS:
        room[-1] = fill
        try:
            return decompress_into(packed, room)
        except cramjam.DecompressionError as error:
            if room[-1] != fill:
                return None
            failure = error
    assert failure is not None
    raise failure


def _from_snappy(packed: memoryview, limit: int, head: bytes | bytearray) -> bytearray | None:
    """Decompress raw snappy or the blocks of Java's library. The decoder never writes more than the header's size."""
    blocks = [packed]
    if packed[: len(_XERIAL)] == _XERIAL:
        reader, blocks = FrameReader(packed[_XERIAL_HEAD:]), []
        while reader.remaining:
            blocks.append(reader.view(reader.int32()))
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    if sum(sizes) > limit:
        return None
    output = bytearray(len(head) + sum(sizes))
    output[: len(head)] = head
    at = len(head)
    with memoryview(output) as view:
        for block, size in zip(blocks, sizes, strict=True):
            with view[at : at + size] as room:
                cramjam.snappy.decompress_raw_into(block, room)
            at += size
    return output
