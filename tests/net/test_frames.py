"""What the reader of frames is promised: each frame whole, in order and in place, and no claim believed unseen."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import BrokerConnectionError, MalformedMessageError
from tailrace.net.frames import LIMIT, OPENING_LIMIT, FrameProtocol, guess_peer


class Reading:
    """A FrameProtocol that is fed by hand, as the event loop feeds it."""

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


@given(st.lists(st.binary(min_size=4, max_size=300), max_size=8), st.integers(1, 64))
def test_frames_are_the_same_in_whatever_pieces_they_come(bodies, chunk):
    """Every frame comes whole, once and in order, however the network cuts the stream."""
    reading = Reading()

    reading.feed(b"".join(framed(body) for body in bodies), chunk)

    assert bodies == [bytes(frame) for frame in reading.frames]
    assert not reading.lost


def test_a_frame_is_received_in_place():
    """The memory that the kernel fills is the memory of the frame: of its exact size, asked for once, never copied."""
    reading = Reading()
    reading.feed(struct.pack(">i", 100_000))

    first = reading.protocol.get_buffer(-1)
    reading.feed(bytes(60_000))
    second = reading.protocol.get_buffer(-1)
    reading.feed(bytes(40_000))

    (frame,) = reading.frames
    assert (len(first), len(second), len(frame)) == (100_000, 40_000, 100_000)
    assert frame.obj is first.obj is second.obj


def test_a_length_takes_no_memory_before_its_bytes_arrive():
    """A peer that claims a gigabyte gets the room of a few megabytes, and four times of what it has sent later on."""
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


def test_a_frame_larger_than_its_first_buffer_comes_whole():
    """The bytes that arrived before the buffer grew are those of the frame, and so is what comes behind it."""
    reading = Reading()
    reading.protocol.limit = LIMIT
    body = b"0123456789abcdef" * (40 << 16) + b"end"

    reading.feed(framed(body) + framed(b"next"), 3 << 20)

    assert [len(frame) for frame in reading.frames] == [len(body), 4]
    assert reading.frames[0] == body


@pytest.mark.parametrize("size", [-1, -(1 << 31), 0, 3, OPENING_LIMIT + 1, (1 << 31) - 1])
def test_a_length_that_cannot_be_is_refused(size):
    """Negative, shorter than a correlation id or larger than any answer: malformed, and no memory is taken for it."""
    reading = Reading()

    reading.feed(struct.pack(">i", size))
    asked = len(reading.protocol.get_buffer(-1))
    reading.protocol.connection_lost(None)

    assert (asked, reading.frames) == (0, [])
    (reason,) = reading.lost
    assert isinstance(reason, MalformedMessageError)
    assert str(size) in str(reason)


def test_answers_may_be_large_once_the_connection_is_open():
    """The limit of the opening is not that of answers: a gigabyte may come later."""
    reading = Reading()
    reading.protocol.limit = LIMIT

    reading.feed(struct.pack(">i", OPENING_LIMIT + 1))

    assert len(reading.protocol.get_buffer(-1)) == OPENING_LIMIT + 1


@pytest.mark.parametrize(
    ("head", "told"),
    [
        (b"HTTP", "web server"),
        (b"SSH-", "SSH server"),
        (b"\x15\x03\x03\x00", "security_protocol='SSL'"),
        (b"\x16\x03\x01\x02", "security_protocol='SSL'"),
    ],
)
def test_a_peer_is_known_by_its_first_bytes(head, told):
    """Who answers in another protocol is named, and what to do about it."""
    reading = Reading()

    reading.feed(head)
    reading.protocol.connection_lost(None)

    (reason,) = reading.lost
    assert isinstance(reason, BrokerConnectionError)
    assert told in str(reason)


def test_a_frame_of_kafka_is_no_stranger():
    """The first bytes of a real answer are nobody else's."""
    assert guess_peer(struct.pack(">i", 345)) is None
