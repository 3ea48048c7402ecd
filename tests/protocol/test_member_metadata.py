"""What members of a group tell each other, through a broker that does not read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedMessageError
from tailrace.protocol.member_metadata import (
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
def test_a_subscription_comes_back(version):
    """Each version carries what it has, and what it lacks is at its default."""

    @given(messages(MemberSubscription, version))
    def check(subscription):
        assert subscription == decode_subscription(encode_subscription(subscription, version))

    check()


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_comes_back(version):
    """All versions carry the same."""

    @given(messages(MemberAssignment, version))
    def check(assignment):
        assert assignment == decode_assignment(encode_assignment(assignment, version))

    check()


def test_a_subscription_is_kafkas_bytes():
    """Version, topics, user data, what is owned, generation, rack: as Java writes it."""
    subscription = MemberSubscription(("t",), None, (OwnedPartitions("t", (0, 2)),), 7, "r")

    data = bytes.fromhex("000300000001000174ffffffff0000000100017400000002000000000000000200000007000172")

    assert data == encode_subscription(subscription)
    assert subscription == decode_subscription(data)


def test_a_subscription_as_librdkafka_and_old_clients_write_it():
    """Version 0 says topics and user data; that is all that is known of its sender."""
    data = bytes.fromhex("00000000000100017400000000")

    assert MemberSubscription(("t",), b"") == decode_subscription(data)


@given(messages(MemberSubscription, 3), st.integers(4, 0x7FFF), st.binary(max_size=20))
def test_a_newer_version_is_read_as_far_as_it_is_known(subscription, version, more):
    """A member of tomorrow may say more at the end; what we know of comes first and is taken."""
    data = version.to_bytes(2, "big") + encode_subscription(subscription)[2:] + more

    assert subscription == decode_subscription(data)


@given(st.binary(max_size=20))
def test_a_newer_assignment_is_read_as_far_as_it_is_known(more):
    """The same of what a leader of tomorrow gives."""
    assignment = MemberAssignment((OwnedPartitions("t", (1,)),), b"x")

    data = b"\x00\x09" + encode_assignment(assignment)[2:] + more

    assert assignment == decode_assignment(data)


def test_no_bytes_give_nothing():
    """A leader that has nothing for a member may leave its assignment empty; a subscription says something."""
    assert MemberAssignment(()) == decode_assignment(b"")
    with pytest.raises(MalformedMessageError):
        decode_subscription(b"")


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
def test_another_protocol_is_malformed(decode):
    """A negative version is no version."""
    with pytest.raises(MalformedMessageError, match="version -1"):
        decode(b"\xff\xff" + bytes(20))


@pytest.mark.parametrize(
    ("decode", "kind"), [(decode_subscription, MemberSubscription), (decode_assignment, MemberAssignment)]
)
def test_garbage_is_malformed(decode, kind):
    """Bytes of another kind of client give MalformedMessageError, or what they happen to say."""

    @given(st.binary(max_size=40))
    def check(data):
        assert isinstance(outcome(decode, data), kind | MalformedMessageError)

    check()


def outcome(decode, data):
    """What it says, or the one error that there may be in its place."""
    try:
        return decode(data)
    except MalformedMessageError as error:
        return error


@given(messages(MemberSubscription, 3), st.data())
def test_a_subscription_that_was_cut_off_is_malformed(subscription, data):
    """No beginning is taken for the whole."""
    whole = encode_subscription(subscription)

    with pytest.raises(MalformedMessageError):
        decode_subscription(whole[: data.draw(st.integers(0, len(whole) - 1))])


# ---- user data -------------------------------------------------------------------------------------------------

NUMBERS = st.lists(st.integers(0, 99), max_size=3).map(tuple)
OWNED = st.lists(st.builds(OwnedPartitions, st.text("a☃", max_size=3), NUMBERS), max_size=3).map(tuple)
GENERATIONS = st.integers(-1, 0x7FFFFFFF)


@given(OWNED, GENERATIONS)
def test_sticky_data_comes_back(owned, generation):
    """What a member with the sticky assignor owned, and when."""
    assert (owned, generation) == decode_sticky_data(encode_sticky_data(owned, generation))


@given(GENERATIONS)
def test_cooperative_data_comes_back(generation):
    """The generation that a member with the cooperative sticky assignor was in."""
    assert generation == decode_cooperative_data(encode_cooperative_data(generation))


def test_user_data_is_javas_bytes():
    """Topics with their partitions, then the generation (StickyAssignor); the generation alone (cooperative)."""
    owned = (OwnedPartitions("t", (0, 2)), OwnedPartitions("u", ()))

    data = encode_sticky_data(owned, 7)

    assert data == bytes.fromhex("00000002 0001 74 00000002 00000000 00000002 0001 75 00000000 00000007")
    assert encode_cooperative_data(7) == bytes.fromhex("00000007")


def test_sticky_data_of_an_old_client_has_no_generation():
    """Java's first form of it ends after the partitions."""
    owned = (OwnedPartitions("t", (0,)),)

    assert (owned, -1) == decode_sticky_data(encode_sticky_data(owned, 7)[:-4])


@pytest.mark.parametrize("data", [None, b""])
def test_no_user_data_is_no_generation(data):
    """A member that has just started says nothing; it owned nothing."""
    assert decode_sticky_data(data) == ((), -1)
    assert decode_cooperative_data(data) == -1


@given(OWNED, GENERATIONS)
def test_cooperative_data_may_be_sticky(owned, generation):
    """The other way of saying it, librdkafka's, gives the same generation."""
    assert generation == decode_cooperative_data(encode_sticky_data(owned, generation))


@given(OWNED, GENERATIONS, st.binary(min_size=1, max_size=8))
def test_what_a_newer_client_says_besides_is_passed_over(owned, generation, more):
    """User data of tomorrow may go on after the generation."""
    assert (owned, generation) == decode_sticky_data(encode_sticky_data(owned, generation) + more)


NO_OWNED = ["00", "000000", "0000000100", "7fffffff00017400", "ffffffff00000000", "0000000000"]


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        *((decode_sticky_data, data) for data in [*NO_OWNED, "00000001", "ffffffff"]),
        *((decode_cooperative_data, data) for data in NO_OWNED),
    ],
)
def test_user_data_of_a_stranger_is_malformed(decode, data):
    """Bytes that are something else, or were cut off, are an error that can be caught by its type."""
    with pytest.raises(MalformedMessageError):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize(("decode", "kind"), [(decode_sticky_data, tuple), (decode_cooperative_data, int)])
def test_any_user_data_is_read_or_malformed(decode, kind):
    """Whatever stands there: a value or MalformedMessageError."""

    @given(st.binary(max_size=40))
    def check(data):
        assert isinstance(outcome(decode, data), kind | MalformedMessageError)

    check()
