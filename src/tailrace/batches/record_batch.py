"""Record batches: found in a fetch answer, checked, decoded in slices. The one door to ``aiokafka.record``.

Rule of this file: a batch is a view into the frame it came in, and nothing of it is decoded before somebody asks for
its records; decompressing it takes a limit, and can be undone. Only what is small beside its frame is copied: that
would stay in memory for as long as the batch waits. Each batch says its own format (an old topic may mix them in one
answer). Decoding runs in C from the bytes to the list of records; no Python code runs for one record.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain, dropwhile, islice, starmap
from operator import attrgetter
from typing import Protocol, cast

import cramjam
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.control_record import ABORT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch

from tailrace.batches.decompression import decompressed
from tailrace.batches.legacy_batch import LegacyBatch
from tailrace.errors import MalformedMessageError
from tailrace.records import Record

__all__ = ["RecordBatch", "RecordDecoder", "split"]

_PREFIX = struct.Struct(">qiib")
"""Base offset, length of what follows it, leader's epoch (from format 2 on), format."""
_LENGTH_ENDS_AT = 12
_SHORTEST = {0: 14, 1: 22, 2: 49}
"""What a batch of each format has at least behind its length; the C code reads that much unasked."""

_HEAD = 61
"""Bytes of a batch of format 2 before its records."""
_CODEC_AT, _CODEC = 22, 7

_MOST_UNASKED = 1 << 20
"""Limit of a batch that nobody has decompressed before its records are read, such as a transaction's marker."""

_LARGE_FRAME = 65_536
_SMALL_SHARE = 8
"""What is less than one part in so many of a large frame does not keep it in memory."""

_FIELDS = attrgetter("offset", "key", "value", "timestamp", "headers")

# What the C code and the codecs raise over bytes that are not what they should be: their own errors, gzip's (an
# OSError), and those of C functions that are asked for a string of an enormous length.
_BROKEN = (
    CorruptRecordException,
    UnsupportedCodecError,
    cramjam.DecompressionError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    MemoryError,
)


class _RawBatch(Protocol):
    """What batches of all formats have."""

    is_control_batch: bool
    is_transactional: bool
    producer_id: int | None
    next_offset: int

    def validate_crc(self) -> bool: ...

    def __iter__(self) -> Iterator[object]: ...


class RecordBatch:
    """One record batch, not decoded.

    Attributes:
        base_offset: of the first record that was written into it (compaction may have removed that); of a compressed
            one in an old format, which says so only inside, of the last.
        next_offset: the offset behind its last one.
        size: bytes on the wire.
        leader_epoch: of the leader that wrote it; -1 in old formats.
        is_compressed: True for a batch with a codec, from ``pack`` until ``decompress`` has returned True.
        plain_bytes: bytes that its decompressed records take; 0 while it is compressed, or if it never was.
        is_control: whether it carries a transaction's marker in place of records.
        producer_id: of the transaction it belongs to; None outside of any.
    """

    __slots__ = (
        "_is_abort_marker",
        "_lowest",
        "_raw",
        "_view",
        "base_offset",
        "is_compressed",
        "is_control",
        "leader_epoch",
        "next_offset",
        "plain_bytes",
        "producer_id",
        "size",
    )

    def __init__(self, view: memoryview, base_offset: int, leader_epoch: int, magic: int) -> None:
        legacy = LegacyBatch(view) if magic < 2 else None
        raw = cast(_RawBatch, DefaultRecordBatch(view) if legacy is None else legacy)
        self._raw = raw
        self._is_abort_marker: bool | None = None
        self._view = view
        self.is_compressed = (view[_CODEC_AT] & _CODEC if legacy is None else legacy.codec) != 0
        self._lowest = base_offset if magic >= 2 else 0
        self.base_offset = base_offset
        self.next_offset = raw.next_offset
        self.size = len(view)
        self.plain_bytes = 0
        self.leader_epoch = leader_epoch if magic >= 2 else -1
        self.is_control = raw.is_control_batch
        self.producer_id = raw.producer_id if raw.is_transactional else None

    def __repr__(self) -> str:
        return f"<RecordBatch {self.base_offset}..{self.next_offset - 1} {self.size} bytes>"

    def checksum_holds(self) -> bool:
        """Whether the bytes are those that were written; to be asked before ``decompress``."""
        return self._raw.validate_crc()

    def decompress(self, limit: int) -> bool:
        """Decompress the records, as many bytes as ``limit``; False if they are more.

        It touches nothing but this batch, so a thread may call it.

        Raises:
            MalformedMessageError: the bytes are not what the codec writes, or the codec is unknown.
        """
        if not self.is_compressed:
            return True
        try:
            if isinstance(self._raw, LegacyBatch):
                size = self._raw.decompress(limit)
                self.plain_bytes, self.is_compressed = size or 0, size is None
                return size is not None
            # The batch as it would have been written without a codec: one buffer, filled by the codec in place.
            head = bytearray(self._view[:_HEAD])
            head[_CODEC_AT] &= ~_CODEC
            plain = decompressed(self._view[_CODEC_AT] & _CODEC, self._view[_HEAD:], limit, head)
            if plain is None:
                return False
            self._raw = cast(_RawBatch, DefaultRecordBatch(plain))
        except _BROKEN as error:
            raise MalformedMessageError(f"a record batch that cannot be decoded: {error}") from error
        self.plain_bytes, self.is_compressed = len(plain), False
        return True

    def pack(self) -> None:
        """Forget the decompressed records; to be decompressed again, and decoded from the beginning."""
        if not self.plain_bytes:
            return
        self._raw = cast(
            _RawBatch,
            LegacyBatch(self._view) if isinstance(self._raw, LegacyBatch) else DefaultRecordBatch(self._view),
        )
        self.plain_bytes, self.is_compressed = 0, True

    def is_abort_marker(self) -> bool:
        """Whether it ends a transaction by taking it back.

        Raises:
            MalformedMessageError: it is a control batch that cannot be read.
        """
        # The raw batch gives its records once.
        if self._is_abort_marker is None:
            self._is_abort_marker = self.is_control and self._read_marker()
        return self._is_abort_marker

    def _read_marker(self) -> bool:
        for record in RecordDecoder(self, "", 0, 0).take(1):
            try:
                return ControlRecord.parse(record.key or b"") == ABORT_MARKER
            except struct.error as error:
                raise MalformedMessageError("a transaction's marker that cannot be read") from error
        return False

    def decode(self, topic: str, partition: int, position: int) -> RecordDecoder:
        """A hand that takes its records from ``position`` on."""
        return RecordDecoder(self, topic, partition, position)


class RecordDecoder:
    """Takes the records out of one batch, a slice at a time."""

    __slots__ = ("_records",)

    def __init__(self, batch: RecordBatch, topic: str, partition: int, position: int) -> None:
        # One pipe of C functions from the compressed bytes to Record.
        records = starmap(partial(Record, topic, partition), map(_FIELDS, _lazily(batch)))
        if position > batch._lowest:  # noqa: SLF001 - one room
            records = dropwhile(lambda record: record.offset < position, records)  # type: ignore[assignment]
        self._records: Iterator[Record] = records

    def take(self, count: int) -> list[Record]:
        """The next ``count`` records; fewer only at the end.

        Raises:
            MalformedMessageError: the bytes are not records, or their codec is unknown.
        """
        try:
            return list(islice(self._records, count))
        except _BROKEN as error:
            raise MalformedMessageError(f"a record batch that cannot be decoded: {error}") from error


def _lazily(batch: RecordBatch) -> Iterator[object]:
    """The batch's own iterator, begun when the first record is asked for."""
    return chain.from_iterable(map(_readable, (batch,)))


def _readable(batch: RecordBatch) -> _RawBatch:
    if not batch.decompress(_MOST_UNASKED):
        raise MalformedMessageError(f"a record batch that decompresses to more than {_MOST_UNASKED} bytes")
    return batch._raw  # noqa: SLF001 - one room


def split(records: memoryview) -> list[RecordBatch]:
    """The whole batches in a fetch answer's bytes; a last one that was cut off is left out, as the protocol wants.

    Raises:
        MalformedMessageError: a length that no batch can have.
    """
    batches = []
    records = _out_of_frame(records)
    at, end = 0, len(records)
    while end - at >= _PREFIX.size:
        base_offset, length, leader_epoch, magic = _PREFIX.unpack_from(records, at)
        if length < _SHORTEST.get(magic, 1 << 31):
            raise MalformedMessageError(f"a record batch of format {magic} that claims {length} bytes")
        behind = at + _LENGTH_ENDS_AT + length
        if behind > end:
            break
        try:
            batches.append(RecordBatch(records[at:behind], base_offset, leader_epoch, magic))
        except _BROKEN as error:
            raise MalformedMessageError(f"a record batch that is too short: {error}") from error
        at = behind
    return batches


def _out_of_frame(records: memoryview) -> memoryview:
    frame_size = memoryview(records.obj).nbytes
    if frame_size > _LARGE_FRAME and len(records) * _SMALL_SHARE < frame_size:
        return memoryview(bytes(records))
    return records
