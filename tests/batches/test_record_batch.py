"""Record batches of all codecs and formats: whole, truncated, malformed, and read from the middle."""

from __future__ import annotations

from random import Random

import cramjam
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.primitives import write_uvarint
from tailrace.records import Record
from tests.support.protocol.built_batches import (
    ABORT,
    COMMIT,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    SentRecord,
    batch,
    marker,
    old_batch,
    resealed,
)

CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

# A format, a codec, and the function that builds a batch of them.
WRITTEN = [
    *((2, codec) for codec in CODECS.values()),
    *((1, codec) for codec in (NONE, GZIP, SNAPPY, LZ4)),
    *((0, codec) for codec in (NONE, GZIP, SNAPPY)),
]
NAMES = {number: name for name, number in CODECS.items()}

written = pytest.mark.parametrize(
    ("magic", "codec"), WRITTEN, ids=[f"format{magic}-{NAMES[codec]}" for magic, codec in WRITTEN]
)

BYTES = st.none() | st.binary(max_size=8)
HEADERS = st.lists(st.tuples(st.text("ab☃", max_size=3), BYTES), max_size=2).map(tuple)
SAID = st.builds(SentRecord, BYTES, BYTES, st.integers(0, 1 << 42), HEADERS)

FIVE = tuple(SentRecord(b"k%d" % n, b"v%d" % n * 10, 1_000 + n, (("h", b"x"),)) for n in range(5))


def made(magic: int, *records: SentRecord, codec: int = NONE, base_offset: int = 0) -> bytes:
    if magic == 2:
        return batch(*records, codec=codec, base_offset=base_offset)
    return old_batch(*records, magic=magic, codec=codec, base_offset=base_offset)


def records_of(data: bytes, position: int = 0) -> list[Record]:
    records = [record for one in split(memoryview(data)) for record in one.decode("t", 3, position).take(1_000)]
    return [msgspec.structs.replace(record, headers=tuple(record.headers)) for record in records]


def expected(magic: int, records: tuple[SentRecord, ...], base_offset: int) -> list[Record]:
    """Return the fields that a format has."""
    return [
        Record(
            *("t", 3, base_offset + at, one.key, one.value, one.timestamp if magic else -1),
            timestamp_type="CreateTime" if magic else None,
        )
        if magic < 2
        else Record("t", 3, base_offset + at, one.key, one.value, one.timestamp, one.headers)
        for at, one in enumerate(records)
    ]


# ---- fields and records ----------------------------------------------------------------------------------------


@written
def test_records_round_trip(magic, codec):
    """Records keep key, value, timestamp, headers and offset in all codecs and formats, and null differs from empty."""

    @settings(max_examples=15)
    @given(st.lists(SAID, min_size=1, max_size=4).map(tuple), st.integers(0, 1 << 40))
    def check(records, base_offset):
        data = made(magic, *records, codec=codec, base_offset=base_offset)

        assert records_of(data) == expected(magic, records, base_offset)
        assert all(one.checksum_holds() for one in split(memoryview(data)))

    check()


def test_formats_may_be_mixed_in_one_response():
    """A response may contain batches of several formats (B12)."""
    data = (
        made(0, *FIVE)
        + made(1, *FIVE, base_offset=5, codec=GZIP)
        + made(2, *FIVE, base_offset=10, codec=LZ4)
        + made(1, *FIVE, base_offset=15)
        + made(2, *FIVE, base_offset=20)
    )

    records = records_of(data)

    assert [record.offset for record in records] == list(range(25))
    assert [record.value for record in records] == [one.value for one in FIVE] * 5


def test_the_header_of_a_batch_is_read_before_decoding():
    """The offsets, size, leader epoch and producer id of a batch are known before it is decoded."""
    data = batch(*FIVE, base_offset=70, leader_epoch=4, producer_id=9, is_transactional=True)
    (plain,) = split(memoryview(batch(*FIVE, producer_id=9)))

    (found,) = split(memoryview(data))

    assert (found.base_offset, found.next_offset, found.leader_epoch, found.producer_id) == (70, 75, 4, 9)
    assert found.size == len(data)
    assert not found.is_control
    assert repr(found) == f"<RecordBatch 70..74 {len(data)} bytes>"
    # A batch of an idempotent producer is not transactional.
    assert plain.producer_id is None


def test_an_old_format_has_no_epoch():
    """Batches of formats 0 and 1 have the leader epoch -1."""
    assert [one.leader_epoch for one in split(memoryview(made(1, *FIVE)))] == [-1] * 5


def test_gaps_of_compaction_are_left_as_they_are():
    """A batch keeps its end offset if compaction removed its last records."""
    data = bytearray(batch(*FIVE, base_offset=10))
    data[23:27] = (99).to_bytes(4, "big")  # the last offset, relative to the first

    (found,) = split(memoryview(resealed(data)))

    assert found.next_offset == 110
    assert [record.offset for record in found.decode("t", 0, 0).take(10)] == [10, 11, 12, 13, 14]


def test_the_brokers_time_replaces_the_producers():
    """With ``message.timestamp.type=LogAppendTime``, records have the timestamp of the batch."""
    new = bytearray(batch(*FIVE))
    new[22] |= 0x08
    new[35:43] = (5_000).to_bytes(8, "big")
    old = bytearray(made(1, *FIVE, codec=GZIP))
    old[17] |= 0x08
    old[18:26] = (5_000).to_bytes(8, "big")

    for found in (records_of(bytes(new)), records_of(bytes(old))):
        assert len(found) == len(FIVE)
        assert {(record.timestamp, record.timestamp_type) for record in found} == {(5_000, "LogAppendTime")}


# ---- decoding in steps ---------------------------------------------------------------------------------------


@written
def test_reading_may_begin_in_the_middle(magic, codec):
    """Records before the position are not returned."""
    data = made(magic, *FIVE, codec=codec, base_offset=10)

    for position in range(8, 17):
        assert [one.offset for one in records_of(data, position)] == list(range(max(10, position), 15))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8), st.integers(0, 12))
def test_steps_of_any_size_return_each_record_once(sizes, position):
    """Decoding in steps of any size returns each record from the position on once and in order."""
    records = tuple(SentRecord(None, b"%d" % n) for n in range(12))
    (one,) = split(memoryview(batch(*records, codec=GZIP)))
    decoder = one.decode("t", 0, position)

    slices = [decoder.take(size) for size in [*sizes, 12, 1]]

    assert [record.offset for part in slices for record in part] == list(range(position, 12))
    left = 12 - position
    for part, size in zip(slices, sizes, strict=False):
        assert len(part) == min(size, left)
        left -= len(part)


def test_batches_are_decoded_only_when_read():
    """Invalid bytes inside a batch raise when its records are read, not before."""
    data = bytearray(batch(*FIVE, codec=GZIP))
    data[61:] = bytes(len(data) - 61)

    (one,) = split(memoryview(data))
    decoder = one.decode("t", 0, 0)

    with pytest.raises(MalformedMessageError, match="cannot decode the record batch"):
        decoder.take(1)


@pytest.mark.parametrize("magic", [1, 2])
def test_a_batch_shares_the_frames_memory(magic):
    """A batch is a view of its frame until it is decoded, and its records remain valid after both."""
    frame = bytearray(made(magic, SentRecord(None, b"before")))
    (one,) = split(memoryview(frame))
    (early,) = split(memoryview(frame))[0].decode("t", 0, 0).take(1)

    at = frame.index(b"before")
    frame[at : at + 6] = b"after!"
    (late,) = one.decode("t", 0, 0).take(1)

    assert (early.value, late.value) == (b"before", b"after!")
    # A bytearray with a view cannot be resized.
    with pytest.raises(BufferError):
        frame.clear()


@pytest.mark.parametrize(
    ("size", "beside", "is_kept"),
    [(100, 70_000, False), (10_000, 70_000, True), (100, 60_000, True)],
    ids=["a small share", "a large share", "a small frame"],
)
def test_a_small_share_does_not_keep_a_large_frame(size, beside, is_kept):
    """A record set that is small compared to its frame is copied, so that the frame can be freed."""
    ours = made(2, SentRecord(None, b"x" * size))
    frame = bytearray(ours) + bytes(beside)
    with memoryview(frame) as whole:
        (one,) = split(whole[: len(ours)])

    if is_kept:
        with pytest.raises(BufferError):
            frame.clear()
    else:
        frame.clear()
    assert len(one.decode("t", 0, 0).take(2)) == 1


# ---- transactions ----------------------------------------------------------------------------------------------


def test_abort_markers_are_recognized():
    """A control batch is recognized as commit or abort, and a batch of records as neither."""
    abort = split(memoryview(marker(ABORT, base_offset=5, producer_id=7)))[0]
    commit = split(memoryview(marker(COMMIT, base_offset=5, producer_id=7)))[0]
    data = split(memoryview(batch(*FIVE)))[0]

    assert [(one.is_control, one.is_abort_marker()) for one in (abort, commit, data)] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert (abort.producer_id, abort.base_offset, abort.next_offset) == (7, 5, 6)


def test_a_marker_that_cannot_be_read_is_malformed():
    """A control record whose key is too short is malformed, and does not count as a commit."""
    data = bytearray(batch(SentRecord(b"\x00", None), producer_id=7, is_transactional=True))
    data[22] |= 0x20

    (one,) = split(memoryview(resealed(data)))

    with pytest.raises(MalformedMessageError, match="marker"):
        one.is_abort_marker()


# ---- malformed batches -----------------------------------------------------------------------------------------


@written
def test_a_truncated_batch_is_left_out(magic, codec):
    """A batch that is truncated at the end of a response is omitted."""
    first, second = made(magic, *FIVE[:1], codec=codec), made(magic, *FIVE[1:2], codec=codec, base_offset=1)

    for end in range(len(second)):
        assert [one.base_offset for one in split(memoryview(first + second[:end]))] == [0]
    assert len(split(memoryview(first + second))) == 2


def test_an_empty_record_set_has_no_batches():
    assert split(memoryview(b"")) == []


@written
def test_a_changed_bit_breaks_the_checksum(magic, codec):
    """A flipped bit after the checksum is detected."""
    data = made(magic, SentRecord(b"k", b"v" * 20), codec=codec)
    begin = 21 if magic == 2 else 18
    random = Random(5)

    for at in random.sample(range(begin, len(data)), min(len(data) - begin, 20)):
        changed = bytearray(data)
        changed[at] ^= 1 << random.randrange(8)
        try:
            (one,) = split(memoryview(changed))
        except MalformedMessageError:
            continue
        assert not one.checksum_holds()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytes(8) + (48).to_bytes(4, "big") + bytes(4) + b"\x02" + bytes(100), "format 2 claims 48 bytes"),
        (bytes(8) + (100).to_bytes(4, "big") + bytes(4) + b"\x03" + bytes(100), "format 3"),
        (bytes(8) + b"\xff" * 4 + bytes(4) + b"\x02" + bytes(100), "claims -1 bytes"),
        (bytes(8) + bytes(4) + bytes(4) + b"\x01" + bytes(100), "claims 0 bytes"),
    ],
)
def test_an_impossible_batch_length_is_malformed(data, why):
    """A length below the minimum of the format, or an unknown format, is malformed."""
    with pytest.raises(MalformedMessageError, match=why):
        split(memoryview(data))


@written
def test_garbled_batches_are_records_or_malformed(magic, codec):
    """A batch with flipped bits gives records or MalformedMessageError, also without checking the checksum."""
    random = Random(magic * 8 + codec)
    data, read, malformed = made(magic, *FIVE, codec=codec), 0, 0

    for _ in range(400):
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 6))):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        try:
            for one in split(memoryview(changed)):
                one.checksum_holds()
                one.decode("t", 0, 0).take(1_000)
        except MalformedMessageError:
            malformed += 1
        else:
            read += 1

    assert read > 0
    assert malformed > 0


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_garbage_inside_a_compressed_message_is_malformed(codec):
    """Invalid lengths inside an old compressed message are malformed."""
    for length in (-12, -1, 0, 21, 1 << 20, -(1 << 31)):
        inside = bytearray(made(1, *FIVE))
        inside[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(MalformedMessageError):
            records_of(wrapped(bytes(inside), codec))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_offsets_inside_a_compressed_message_are_resolved(codec):
    """Offsets of inner messages are relative to the outer message in format 1, and absolute in format 0."""
    one = wrapped(made(1, *FIVE), codec)
    zero = bytearray(made(0, *FIVE, codec=GZIP))

    assert [record.offset for record in records_of(bytes(7) + b"\x09" + one[8:])] == [5, 6, 7, 8, 9]
    assert [record.offset for record in records_of(bytes(7) + b"\x09" + zero[8:])] == [0, 1, 2, 3, 4]


def test_key_and_value_fill_an_old_message_exactly():
    """An old message is malformed if bytes follow its value, or if a length is negative and not -1."""
    data = made(1, SentRecord(b"k", b"v"))
    longer = data[:8] + (len(data) - 12 + 3).to_bytes(4, "big") + data[12:] + bytes(3)
    with pytest.raises(MalformedMessageError, match="3 bytes left over"):
        records_of(longer)
    with pytest.raises(MalformedMessageError, match="claims -2 bytes"):
        records_of(data[:26] + b"\xff\xff\xff\xfe" + data[30:])


@pytest.mark.parametrize("length", [21, 1 << 40, (1 << 63) - 100, (1 << 63) - 50, (1 << 63) - 1])
@pytest.mark.parametrize("at", [4, 5])
def test_lengths_inside_a_record_are_not_trusted(at, length):
    """A key or value whose length exceeds the batch is malformed."""
    data = batch(SentRecord(b"", b"v" * 20))
    head, record = data[:61], bytearray(data[61:])
    record[at : at + 1] = zigzag(length)
    record[0] += 2 * (len(zigzag(length)) - 1)
    whole = bytearray(head + record)
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    (one,) = split(memoryview(whole))

    with pytest.raises(MalformedMessageError):
        one.decode("t", 0, 0).take(1)


def zigzag(number: int) -> bytes:
    """Encode a signed varint of 64 bits."""
    out = bytearray()
    write_uvarint(out, (number << 1 ^ number >> 63) & 0xFFFF_FFFF_FFFF_FFFF)
    return bytes(out)


def test_a_message_compressed_twice_is_malformed():
    """A compressed message inside a compressed one is malformed."""
    with pytest.raises(MalformedMessageError, match="inner message is compressed"):
        records_of(wrapped(made(1, *FIVE, codec=GZIP), GZIP))


@pytest.mark.parametrize(("magic", "codec"), [(0, LZ4), (0, ZSTD), (1, ZSTD), (1, 7)])
def test_a_codec_that_a_format_does_not_have_is_malformed(magic, codec):
    """A codec that the message format does not have is malformed, such as Zstandard in formats 0 and 1."""
    data = bytearray(made(magic, SentRecord(None, b"x"), codec=GZIP))
    data[17] = codec

    with pytest.raises(MalformedMessageError, match=f"codec {codec} is invalid in a message of format {magic}"):
        records_of(bytes(data))


def test_truncated_snappy_blocks_are_malformed():
    """A truncated length of a block of Java's snappy is malformed."""
    data = bytearray(batch(*FIVE, codec=SNAPPY)) + b"\0\0"
    data[8:12] = (len(data) - 12).to_bytes(4, "big")

    with pytest.raises(MalformedMessageError):
        records_of(bytes(data))


def test_an_unknown_codec_is_malformed():
    """An unknown codec in format 2 is malformed."""
    data = bytearray(batch(*FIVE))
    data[22] |= 5

    with pytest.raises(MalformedMessageError, match="codec"):
        records_of(bytes(data))


def wrapped(inside: bytes, codec: int) -> bytes:
    """Return a compressed message of format 1 with these bytes inside."""
    packed = {
        GZIP: cramjam.gzip.compress,
        SNAPPY: cramjam.snappy.compress_raw,
        LZ4: cramjam.lz4.compress,
    }[codec](inside)
    data = bytearray(old_batch(SentRecord(None, bytes(packed)), magic=1))
    data[17] = codec
    return bytes(data)
