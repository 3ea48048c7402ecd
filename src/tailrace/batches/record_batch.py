"""Record batches of a Fetch response, decoded in slices.

A record set contains the batches of one partition in a response, which may have several formats. Batches are views of
the response frame. A record set that is small compared to its frame is copied, so that it does not keep the whole frame
in memory. Records are decoded on demand and in C. Decompression has a size limit, and its result can be discarded.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, dropwhile, islice, repeat, starmap
from operator import add, attrgetter
from typing import TYPE_CHECKING, NamedTuple, cast

import cramjam

from tailrace.batches.decompression import decompress
from tailrace.batches.legacy_batch import LegacyBatch
from tailrace.errors import MalformedMessageError
from tailrace.installation import batch_decoder
from tailrace.protocol.encoding.primitives import FrameReader
from tailrace.records import Record, TimestampType

if TYPE_CHECKING:
    from tailrace._native import BatchDecoder
    from tailrace.batches.columns import ColumnBuilder

__all__ = ["HARDWARE", "RecordBatch", "RecordDecoder", "batches_of", "crc32c", "split"]

# ---- checksum of record batches of format 2: CRC-32C (Castagnoli, RFC 3720) ------------------------------------------

_CHUNK = 1 << 16
"""Number of bytes that are copied at a time; google-crc32c accepts only ``bytes``, so the content must be copied.

A copy of this size fits into the processor's cache.
"""


def _hardware_extend() -> Callable[[int, bytes], int] | None:
    """Return google-crc32c's compiled function; None if google-crc32c is missing or has only its Python version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            import google_crc32c  # noqa: PLC0415 - the import warns if only the Python version is installed
    except ImportError:
        return None
    return google_crc32c.extend if google_crc32c.implementation == "c" else None


_extend = _hardware_extend()

HARDWARE = _extend is not None
"""True if google-crc32c computes the checksums, with the processor's CRC instructions."""


def crc32c(content: memoryview) -> int:
    if _extend is None:
        # aiokafka is imported only if it is needed, because the import takes 0.1 s.
        from aiokafka.record.util import calc_crc32c  # noqa: PLC0415

        return int(calc_crc32c(content))  # type: ignore[arg-type]  # it takes any buffer
    if len(content) <= _CHUNK:
        return _extend(0, bytes(content))
    checksum = 0
    for start in range(0, len(content), _CHUNK):
        checksum = _extend(checksum, bytes(content[start : start + _CHUNK]))
    return checksum


# ---- record batches of a Fetch response, decoded in slices -----------------------------------------------------------

_BatchDecoder = batch_decoder
"""The compiled decoder; None without the compiled module."""

_PREFIX = struct.Struct(">qiib")
"""Base offset, length of the bytes that follow the length, leader epoch (from format 2 on), format."""
_LENGTH_ENDS_AT = 12
_MIN_LENGTH = {0: 14, 1: 22, 2: 49}
"""Minimum value of the length, by format; decoders in C read that many bytes without a check."""

_HEAD = 61
"""Bytes of a batch of format 2 before its records."""
_CHECKSUM, _CHECKSUM_AT, _CHECKED_FROM = struct.Struct(">I"), 17, 21
_HEADER, _HEADER_AT = struct.Struct(">hi16xq"), 21
"""Attributes, offset of the last record minus base offset, producer id."""
_FIELDS_OF_HEAD = struct.Struct(">q13xhiqq14xi")
"""Base offset, attributes, offset of the last record minus base offset, first and maximum timestamp, record count."""
_CODEC_AT, _CODEC, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 22, 7, 8, 16, 32
_MARKER, _ABORT = struct.Struct(">hh"), 0
"""Key of a transaction marker: its version and its type, which is 0 for an aborted transaction."""

_DEFAULT_LIMIT = 1 << 20
"""Decompression limit in bytes for batches that are decoded without an earlier ``decompress``, such as markers."""

_TIMESTAMP, _FIRST_TIMESTAMP_AT, _MAX_TIMESTAMP_AT = struct.Struct(">q"), 27, 35

_LARGE_FRAME = 65_536
"""Maximum size in bytes of a frame whose record sets are never copied."""
_FRAME_TO_RECORDS = 8
"""Ratio of the size of a larger frame to that of a record set above which the record set is copied."""

_FIELDS = attrgetter("offset", "key", "value", "timestamp", "headers")

_TIMESTAMP_TYPES: dict[int | None, TimestampType | None] = {None: None, 0: "CreateTime", 1: "LogAppendTime"}

# Errors that decoders and codecs raise for invalid bytes. gzip raises OSError; very large lengths cause OverflowError
# and MemoryError.
_DECODE_ERRORS = (
    cramjam.DecompressionError,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    MemoryError,
    RuntimeError,  # base of aiokafka's errors
)


class RecordBatch:
    """Record batch, decoded on demand.

    Attributes:
        base_offset: offset of the first record that was written into the batch; compaction may have removed this
            record. In a compressed batch of format 0 or 1, the offset of the last record, because the first offset is
            known only after decompression.
        next_offset: offset after the last record.
        size: size on the wire, in bytes.
        leader_epoch: epoch of the leader that wrote the batch; -1 in formats 0 and 1.
        is_compressed: True while the records are compressed; set to False by ``decompress``, and to True by ``pack``.
        plain: bytes of the batch with uncompressed records, in format 2; None in formats 0 and 1, and while the
            records are compressed.
        plain_bytes: size in bytes of the result of ``decompress``; 0 if there is none.
        is_control: True if the batch contains a transaction marker instead of records.
        producer_id: id of the producer if the batch belongs to a transaction; None otherwise.
        timestamp_type: origin of the records' timestamps; None in format 0.
        legacy: content of a batch of format 0 or 1; None in format 2.
    """

    __slots__ = (
        "_is_abort_marker",
        "_view",
        "base_offset",
        "is_compressed",
        "is_control",
        "leader_epoch",
        "legacy",
        "next_offset",
        "plain",
        "plain_bytes",
        "producer_id",
        "size",
        "timestamp_type",
    )

    def __init__(self, view: memoryview, base_offset: int, leader_epoch: int, magic: int) -> None:
        self._view = view
        self._is_abort_marker: bool | None = None
        self.base_offset, self.size, self.plain_bytes = base_offset, len(view), 0
        self.plain: memoryview | bytes | bytearray | None = None
        self.legacy = LegacyBatch(view) if magic < 2 else None
        if self.legacy is not None:
            self.is_compressed = self.legacy.codec != 0
            self.timestamp_type = _TIMESTAMP_TYPES[self.legacy.timestamp_type]
            self.next_offset, self.leader_epoch = self.legacy.next_offset, -1
            self.is_control, self.producer_id = False, None
            return
        attributes, last_delta, producer_id = _HEADER.unpack_from(view, _HEADER_AT)
        self.is_compressed = attributes & _CODEC != 0
        self.timestamp_type = "LogAppendTime" if attributes & _LOG_APPEND_TIME else "CreateTime"
        self.next_offset, self.leader_epoch = base_offset + last_delta + 1, leader_epoch
        self.is_control = attributes & _CONTROL != 0
        self.producer_id = producer_id if attributes & _TRANSACTIONAL else None
        if not self.is_compressed:
            self.plain = view

    def __repr__(self) -> str:
        return f"<RecordBatch {self.base_offset}..{self.next_offset - 1} {self.size} bytes>"

    @property
    def first_timestamp(self) -> int | None:
        """Timestamp of the first record, in milliseconds since 1970; None in formats 0 and 1.

        In formats 0 and 1, the header of a batch does not contain it.
        """
        if self.legacy is not None:
            return None
        at = _MAX_TIMESTAMP_AT if self.timestamp_type == "LogAppendTime" else _FIRST_TIMESTAMP_AT
        return int(_TIMESTAMP.unpack_from(self._view, at)[0])

    def checksum_holds(self) -> bool:
        """Return True if the checksum matches the bytes as received; check this before they are decompressed."""
        if self.legacy is not None:
            return self.legacy.checksum_holds()
        return bool(_CHECKSUM.unpack_from(self._view, _CHECKSUM_AT)[0] == crc32c(self._view[_CHECKED_FROM:]))

    def decompress(self, limit: int) -> bool:
        """Decompress the records and return True; return False if they have more than ``limit`` bytes.

        The method may be called in another thread, because it changes only this batch.

        Raises:
            MalformedMessageError: the bytes are invalid, or the codec is unknown.
        """
        if not self.is_compressed:
            return True
        try:
            if self.legacy is not None:
                size = self.legacy.decompress(limit)
                self.plain_bytes, self.is_compressed = size or 0, size is None
                return size is not None
            # The result looks like a batch that was written without compression: the header, with 0 as the number of
            # the codec, and the decompressed records.
            head = bytearray(self._view[:_HEAD])
            head[_CODEC_AT] &= ~_CODEC
            plain = decompress(self._view[_CODEC_AT] & _CODEC, self._view[_HEAD:], limit, head)
            if plain is None:
                return False
            self.plain = plain
        except _DECODE_ERRORS as error:
            raise MalformedMessageError(f"cannot decode the record batch: {error}") from error
        self.plain_bytes, self.is_compressed = len(plain), False
        return True

    def pack(self) -> None:
        """Discard the result of ``decompress``; the records can be decompressed again."""
        if not self.plain_bytes:
            return
        if self.legacy is not None:
            self.legacy = LegacyBatch(self._view)
        self.plain, self.plain_bytes, self.is_compressed = None, 0, True

    def is_abort_marker(self) -> bool:
        """Return True if the batch contains the marker of an aborted transaction.

        Raises:
            MalformedMessageError: the batch is a control batch that cannot be decoded.
        """
        if self._is_abort_marker is None:
            self._is_abort_marker = self.is_control and self._has_abort_marker()
        return self._is_abort_marker

    def _has_abort_marker(self) -> bool:
        for record in RecordDecoder(self, "", 0, 0).take(1):
            try:
                return bool(_MARKER.unpack_from(record.key or b"")[1] == _ABORT)
            except struct.error as error:
                raise MalformedMessageError("cannot decode the transaction marker") from error
        return False

    def decode(self, topic: str, partition: int, position: int) -> RecordDecoder:
        """Return a decoder of the records from offset ``position`` on."""
        return RecordDecoder(self, topic, partition, position)


class RecordDecoder:
    """Decoder that returns the records of a batch in slices, beginning at an offset."""

    __slots__ = ("_batch", "_compiled", "_count", "_partition", "_position", "_take", "_topic")

    def __init__(self, batch: RecordBatch, topic: str, partition: int, position: int) -> None:
        self._batch = batch
        self._topic = topic
        self._partition = partition
        self._position = position
        self._take: Callable[[int], list[Record]] | None = None
        self._compiled: BatchDecoder | None = None
        self._count = 0
        """Number of records returned so far without the compiled decoder."""

    def take(self, count: int) -> list[Record]:
        """Return the next records: ``count``, or fewer at the end of the batch.

        Raises:
            MalformedMessageError: the bytes are not records, or their codec is unknown.
        """
        try:
            if self._take is None:
                self._take = self._start()
            if self._compiled is not None:
                return self._take(count)
            return self._take_pure(count)
        except _DECODE_ERRORS as error:
            raise MalformedMessageError(f"cannot decode the record batch: {error}") from error

    def take_into(self, columns: ColumnBuilder, count: int) -> Sequence[Record]:
        """Add the next records to ``columns`` and return them: ``count``, or fewer at the end of the batch.

        Raises:
            MalformedMessageError: the bytes are not records, or their codec is unknown; ``columns`` is unchanged.
        """
        try:
            if self._take is None:
                self._take = self._start()
            if self._compiled is not None:
                return columns.add_from(self._compiled, self._topic, self._partition, count)
            records = self._take_pure(count)
        except _DECODE_ERRORS as error:
            raise MalformedMessageError(f"cannot decode the record batch: {error}") from error
        columns.add_records(records)
        return records

    def _take_pure(self, count: int) -> list[Record]:
        """Take records without the compiled decoder; if aiokafka refuses the name of a header, decode the rest here."""
        assert self._take is not None
        try:
            records = self._take(count)
        except UnicodeDecodeError:
            take = self._take = self._start(is_lenient=True)
            take(self._count)  # these records were returned already
            records = take(count)
        self._count += len(records)
        return records

    def _start(self, *, is_lenient: bool = False) -> Callable[[int], list[Record]]:
        batch, topic, partition, position = self._batch, self._topic, self._partition, self._position
        if batch.is_compressed and not batch.decompress(_DEFAULT_LIMIT):
            raise MalformedMessageError(f"the record batch decompresses to more than {_DEFAULT_LIMIT} bytes")
        legacy = batch.legacy
        if _BatchDecoder is not None and batch.plain is not None:
            self._compiled = _BatchDecoder(batch.plain, topic, partition, position, Record)
            return self._compiled.take
        # A chain of iterators in C turns the bytes into records. aiokafka's iterator must not be called again after its
        # last record; chain() releases it at that point.
        raw_records = _lenient_records if is_lenient else _raw_records
        fields = map(_FIELDS, chain(raw_records(batch.plain) if legacy is None else legacy))
        if legacy is None and not is_lenient:
            fields = map(_with_immutable_headers, fields)
        if batch.timestamp_type != "CreateTime":
            # Add the timestamp type only if it is not the default of Record. A keyword argument of partial() would take
            # 120 ns per record.
            fields = map(add, fields, repeat((batch.timestamp_type,)))
        records = starmap(partial(Record, topic, partition), fields)
        if legacy is not None or position > batch.base_offset:
            records = dropwhile(lambda record: record.offset < position, records)  # type: ignore[assignment]
        return lambda count: list(islice(records, count))


def _raw_records(plain: memoryview | bytes | bytearray | None) -> Iterator[object]:
    # aiokafka is imported only if the compiled decoder is not used, because the import takes 0.1 s.
    from aiokafka.record.default_records import DefaultRecordBatch  # noqa: PLC0415

    return cast("Iterator[object]", DefaultRecordBatch(plain))  # type: ignore[arg-type]  # it takes any buffer


def _with_immutable_headers(fields: tuple[object, ...]) -> tuple[object, ...]:
    """Return the fields of a record with a tuple in place of aiokafka's list of headers."""
    headers = cast("Iterable[object]", fields[4])
    return (*fields[:4], tuple(headers)) if headers else fields


class _RawRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def _lenient_records(plain: memoryview | bytes | bytearray | None) -> Iterator[_RawRecord]:
    """Yield the records of a batch of format 2; in names of headers, bytes that are not UTF-8 become U+FFFD.

    Brokers accept any bytes as the name of a header, and Java's client decodes them in the same way.
    """
    batch = FrameReader(plain or b"")
    base_offset, attributes, _, first_timestamp, max_timestamp, count = batch.unpack(_FIELDS_OF_HEAD)
    for _ in range(count):
        reader = FrameReader(batch.view(batch.varint()))
        reader.view(1)  # attributes, unused
        timestamp, offset = first_timestamp + reader.varint(), base_offset + reader.varint()
        key, value, headers = _nullable_bytes(reader), _nullable_bytes(reader), []
        for _ in range(reader.checked_count(reader.varint())):
            name = str(reader.view(reader.varint()), "utf-8", "replace")
            headers.append((name, _nullable_bytes(reader)))
        if reader.remaining:
            raise MalformedMessageError(f"{reader.remaining} bytes left over after a record")
        timestamp = max_timestamp if attributes & _LOG_APPEND_TIME else timestamp
        yield _RawRecord(offset, key, value, timestamp, tuple(headers))


def _nullable_bytes(reader: FrameReader) -> bytes | None:
    length = reader.varint()
    return None if length < 0 else bytes(reader.view(length))


def batches_of(records: memoryview) -> Iterator[RecordBatch]:
    """Yield the batches of a record set; ignore an incomplete batch at its end, which the protocol allows.

    Raises:
        MalformedMessageError: the format or length of the next batch is invalid; the batches before it were yielded.
    """
    frame_size = memoryview(records.obj).nbytes
    if frame_size > _LARGE_FRAME and len(records) * _FRAME_TO_RECORDS < frame_size:
        # The whole frame stays in memory as long as a view of it does.
        records = memoryview(bytes(records))
    at, end = 0, len(records)
    while end - at >= _PREFIX.size:
        base_offset, length, leader_epoch, magic = _PREFIX.unpack_from(records, at)
        if length < _MIN_LENGTH.get(magic, 1 << 31):
            raise MalformedMessageError(f"a record batch of format {magic} claims {length} bytes")
        next_at = at + _LENGTH_ENDS_AT + length
        if next_at > end:
            return
        try:
            yield RecordBatch(records[at:next_at], base_offset, leader_epoch, magic)
        except _DECODE_ERRORS as error:
            raise MalformedMessageError(f"the record batch is too short: {error}") from error
        at = next_at


def split(records: memoryview) -> list[RecordBatch]:
    """Return the batches of ``batches_of``.

    Raises:
        MalformedMessageError: the format or length of a batch is invalid.
    """
    return list(batches_of(records))
