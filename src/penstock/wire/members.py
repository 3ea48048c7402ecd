"""What group members tell each other through the broker: subscriptions in JoinGroup, assignments in SyncGroup.

The broker passes these bytes on unread, so every client in a group has to agree on them: Java's, librdkafka's, ours.
A version stands in front; a reader takes what it knows of a newer one and passes over the rest.
"""

from __future__ import annotations

from functools import lru_cache

from penstock.errors import MalformedMessageError
from penstock.messages import MemberAssignment, MemberSubscription, OwnedPartitions
from penstock.wire.buffer import Reader
from penstock.wire.schema import BYTES, INT32, STRING, Array, Struct, field

__all__ = [
    "ASSIGNMENT",
    "SUBSCRIPTION",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

_PARTITIONS = Array.of(OwnedPartitions, field("topic", STRING), field("partitions", Array(INT32)))

SUBSCRIPTION = Struct(
    MemberSubscription,
    field("topics", Array(STRING)),
    field("user_data", BYTES, nullable=0),
    field("owned_partitions", _PARTITIONS, 1),
    field("generation_id", INT32, 2),
    field("rack_id", STRING, 3, nullable=3),
)
ASSIGNMENT = Struct(
    MemberAssignment,
    field("assigned_partitions", _PARTITIONS),
    field("user_data", BYTES, nullable=0),
)

_NEWEST = 3


@lru_cache(None)
def _encoder(struct: Struct, version: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as schema has it
    return struct.encoder(version, flexible=False)


@lru_cache(None)
def _decoder(struct: Struct, version: int):  # type: ignore[no-untyped-def]  # noqa: ANN202 - as schema has it
    return struct.decoder(version, flexible=False)


def encode_subscription(subscription: MemberSubscription, version: int = _NEWEST) -> bytes:
    """The bytes of one member's subscription."""
    return _encode(SUBSCRIPTION, subscription, version)


def encode_assignment(assignment: MemberAssignment, version: int = _NEWEST) -> bytes:
    """The bytes of one member's assignment."""
    return _encode(ASSIGNMENT, assignment, version)


def decode_subscription(data: bytes) -> MemberSubscription:
    """What a member asks for.

    Raises:
        MalformedMessageError: the bytes are no subscription.
    """
    found = _decode(SUBSCRIPTION, data)
    assert isinstance(found, MemberSubscription)
    return found


def decode_assignment(data: bytes) -> MemberAssignment:
    """What a member is given; no bytes at all, as Java's leader may send, give nothing.

    Raises:
        MalformedMessageError: the bytes are no assignment.
    """
    if not data:
        return MemberAssignment(())
    found = _decode(ASSIGNMENT, data)
    assert isinstance(found, MemberAssignment)
    return found


def _encode(struct: Struct, value: object, version: int) -> bytes:
    out = bytearray(version.to_bytes(2, "big", signed=True))
    _encoder(struct, version)(out, value)
    return bytes(out)


def _decode(struct: Struct, data: bytes) -> object:
    reader = Reader(data)
    version = reader.int16()
    if version < 0:
        raise MalformedMessageError(
            f"version {version} of the consumer protocol - another kind of client in the group?"
        )
    return _decoder(struct, min(version, _NEWEST))(reader)
