"""Decompression has an exact limit, whatever sizes a batch claims."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib

import cramjam
import pytest

from tailrace.batches import decompression
from tailrace.batches.decompression import decompress
from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError
from tests.support.protocol.built_batches import GZIP, LZ4, SNAPPY, ZSTD, SentRecord, batch, old_batch

CODECS = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
WRITTEN = [
    *((2, name) for name in CODECS),
    *((1, name) for name in ("gzip", "snappy", "lz4")),
    *((0, name) for name in ("gzip", "snappy")),
]

MIB = 1 << 20
LIMIT, PLAIN = 8 * MIB, 64 * MIB

READ = """
import resource, sys
from tailrace.batches.record_batch import split
data = sys.stdin.buffer.read()
(one,) = split(memoryview(data))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fits = one.decompress(int(sys.argv[1]))
print(fits, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def bomb(magic: int, codec: int, size: int) -> bytes:
    value = SentRecord(None, bytes(size))
    return batch(value, codec=codec) if magic == 2 else old_batch(value, magic=magic, codec=codec)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize(("magic", "codec"), WRITTEN)
def test_a_decompression_bomb_takes_no_more_memory_than_the_limit(magic, codec):
    """A batch of 64 MiB of zeros needs little more memory than its limit of 8 MiB, in all codecs and formats."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(LIMIT)],
        input=bomb(magic, CODECS[codec], PLAIN),
        capture_output=True,
        check=True,
    )

    fits, grown_mib = done.stdout.split()
    assert fits == b"False"
    # The compressed bytes of snappy, in memory with its output, are a twentieth of its size.
    assert int(grown_mib) < 4 * LIMIT // MIB


@pytest.mark.parametrize(("magic", "codec"), WRITTEN)
def test_the_limit_is_exact(magic, codec):
    """A batch of the size of the limit is decompressed, and one that exceeds it by a byte is not."""
    data = bomb(magic, CODECS[codec], 100_000)
    plain = len(bomb(magic, 0, 100_000)) - (61 if magic == 2 else 0)
    (one,) = split(memoryview(data))

    assert one.is_compressed
    assert not one.decompress(plain - 1)
    assert one.decompress(plain)
    assert not one.is_compressed
    (record,) = one.decode("t", 0, 0).take(2)
    assert record.value == bytes(100_000)


def test_a_size_in_a_header_is_not_trusted():
    """A wrong size in a header changes neither the result nor the memory."""
    plain = bytes(MIB)
    gzip = bytearray(cramjam.gzip.compress(plain))
    gzip[-4:] = struct.pack("<I", 5)

    with pytest.raises(cramjam.DecompressionError):
        decompress(GZIP, memoryview(gzip), 2 * MIB)
    assert decompress(GZIP, memoryview(gzip), MIB // 2) is None
    # Ten bytes that claim four gigabytes.
    snappy = memoryview(b"\xff\xff\xff\xff\x0f" + bytes(5))
    assert decompress(SNAPPY, snappy, LIMIT) is None
    blocks = b"\x82SNAPPY\0" + bytes(8) + (struct.pack(">i", 10) + bytes(snappy)) * 3
    assert decompress(SNAPPY, memoryview(blocks), LIMIT) is None


@pytest.mark.parametrize(
    "plain", [bytes(300_000), b"\xa5" * 300_000, bytes(range(256)) * 1_200], ids=["zeros", "fills", "all bytes"]
)
@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_error_texts_do_not_matter(codec, plain, monkeypatch):
    """A batch above the limit and invalid bytes are distinguished without the text of cramjam's error."""
    stream = decompression._STREAMS[CODECS[codec]]

    def reworded(packed, room):
        try:
            return stream(packed, room)
        except cramjam.DecompressionError:
            raise cramjam.DecompressionError("other words") from None

    monkeypatch.setitem(decompression._STREAMS, CODECS[codec], reworded)
    packed = bytes(getattr(cramjam, codec).compress(plain))

    assert decompress(CODECS[codec], memoryview(packed), LIMIT) == plain
    assert decompress(CODECS[codec], memoryview(packed), len(plain) - 1) is None
    with pytest.raises(cramjam.DecompressionError):
        decompress(CODECS[codec], memoryview(b"none of this" * 10), LIMIT)


def test_concatenated_streams_are_read():
    """Concatenated streams are decompressed, and the limit applies to all of them together."""
    for name in ("gzip", "lz4", "zstd"):
        packed = bytes(getattr(cramjam, name).compress(bytes(50_000)))
        assert decompress(CODECS[name], memoryview(packed * 2), 100_000, b"ab") == b"ab" + bytes(100_000)
        assert decompress(CODECS[name], memoryview(packed * 2), 99_999) is None
    assert decompress(GZIP, memoryview(zlib.compress(b"x", wbits=31)), 1) == b"x"


@pytest.mark.parametrize("cut", [1, 8, 9, 20])
def test_a_truncated_gzip_stream_is_invalid(cut):
    """A gzip stream without some bytes of its trailer or its content raises an error."""
    packed = zlib.compress(bytes(range(256)) * 100, wbits=31)
    with pytest.raises(cramjam.DecompressionError):
        decompress(GZIP, memoryview(packed)[:-cut], LIMIT)


@pytest.mark.parametrize("length", [-4, -1, 11, 1 << 30])
def test_invalid_lengths_of_snappy_blocks_are_malformed(length):
    """A block of Java's snappy that exceeds the batch is malformed."""
    with pytest.raises(MalformedMessageError):
        decompress(SNAPPY, memoryview(b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", length) + bytes(10)), LIMIT)


def test_many_small_messages_of_an_old_format_are_read_one_by_one():
    """The first of a million inner messages is returned before the others are decoded."""
    inside = old_batch(SentRecord(None, None), magic=1)
    count = 100_000
    whole = bytearray(old_batch(SentRecord(None, bytes(cramjam.gzip.compress(inside * count))), magic=1))
    whole[17] = GZIP
    (one,) = split(memoryview(whole))
    assert one.decompress(LIMIT)
    decoder = one.decode("t", 0, 0)

    assert [len(decoder.take(size)) for size in (1, 10, count)] == [1, 10, count - 11]
