"""Encoding of Kafka's types: numbers, lengths, nulls, tagged fields, and arrays by topic."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.codec import Array, OneFieldStructure, Slot, decoder, encoder, layout
from tailrace.protocol.encoding.fields import OneElement, by_topic, field
from tailrace.protocol.encoding.primitives import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UUIDS,
    FrameReader,
    int8,
    write_uvarint,
)
from tailrace.protocol.message import ApiMessage


def encoded(shape, value, *, flexible=False, nullable=False) -> bytes:
    out = bytearray()
    encoder(shape, flexible=flexible, nullable=nullable)(out, value)
    return bytes(out)


def decoded(shape, data, *, flexible=False, nullable=False):
    reader = FrameReader(data)
    value = decoder(shape, flexible=flexible, nullable=nullable)(reader)
    assert reader.remaining == 0
    return value


# ---- varints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "data"),
    [
        (0, b"\x00"),
        (1, b"\x01"),
        (127, b"\x7f"),
        (128, b"\x80\x01"),
        (300, b"\xac\x02"),
        (16_383, b"\xff\x7f"),
        (16_384, b"\x80\x80\x01"),
        (0xFFFF_FFFF, b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_unsigned_varints_are_those_of_the_protocol(number, data):
    """A varint has seven bits in each byte, lowest first, and the highest bit set except in the last (KIP-482)."""
    out = bytearray()

    write_uvarint(out, number)

    assert data == bytes(out)
    assert number == FrameReader(data).uvarint()


@given(st.integers(0, 0xFFFF_FFFF))
def test_varints_round_trip(number):
    """Each number of 32 bits is encoded and decoded to itself."""
    out = bytearray()

    write_uvarint(out, number)

    assert number == FrameReader(out).uvarint()


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff\xff\xff", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 100])
def test_an_unterminated_varint_is_malformed(data):
    """A varint that is truncated, or longer than five bytes, is malformed."""
    with pytest.raises(MalformedMessageError):
        FrameReader(data).uvarint()


@pytest.mark.parametrize("number", [-1, 300])
@pytest.mark.parametrize("kind", [INT16, INT32, INT64])
def test_minus_one_and_three_hundred_round_trip(kind, number):
    """The numbers -1 and 300, which aiokafka encodes wrongly in some forms, are decoded to themselves (B11)."""
    assert number == decoded(kind, encoded(kind, number))
    assert (number,) == decoded(Array(kind), encoded(Array(kind), (number,), flexible=True), flexible=True)


# ---- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "data"),
    [
        (BOOL, True, "01"),
        (BOOL, False, "00"),
        (INT8, -1, "ff"),
        (INT16, 300, "012c"),
        (INT32, -2, "fffffffe"),
        (INT64, 1 << 40, "0000010000000000"),
        (UUIDS, UUID(int=1), "00" * 15 + "01"),
    ],
)
def test_numbers_are_big_endian(kind, value, data):
    """Numbers have a fixed size, the highest byte first, in two's complement."""
    assert bytes.fromhex(data) == encoded(kind, value)
    assert value == decoded(kind, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("kind", "value"), [(INT8, 128), (INT16, 1 << 15), (INT32, -(1 << 31) - 1), (INT64, 1 << 63), (INT32, "1")]
)
def test_a_number_that_does_not_fit_is_refused(kind, value):
    """A number that exceeds its type raises instead of being truncated."""
    with pytest.raises(MalformedMessageError, match="does not fit int"):
        encoded(kind, value)


# ---- strings, bytes and arrays ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "flexible", "data"),
    [
        (STRING, "é", False, "0002c3a9"),
        (STRING, "é", True, "03c3a9"),
        (STRING, "", False, "0000"),
        (STRING, "", True, "01"),
        (STRING, None, False, "ffff"),
        (STRING, None, True, "00"),
        (BYTES, b"\x00", False, "0000000100"),
        (BYTES, b"\x00", True, "0200"),
        (BYTES, None, False, "ffffffff"),
        (BYTES, None, True, "00"),
        (Array(INT8), (1, 2), False, "000000020102"),
        (Array(INT8), (1, 2), True, "030102"),
        (Array(INT8), (), False, "00000000"),
        (Array(INT8), (), True, "01"),
        (Array(INT8), None, False, "ffffffff"),
        (Array(INT8), None, True, "00"),
    ],
)
def test_lengths_depend_on_the_version(kind, value, flexible, data):
    """A length has two or four bytes and -1 for null, or is a varint plus one and 0 for null."""
    assert bytes.fromhex(data) == encoded(kind, value, flexible=flexible, nullable=True)
    assert value == decoded(kind, bytes.fromhex(data), flexible=flexible, nullable=True)


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("kind", [STRING, BYTES, Array(INT8)])
def test_null_is_refused_for_other_than_nullable_fields(kind, flexible):
    """Null in a field that is not nullable is refused by the encoder and malformed for the decoder."""
    null = encoded(kind, None, flexible=flexible, nullable=True)

    with pytest.raises(MalformedMessageError):
        encoded(kind, None, flexible=flexible)
    with pytest.raises(MalformedMessageError):
        decoded(kind, null, flexible=flexible)


def test_a_string_above_the_limit_is_refused():
    """A string above 32767 bytes is refused in versions with lengths of two bytes, and accepted in others."""
    assert len(encoded(STRING, "x" * 32_767)) == 32_769
    assert len(encoded(STRING, "x" * 32_768, flexible=True)) == 32_771
    with pytest.raises(MalformedMessageError, match="32768"):
        encoded(STRING, "x" * 32_768)


def test_text_that_is_not_utf8_is_read_and_never_written():
    """As in Java's client, invalid UTF-8 is read as U+FFFD; text with a lone surrogate is refused."""
    assert decoded(STRING, b"\x00\x04caf\xe9") == "caf\N{REPLACEMENT CHARACTER}"
    with pytest.raises(MalformedMessageError, match="UTF-8"):
        encoded(STRING, "\ud800")


def test_bytes_are_copied_and_records_are_not():
    """A record batch shares the memory of its frame, and other bytes are copied."""
    frame = bytearray(encoded(BYTES, b"abc"))

    copied, shared = decoded(BYTES, frame), decoded(RECORDS, frame)
    frame[-1:] = b"!"

    assert copied == b"abc"
    assert isinstance(shared, memoryview)
    assert bytes(shared) == b"ab!"


# ---- structures and tagged fields ------------------------------------------------------------------------------


class Leader(ApiMessage):
    node: int8 = -1


class Part(ApiMessage):
    number: int8
    leader: Leader = field(since=1, tag=0, default=Leader())
    note: str | None = field(since=1, tag=300, default=None)


OLD, NEW = layout(Part, 0), layout(Part, 1)


def test_a_tagged_field_has_its_tag_its_size_and_its_value():
    """Tagged fields are encoded in order of their tags with size and value (B11)."""
    data = bytes.fromhex("050200020700ac0203036869")

    assert data == encoded(NEW, Part(5, Leader(7), "hi"), flexible=True)
    assert Part(5, Leader(7), "hi") == decoded(NEW, data, flexible=True)


def test_a_tagged_field_at_its_default_is_not_written():
    """A tagged field with its default value is not written."""
    assert bytes.fromhex("0500") == encoded(NEW, Part(5), flexible=True)
    assert Part(5) == decoded(NEW, bytes.fromhex("0500"), flexible=True)


def test_unknown_tags_are_skipped():
    """Known tags are read and unknown ones skipped, in any order."""
    data = encoded(NEW, Part(5, Leader(7), "hi"), flexible=True)
    unknown_between = bytes.fromhex("0503000207000502ffffac0203036869")

    assert Part(5) == decoded(OLD, data, flexible=True)
    assert Part(5, Leader(7), "hi") == decoded(NEW, unknown_between, flexible=True)


@pytest.mark.parametrize(
    "data",
    [
        "05",  # no count of tags
        "0501",  # no tag
        "050100",  # no size
        "05010005",  # more than there is
        "05ff7f",  # more tags than there are bytes
        "0501000100",  # a size too small for the value
    ],
)
def test_invalid_sizes_of_tagged_fields_are_malformed(data):
    """An invalid number or size of tagged fields is malformed."""
    with pytest.raises(MalformedMessageError):
        decoded(NEW, bytes.fromhex(data), flexible=True)


class LaterLeader(ApiMessage):
    node: int8 = field(since=2, default=-1)


class Versioned(ApiMessage):
    number: int8
    leader: LaterLeader = field(since=1, ignorable=True, default=LaterLeader())
    note: str | None = field(since=1, until=2, default=None)


def test_a_value_that_a_version_cannot_carry_is_refused():
    """A value other than the default, in a version without its field, raises an error with the required version."""
    versions = [layout(Versioned, version) for version in range(4)]

    assert encoded(versions[0], Versioned(5)) == b"\x05"
    with pytest.raises(UnsupportedVersionError, match=r"version 0 .* note='hi'; it needs version 1"):
        encoded(versions[0], Versioned(5, note="hi"))
    with pytest.raises(UnsupportedVersionError, match="node=7"):
        encoded(versions[1], Versioned(5, LaterLeader(7)))


def test_an_ignorable_value_is_left_out():
    """The value of an ignorable field is omitted in versions that do not have the field."""
    assert encoded(layout(Versioned, 0), Versioned(5, LaterLeader(7))) == b"\x05"


def test_a_field_exists_from_one_version_to_another():
    """A field is encoded and decoded in the versions from ``since`` to ``until``."""
    first, second, third = (layout(Versioned, version) for version in (1, 2, 3))

    assert encoded(first, Versioned(5)) == b"\x05\xff\xff"
    assert encoded(second, Versioned(5)) == b"\x05\xff\xff\xff"
    assert encoded(third, Versioned(5)) == b"\x05\xff"
    assert Versioned(5, LaterLeader(9)) == decoded(third, b"\x05\x09")


class Moved(ApiMessage):
    group: str = field(inside=OneElement("groups", since=1))
    offset: int8 = field(inside=OneElement("groups", since=1), after=(2, "epoch"))
    timeout: int8
    epoch: int8 = field(since=2, default=-1)


def test_fields_may_stand_in_an_array_of_one_element():
    """Fields may be in an array from some version on, and another number of elements than one is malformed."""
    inside = layout(Moved, 1)

    assert encoded(layout(Moved, 0), Moved("g", 5, 6)) == b"\x00\x01g\x05\x06"
    assert encoded(inside, Moved("g", 5, 6), flexible=True) == b"\x02\x02g\x05\x00\x06\x00"
    assert decoded(inside, b"\x02\x02g\x05\x00\x06\x00", flexible=True) == Moved("g", 5, 6)
    assert [slot.attribute for slot in layout(Moved, 2).slots[0].shape.element.slots] == ["group", "offset"]
    with pytest.raises(MalformedMessageError, match="2 elements in an array that must have one"):
        decoded(inside, b"\x03\x02g\x05\x00\x02g\x05\x00\x06\x00", flexible=True)


# ---- structures that may be null -------------------------------------------------------------------------------

NODES = OneFieldStructure(Slot("nodes", "nodes", Array(INT8)))


@pytest.mark.parametrize(
    ("kind", "value", "flexible", "data"),
    [
        (OLD, Part(5), False, "0105"),
        (OLD, Part(5), True, "010500"),
        (OLD, None, False, "ff"),
        (OLD, None, True, "ff"),
        (NODES, (1, 2), False, "01000000020102"),
        (NODES, (1, 2), True, "0103010200"),
        (NODES, (), True, "010100"),
        (NODES, None, True, "ff"),
    ],
)
def test_a_structure_may_be_null(kind, value, flexible, data):
    """A byte before a nullable structure is 1, or -1 for null (KIP-893)."""
    assert bytes.fromhex(data) == encoded(kind, value, flexible=flexible, nullable=True)
    assert value == decoded(kind, bytes.fromhex(data), flexible=flexible, nullable=True)


@pytest.mark.parametrize("mark", [0x00, 0x02, 0x7F, 0x80, 0xFE])
@pytest.mark.parametrize("kind", [OLD, NODES])
def test_another_byte_before_a_nullable_structure_is_malformed(kind, mark):
    """Any other byte before a nullable structure is malformed."""
    with pytest.raises(MalformedMessageError, match=f"nullable structure must be 0x01 or 0xff, not 0x{mark:02x}"):
        decoded(kind, bytes([mark]) + b"\x00\x00\x00\x01\x05", nullable=True)


@pytest.mark.parametrize("data", ["", "01", "0103", "010301", "01030102"])
def test_a_truncated_structure_is_malformed(data):
    """A structure without some of its fields or tags is malformed."""
    with pytest.raises(MalformedMessageError):
        decoded(NODES, bytes.fromhex(data), flexible=True, nullable=True)


def test_a_wrapped_field_replaces_its_structure():
    """A wrapped field is encoded without its structure's byte unless it is nullable, and tags after it are skipped."""
    assert encoded(NODES, (1,), flexible=True) == bytes.fromhex("020100")
    assert decoded(NODES, bytes.fromhex("0201" + "01050163"), flexible=True) == (1,)
    with pytest.raises(MalformedMessageError):
        encoded(NODES, None, flexible=True)


# ---- topics and their partitions -------------------------------------------------------------------------------


class Entry(ApiMessage):
    topic: str = field("name", per_topic=True)
    partition: int8
    offset: int8 = field(since=1, default=-1)


class Entries(ApiMessage):
    partitions: tuple[Entry, ...] = by_topic()


class BareEntries(ApiMessage):
    partitions: tuple[Entry, ...] = by_topic(bare=True)


TOPICS, BARE = layout(Entries, 1).slots[0].shape, layout(BareEntries, 0).slots[0].shape


def test_entries_are_gathered_by_topic():
    """Entries are a flat list in a message, and grouped by topic in the frame in order of occurrence."""
    entries = (Entry("b", 1, 5), Entry("a", 2, 6), Entry("b", 3, 7))

    data = encoded(TOPICS, entries)

    assert bytes.fromhex("000000020001620000000201050307000161000000010206") == data
    assert (Entry("b", 1, 5), Entry("b", 3, 7), Entry("a", 2, 6)) == decoded(TOPICS, data)


def test_a_bare_partition_is_encoded_as_a_number():
    """An entry that has only a partition is encoded as a number."""
    data = encoded(BARE, (Entry("b", 1), Entry("b", 3)), flexible=True)

    assert bytes.fromhex("02026203010300") == data
    assert (Entry("b", 1), Entry("b", 3)) == decoded(BARE, data, flexible=True)


def test_topics_may_be_null_or_without_partitions():
    """Null, no topics, and a topic without partitions have different frames."""
    assert decoded(TOPICS, b"\xff\xff\xff\xff", nullable=True) is None
    assert decoded(TOPICS, b"\x00\x00\x00\x00") == ()
    assert decoded(TOPICS, bytes.fromhex("0000000100016100000000")) == ()
    with pytest.raises(MalformedMessageError):
        encoded(TOPICS, None)
