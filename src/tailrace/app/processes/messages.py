"""Messages between the processes of one program, and their encoding. Pure: no clock, IO or logging.

An encoded message begins with a header, which contains the length of the body; the body contains the fields in
MessagePack. Records are encoded by column, one list for each field, which takes both processes less time than a list of
records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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
    "FailedMessage",
    "FromChild",
    "HaltRequest",
    "HaltResponse",
    "LeaseEndedMessage",
    "ProgressMessage",
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
"""Size of the header in bytes."""
_LENGTH = struct.Struct("!I")

Headers: TypeAlias = list[tuple[tuple[str, bytes | None], ...]]


class _ProcessMessage(msgspec.Struct, tag_field="is", frozen=True, array_like=True):
    """Base of all messages."""


# ---- to a child --------------------------------------------------------------------------------------------------


class BeginMessage(_ProcessMessage, frozen=True, tag=1):
    """First message to a child, with its job."""

    spec: bytes
    """Pickled mapping; pickling is safe, because both processes belong to one program."""


class StopMessage(_ProcessMessage, frozen=True, tag=2):
    """Request to stop after the usual cleanup."""


class ProgressMessage(_ProcessMessage, frozen=True, tag=3):
    """Progress of a lease in the parent."""

    lease: int
    offset: int
    """Offset below which all records are finished."""
    released: int
    """Number of records that have left the parent's queue since the last message."""


class HaltResponse(_ProcessMessage, frozen=True, tag=4):
    """Answer to ``HaltRequest``: the parent neither has delivered nor will deliver records from ``offset`` on."""

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
    """A child has started."""

    stop_timeout_s: float
    """Time in seconds that the child may take to stop."""
    start_offsets: list[tuple[str, int, int]] = []
    """Topic, number and start offset of each partition that the parent has assigned to a reader process."""
    status: str = "starting"
    """Status of the child until its first ``StatusMessage``."""


class StatusMessage(_ProcessMessage, frozen=True, tag=12):
    """Status of a child, sent by its event loop."""

    status: str
    detail: str
    silence_s: float
    """Time in seconds after which the parent kills the child if no further message comes.

    From the first status message on, a child sends one every second.
    """


class FailedMessage(_ProcessMessage, frozen=True, tag=13):
    """A child cannot continue."""

    error: bytes | None
    """Pickled error of tailrace; None if the error is of another library."""
    text: str
    """Description of the error."""


class SliceMessage(_ProcessMessage, frozen=True, tag=14):
    """Consecutive records of one partition, one list for each of their fields."""

    lease: int
    topic: str
    partition: int
    end_offset: int
    """Offset at which the partition continues, after the last record and any offsets without a record after it."""
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: Headers | None
    """None if no record has headers."""
    topic_id: UUID | None = None
    """Id of the topic from which the records were read; None if unknown."""
    timestamp_type: TimestampType | None = "CreateTime"


class HaltRequest(_ProcessMessage, frozen=True, tag=15):
    """Request to deliver no more records of a lease, whose partition is about to be revoked."""

    lease: int


class LeaseEndedMessage(_ProcessMessage, frozen=True, tag=16):
    """A lease is over: its partition was revoked or is read from another position."""

    lease: int


class CommittedMessage(_ProcessMessage, frozen=True, tag=17):
    """Answer to ``CommitMessage``."""

    number: int
    """Number of the ``CommitMessage``."""
    error: bytes | None
    """Pickled error; None if the commit succeeded."""


class StatisticsMessage(_ProcessMessage, frozen=True, tag=18):
    """Answer to ``StatisticsRequest``."""

    number: int
    """Number of the ``StatisticsRequest``."""
    statistics: AppStatistics


ToChild: TypeAlias = BeginMessage | StopMessage | ProgressMessage | HaltResponse | CommitMessage | StatisticsRequest
FromChild: TypeAlias = (
    ReadyMessage
    | StatusMessage
    | FailedMessage
    | SliceMessage
    | HaltRequest
    | LeaseEndedMessage
    | CommittedMessage
    | StatisticsMessage
)

_encoder = msgspec.msgpack.Encoder()
decode_to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder(ToChild).decode
decode_from_child: Callable[[bytes], FromChild] = msgspec.msgpack.Decoder(FromChild).decode


def encode(message: ToChild | FromChild) -> bytes:
    """Encode a message with its header."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """Return the length of a body, which the header contains."""
    return int(_LENGTH.unpack(header)[0])


def slice_of(
    lease: int, partition: TopicPartition, end_offset: int, records: Sequence[Record], topic_id: UUID | None = None
) -> SliceMessage:
    """Return a message with ``records`` of one partition; ``topic_id`` is None if unknown."""
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
        # All records come from one batch and therefore have the same timestamp type.
        records[0].timestamp_type if records else "CreateTime",
    )


def records_of(message: SliceMessage) -> list[Record]:
    """Return the records of a message."""
    columns = (
        repeat(message.topic),
        repeat(message.partition),
        message.offsets,
        message.keys,
        message.values,
        message.timestamps,
    )
    headers = repeat(()) if message.headers is None else message.headers
    return list(map(Record, *columns, headers, repeat(message.timestamp_type)))
