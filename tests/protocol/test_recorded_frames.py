"""Frames of librdkafka and a broker, recorded in ``frames.json`` by ``record_frames.py``.

They test the declarations of messages independently of tailrace.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError
from tailrace.protocol.admin import DescribeConfigsRequest
from tailrace.protocol.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    JoinGroupRequest,
    MemberAssignment,
    OwnedPartitions,
    TopicIdPartitions,
    decode_assignment,
    decode_cooperative_data,
    decode_sticky_data,
    decode_subscription,
)
from tailrace.protocol.message import Api, read_request_header
from tailrace.protocol.metadata import MetadataRequest
from tailrace.protocol.records import OffsetForLeaderEpochRequest, ProduceRequest
from tailrace.protocol.transactions import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest
from tailrace.testing.faults import api_by_key


class Recorded(NamedTuple):
    """Recorded frame, without its length."""

    api: Api[Any]
    version: int
    direction: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.api.name}-v{self.version}-{self.direction}"

    @property
    def message(self) -> Any:
        """Return the decoded message."""
        return self.decoded(self.data)

    def decoded(self, data: bytes) -> Any:
        """Return the message that other bytes decode to."""
        decode = self.api.decode_request if self.direction == "request" else self.api.decode_response
        return decode(memoryview(data), self.version)

    def encoded(self, message: Any) -> bytes:
        """Encode a message as the sender of the frame does."""
        if self.direction == "request":
            header = read_request_header(memoryview(self.data))
            frame = self.api.encode_request(
                message, self.version, correlation_id=header.correlation_id, client_id=header.client_id
            )
        else:
            number = int.from_bytes(self.data[:4], "big")
            frame = self.api.encode_response(message, self.version, correlation_id=number)
        return bytes(frame[4:])


@cache
def recorded() -> tuple[Recorded, ...]:
    rows = json.loads((Path(__file__).parents[1] / "support" / "protocol" / "frames.json").read_text(encoding="utf-8"))
    return tuple(
        Recorded(api_by_key(row["key"]), row["version"], row["direction"], bytes.fromhex(row["hex"])) for row in rows
    )


def messages_of(kind: type, direction: str, *versions: int) -> list[Any]:
    """Return the recorded messages of an API, of some or all versions."""
    return [
        one.message
        for one in recorded()
        if one.api.request_type is kind and one.direction == direction and (not versions or one.version in versions)
    ]


def test_recorded_frames_round_trip():
    """A recorded frame is decoded completely, and encoding the message returns its bytes."""
    for frame in recorded():
        assert frame.encoded(frame.message) == frame.data, frame


def test_every_version_was_answered_by_a_broker():
    """Each supported version of a recorded API has a recorded response."""
    answered = {(one.api.name, one.version) for one in recorded() if one.direction == "answer"}

    missing = {(one.api.name, v) for one in recorded() for v in one.api.versions} - answered

    assert not missing


def test_a_truncated_recorded_frame_is_malformed():
    """A truncated response of a broker is malformed."""
    for frame in recorded():
        # Every length near both ends, and some between.
        size = len(frame.data)
        for end in {*range(min(size, 40)), *range(40, size, 37), size - 1}:
            with pytest.raises(MalformedMessageError):
                frame.decoded(frame.data[:end])


def test_a_garbled_recorded_frame_is_a_message_or_malformed():
    """A recorded frame with a flipped bit is decoded to a message or raises MalformedMessageError."""
    random, outcomes = Random(1), Counter()
    for frame in recorded() * 10:
        data = bytearray(frame.data)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        try:
            message = frame.decoded(bytes(data))
        except MalformedMessageError:
            outcomes["malformed"] += 1
        else:
            outcomes["a message"] += isinstance(message, type(frame.message))

    assert outcomes.total() == 10 * len(recorded())
    assert outcomes["malformed"] > 0


# ---- contents of the frames ------------------------------------------------------------------------------------

TOPIC = "orders"
ALL = (0, 1, 2)


@pytest.mark.parametrize("version", [0, 1])
def test_a_heartbeat_response_has_an_assignment_once(version):
    """A heartbeat response has an assignment only if it has changed (KIP-848)."""
    answers = messages_of(ConsumerGroupHeartbeatRequest, "answer", version)

    given = [one for one in answers if one.assignment]

    assert any(one.assignment is None and one.error_code == 0 and one.member_epoch > 0 for one in answers)
    assert ALL in {part.partitions for one in given for part in one.assignment}
    assert all(one.member_epoch > 0 and one.heartbeat_interval_ms == 5000 for one in given)


def test_an_assignment_may_be_empty():
    """A member that joins without a free partition gets an empty assignment, which is not null."""
    assert () in {one.assignment for one in messages_of(ConsumerGroupHeartbeatRequest, "answer")}


def test_a_fenced_heartbeat_has_an_error_message():
    """A heartbeat with a wrong epoch gets error 110 and a message."""
    (fenced,) = (one for one in messages_of(ConsumerGroupHeartbeatRequest, "answer", 1) if one.error_code == 110)

    assert "must abandon all its partitions and rejoin" in fenced.error_message
    assert (fenced.member_id, fenced.member_epoch, fenced.assignment) == (None, 0, None)


def test_a_heartbeat_has_only_changes():
    """A heartbeat has all fields in a join, none without a change, and owned partitions after an assignment."""
    beats = messages_of(ConsumerGroupHeartbeatRequest, "request")

    joining = [one for one in beats if one.member_epoch == 0]
    quiet = [one for one in beats if one.member_epoch > 0 and one.topic_partitions is None]
    taken = [one for one in beats if one.topic_partitions]

    assert all(one.topic_partitions == () and one.rebalance_timeout_ms == 300_000 for one in joining)
    assert {("orders",), ()} == {one.subscribed_topic_names for one in joining}
    assert "(^ord.*)" in {one.subscribed_topic_regex for one in joining}
    assert {(None, -1)} == {(one.subscribed_topic_names, one.rebalance_timeout_ms) for one in quiet}
    assert all(isinstance(part, TopicIdPartitions) for one in taken for part in one.topic_partitions)
    assert any(one.member_epoch == -2 and one.instance_id == "first" for one in beats)


def test_a_consumer_group_is_described():
    """A described group has epochs, assignor, and members with current and target assignments."""
    (answer,) = messages_of(ConsumerGroupDescribeRequest, "answer", 1)

    there, missing = answer.groups
    (member,) = there.members

    assert (there.group_state, there.assignor_name) == ("Stable", "uniform")
    assert there.group_epoch == there.assignment_epoch == member.member_epoch
    assert [(part.topic, part.partitions) for part in member.assignment] == [(TOPIC, ALL)]
    assert member.assignment == member.target_assignment
    assert (member.subscribed_topic_names, member.member_type) == ((TOPIC,), 1)
    assert (missing.error_code, missing.group_id) == (69, "missing")


@pytest.mark.parametrize("version", range(7))
def test_a_classic_group_is_described(version):
    """A described classic group has state, assignor, and the members' subscriptions and assignments."""
    stable = [
        one for answer in messages_of(DescribeGroupsRequest, "answer", version) for one in answer.groups if one.members
    ]

    ranged = next(one for one in stable if one.protocol_data == "range")
    (member,) = ranged.members

    assert (ranged.group_state, ranged.protocol_type) == ("Stable", "consumer")
    assert decode_subscription(member.metadata).topics == (TOPIC,)
    assert MemberAssignment((OwnedPartitions(TOPIC, ALL),)) == decode_assignment(member.assignment)


def test_librdkafkas_user_data_for_cooperative_sticky_is_read():
    """The user data of librdkafka for cooperative-sticky have the sticky format, which both decoders accept."""
    subscriptions = [
        decode_subscription(protocol.metadata)
        for one in messages_of(JoinGroupRequest, "request")
        for protocol in one.protocols
        if protocol.name == "cooperative-sticky"
    ]

    rejoining = [one for one in subscriptions if one.owned_partitions]

    assert rejoining
    for one in rejoining:
        assert (one.owned_partitions, one.generation_id) == decode_sticky_data(one.user_data)
        assert one.generation_id == decode_cooperative_data(one.user_data)
    assert {-1} == {decode_cooperative_data(one.user_data) for one in subscriptions if not one.user_data}


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_their_ids(version):
    """A known topic id returns name and partitions, and an unknown one error 100."""
    by_name = {
        one.topic_id for answer in messages_of(MetadataRequest, "answer", version) for one in answer.topics if one.name
    }
    (answer,) = (
        one
        for one in messages_of(MetadataRequest, "answer", version)
        if any(topic.name is None for topic in one.topics)
    )

    found, missing = sorted(answer.topics, key=lambda topic: topic.error_code)

    assert (found.name, found.error_code, len(found.partitions)) == (TOPIC, 0, 3)
    assert found.topic_id in by_name
    assert (missing.name, missing.error_code, missing.partitions) == (None, 100, ())


@pytest.mark.parametrize("version", [2, 3, 4])
def test_an_epoch_has_its_end_offset(version):
    """A leader epoch returns its end offset, and an unknown one error 75."""
    (answer,) = messages_of(OffsetForLeaderEpochRequest, "answer", version)

    assert [(one.partition, one.error_code, one.leader_epoch, one.end_offset) for one in answer.partitions] == [
        (0, 0, 0, 0),
        (1, 75, -1, -1),
    ]


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_values_of_a_groups_configuration_have_sources(version):
    """A value of a group's configuration has its source: the group, the broker or a default."""
    group = next(
        result
        for answer in messages_of(DescribeConfigsRequest, "answer", version)
        for result in answer.results
        if result.resource_type == 32
    )

    found = {one.name: (one.value, one.config_source) for one in group.configs}

    assert found == {"consumer.heartbeat.interval.ms": ("6000", 8), "consumer.session.timeout.ms": ("45000", 5)}


def test_librdkafkas_transactional_batches_are_read():
    """Batches of a transaction have the producer id and acks=-1, and are decoded as sent."""
    requests = messages_of(ProduceRequest, "request")

    batches = [split(one.records) for request in requests for one in request.partitions]

    assert {(one.acks, one.transactional_id[:2]) for one in requests} == {(-1, "x-")}
    assert {len(found) for found in batches} == {1}
    for (batch,) in batches:
        assert batch.checksum_holds()
        (record,) = batch.decode("invoices", 0, 0).take(10)
        assert batch.producer_id >= 0
        assert (record.key, record.value) == (b"key", b"value" * 50)
        assert list(record.headers) == [("header", b"1"), ("null", None)]


def test_librdkafkas_transactional_commits_are_read():
    """Commits of a transaction have group metadata, as those of tailrace do (KIP-447)."""
    commits = messages_of(TxnOffsetCommitRequest, "request")

    assert {(one.generation_id > 0, bool(one.member_id)) for one in commits} == {(True, True)}
    assert {one.group_instance_id for one in commits} == {"first"}
    # librdkafka sends the end of the C string, too.
    assert {(entry.offset, entry.metadata[:1]) for one in commits for entry in one.partitions} == {(0, "m")}
    assert {one.committed for one in messages_of(EndTxnRequest, "request")} == {True, False}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_init_producer_id_returns_an_id_or_an_error(version):
    """InitProducerId returns a producer id, or an error and none."""
    answers = messages_of(InitProducerIdRequest, "answer", version)

    assert {True, False} == {one.producer_id >= 0 for one in answers}
    assert all((one.producer_id >= 0) is (one.error_code == 0) for one in answers)
    assert {one.error_code for one in answers} <= {0, 14, 15, 16, 47, 50, 51, 90}


@pytest.mark.parametrize("version", [3, 4, 5, 6, 7, 8, 9, 10, 11])
def test_a_batch_is_written_or_refused(version):
    """A produce response has an offset, or error 45 for a batch out of sequence."""
    answers = [part for one in messages_of(ProduceRequest, "answer", version) for part in one.partitions]

    assert {(one.error_code, one.base_offset >= 0) for one in answers} >= {(0, True), (45, False)}
