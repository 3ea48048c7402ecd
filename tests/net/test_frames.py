"""FrameProtocol: frames arrive whole and in order, large ones are not copied, and lengths are not trusted."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import BrokerConnectionError, MalformedMessageError
from tailrace.net.connection import LIMIT, OPENING_LIMIT, FrameProtocol, guess_peer


class Reading:
    """FrameProtocol fed by the test, in place of the event loop."""

    def __init__(self) -> None:
        self.frames: list[memoryview] = []
        self.lost: list[Exception | None] = []
        self.protocol = FrameProtocol(self.frames.append, self.lost.append)

    def feed(self, data: bytes, chunk: int = 1 << 20) -> None:
        while data:
            room = self.protocol.get_buffer(-1)
            part = data[: min(len(room), chunk)]
            room[: len(part)] = part
            self.protocol.buffer_updated(len(part))
            data = data[len(part) :]


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


@given(st.lists(st.binary(min_size=4, max_size=300), max_size=8), st.integers(1, 2_500))
def test_frames_do_not_depend_on_segmentation(bodies, chunk):
    """Each frame arrives whole, once and in order, however the bytes are split."""
    reading = Reading()

    reading.feed(b"".join(framed(body) for body in bodies), chunk)

    assert bodies == [bytes(frame) for frame in reading.frames]
    assert not reading.lost


def test_a_large_frame_is_received_in_place():
    """A large frame is received into a buffer of its exact size and not copied."""
    reading = Reading()
    reading.feed(struct.pack(">i", 100_000))

    first = reading.protocol.get_buffer(-1)
    reading.feed(bytes(60_000))
    second = reading.protocol.get_buffer(-1)
    reading.feed(bytes(40_000))

    (frame,) = reading.frames
    assert (len(first), len(second), len(frame)) == (100_000, 40_000, 100_000)
    assert frame.obj is first.obj is second.obj


def test_small_frames_need_a_single_read():
    """Frames that arrive together are returned after a single read."""
    reading = Reading()
    frames = framed(b"first") + framed(b"second") + framed(b"third")[:3]

    room = reading.protocol.get_buffer(-1)
    room[: len(frames)] = frames
    reading.protocol.buffer_updated(len(frames))
    assert [bytes(frame) for frame in reading.frames] == [b"first", b"second"]

    reading.feed(framed(b"third")[3:])
    assert bytes(reading.frames[-1]) == b"third"


def test_frames_before_an_impossible_length_are_returned():
    """A frame that arrived whole is returned, even if the bytes after it are malformed."""
    reading = Reading()

    reading.feed(framed(b"whole") + struct.pack(">i", -1))
    reading.protocol.connection_lost(None)

    assert [bytes(frame) for frame in reading.frames] == [b"whole"]
    assert isinstance(reading.lost[0], MalformedMessageError)


def test_a_claimed_length_allocates_little_memory():
    """A frame with a length of a gigabyte allocates memory only as its bytes arrive."""
    reading = Reading()
    reading.protocol.limit = LIMIT
    tracemalloc.start()
    try:
        reading.feed(struct.pack(">i", LIMIT))
        claimed = tracemalloc.get_traced_memory()[1]
        reading.feed(bytes(10 << 20))
        arrived = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert claimed < 9 << 20
    assert arrived < 64 << 20
    assert not reading.frames


def test_a_frame_larger_than_its_first_buffer_arrives_whole():
    """A buffer that grows keeps its bytes, and the next frame is read correctly."""
    reading = Reading()
    reading.protocol.limit = LIMIT
    body = b"0123456789abcdef" * (40 << 16) + b"end"

    reading.feed(framed(body) + framed(b"next"), 3 << 20)

    assert [len(frame) for frame in reading.frames] == [len(body), 4]
    assert reading.frames[0] == body


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 3, OPENING_LIMIT + 1, (1 << 31) - 1])
def test_an_impossible_length_is_refused(size):
    """A length that is negative, too short or too large is malformed, and no memory is allocated."""
    reading = Reading()

    reading.feed(struct.pack(">i", size))
    asked = len(reading.protocol.get_buffer(-1))
    reading.protocol.connection_lost(None)

    assert (asked, reading.frames) == (0, [])
    (reason,) = reading.lost
    assert isinstance(reason, MalformedMessageError)
    assert str(size) in str(reason)


def test_large_responses_are_accepted_after_the_connection_is_open():
    """After the connection is open, responses of up to a gigabyte are accepted."""
    reading = Reading()
    reading.protocol.limit = LIMIT

    reading.feed(struct.pack(">i", OPENING_LIMIT + 1))

    assert len(reading.protocol.get_buffer(-1)) == OPENING_LIMIT + 1


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"HTTP", "web server"),
        (b"SSH-", "SSH server"),
        (b"\x15\x03\x03\x00", "security_protocol='SSL'"),
        (b"\x16\x03\x01\x02", "security_protocol='SSL'"),
    ],
)
def test_another_protocol_is_recognized(head, message):
    """If the peer speaks another protocol, the error names it and gives advice."""
    reading = Reading()

    reading.feed(head)
    reading.protocol.connection_lost(None)

    (reason,) = reading.lost
    assert isinstance(reason, BrokerConnectionError)
    assert message in str(reason)


def test_kafka_frames_are_not_mistaken_for_another_protocol():
    """No response of a broker is recognized as another protocol."""
    assert guess_peer(struct.pack(">i", 345)) is None
