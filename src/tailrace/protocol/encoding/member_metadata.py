"""What group members tell each other through the broker: subscriptions in JoinGroup, assignments in SyncGroup.

The broker passes these bytes on unread, so every client in a group has to agree on them: Java's, librdkafka's, ours.
A version stands in front; a reader takes what it knows of a newer one and passes over the rest.

Inside of a subscription an assignor has bytes of its own, the user data. Two of them matter: ``sticky`` says there what
the member owned in which generation, ``cooperative-sticky`` says the generation alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.frame_reader import FrameReader
from tailrace.protocol.encoding.primitives import BYTES, INT32, STRING
from tailrace.protocol.encoding.schema import Array, Struct, field
from tailrace.protocol.messages import MemberAssignment, MemberSubscription, OwnedPartitions

__all__ = [
    "ASSIGNMENT",
    "SUBSCRIPTION",
    "decode_assignment",
    "decode_cooperative_data",
    "decode_sticky_data",
    "decode_subscription",
    "encode_assignment",
    "encode_cooperative_data",
    "encode_sticky_data",
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


# ---- user data -------------------------------------------------------------------------------------------------

_NO_GENERATION = -1
_GENERATION_SIZE = 4
_encode_owned = _PARTITIONS.encoder(0, flexible=False, nullable=False)
_decode_owned = _PARTITIONS.decoder(0, flexible=False, nullable=False)
_encode_generation = INT32.encoder(0, flexible=False, nullable=False)


def encode_sticky_data(owned: Sequence[OwnedPartitions], generation: int) -> bytes:
    """What a member with the ``sticky`` assignor owned, and in which generation: the user data of its subscription."""
    out = bytearray()
    _encode_owned(out, owned)
    _encode_generation(out, generation)
    return bytes(out)


def decode_sticky_data(data: bytes | None) -> tuple[tuple[OwnedPartitions, ...], int]:
    """What a member with the ``sticky`` assignor owned, and in which generation.

    A client that says nothing owned nothing; one that says no generation, as Java's did before 2.3, has -1.

    Raises:
        MalformedMessageError: the bytes are something else.
    """
    if not data:
        return (), _NO_GENERATION
    reader = FrameReader(data)
    owned: tuple[OwnedPartitions, ...] = _decode_owned(reader)
    return owned, reader.int32() if reader.remaining else _NO_GENERATION


def encode_cooperative_data(generation: int) -> bytes:
    """The generation in which a member with ``cooperative-sticky`` owned what its subscription says it owns."""
    out = bytearray()
    _encode_generation(out, generation)
    return bytes(out)


def decode_cooperative_data(data: bytes | None) -> int:
    """The generation that a member with ``cooperative-sticky`` was in, -1 from one that does not say.

    Java's client says the number alone; librdkafka's writes what it writes for ``sticky``.

    Raises:
        MalformedMessageError: the bytes are something else.
    """
    if not data:
        return _NO_GENERATION
    if len(data) == _GENERATION_SIZE:
        return FrameReader(data).int32()
    return decode_sticky_data(data)[1]


# ---- versions --------------------------------------------------------------------------------------------------


def _encode(struct: Struct, value: object, version: int) -> bytes:
    out = bytearray(version.to_bytes(2, "big", signed=True))
    _encoder(struct, version)(out, value)
    return bytes(out)


def _decode(struct: Struct, data: bytes) -> object:
    reader = FrameReader(data)
    version = reader.int16()
    if version < 0:
        raise MalformedMessageError(
            f"version {version} of the consumer protocol - another kind of client in the group?"
        )
    return _decoder(struct, min(version, _NEWEST))(reader)
