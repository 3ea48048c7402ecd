"""Malformed bytes: each decoder returns a message or raises MalformedMessageError, in bounded time and memory."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.codec import (
    Array,
    ByTopic,
    OneElementArray,
    OneFieldStructure,
    Structure,
    decoder_of,
    layout,
)
from tailrace.protocol.encoding.primitives import write_uvarint
from tailrace.protocol.groups import JoinGroupRequest, LeaveGroupRequest, OffsetFetchRequest
from tailrace.protocol.message import read_request_header
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from tailrace.protocol.records import FetchedPartition, FetchRequest, FetchResponse
from tailrace.testing.faults import APIS
from tests.support.protocol.message_strategies import requests, responses

VERSIONS = [pytest.param(api, id=api.name) for api in APIS]

some = settings(max_examples=5)


def outcome(decode, data: bytes, version: int) -> object:
    """Return the decoded message, or the MalformedMessageError."""
    try:
        return decode(memoryview(data), version)
    except MalformedMessageError as error:
        return error


def garbled(data: bytes, random: Random) -> bytes:
    """Flip a few bits."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


@pytest.mark.parametrize("api", VERSIONS)
def test_a_garbled_frame_is_a_message_or_malformed(api):
    """A frame with flipped bits is decoded to a message or raises MalformedMessageError."""

    @some
    @given(st.data(), st.sampled_from(api.versions), st.integers(0, 1 << 32))
    def check(data, version, seed):
        random = Random(seed)
        asked = data.draw(requests(api, version))
        answered = data.draw(responses(api, version))
        request = bytes(api.encode_request(asked, version, correlation_id=1, client_id="c")[4:])
        response = bytes(api.encode_response(answered, version, correlation_id=1)[4:])
        for _ in range(40):
            asks = outcome(api.decode_request, garbled(request, random), version)
            answers = outcome(api.decode_response, garbled(response, random), version)
            assert isinstance(asks, type(asked) | MalformedMessageError)
            assert isinstance(answers, type(answered) | MalformedMessageError)

    check()


@pytest.mark.parametrize("api", VERSIONS)
def test_a_truncated_frame_is_malformed(api):
    """A truncated frame is malformed."""

    @some
    @given(st.data(), st.sampled_from(api.versions))
    def check(data, version):
        asked = data.draw(requests(api, version))
        answered = data.draw(responses(api, version))
        request = api.encode_request(asked, version, correlation_id=1, client_id="c")[4:]
        response = api.encode_response(answered, version, correlation_id=1)[4:]
        for decode, frame in ((api.decode_request, request), (api.decode_response, response)):
            for end in range(len(frame)):
                with pytest.raises(MalformedMessageError):
                    decode(memoryview(frame)[:end], version)

    check()


@pytest.mark.parametrize("api", VERSIONS)
def test_noise_is_a_message_or_malformed(api):
    """Random bytes are decoded to a message or raise MalformedMessageError, in each version."""
    random = Random(api.key)

    for version in api.versions:
        for size in (0, 1, 3, 4, 5, 9, 30, 30, 100, 1000):
            noise = random.randbytes(size)
            # Mostly zeros are decoded further before they fail.
            sparse = bytes(byte if random.random() < 0.2 else 0 for byte in noise)
            for data in (noise, sparse):
                assert isinstance(outcome(api.decode_request, data, version), api.request_type | MalformedMessageError)
                assert outcome(api.decode_response, data, version) is not None


@given(st.binary(max_size=20))
def test_random_request_headers_are_decoded_or_malformed(data):
    """A request header of random bytes is malformed only if it is too short."""
    try:
        header = read_request_header(memoryview(data))
    except MalformedMessageError:
        return
    assert header.api_key == int.from_bytes(data[:2], "big", signed=True)


HUGE = 0x7FFFFFFF


@pytest.mark.parametrize(
    ("api", "version", "before"),
    [
        (JoinGroupRequest.api, 5, bytes(4) + bytes(2) + bytes(4) + bytes(2) * 3),
        (MetadataRequest.api, 5, bytes(4)),
        (FetchRequest.api, 11, bytes(4) + bytes(2) + bytes(4)),
        (OffsetFetchRequest.api, 5, bytes(4)),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_a_wrong_length_allocates_no_memory(api, version, before):
    """A length of two billion elements in a short frame is malformed and allocates no memory."""
    frame = bytes(4) + before + HUGE.to_bytes(4, "big") + bytes(100)
    decoder_of(api.response_type, version, flexible=False)  # its generation needs memory, too

    tracemalloc.start()
    with pytest.raises(MalformedMessageError, match="array claims 2147483647 elements"):
        api.decode_response(memoryview(frame), version)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 100_000


def test_a_length_of_a_flexible_version_is_not_trusted():
    """A wrong length as a varint is malformed and allocates no memory."""
    frame = bytearray(bytes(4) + b"\0" + bytes(4) + bytes(2) + bytes(4))
    write_uvarint(frame, HUGE)

    with pytest.raises(MalformedMessageError, match="array claims"):
        FetchRequest.api.decode_response(memoryview(bytes(frame) + bytes(100)), 12)


def test_memory_is_proportional_to_the_frame():
    """A frame with as many of the smallest elements as fit needs a bounded multiple of its size."""
    members = 5_000
    frame = bytearray(bytes(4) + b"\0" + bytes(4) + bytes(2))
    write_uvarint(frame, members + 1)
    # A member without id, instance id or tags, and its error code.
    frame += (b"\x01\x00" + bytes(2) + b"\0") * members + b"\0"

    tracemalloc.start()
    answer = LeaveGroupRequest.api.decode_response(memoryview(frame), 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert members == len(answer.members)
    assert peak < 100 * len(frame)


@pytest.mark.parametrize("api", VERSIONS)
def test_each_element_of_an_array_has_a_byte(api):
    """Each element of an array has at least a byte, so that an array has no more elements than bytes."""
    for version in api.versions:
        for kind in (api.request_type, api.response_type):
            for structure in structures_in_arrays(layout(kind, version)):
                assert structure.untagged_fields or version >= api.flexible_from


def structures_in_arrays(shape):
    match shape:
        case Structure():
            for slot in shape.slots:
                yield from structures_in_arrays(slot.shape)
        case Array(item) | OneElementArray(item):
            if isinstance(item, Structure):
                yield item
            yield from structures_in_arrays(item)
        case OneFieldStructure(slot):
            yield from structures_in_arrays(slot.shape)
        case ByTopic():
            yield shape.entry
            yield from structures_in_arrays(shape.entry)


def test_records_share_the_frames_memory():
    """The batches of a fetch response are views of its frame."""
    part = FetchedPartition(0, 0, 10, topic="t", records=memoryview(b"0123456789"))
    frame = FetchRequest.api.encode_response(FetchResponse((part,)), 11, correlation_id=1)

    (found,) = FetchRequest.api.decode_response(memoryview(frame)[4:], 11).partitions
    frame[-10:] = b"abcdefghij"

    assert found.records == b"abcdefghij"
    assert frame is found.records.obj


COORDINATOR = bytes.fromhex("026700000001010000000000000000")
GROUP = bytes.fromhex("026701000000")


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(
    ("api", "version", "one"), [(FindCoordinatorRequest.api, 4, COORDINATOR), (OffsetFetchRequest.api, 8, GROUP)]
)
def test_a_response_about_one_key_has_one_element(api, version, one, count):
    """A response about one key or group with any other number of elements is malformed."""

    def frame(times: int) -> memoryview:
        return memoryview(bytes(4) + b"\0" + bytes(4) + bytes([times + 1]) + one * times + b"\0")

    assert api.decode_response(frame(1), version)
    with pytest.raises(MalformedMessageError, match=f"{count} elements in an array that must have one"):
        api.decode_response(frame(count), version)
