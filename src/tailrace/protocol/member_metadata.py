"""Metadata exchanged by members of a classic group: subscriptions in JoinGroup, assignments in SyncGroup.

The broker does not read these bytes; Java's client and librdkafka use the same format. The bytes begin with a version.
If this version is not known here, because it is newer, only the fields of the newest known version are read.

A subscription also contains user data: bytes in a format that the assignor defines. The user data of ``sticky`` are the
owned partitions and the generation in which they were assigned. The user data of ``cooperative-sticky`` are only the
generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from tailrace.errors import MalformedMessageError
from tailrace.protocol.encoding.codec import decoder_of, encoder_of
from tailrace.protocol.encoding.fields import field
from tailrace.protocol.encoding.frame_reader import FrameReader
from tailrace.protocol.encoding.primitives import int32
from tailrace.protocol.message import ApiMessage

__all__ = [
    "MemberAssignment",
    "MemberSubscription",
    "OwnedPartitions",
    "decode_assignment",
    "decode_cooperative_data",
    "decode_sticky_data",
    "decode_subscription",
    "encode_assignment",
    "encode_cooperative_data",
    "encode_sticky_data",
    "encode_subscription",
]

MessageT = TypeVar("MessageT", bound=ApiMessage)

_NEWEST = 3


class OwnedPartitions(ApiMessage):
    topic: str
    partitions: tuple[int32, ...]


class MemberSubscription(ApiMessage):
    """Topics that a member subscribes to (ConsumerProtocolSubscription)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[OwnedPartitions, ...] = field(since=1, ignorable=True, default=())
    generation_id: int32 = field(since=2, ignorable=True, default=-1)
    rack_id: str | None = field(since=3, ignorable=True, default=None)


class MemberAssignment(ApiMessage):
    """Partitions assigned to a member (ConsumerProtocolAssignment)."""

    assigned_partitions: tuple[OwnedPartitions, ...]
    user_data: bytes | None = None


def encode_subscription(subscription: MemberSubscription, version: int = _NEWEST) -> bytes:
    """Encode a member's subscription."""
    return _encode(subscription, version)


def encode_assignment(assignment: MemberAssignment, version: int = _NEWEST) -> bytes:
    """Encode a member's assignment."""
    return _encode(assignment, version)


def decode_subscription(data: bytes) -> MemberSubscription:
    """Decode a member's subscription."""
    return _decode(MemberSubscription, data)


def decode_assignment(data: bytes) -> MemberAssignment:
    """Decode a member's assignment. Empty data mean no partitions; a leader with Java's client may send them."""
    return _decode(MemberAssignment, data) if data else MemberAssignment(())


def _encode(message: ApiMessage, version: int) -> bytes:
    out = bytearray(version.to_bytes(2, "big", signed=True))
    encoder_of(type(message), version, flexible=False)(out, message)
    return bytes(out)


def _decode(kind: type[MessageT], data: bytes) -> MessageT:
    reader = FrameReader(data)
    version = reader.int16()
    if version < 0:
        raise MalformedMessageError(
            f"version {version} of a member's metadata is invalid - does the group have members that are not consumers?"
        )
    message: MessageT = decoder_of(kind, min(version, _NEWEST), flexible=False)(reader)
    return message


# ---- user data -------------------------------------------------------------------------------------------------

_NO_GENERATION = -1
"""Value in place of an unknown generation."""
_GENERATION_SIZE = 4


class _StickyData(ApiMessage):
    owned: tuple[OwnedPartitions, ...]
    generation: int32 = field(since=1, default=_NO_GENERATION)


def encode_sticky_data(owned: Sequence[OwnedPartitions], generation: int) -> bytes:
    """Encode the user data of the ``sticky`` assignor: owned partitions and their generation."""
    out = bytearray()
    encoder_of(_StickyData, 1, flexible=False)(out, _StickyData(tuple(owned), generation))
    return bytes(out)


def decode_sticky_data(data: bytes | None) -> tuple[tuple[OwnedPartitions, ...], int]:
    """Decode the user data of the ``sticky`` assignor: owned partitions and their generation.

    Without data, there are no owned partitions. The generation is -1 if it is missing, as in user data of Java's client
    before version 2.3.
    """
    if not data:
        return (), _NO_GENERATION
    reader = FrameReader(data)
    # Version 0 has no generation; the data do not contain the version.
    data_v0: _StickyData = decoder_of(_StickyData, 0, flexible=False)(reader)
    return data_v0.owned, reader.int32() if reader.remaining else _NO_GENERATION


def encode_cooperative_data(generation: int) -> bytes:
    """Encode the user data of ``cooperative-sticky``: the generation of the owned partitions."""
    return generation.to_bytes(_GENERATION_SIZE, "big", signed=True)


def decode_cooperative_data(data: bytes | None) -> int:
    """Decode the user data of ``cooperative-sticky``: the generation, or -1 if it is missing.

    Java's client writes only the generation; librdkafka writes the same user data as for ``sticky``.
    """
    if not data:
        return _NO_GENERATION
    if len(data) == _GENERATION_SIZE:
        return FrameReader(data).int32()
    return decode_sticky_data(data)[1]
