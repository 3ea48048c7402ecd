"""Decompression of record batches with bounded memory.

Sizes in the compressed bytes are not trusted. A codec writes into a buffer and stops at its end. If the buffer was too
small, the decompression is repeated with a larger buffer, up to a limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cramjam
from isal import isal_zlib

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.primitives import FrameReader

__all__ = ["decompress"]

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_STREAMS: dict[int, Callable[[memoryview, memoryview], int]] = {
    _GZIP: cramjam.gzip.decompress_into,
    _LZ4: cramjam.lz4.decompress_into,
    _ZSTD: cramjam.zstd.decompress_into,
}
_FILLS = 0xA5, 0x5A
"""Values to which the last byte of the buffer is set before the codec writes; see ``_decompress_to_target``."""

_FIRST_BUFFER = 1 << 20
"""Size of each thread's first buffer, in bytes."""
_GROWTH = 4
"""Ratio of the size of a larger buffer to the size of the buffer that was too small."""
_LARGEST_KEPT = 5 << 20
"""Maximum size in bytes of a buffer that is kept for the next batch."""
_SNAPPY_JAVA = b"\x82SNAPPY\0"
"""First bytes of the format of snappy-java, which contains several blocks."""
_SNAPPY_JAVA_HEAD = 16
"""Number of bytes before the first block."""


class _Buffers(threading.local):
    """Buffer of each thread, which is reused for each batch.

    The size of a result is unknown before the decompression, so the buffer must be large. To allocate a new one for
    each batch would often take longer than the decompression.
    """

    def __init__(self) -> None:
        self.buffer = bytearray(_FIRST_BUFFER)


_BUFFERS = _Buffers()


def decompress(codec: int, packed: memoryview, limit: int, head: bytes | bytearray = b"") -> bytes | bytearray | None:
    """Decompress ``packed``, and return ``head`` followed by the result; None if the result exceeds ``limit`` bytes.

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
    buffer = _BUFFERS.buffer
    while True:
        buffer[: len(head)] = head
        size = min(limit, len(buffer) - len(head))
        with memoryview(buffer) as view:
            with view[len(head) : len(head) + size] as target:
                written = _decompress_to_target(decompress_into, packed, target)
            if written is not None:
                return bytes(view[: len(head) + written])
        if size == limit:
            return None
        buffer = bytearray(len(head) + min(limit, size * _GROWTH))
        if len(buffer) <= _LARGEST_KEPT:
            _BUFFERS.buffer = buffer


def _from_one_gzip_stream(packed: memoryview, limit: int) -> bytes | None:
    """Return up to ``limit`` + 1 decompressed bytes; None if the bytes are not exactly one gzip stream.

    isal takes about half the time of cramjam. For several streams and for invalid bytes, the caller uses cramjam, which
    raises the errors.
    """
    stream = isal_zlib.decompressobj(wbits=31)  # 31: with gzip's header and trailer
    try:
        content = stream.decompress(packed, limit + 1)
    except isal_zlib.error:  # type: ignore[misc]  # isal's stub declares an instance
        return None
    is_whole = stream.eof and not stream.unused_data
    return content if is_whole or len(content) > limit else None


def _decompress_to_target(
    decompress_into: Callable[[memoryview, memoryview], int], packed: memoryview, target: memoryview
) -> int | None:
    """Decompress into ``target`` and return the number of bytes written; None if ``target`` is too small.

    cramjam's error for a buffer that is too small differs from its other errors only in the text, which is not stable.
    Therefore, the last byte of ``target`` is set to a fill value before the codec runs. If the codec fails and this
    byte has changed, the codec has reached the end of the buffer. If the byte has not changed, the codec may have
    written the same value there, so the decompression is repeated with another fill value.
    """
    failure = None
    for fill in _FILLS:
        target[-1] = fill
        try:
            return decompress_into(packed, target)
        except cramjam.DecompressionError as error:
            if target[-1] != fill:
                return None
            failure = error
    assert failure is not None
    raise failure


def _from_snappy(packed: memoryview, limit: int, head: bytes | bytearray) -> bytearray | None:
    """Decompress one block of snappy, or several blocks in the format of snappy-java.

    Each block begins with its decompressed size, and the codec never writes more bytes than that.
    """
    blocks = [packed]
    if packed[: len(_SNAPPY_JAVA)] == _SNAPPY_JAVA:
        reader, blocks = FrameReader(packed[_SNAPPY_JAVA_HEAD:]), []
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
            with view[at : at + size] as target:
                cramjam.snappy.decompress_raw_into(block, target)
            at += size
    return output
