"""Whole frames of every API in every version, both ways."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import MalformedMessageError, UnsupportedVersionError
from tailrace.protocol.api_versions import APIS
from tailrace.protocol.encoding.api import Api, ApiLayout, read_request_header
from tailrace.protocol.encoding.primitives import STRING
from tailrace.protocol.encoding.schema import Array, ByTopic, Field, Sole, Struct, field
from tailrace.protocol.layouts import classic_group as group
from tailrace.protocol.layouts import committed_offsets as offsets
from tailrace.protocol.layouts import consumer_group as reconciliation
from tailrace.protocol.layouts import fetch as log
from tailrace.protocol.layouts import group_descriptions as groups
from tailrace.protocol.layouts import handshake as session
from tailrace.protocol.layouts import metadata as cluster
from tailrace.protocol.messages import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CommitOffset,
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    MetadataTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
    SyncGroupRequest,
)
from tests.support.protocol.message_strategies import requests, responses

SPOKEN = [pytest.param(api, version, id=f"{api.name}-v{version}") for api in APIS for version in api.versions]
FLEXIBLE = [case for case in SPOKEN if case.values[1] >= case.values[0].flexible]

few = settings(max_examples=3)


@pytest.mark.parametrize(("api", "version"), SPOKEN)
def test_a_request_comes_back(api, version):
    """What we send is what a broker reads, whatever is in it."""

    @few
    @given(requests(api, version))
    def check(request):
        frame = api.encode_request(request, version, correlation_id=7, client_id="tailrace")

        assert request == api.decode_request(memoryview(frame)[4:], version)

    check()


@pytest.mark.parametrize(("api", "version"), SPOKEN)
def test_an_answer_comes_back(api, version):
    """What a broker writes is what we read, whatever is in it."""

    @few
    @given(responses(api, version))
    def check(response):
        frame = api.encode_response(response, version, correlation_id=7)

        assert response == api.decode_response(memoryview(frame)[4:], version)

    check()


@pytest.mark.parametrize(("api", "version"), FLEXIBLE)
def test_a_newer_peer_may_say_more(api, version):
    """A tag that we do not know, in any structure of any flexible message, is passed over."""
    newer = from_the_future(api)

    @settings(few, max_examples=2)
    @given(requests(api, version), responses(api, version))
    def check(request, response):
        asked = newer.encode_request(request, version, correlation_id=7, client_id=None)
        answered = newer.encode_response(response, version, correlation_id=7)

        assert len(asked) > len(api.encode_request(request, version, correlation_id=7, client_id=None))
        assert request == api.decode_request(memoryview(asked)[4:], version)
        assert response == api.decode_response(memoryview(answered)[4:], version)

    check()


def from_the_future(api: Api) -> Api:
    """The same API, but each structure has one more tagged field: the name of its class."""
    return Api(
        api.key,
        api.name,
        api.versions,
        api.flexible,
        api.message,
        tuple(ApiLayout(one.since, richer(one.struct)) for one in api.request),
        tuple(ApiLayout(one.since, richer(one.struct)) for one in api.response),
    )


def richer(kind):
    match kind:
        case Struct():
            more = field("class_name", STRING, tag=1000, path="__class__.__name__")
            return Struct(kind.factory, *(richer_field(f) for f in kind.fields), more)
        case Array(item):
            return Array(richer(item))
        case Sole(f):
            return Sole(richer_field(f))
        case ByTopic(bare=False):
            return ByTopic(kind.topic, kind.name, richer(kind.entry))
        case _:
            return kind


def richer_field(f: Field) -> Field:
    return Field(
        f.name, richer(f.type), f.since, f.until, f.nullable, f.tag, f.ignorable, f.attribute, f.path, f.unused
    )


# ---- what is around a message ----------------------------------------------------------------------------------


@given(st.integers(0, 0x7FFFFFFF), st.none() | st.text("a☃", max_size=5), st.sampled_from([0, 3, 4]))
def test_a_request_says_who_asks_what(correlation_id, client_id, version):
    """In front of each request stand its size, its API and version, its number, and the client's name."""
    frame = group.HEARTBEAT.encode_request(
        HeartbeatRequest("g", 1, "m"), version, correlation_id=correlation_id, client_id=client_id
    )

    assert len(frame) - 4 == int.from_bytes(frame[:4], "big")
    assert (12, version, correlation_id, client_id) == read_request_header(memoryview(frame)[4:])


def test_frames_are_those_of_the_protocol():
    """Two requests and an answer written down by hand after Kafka's protocol guide."""
    old = group.HEARTBEAT.encode_request(HeartbeatRequest("g", 1, "m"), 3, correlation_id=5, client_id="c")
    new = group.HEARTBEAT.encode_request(HeartbeatRequest("g", 1, "m", "i"), 4, correlation_id=5, client_id="c")
    answer = group.HEARTBEAT.decode_response(memoryview(bytes.fromhex("000000050000000064001b00")), 4)

    assert bytes.fromhex("00000017000c0003000000050001630001670000000100016dffff") == old
    assert bytes.fromhex("00000017000c00040000000500016300026700000001026d026900") == new
    assert (answer.error_code, answer.throttle_time_ms) == (27, 100)


def test_tags_in_a_header_are_passed_over():
    """A newer peer may put more into the header, too, of requests as of answers."""
    request = bytes.fromhex("000c000400000005000163010002ffff026700000001026d0000")
    answer = bytes.fromhex("00000005020001ff050000000064001b00")

    assert group.HEARTBEAT.decode_request(memoryview(request), 4) == HeartbeatRequest("g", 1, "m")
    assert group.HEARTBEAT.decode_response(memoryview(answer), 4) == HeartbeatResponse(27, 100)


def test_an_answer_to_api_versions_has_the_oldest_header():
    """A broker answers so before it is known which versions both sides speak (KIP-511)."""
    answer = ApiVersionsResponse(0, (ApiVersionRange(3, 0, 13),), 5)

    frame = session.API_VERSIONS.encode_response(answer, 3, correlation_id=9)

    assert bytes.fromhex("000000130000000900000200030000000d000000000500") == frame
    assert answer == session.API_VERSIONS.decode_response(memoryview(frame)[4:], 3)


def test_a_broker_too_old_for_our_first_question_answers_in_version_0():
    """Code 35 in an ApiVersions answer is of version 0, whatever was asked; of other APIs, of what was asked."""
    refusal = session.API_VERSIONS.encode_response(ApiVersionsResponse(35), 0, correlation_id=9)[4:]
    answer = session.API_VERSIONS.encode_response(ApiVersionsResponse(0), 3, correlation_id=9)[4:]

    assert session.API_VERSIONS.version_of_answer(memoryview(refusal), 4) == 0
    assert session.API_VERSIONS.version_of_answer(memoryview(answer), 3) == 3
    assert cluster.METADATA.version_of_answer(memoryview(refusal), 4) == 4


@pytest.mark.parametrize(("api", "version"), [(group.HEARTBEAT, 3), (group.HEARTBEAT, 4)])
def test_bytes_left_over_are_malformed(api, version):
    """A message ends where its frame ends: what is left over says that it was misread."""
    frame = api.encode_request(HeartbeatRequest("g", 1, "m"), version, correlation_id=1, client_id=None)[4:]

    with pytest.raises(MalformedMessageError, match=f"1 bytes left over after a Heartbeat message v{version}"):
        api.decode_request(memoryview(frame + b"\0"), version)


# ---- what a version cannot carry -------------------------------------------------------------------------------

TOPIC_ID = UUID(int=5)


@pytest.mark.parametrize(
    ("api", "request_", "first"),
    [
        (group.JOIN_GROUP, JoinGroupRequest("g", 1, 1, "", "consumer", (), group_instance_id="i"), 5),
        (group.SYNC_GROUP, SyncGroupRequest("g", 1, "m", group_instance_id="i"), 3),
        (group.HEARTBEAT, HeartbeatRequest("g", 1, "m", "i"), 3),
        (offsets.OFFSET_COMMIT, OffsetCommitRequest("g", (), 1, "m", "i"), 7),
        (cluster.FIND_COORDINATOR, FindCoordinatorRequest("t", 1), 1),
        (cluster.METADATA, MetadataRequest((MetadataTopic("t", TOPIC_ID),)), 10),
        (log.LIST_OFFSETS, ListOffsetsRequest((), isolation_level=1), 2),
        (
            reconciliation.CONSUMER_GROUP_HEARTBEAT,
            ConsumerGroupHeartbeatRequest("g", "m", 0, subscribed_topic_regex="t.*"),
            1,
        ),
        (groups.LIST_GROUPS, ListGroupsRequest(states_filter=("Stable",)), 4),
        (groups.LIST_GROUPS, ListGroupsRequest(types_filter=("consumer",)), 5),
    ],
    ids=lambda one: one.name if isinstance(one, Api) else None,
)
def test_what_a_version_cannot_carry_is_refused(api, request_, first):
    """An option that matters never gets lost on the way to an old broker: the error names the version it needs."""
    for version in api.versions:
        if version < first:
            with pytest.raises(UnsupportedVersionError, match=f"it needs version {first}"):
                api.encode_request(request_, version, correlation_id=1, client_id=None)
        else:
            api.encode_request(request_, version, correlation_id=1, client_id=None)


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (group.JOIN_GROUP, JoinGroupRequest("g", 1, 1, "", "consumer", (), reason="the consumer starts")),
        (group.SYNC_GROUP, SyncGroupRequest("g", 1, "m", None, "consumer", "range")),
        (offsets.OFFSET_COMMIT, OffsetCommitRequest("g", (CommitOffset("t", 0, 5, leader_epoch=3),))),
        (session.API_VERSIONS, ApiVersionsRequest("tailrace", "1")),
        (offsets.OFFSET_FETCH, OffsetFetchRequest("g", None, member_id="m", member_epoch=3)),
        (log.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest((), replica_id=-2)),
    ],
    ids=lambda one: one.name if isinstance(one, Api) else None,
)
def test_what_a_version_need_not_carry_is_left_out(api, request_):
    """Reasons, epochs and names go to brokers that know of them and are no hindrance with others."""
    for version in api.versions:
        frame = api.encode_request(request_, version, correlation_id=1, client_id=None)

        assert (
            api.encode_request(
                api.decode_request(memoryview(frame)[4:], version), version, correlation_id=1, client_id=None
            )
            == frame
        )


def test_a_value_that_does_not_fit_is_refused():
    """A number above its type's is an error of ours and not a broker's to find."""
    with pytest.raises(MalformedMessageError, match="does not fit int32"):
        group.HEARTBEAT.encode_request(HeartbeatRequest("g", 1 << 31, "m"), 4, correlation_id=1, client_id=None)
