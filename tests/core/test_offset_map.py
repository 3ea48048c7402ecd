"""Commit metadata that is encoded is decoded unchanged or not at all."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from base64 import b64encode
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.core.offset_map import DecodedMetadata, EncodedMetadata, OffsetMap, decode_metadata, encode_metadata

LIMIT = 4_096
BASE = 5_000_000_000
SMALL = OffsetMap(10, 16, (10, 13))


@st.composite
def offset_maps(draw):
    """Draw offset maps with no, few or many unfinished offsets, single or in runs."""
    base = draw(st.integers(0, 2**62))
    runs = draw(st.lists(st.tuples(st.integers(1, 300) | st.just(1), st.integers(1, 3_000) | st.just(1)), max_size=60))
    at, unfinished = base, []
    for length, gap in runs:
        unfinished += range(at, at + length)
        at += length + gap
    return OffsetMap(
        base,
        at + draw(st.integers(0, 3)) + (not runs),
        unfinished,
        topic_id=draw(st.none() | st.uuids()),
        leader_epoch=draw(st.integers(-1, 2**31 - 1)),
    )


def scattered(count: int, among: int) -> OffsetMap:
    """Return a map with ``count`` unfinished offsets at random, the base among them."""
    others = random.Random(7).sample(range(1, among), count - 1)
    return OffsetMap(BASE, BASE + among, (BASE, *sorted(BASE + one for one in others)))


# ---- maps ------------------------------------------------------------------------------------------------------


def test_finished_offsets_are_skipped():
    """In a map all offsets below its limit are finished except the listed ones, and none from the limit on."""
    assert [offset for offset in range(9, 19) if SMALL.is_finished(offset)] == [9, 11, 12, 14, 15]


@pytest.mark.parametrize(
    "wrong", [(10, 16, (9,)), (10, 16, (12, 11)), (10, 16, (12, 12)), (10, 16, (16,)), (-1, 5, ())]
)
def test_offsets_of_a_map_are_ascending(wrong):
    """The unfinished offsets of a map must be ascending, between its base and limit, each once."""
    with pytest.raises(ValueError, match=r"not in ascending order|not a range of offsets"):
        OffsetMap(*wrong)


# ---- encoding and decoding -------------------------------------------------------------------------------------


@given(offset_maps(), st.text(max_size=200), st.text(max_size=30))
@example(OffsetMap(0, 1), "", "")
@example(OffsetMap(0, 9, tuple(range(8))), "omap:1:", "a:b")
def test_encoded_metadata_is_decoded_unchanged(offset_map, user_text, writer):
    """Any map that fits, text and writer are encoded in ASCII and decoded unchanged."""
    envelope = encode_metadata(offset_map, user_text, 100_000, writer=writer)

    assert envelope.text.isascii()
    assert not envelope.is_map_dropped
    assert decode_metadata(envelope.text, offset_map.base) == DecodedMetadata(offset_map, user_text, writer=writer)


@given(offset_maps(), st.text(max_size=60), st.text(max_size=10), st.integers(0, 400))
def test_metadata_keep_the_limit(offset_map, user_text, writer, limit):
    """Metadata does not exceed the limit, unless the user's text alone does, which is always kept."""
    envelope = encode_metadata(offset_map, user_text, limit, writer=writer)
    decoded = decode_metadata(envelope.text, offset_map.base)

    assert len(envelope.text.encode()) <= max(limit, len(encode_metadata(None, user_text, 0).text.encode()))
    assert decoded.user_text == user_text
    assert decoded.offset_map == (None if envelope.is_map_dropped else offset_map)
    assert envelope.is_map_dropped == (envelope.fill > 1)


@given(st.text())
@example("omap:")
@example("omap:1:00000000:::")
def test_text_alone_is_committed_unchanged(user_text):
    """A text without a map is committed unchanged, unless it has tailrace's prefix."""
    envelope = encode_metadata(None, user_text, LIMIT)
    has_prefix = user_text.startswith("omap:")

    assert (envelope.text == user_text) is not has_prefix
    assert envelope == EncodedMetadata(envelope.text)
    assert decode_metadata(envelope.text, 5) == DecodedMetadata(
        user_text=user_text, is_foreign=bool(user_text) and not has_prefix
    )


def test_no_map_and_no_text_is_an_empty_text():
    """Without a map and a text, the metadata is empty."""
    assert encode_metadata(None, "", LIMIT) == EncodedMetadata("")
    assert decode_metadata("", 5) == DecodedMetadata()


def test_metadata_name_the_writer():
    """Metadata contains the writer and the user's text in plain text."""
    text = encode_metadata(SMALL, "half-way: ok", LIMIT, writer="billing-3").text

    assert text.startswith("omap:1:")
    assert text.endswith(":half-way: ok")
    assert text.split(":")[3] == "billing-3"
    without_map = encode_metadata(None, "text", LIMIT, writer="billing-3")
    assert decode_metadata(without_map.text, 5) == DecodedMetadata(user_text="text", writer="billing-3")


def test_maps_of_earlier_versions_are_decoded():
    """Metadata of earlier versions, which groups may still have stored, is decoded."""
    bits = "omap:1:ac4d9e38:billing-3:AAAAAAAAAAAAAAAAAAAABw.12:b42LjBAA:half-way: ok"
    gaps = "omap:1:cac5b0b9:::gW8PE8I9xDzMA:\\u00fc:\\n"

    small = OffsetMap(10, 16, (10, 13), topic_id=UUID(int=7), leader_epoch=12)
    assert decode_metadata(bits, 10) == DecodedMetadata(small, "half-way: ok", writer="billing-3")
    assert decode_metadata(gaps, 300) == DecodedMetadata(OffsetMap(300, 1_000, (300, 555)), "\xfc:\n")


# ---- size limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset_map", "share"),
    [
        (OffsetMap(BASE, BASE + 10_000_000, (BASE,)), 0.01),
        (scattered(64, 10_000), 0.04),
        (scattered(200, 1_000_000), 0.15),
        (scattered(2_000, 12_000), 0.4),
        (scattered(2_000, 100_000), 0.7),
        (scattered(10_000, 12_000), 0.4),
        (OffsetMap(BASE, BASE + 20_000, tuple(range(BASE, BASE + 10_000))), 0.03),
    ],
)
def test_common_maps_fit_the_default_limit(offset_map, share):
    """The maps of common cases, such as one stuck record before ten million others, fit the default limit."""
    envelope = encode_metadata(offset_map, "", LIMIT)

    assert envelope.fill < share
    assert not envelope.is_high
    assert decode_metadata(envelope.text, BASE).offset_map == offset_map


def test_map_above_three_quarters_is_high():
    """A map above three quarters of the limit fits, but is reported as high."""
    envelope = encode_metadata(scattered(2_000, 500_000), "", LIMIT)

    assert 0.75 < envelope.fill < 1
    assert envelope.is_high
    assert not envelope.is_map_dropped


def test_map_that_does_not_fit_is_omitted():
    """A map that does not fit is omitted, and the user's text is kept."""
    envelope = encode_metadata(scattered(5_000, 500_000), "mine", LIMIT)

    assert envelope.is_map_dropped
    assert envelope.is_high
    assert envelope.text == "mine"


def test_users_text_comes_before_the_map():
    """The map gets the space that the user's text leaves, and is omitted if there is none."""
    spacious, narrow = (encode_metadata(SMALL, "x" * size, LIMIT) for size in (0, 4_050))

    assert narrow.fill > 20 * spacious.fill
    assert encode_metadata(SMALL, "x" * LIMIT, LIMIT) == EncodedMetadata(
        "x" * LIMIT, is_map_dropped=True, fill=float("inf")
    )


def test_users_text_is_never_cut():
    """The user's text is never shortened, and the writer is omitted to make room for it."""
    assert encode_metadata(None, "x" * 5_000, LIMIT, writer="w").text == "x" * 5_000
    assert encode_metadata(None, "x" * 4_090, LIMIT, writer="w").text == "x" * 4_090
    assert encode_metadata(None, "ü" * 2_048, LIMIT).text == "ü" * 2_048
    with_map = encode_metadata(SMALL, "x" * 3_900, LIMIT, writer="w" * 200)
    assert decode_metadata(with_map.text, 10) == DecodedMetadata(SMALL, "x" * 3_900)


def test_huge_map_is_omitted():
    """A huge map is omitted, as it would not be decoded, however well it compresses."""
    envelope = encode_metadata(OffsetMap(0, 1 << 24, tuple(range(0, 1 << 24, 60))), "", LIMIT)

    assert envelope == EncodedMetadata("", is_map_dropped=True, fill=float("inf"))


# ---- foreign and damaged texts ---------------------------------------------------------------------------------


@given(st.text(), st.integers(0, 100))
def test_any_text_can_be_decoded(text, offset):
    """Any other client's text is decoded as the user's text, without a map."""
    decoded = decode_metadata(text, offset)

    assert decoded.offset_map is None
    assert decoded.is_foreign == (bool(text) and not text.startswith("omap:"))
    if decoded.is_foreign:
        assert decoded.user_text == text


@given(offset_maps(), st.data())
def test_damaged_text_has_no_map(offset_map, data):
    """Metadata with a changed character or a missing end has no map and reports a problem."""
    text = encode_metadata(offset_map, "text", 100_000, writer="me").text
    at = data.draw(st.integers(len("omap:"), len(text) - 1))
    character = data.draw(st.characters(max_codepoint=0x2FF).filter(lambda one: one != text[at]))

    for damaged in (text[:at] + character + text[at + 1 :], text[:at]):
        decoded = decode_metadata(damaged, offset_map.base)
        assert decoded.offset_map is None
        assert decoded.problem
        assert not decoded.is_foreign


def test_map_of_another_offset_is_ignored():
    """The map of another offset, as after a tool moved the group and kept the metadata, is ignored."""
    decoded = decode_metadata(encode_metadata(SMALL, "text", LIMIT).text, 11)

    assert decoded == DecodedMetadata(user_text="text", problem="the commit metadata belongs to offset 10, not 11")


def test_later_version_is_a_problem():
    """Metadata of a later version, as after a downgrade, has no map and reports a problem."""
    decoded = decode_metadata("omap:2:whatever", 5)

    assert decoded == DecodedMetadata(problem="version '2' of the commit metadata is not supported")


def test_text_with_a_lone_surrogate_has_no_map():
    """Metadata with a lone surrogate, which cannot be encoded, has no map and reports a problem."""
    assert decode_metadata("omap:1:00000000::::\ud800", 5).problem


def sealed(body: str) -> str:
    """Return an envelope with a valid checksum."""
    return f"omap:1:{zlib.crc32(body.encode()):08x}:{body}"


def deflated(kind: str, plain: bytes) -> str:
    deflate = zlib.compressobj(wbits=-15)
    return kind + b64encode(deflate.compress(plain) + deflate.flush()).decode()


@pytest.mark.parametrize(
    "body",
    [
        "",
        ":::",
        '::"+":',
        ':::"',
        ":::\\u12",
        ":::\x01",
        "::z:",
        "::g:",
        "::g*:",
        "::gAAAA:",
        f"::{deflated('g', bytes([5, 6])).replace('=', '*=')}:",
        f"::{deflated('g', b'')}:",
        f"::{deflated('g', bytes([5]))}:",
        f"::{deflated('g', bytes([5, 200]))}:",
        f"::{deflated('g', bytes([255] * 11))}:",
        f"::{deflated('g', bytes([5, *([255] * 10), 1]))}:",
        f"::{deflated('x', bytes([5, 6]))}:",
        f"::{deflated('b', bytes([5, 2, 4]))}:",
        f"::{deflated('b', bytes(1 << 24))}:",
        f"::{deflated('g', bytes([5, *([1] * (1 << 20))]))}:",
        f":x:{deflated('g', bytes([5, 6]))}:",
        f":.99999999999:{deflated('g', bytes([5, 6]))}:",
        f"::{deflated('g', bytes([5, *([255] * 9), 1]))}:",
    ],
)
def test_forged_map_is_a_problem(body):
    """Forged metadata with a valid checksum has no map and, unless it is empty, reports a problem."""
    decoded = decode_metadata(sealed(body), 5)

    assert decoded.offset_map is None
    assert bool(decoded.problem) is (body != ":::")


# ---- maps of another log -----------------------------------------------------------------------------------------


def test_map_beyond_the_end_of_the_log_contradicts_it():
    """A map whose limit is above the end offset contradicts the log."""
    offset_map = OffsetMap(10, 16, (10,))

    assert not offset_map.contradiction("", 16)
    assert "the log ends at 15" in offset_map.contradiction("", 15)


def test_map_of_a_recreated_topic_contradicts_the_log():
    """A map with another topic id contradicts the log, unless one of the ids is unknown."""
    offset_map = OffsetMap(10, 16, (10,), topic_id=UUID(int=7))

    assert not offset_map.contradiction(str(UUID(int=7)), 100)
    assert not offset_map.contradiction("", 100)
    assert not OffsetMap(10, 16, (10,)).contradiction(str(UUID(int=8)), 100)
    assert str(UUID(int=8)) in offset_map.contradiction(str(UUID(int=8)), 100)


def test_batch_of_a_later_epoch_replaced_records_of_the_map():
    """A batch below the map's limit with a later leader epoch has replaced records, as after an unclean election."""
    offset_map = OffsetMap(10, 16, (10,), leader_epoch=3)

    assert not offset_map.is_rewritten_by(12, 3)
    assert not offset_map.is_rewritten_by(16, 4)
    assert offset_map.is_rewritten_by(12, 4)
    assert not OffsetMap(10, 16, (10,)).is_rewritten_by(12, 4)


def test_map_takes_little_memory():
    """Decoding a map takes less than two megabytes, however many offsets it covers."""
    dense = f"::{deflated('b', bytes([5, 0xB8, 0xFF, 0x0F, *([255] * 32_700)]))}:"
    sparse = f"::{deflated('g', bytes([5, 0, *([127] * 32_700)]))}:"
    for body in dense, sparse:
        text = sealed(body)
        tracemalloc.start()
        try:
            offset_map = decode_metadata(text, 5).offset_map
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert offset_map is not None
        assert offset_map.unfinished_count > 32_000
        assert (len(text), peak) < (1_000, 2_000_000)
        assert peak < 2_000_000
