"""What processes of one program say to each other, as bytes.

Rule of this file: a message is a length and MessagePack. Records cross in slices, a column for each field: a list of
bytes costs less than a list of records, on both sides.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat
from typing import TypeAlias
from uuid import UUID

import msgspec

from tailrace.records import Record, TopicPartition

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
    """The root of all messages."""


# ---- to a child --------------------------------------------------------------------------------------------------


class BeginMessage(_ProcessMessage, frozen=True, tag=1):
    """What to do; pickled, as only the two sides of one program read it."""

    spec: bytes


class StopMessage(_ProcessMessage, frozen=True, tag=2):
    """End in good order."""


class DoneMessage(_ProcessMessage, frozen=True, tag=3):
    """Of one lease: the next offset that is not done, and how many records have left the queue since last told."""

    lease: int
    offset: int
    released: int


class LeftMessage(_ProcessMessage, frozen=True, tag=4):
    """The answer to ``HaltedMessage``: nothing from ``offset`` on was or will be handed out."""

    lease: int
    offset: int


class CommitMessage(_ProcessMessage, frozen=True, tag=5):
    """Commit what is done, and say so."""

    number: int


# ---- from a child ------------------------------------------------------------------------------------------------


class ReadyMessage(_ProcessMessage, frozen=True, tag=11):
    """It works; for readers, where their partitions begin; how long its end may take."""

    stop_timeout_s: float
    begins: list[tuple[str, int, int]] = []
    status: str = "starting"
    """How it is, unless it says more."""


class StatusMessage(_ProcessMessage, frozen=True, tag=12):
    """How it is, and that its event loop turns."""

    status: str
    detail: str
    silence_s: float
    """It says so every second from now on; after so long without a word it is lost."""


class FailedMessage(_ProcessMessage, frozen=True, tag=13):
    """It cannot go on; a pickled error of ours, or None when it is somebody else's."""

    error: bytes | None
    text: str


class SliceMessage(_ProcessMessage, frozen=True, tag=14):
    """Records of one partition, in order."""

    lease: int
    topic: str
    partition: int
    behind: int
    """The offset behind the last, past what has no records."""
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    headers: Headers | None
    """None when none has any."""
    topic_id: UUID | None = None
    """Id of the topic the records were read from, if it is known."""


class HaltedMessage(_ProcessMessage, frozen=True, tag=15):
    """Nothing more of a lease may be handed out: it is about to be given back."""

    lease: int


class GoneMessage(_ProcessMessage, frozen=True, tag=16):
    """A lease is over: its partition is somebody else's, or read from elsewhere."""

    lease: int


class CommittedMessage(_ProcessMessage, frozen=True, tag=17):
    """The answer to ``CommitMessage``; a pickled error when it was refused."""

    number: int
    error: bytes | None


ToChild: TypeAlias = BeginMessage | StopMessage | DoneMessage | LeftMessage | CommitMessage
FromChild: TypeAlias = (
    ReadyMessage | StatusMessage | FailedMessage | SliceMessage | HaltedMessage | GoneMessage | CommittedMessage
)

_encoder = msgspec.msgpack.Encoder()
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_from_child: msgspec.msgpack.Decoder[FromChild] = msgspec.msgpack.Decoder(FromChild)


def encode(message: ToChild | FromChild) -> bytes:
    """A message as it goes over."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(header: bytes) -> int:
    """How many bytes come after the first four."""
    return int(_LENGTH.unpack(header)[0])


def decode_to_child(body: bytes) -> ToChild:
    """A message to a child."""
    return _to_child.decode(body)


def decode_from_child(body: bytes) -> FromChild:
    """A message from a child."""
    return _from_child.decode(body)


def slice_of(
    lease: int, partition: TopicPartition, behind: int, records: Sequence[Record], topic_id: UUID | None = None
) -> SliceMessage:
    """Records as they go over."""
    has_headers = any(record.headers for record in records)
    return SliceMessage(
        lease,
        partition.topic,
        partition.partition,
        behind,
        [record.offset for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [record.timestamp for record in records],
        [tuple(record.headers) for record in records] if has_headers else None,
        topic_id,
    )


def records_of(part: SliceMessage) -> list[Record]:
    """The records as they were."""
    columns = (repeat(part.topic), repeat(part.partition), part.offsets, part.keys, part.values, part.timestamps)
    if part.headers is None:
        return list(map(Record, *columns))
    return list(map(Record, *columns, part.headers))
