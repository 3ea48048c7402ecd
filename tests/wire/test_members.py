"""What members of a group tell each other, through a broker that does not read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import structs

from penstock.errors import MalformedMessageError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.wire.members import (
    ASSIGNMENT,
    SUBSCRIPTION,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


@pytest.mark.parametrize("version", range(4))
def test_a_subscription_comes_back(version):
    """Each version carries what it has, and what it lacks is at its default."""

    @given(structs(SUBSCRIPTION, version))
    def check(subscription):
        assert subscription == decode_subscription(encode_subscription(subscription, version))

    check()


@pytest.mark.parametrize("version", range(4))
def test_an_assignment_comes_back(version):
    """All versions carry the same."""

    @given(structs(ASSIGNMENT, version))
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


@given(structs(SUBSCRIPTION, 3), st.integers(4, 0x7FFF), st.binary(max_size=20))
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


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
def test_garbage_is_malformed(decode):
    """Bytes of another kind of client give MalformedMessageError, or what they happen to say."""

    @given(st.binary(max_size=40))
    def check(data):
        try:
            decode(data)
        except MalformedMessageError:
            return

    check()


@given(structs(SUBSCRIPTION, 3), st.data())
def test_a_subscription_that_was_cut_off_is_malformed(subscription, data):
    """No beginning is taken for the whole."""
    whole = encode_subscription(subscription)

    with pytest.raises(MalformedMessageError):
        decode_subscription(whole[: data.draw(st.integers(0, len(whole) - 1))])
