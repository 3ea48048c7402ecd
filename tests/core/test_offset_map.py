"""What goes with a commit comes back as it was, or not at all."""

from __future__ import annotations

import random
import zlib
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.offset_map import Decoded, Envelope, OffsetMap, decode, encode

LIMIT = 4_096
BASE = 5_000_000_000
SMALL = OffsetMap(10, 16, (10, 13))


@st.composite
def offset_maps(draw):
    """Any: none, few or most of them unfinished, alone or in runs."""
    base = draw(st.integers(0, 2**62))
    runs = draw(st.lists(st.tuples(st.integers(1, 300) | st.just(1), st.integers(1, 3_000) | st.just(1)), max_size=60))
    at, unfinished = base, []
    for length, gap in runs:
        unfinished += range(at, at + length)
        at += length + gap
    return OffsetMap(base, at + draw(st.integers(0, 3)) + (not runs), tuple(unfinished))


def scattered(count: int, among: int) -> OffsetMap:
    """So many unfinished at random, the first one of them."""
    others = random.Random(7).sample(range(1, among), count - 1)
    return OffsetMap(BASE, BASE + among, (BASE, *sorted(BASE + one for one in others)))


# ---- the map ---------------------------------------------------------------------------------------------------


def test_what_is_finished_is_skipped():
    """Below the limit, all but what is unfinished; from the limit on nothing is known."""
    assert [offset for offset in range(9, 19) if SMALL.is_finished(offset)] == [9, 11, 12, 14, 15]


@pytest.mark.parametrize(
    "wrong", [(10, 16, (9,)), (10, 16, (12, 11)), (10, 16, (12, 12)), (10, 16, (16,)), (-1, 5, ())]
)
def test_a_map_is_in_order(wrong):
    """From the base on, below the limit, each offset once."""
    with pytest.raises(ValueError, match="not in order"):
        OffsetMap(*wrong)


# ---- there and back --------------------------------------------------------------------------------------------


@given(offset_maps(), st.text(max_size=200), st.text(max_size=30))
@example(OffsetMap(0, 1), "", "")
@example(OffsetMap(0, 9, tuple(range(8))), "penstock:1:", "a:b")
def test_what_is_written_is_read(offset_map, user_text, writer):
    """Any map that fits, with any text of the user's and any writer, in ASCII."""
    envelope = encode(offset_map, user_text, 100_000, writer=writer)

    assert envelope.text.isascii()
    assert not envelope.is_map_dropped
    assert decode(envelope.text, offset_map.base) == Decoded(offset_map, user_text, writer=writer)


@given(offset_maps(), st.text(max_size=60), st.text(max_size=10), st.integers(0, 400))
def test_the_limit_is_kept(offset_map, user_text, writer, limit):
    """No text is longer, unless the user's alone is; whatever is left out, the user's text is there."""
    envelope = encode(offset_map, user_text, limit, writer=writer)
    decoded = decode(envelope.text, offset_map.base)

    assert len(envelope.text.encode()) <= max(limit, len(encode(None, user_text, 0).text.encode()))
    assert decoded.user_text == user_text
    assert decoded.offset_map == (None if envelope.is_map_dropped else offset_map)
    assert envelope.is_map_dropped == (envelope.fill > 1)


@given(st.text())
@example("penstock:")
@example("penstock:1:00000000:::")
def test_a_text_alone_goes_as_it_is(user_text):
    """As every client writes it; unless it looks like ours, then it is wrapped and comes back all the same."""
    envelope = encode(None, user_text, LIMIT)
    is_ours = user_text.startswith("penstock:")

    assert (envelope.text == user_text) is not is_ours
    assert envelope == Envelope(envelope.text)
    assert decode(envelope.text, 5) == Decoded(user_text=user_text, is_foreign=bool(user_text) and not is_ours)


def test_nothing_to_say_is_nothing():
    """A commit of records that were finished in order carries no text."""
    assert encode(None, "", LIMIT) == Envelope("")
    assert decode("", 5) == Decoded()


def test_it_says_who_wrote_it():
    """Whoever reads it with other tools sees whose it is, and the user's text."""
    text = encode(SMALL, "half-way: ok", LIMIT, writer="billing-3").text

    assert text.startswith("penstock:1:")
    assert text.endswith(":half-way: ok")
    assert text.split(":")[3] == "billing-3"
    without_map = encode(None, "text", LIMIT, writer="billing-3")
    assert decode(without_map.text, 5) == Decoded(user_text="text", writer="billing-3")


def test_what_is_committed_once_can_be_read_for_ever():
    """These texts stand in groups' offsets, whatever is written from now on."""
    bits, gaps = "penstock:1:cf0d9004:billing-3:b42LjBAA:half-way: ok", "penstock:1:d49fa84e::gW8PE8I9xDzMA:\\u00fc:\\n"

    assert decode(bits, 10) == Decoded(SMALL, "half-way: ok", writer="billing-3")
    assert decode(gaps, 300) == Decoded(OffsetMap(300, 1_000, (300, 555)), "\xfc:\n")


# ---- what fits -------------------------------------------------------------------------------------------------


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
def test_what_fits(offset_map, share):
    """A stuck record before ten millions, or two thousand in flight, leave room in what brokers allow by default."""
    envelope = encode(offset_map, "", LIMIT)

    assert envelope.fill < share
    assert not envelope.is_high
    assert decode(envelope.text, BASE).offset_map == offset_map


def test_above_three_quarters_it_is_high():
    """There is still room for this one, but no new records should be begun."""
    envelope = encode(scattered(2_000, 500_000), "", LIMIT)

    assert 0.75 < envelope.fill < 1
    assert envelope.is_high
    assert not envelope.is_map_dropped


def test_what_does_not_fit_is_left_out():
    """The offset is committed all the same, with the user's text."""
    envelope = encode(scattered(5_000, 500_000), "mine", LIMIT)

    assert envelope.is_map_dropped
    assert envelope.is_high
    assert envelope.text == "mine"


def test_the_users_text_takes_its_room_first():
    """The map has what it leaves; where that is nothing, no map."""
    spacious, narrow = (encode(SMALL, "x" * size, LIMIT) for size in (0, 4_050))

    assert narrow.fill > 20 * spacious.fill
    assert encode(SMALL, "x" * LIMIT, LIMIT) == Envelope("x" * LIMIT, is_map_dropped=True, fill=float("inf"))


def test_a_users_text_is_never_cut():
    """One that is too long is the broker's to refuse, as with any client; the writer makes room for it."""
    assert encode(None, "x" * 5_000, LIMIT, writer="w").text == "x" * 5_000
    assert encode(None, "x" * 4_090, LIMIT, writer="w").text == "x" * 4_090
    assert encode(None, "ü" * 2_048, LIMIT).text == "ü" * 2_048
    with_map = encode(SMALL, "x" * 3_900, LIMIT, writer="w" * 200)
    assert decode(with_map.text, 10) == Decoded(SMALL, "x" * 3_900)


def test_a_map_beyond_reason_is_left_out():
    """What nobody would read is not written, however well it deflates."""
    envelope = encode(OffsetMap(0, 1 << 24, tuple(range(0, 1 << 24, 60))), "", LIMIT)

    assert envelope == Envelope("", is_map_dropped=True, fill=float("inf"))


# ---- what others wrote, and what is damaged --------------------------------------------------------------------


@given(st.text(), st.integers(0, 100))
def test_any_text_can_be_read(text, offset):
    """Whatever somebody commits by hand: no map, no error; what is not ours is the user's."""
    decoded = decode(text, offset)

    assert decoded.offset_map is None
    assert decoded.is_foreign == (bool(text) and not text.startswith("penstock:"))
    if decoded.is_foreign:
        assert decoded.user_text == text


@given(offset_maps(), st.data())
def test_what_is_damaged_gives_no_map(offset_map, data):
    """One character changed, or the end cut off: it is told, and no record is skipped for it."""
    text = encode(offset_map, "text", 100_000, writer="me").text
    at = data.draw(st.integers(len("penstock:"), len(text) - 1))
    character = data.draw(st.characters(max_codepoint=0x2FF).filter(lambda one: one != text[at]))

    for damaged in (text[:at] + character + text[at + 1 :], text[:at]):
        decoded = decode(damaged, offset_map.base)
        assert decoded.offset_map is None
        assert decoded.problem
        assert not decoded.is_foreign


def test_a_map_of_another_offset_is_ignored():
    """Somebody moved the group and left the text: it says nothing of where the group is now."""
    decoded = decode(encode(SMALL, "text", LIMIT).text, 11)

    assert decoded == Decoded(user_text="text", problem="the commit metadata is of offset 10, not of 11")


def test_a_later_version_is_told():
    """After a step back to an older penstock the records are run again, and it is said why."""
    decoded = decode("penstock:2:whatever", 5)

    assert decoded == Decoded(problem="version '2' of the commit metadata is not known here")


def test_a_text_that_is_no_text_is_no_map():
    """Half a character cannot be written, so nobody of ours wrote it."""
    assert decode("penstock:1:00000000:::\ud800", 5).problem


def sealed(body: str) -> str:
    """With a checksum that holds."""
    return f"penstock:1:{zlib.crc32(body.encode()):08x}:{body}"


def deflated(kind: str, plain: bytes) -> str:
    deflate = zlib.compressobj(wbits=-15)
    return kind + b64encode(deflate.compress(plain) + deflate.flush()).decode()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "::",
        ':"+"::',
        '::"',
        "::\\u12",
        "::\x01",
        ":z:",
        ":g:",
        ":g*:",
        ":gAAAA:",
        f":{deflated('g', bytes([5, 6])).replace('=', '*=')}:",
        f":{deflated('g', b'')}:",
        f":{deflated('g', bytes([5]))}:",
        f":{deflated('g', bytes([5, 200]))}:",
        f":{deflated('g', bytes([255] * 11))}:",
        f":{deflated('g', bytes([5, *([255] * 10), 1]))}:",
        f":{deflated('x', bytes([5, 6]))}:",
        f":{deflated('b', bytes([5, 2, 4]))}:",
        f":{deflated('b', bytes(1 << 24))}:",
        f":{deflated('g', bytes([5, *([1] * (1 << 20))]))}:",
    ],
)
def test_malice_is_no_map(body):
    """A checksum that holds proves nothing: whatever is inside, it is told, and fills no memory."""
    decoded = decode(sealed(body), 5)

    assert decoded.offset_map is None
    assert bool(decoded.problem) is (body != "::")
