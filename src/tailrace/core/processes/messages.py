"""Messages between the processes of one program, and their encoding.

A message is its length, followed by its fields in MessagePack. A slice of records is encoded by column, one list per
field, which costs both sides less than a list of records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias
from uuid import UUID

import msgspec

from tailrace.observe.statistics import AppStatistics
from tailrace.records import Record, TimestampType, TopicPartition

__all__ = [
    "HEADER",
    "BeginMessage",
    "CommitMessage",
    "CommittedMessage",
    "DoneMessage",
    "FailedMessage",
    "FromChild",
    "GoneMessage",
    "HaltedMessage",
    "LeftMessage",
    "ReadyMessage",
    "SliceMessage",
    "StatisticsMessage",
    "StatisticsRequest",
    "StatusMessage",
    "StopMessage",
    "ToChild",
    "decode_from_child",
    "decode_to_child",
    "encode",
    "length_of",
    "records_of",
    "slice_of",
]

HEADER = 4
_LENGTH = struct.Struct("!I")

Headers: TypeAlias = list[tuple[tuple[str, bytes | None], ...]]


class _ProcessMessage(msgspec.Struct, tag_field="is", frozen=True, array_like=True):
    """Base of all messages."""


# ---- to a child --------------------------------------------------------------------------------------------------


class BeginMessage(_ProcessMessage, frozen=True, tag=1):
    """Job of a child; pickled, because both sides belong to one program."""

    spec: bytes


class StopMessage(_ProcessMessage, frozen=True, tag=2):
    """Request to stop in order."""


class DoneMessage(_ProcessMessage, frozen=True, tag=3):
    """Next unfinished offset of a lease, and how many of the lease's records left the queue since the last report."""

    lease: int
    offset: int
    released: int


class LeftMessage(_ProcessMessage, frozen=True, tag=4):
    """Answer to ``HaltedMessage``: no record from ``offset`` on was or will be delivered."""

    lease: int
    offset: int


class CommitMessage(_ProcessMessage, frozen=True, tag=5):
    """Request to commit finished offsets, answered by ``CommittedMessage``."""

    number: int


class StatisticsRequest(_ProcessMessage, frozen=True, tag=6):
    """Request for statistics, answered by ``StatisticsMessage``."""

    number: int


# ---- from a child ------------------------------------------------------------------------------------------------


class ReadyMessage(_ProcessMessage, frozen=True, tag=11):
    """A child has started: its stop timeout and, from a reader, the start offsets of its partitions."""

    stop_timeout_s: float
    begins: list[tuple[str, int, int]] = []
    status: str = "starting"
    """Status of the child until its first ``StatusMessage``."""


class StatusMessage(_ProcessMessage, frozen=True, tag=12):
    """Status of a child, sent by its event loop."""

    status: str
    detail: str
    silence_s: float
    """Time without a message after which the child counts as lost. From now on it reports its status every second."""


class FailedMessage(_ProcessMessage, frozen=True, tag=13):
    """A child cannot continue; ``error`` is a pickled error of tailrace, or None for any other error."""

    error: bytes | None
    text: str


class SliceMessage(_ProcessMessage, frozen=True, tag=14):
    """Records of one partition, in order."""

    lease: int
    topic: str
    partition: int
    end_offset: int
    """Offset at which the partition continues, after the last record and after offsets without a record."""
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: Headers | None
    """None if no record has headers."""
    topic_id: UUID | None = None
    """Id of the topic from which the records were read; None if unknown."""
    timestamp_type: TimestampType | None = "CreateTime"


class HaltedMessage(_ProcessMessage, frozen=True, tag=15):
    """No more records of a lease may be delivered, because its partition is about to be revoked."""

    lease: int


class GoneMessage(_ProcessMessage, frozen=True, tag=16):
    """A lease is over: its partition was revoked or is read from another position."""

    lease: int


class CommittedMessage(_ProcessMessage, frozen=True, tag=17):
    """Answer to ``CommitMessage``, with a pickled error if the commit failed."""

    number: int
    error: bytes | None


class StatisticsMessage(_ProcessMessage, frozen=True, tag=18):
    """Answer to ``StatisticsRequest``."""

    number: int
    statistics: AppStatistics


ToChild: TypeAlias = BeginMessage | StopMessage | DoneMessage | LeftMessage | CommitMessage | StatisticsRequest
FromChild: TypeAlias = (
    ReadyMessage
    | StatusMessage
    | FailedMessage
    | SliceMessage
    | HaltedMessage
    | GoneMessage
    | CommittedMessage
    | StatisticsMessage
)

_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def encode(message: ToChild | FromChild) -> bytes:
    """Encode a message with its length."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """Return the length of a message from its header."""
    return int(_LENGTH.unpack(header)[0])


def decode_to_child(body: bytes) -> ToChild:
    """Decode a message to a child."""
    return _to_child.decode(body)


def decode_from_child(body: bytes) -> FromChild:
    """Decode a message from a child."""
    return _from_child.decode(body)


def slice_of(
    lease: int, partition: TopicPartition, end_offset: int, records: Sequence[Record], topic_id: UUID | None = None
) -> SliceMessage:
    """Return a message with ``records``."""
    has_headers = any(record.headers for record in records)
    return SliceMessage(
        lease,
        partition.topic,
        partition.partition,
        end_offset,
        [record.offset for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [tuple(record.headers) for record in records] if has_headers else None,
        topic_id,
        # The records come from one batch, so they have the same timestamp type.
        records[0].timestamp_type if records else "CreateTime",
    )


def records_of(part: SliceMessage) -> list[Record]:
    """Return the records of a message."""
    columns = (repeat(part.topic), repeat(part.partition), part.offsets, part.keys, part.values, part.timestamps)
    headers = repeat(()) if part.headers is None else part.headers
    return list(map(Record, *columns, headers, repeat(part.timestamp_type)))
