"""Frames of all APIs in all versions, encoded and decoded."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.encoding.codec import (
    Array,
    ByTopic,
    OneElementArray,
    OneFieldStructure,
    Slot,
    Structure,
    encoder,
    layout,
)
from tailrace.protocol.encoding.primitives import STRING
from tailrace.protocol.groups import (
    CommitOffset,
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tailrace.protocol.handshake import ApiVersionRange, ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.message import Api, read_request_header
from tailrace.protocol.metadata import FindCoordinatorRequest, MetadataRequest, MetadataTopic
from tailrace.protocol.records import ListOffsetsRequest, OffsetForLeaderEpochRequest
from tailrace.testing.faults import APIS
from tests.support.protocol.message_strategies import requests, responses

SPOKEN = [pytest.param(api, version, id=f"{api.name}-v{version}") for api in APIS for version in api.versions]
FLEXIBLE = [case for case in SPOKEN if case.values[1] >= case.values[0].flexible_from]

few = settings(max_examples=3)


@pytest.mark.parametrize(("api", "version"), SPOKEN)
def test_requests_round_trip(api, version):
    """An encoded request is decoded to the same request, as a broker would."""

    @few
    @given(requests(api, version))
    def check(request):
        frame = api.encode_request(request, version, correlation_id=7, client_id="tailrace")

        assert request == api.decode_request(memoryview(frame)[4:], version)

    check()


@pytest.mark.parametrize(("api", "version"), SPOKEN)
def test_responses_round_trip(api, version):
    """A response encoded as by a broker is decoded to the same response."""

    @few
    @given(responses(api, version))
    def check(response):
        frame = api.encode_response(response, version, correlation_id=7)

        assert response == api.decode_response(memoryview(frame)[4:], version)

    check()


@pytest.mark.parametrize(("api", "version"), FLEXIBLE)
def test_unknown_tagged_fields_are_skipped(api, version):
    """An unknown tagged field in any structure of a message is skipped."""

    @settings(few, max_examples=2)
    @given(requests(api, version), responses(api, version))
    def check(request, response):
        asked = api.encode_request(request, version, correlation_id=7, client_id=None)
        answered = api.encode_response(response, version, correlation_id=7)

        newer_asked, newer_answered = (
            from_the_future(asked, request, version),
            from_the_future(answered, response, version),
        )

        assert len(newer_asked) > len(asked)
        assert request == api.decode_request(memoryview(newer_asked)[4:], version)
        assert response == api.decode_response(memoryview(newer_answered)[4:], version)

    check()


def from_the_future(frame: bytearray, message, version: int) -> bytearray:
    """Return the frame with an additional tagged field in each structure, which has the name of its class."""
    body, newer = bytearray(), bytearray()
    encoder(layout(type(message), version), flexible=True)(body, message)
    encoder(richer(layout(type(message), version)), flexible=True)(newer, message)
    assert frame.endswith(body)
    return frame.removesuffix(body) + newer


def richer(shape):
    match shape:
        case Structure(bare=True):
            return shape
        case Structure():
            more = Slot("class_name", "__class__.__name__", STRING, tag=1000)
            slots = tuple(replace(slot, shape=richer(slot.shape)) for slot in shape.slots)
            return replace(shape, slots=(*slots, more))
        case Array(item) | OneElementArray(item):
            return type(shape)(richer(item))
        case OneFieldStructure(slot):
            return OneFieldStructure(replace(slot, shape=richer(slot.shape)))
        case ByTopic():
            return replace(shape, entry=richer(shape.entry))
        case _:
            return shape


# ---- headers ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 0x7FFFFFFF), st.none() | st.text("a☃", max_size=5), st.sampled_from([0, 3, 4]))
def test_a_request_begins_with_its_header(correlation_id, client_id, version):
    """A request begins with its size, API key, version, correlation id and client id."""
    frame = HeartbeatRequest.api.encode_request(
        HeartbeatRequest("g", 1, "m"), version, correlation_id=correlation_id, client_id=client_id
    )

    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    assert (12, version, correlation_id, client_id) == read_request_header(memoryview(frame)[4:])


def test_frames_are_those_of_the_protocol():
    """Two requests and a response have the bytes that Kafka's protocol guide prescribes."""
    old = HeartbeatRequest.api.encode_request(HeartbeatRequest("g", 1, "m"), 3, correlation_id=5, client_id="c")
    new = HeartbeatRequest.api.encode_request(HeartbeatRequest("g", 1, "m", "i"), 4, correlation_id=5, client_id="c")
    answer = HeartbeatRequest.api.decode_response(memoryview(bytes.fromhex("000000050000000064001b00")), 4)

    assert bytes.fromhex("00000017000c0003000000050001630001670000000100016dffff") == old
    assert bytes.fromhex("00000017000c00040000000500016300026700000001026d026900") == new
    assert (answer.error_code, answer.throttle_time_ms) == (27, 100)


def test_tagged_fields_in_a_header_are_skipped():
    """Tagged fields in the headers of requests and responses are skipped."""
    request = bytes.fromhex("000c000400000005000163010002ffff026700000001026d0000")
    answer = bytes.fromhex("00000005020001ff050000000064001b00")

    assert HeartbeatRequest.api.decode_request(memoryview(request), 4) == HeartbeatRequest("g", 1, "m")
    assert HeartbeatRequest.api.decode_response(memoryview(answer), 4) == HeartbeatResponse(27, throttle_time_ms=100)


def test_a_response_to_api_versions_has_the_oldest_header():
    """The response to ApiVersions has the oldest header, since the common versions are not known yet (KIP-511)."""
    answer = ApiVersionsResponse(0, (ApiVersionRange(3, 0, 13),), 5)

    frame = ApiVersionsRequest.api.encode_response(answer, 3, correlation_id=9)

    assert bytes.fromhex("000000130000000900000200030000000d000000000500") == frame
    assert answer == ApiVersionsRequest.api.decode_response(memoryview(frame)[4:], 3)


@pytest.mark.parametrize(("api", "version"), [(HeartbeatRequest.api, 3), (HeartbeatRequest.api, 4)])
def test_bytes_after_a_request_are_malformed(api, version):
    """A request with bytes after the end of its message is malformed."""
    frame = api.encode_request(HeartbeatRequest("g", 1, "m"), version, correlation_id=1, client_id=None)[4:]

    with pytest.raises(MalformedMessageError, match=f"1 bytes left over after a Heartbeat message v{version}"):
        api.decode_request(memoryview(frame + b"\0"), version)


@pytest.mark.parametrize("version", [3, 4])
def test_bytes_after_a_response_are_ignored(version):
    """A response with bytes after the end of its message is decoded, as other clients decode it."""
    api, answer = HeartbeatRequest.api, HeartbeatResponse(27, throttle_time_ms=100)
    frame = api.encode_response(answer, version, correlation_id=1)[4:]

    assert api.decode_response(memoryview(frame + b"\0"), version) == answer


# ---- fields that a version lacks -------------------------------------------------------------------------------

TOPIC_ID = UUID(int=5)


@pytest.mark.parametrize(
    ("api", "request_", "first"),
    [
        (JoinGroupRequest.api, JoinGroupRequest("g", 1, 1, "", "consumer", (), group_instance_id="i"), 5),
        (SyncGroupRequest.api, SyncGroupRequest("g", 1, "m", group_instance_id="i"), 3),
        (HeartbeatRequest.api, HeartbeatRequest("g", 1, "m", "i"), 3),
        (OffsetCommitRequest.api, OffsetCommitRequest("g", (), group_instance_id="i"), 7),
        (FindCoordinatorRequest.api, FindCoordinatorRequest("t", 1), 1),
        (MetadataRequest.api, MetadataRequest((MetadataTopic("t", topic_id=TOPIC_ID),)), 10),
        (ListOffsetsRequest.api, ListOffsetsRequest((), isolation_level=1), 2),
        (
            ConsumerGroupHeartbeatRequest.api,
            ConsumerGroupHeartbeatRequest("g", "m", 0, subscribed_topic_regex="t.*"),
            1,
        ),
        (ListGroupsRequest.api, ListGroupsRequest(states_filter=("Stable",)), 4),
        (ListGroupsRequest.api, ListGroupsRequest(types_filter=("consumer",)), 5),
    ],
    ids=lambda one: one.name if isinstance(one, Api) else None,
)
def test_a_value_that_a_version_cannot_carry_raises(api, request_, first):
    """A value that the version of a request does not have raises an error with the required version."""
    for version in api.versions:
        if version < first:
            with pytest.raises(UnsupportedVersionError, match=f"it needs version {first}"):
                api.encode_request(request_, version, correlation_id=1, client_id=None)
        else:
            api.encode_request(request_, version, correlation_id=1, client_id=None)


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (JoinGroupRequest.api, JoinGroupRequest("g", 1, 1, "", "consumer", (), reason="the consumer starts")),
        (SyncGroupRequest.api, SyncGroupRequest("g", 1, "m", None, "consumer", "range")),
        (OffsetCommitRequest.api, OffsetCommitRequest("g", (CommitOffset("t", 0, 5, leader_epoch=3),))),
        (ApiVersionsRequest.api, ApiVersionsRequest("tailrace", "1")),
        (OffsetFetchRequest.api, OffsetFetchRequest("g", None, member_id="m", member_epoch=3)),
        (OffsetForLeaderEpochRequest.api, OffsetForLeaderEpochRequest((), replica_id=-2)),
    ],
    ids=lambda one: one.name if isinstance(one, Api) else None,
)
def test_ignorable_values_are_omitted(api, request_):
    """Reasons, epochs and names are omitted in versions that do not have them."""
    for version in api.versions:
        frame = api.encode_request(request_, version, correlation_id=1, client_id=None)

        assert (
            api.encode_request(
                api.decode_request(memoryview(frame)[4:], version), version, correlation_id=1, client_id=None
            )
            == frame
        )


def test_a_value_that_does_not_fit_is_refused():
    """A number outside the range of its type raises before it is sent."""
    with pytest.raises(MalformedMessageError, match="does not fit int32"):
        HeartbeatRequest.api.encode_request(HeartbeatRequest("g", 1 << 31, "m"), 4, correlation_id=1, client_id=None)
