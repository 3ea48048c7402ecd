"""Subscriptions, assignments and user data of group members."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedMessageError
from tailrace.protocol.groups import (
    MemberAssignment,
    MemberSubscription,
    OwnedPartitions,
    decode_assignment,
    decode_cooperative_data,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_cooperative_data,
    encode_sticky_data,
    encode_subscription,
)
from tests.support.protocol.message_strategies import messages


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_round_trip(version):
    """A subscription keeps the fields that its version has, and others get their defaults."""

    @given(messages(MemberSubscription, version))
    def check(subscription):
        assert subscription == decode_subscription(encode_subscription(subscription, version))

    check()


@pytest.mark.parametrize("version", range(4))
def test_assignments_round_trip(version):
    """An assignment is decoded to itself in each version."""

    @given(messages(MemberAssignment, version))
    def check(assignment):
        assert assignment == decode_assignment(encode_assignment(assignment, version))

    check()


def test_a_subscription_has_javas_bytes():
    """An encoded subscription has the bytes that Java writes."""
    subscription = MemberSubscription(("t",), None, (OwnedPartitions("t", (0, 2)),), 7, "r")

    data = bytes.fromhex("000300000001000174ffffffff0000000100017400000002000000000000000200000007000172")

    assert data == encode_subscription(subscription)
    assert subscription == decode_subscription(data)


def test_a_subscription_of_librdkafka_is_read():
    """A subscription of version 0, with topics and user data only, is read."""
    data = bytes.fromhex("00000000000100017400000000")

    assert MemberSubscription(("t",), b"") == decode_subscription(data)


@given(messages(MemberSubscription, 3), st.integers(4, 0x7FFF), st.binary(max_size=20))
def test_known_fields_of_a_newer_subscription_are_read(subscription, version, more):
    """The known fields of a subscription with a newer version are read."""
    data = version.to_bytes(2, "big") + encode_subscription(subscription)[2:] + more

    assert subscription == decode_subscription(data)


@given(st.binary(max_size=20))
def test_known_fields_of_a_newer_assignment_are_read(more):
    """The known fields of an assignment with a newer version are read."""
    assignment = MemberAssignment((OwnedPartitions("t", (1,)),), b"x")

    data = b"\x00\x09" + encode_assignment(assignment)[2:] + more

    assert assignment == decode_assignment(data)


def test_empty_data_is_an_empty_assignment():
    """Empty data is an empty assignment, and malformed as a subscription."""
    assert MemberAssignment(()) == decode_assignment(b"")
    with pytest.raises(MalformedMessageError):
        decode_subscription(b"")


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
def test_a_negative_version_is_malformed(decode):
    """Data with a negative version is malformed."""
    with pytest.raises(MalformedMessageError, match="version -1"):
        decode(b"\xff\xff" + bytes(20))


@pytest.mark.parametrize(
    ("decode", "kind"), [(decode_subscription, MemberSubscription), (decode_assignment, MemberAssignment)]
)
def test_garbage_is_malformed(decode, kind):
    """Random bytes are decoded to a message or raise MalformedMessageError."""

    @given(st.binary(max_size=40))
    def check(data):
        assert isinstance(outcome(decode, data), kind | MalformedMessageError)

    check()


def outcome(decode, data):
    """Return the decoded value, or the MalformedMessageError."""
    try:
        return decode(data)
    except MalformedMessageError as error:
        return error


@given(messages(MemberSubscription, 3), st.data())
def test_a_truncated_subscription_is_malformed(subscription, data):
    """A truncated subscription is malformed."""
    whole = encode_subscription(subscription)

    with pytest.raises(MalformedMessageError):
        decode_subscription(whole[: data.draw(st.integers(0, len(whole) - 1))])


# ---- user data -------------------------------------------------------------------------------------------------

NUMBERS = st.lists(st.integers(0, 99), max_size=3).map(tuple)
OWNED = st.lists(st.builds(OwnedPartitions, st.text("a☃", max_size=3), NUMBERS), max_size=3).map(tuple)
GENERATIONS = st.integers(-1, 0x7FFFFFFF)


@given(OWNED, GENERATIONS)
def test_sticky_data_round_trips(owned, generation):
    """User data of the sticky assignor keep owned partitions and generation."""
    assert (owned, generation) == decode_sticky_data(encode_sticky_data(owned, generation))


@given(GENERATIONS)
def test_cooperative_data_round_trips(generation):
    """User data of the cooperative-sticky assignor keep the generation."""
    assert generation == decode_cooperative_data(encode_cooperative_data(generation))


def test_user_data_has_javas_bytes():
    """Encoded user data of both sticky assignors have the bytes that Java writes."""
    owned = (OwnedPartitions("t", (0, 2)), OwnedPartitions("u", ()))

    data = encode_sticky_data(owned, 7)

    assert data == bytes.fromhex("00000002 0001 74 00000002 00000000 00000002 0001 75 00000000 00000007")
    assert encode_cooperative_data(7) == bytes.fromhex("00000007")


def test_sticky_data_of_an_old_client_has_no_generation():
    """User data of the first sticky version, which end after the partitions, have no generation."""
    owned = (OwnedPartitions("t", (0,)),)

    assert (owned, -1) == decode_sticky_data(encode_sticky_data(owned, 7)[:-4])


@pytest.mark.parametrize("data", [None, b""])
def test_owned_partitions_without_user_data_have_no_generation(data):
    """Without user data, owned partitions have no generation."""
    assert decode_sticky_data(data) == ((), -1)
    assert decode_cooperative_data(data) == -1


@given(OWNED, GENERATIONS)
def test_cooperative_data_may_be_sticky(owned, generation):
    """User data of librdkafka's cooperative-sticky assignor, in the sticky format, have the same generation."""
    assert generation == decode_cooperative_data(encode_sticky_data(owned, generation))


@given(OWNED, GENERATIONS, st.binary(min_size=1, max_size=8))
def test_additional_user_data_is_ignored(owned, generation, more):
    """Bytes after the generation, as of newer clients, are ignored."""
    assert (owned, generation) == decode_sticky_data(encode_sticky_data(owned, generation) + more)


NO_OWNED = ["00", "000000", "0000000100", "7fffffff00017400", "ffffffff00000000", "0000000000"]


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        *((decode_sticky_data, data) for data in [*NO_OWNED, "00000001", "ffffffff"]),
        *((decode_cooperative_data, data) for data in NO_OWNED),
    ],
)
def test_unknown_user_data_is_malformed(decode, data):
    """Other or truncated user data raise MalformedMessageError."""
    with pytest.raises(MalformedMessageError):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize(("decode", "kind"), [(decode_sticky_data, tuple), (decode_cooperative_data, int)])
def test_any_user_data_is_read_or_malformed(decode, kind):
    """Random user data are decoded to a value or raise MalformedMessageError."""

    @given(st.binary(max_size=40))
    def check(data):
        assert isinstance(outcome(decode, data), kind | MalformedMessageError)

    check()
