"""Writer of record batches (format 2).

Records are appended to one buffer in C, by the compiled module or by aiokafka's builder, and compressed when the batch
is finished. Producer id, producer epoch and sequence number are not known until the batch is sent, and differ if it is
sent again in another producer epoch; so ``encode`` sets them in the finished bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import cramjam

from tailrace.batches.record_batch import crc32c, split
from tailrace.errors import MalformedMessageError
from tailrace.installation import record_writer

if TYPE_CHECKING:
    from tailrace._native import RecordWriter

__all__ = ["COMPRESSIONS", "BatchWriter", "Compression"]

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec numbers by Kafka's names for the codecs."""

_FORMAT = 2
_NO_LIMIT = 2**31 - 1
_TRANSACTIONAL = 16
_CHECKSUM_AT, _CHECKED_FROM, _PRODUCER_AT, _RECORDS_AT = 17, 21, 43, 61
_CHECKSUM, _PRODUCER = struct.Struct(">I"), struct.Struct(">qhi")
_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, format, checksum, attributes, offset of the last record minus base offset, first
and maximum timestamp, producer id and epoch, sequence number, and number of records."""
_UNCOUNTED = 12
"""Number of bytes at the beginning of a batch that its length does not include."""


def _gzip(records: memoryview, level: int | None) -> bytes:
    if level is None:
        from isal import igzip  # noqa: PLC0415 - few programs compress with gzip

        return igzip.compress(records)
    return bytes(cramjam.gzip.compress(records, level=level))


def _snappy(records: memoryview, _level: int | None) -> bytes:
    return bytes(cramjam.snappy.compress_raw(records))


def _lz4(records: memoryview, level: int | None) -> bytes:
    # KIP-57: no linked blocks. Without a level, the fast compressor is used, as in Java and librdkafka.
    compressor = cramjam.lz4.Compressor(level=1 if level is None else level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(records))
    return bytes(compressor.finish())


def _zstd(records: memoryview, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(records, level=3 if level is None else level))


_COMPRESSORS: dict[str, Callable[[memoryview, int | None], bytes]] = {
    "gzip": _gzip,
    "snappy": _snappy,
    "lz4": _lz4,
    "zstd": _zstd,
}


class BatchWriter:
    """Record batch to which records are appended.

    Args:
        limit: maximum size in bytes before compression; the first record may be larger.
        compression: codec, one of ``COMPRESSIONS``.
        level: level of the compression; None for the codec's default.
        is_transactional: True for records of a transaction.

    Attributes:
        count: number of records.
        timestamps: timestamps of the records in milliseconds since 1970.
    """

    __slots__ = ("_append", "_content", "_options", "_producer_state", "_records", "timestamps")

    def __init__(
        self, limit: int, compression: str = "none", level: int | None = None, *, is_transactional: bool = True
    ) -> None:
        self._options = (limit, compression, level, is_transactional)
        self._records: RecordWriter | _PureRecordWriter = (record_writer or _PureRecordWriter)(limit)
        self._append = self._records.append
        self.timestamps: list[int] = self._records.timestamps
        self._content: bytearray | None = None
        self._producer_state = (-1, -1, -1)

    def __repr__(self) -> str:
        return f"<BatchWriter {self.count} records {self.size} bytes>"

    @property
    def count(self) -> int:
        return self._records.count

    @property
    def size(self) -> int:
        return self._records.size

    @property
    def encoded_size(self) -> int:
        """Size in bytes of the finished batch; 0 before ``encode``."""
        return 0 if self._content is None else len(self._content)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> int:
        """Append a record and return its size in bytes; return 0 without appending it if the batch is full.

        Without ``timestamp_ms`` (milliseconds since 1970), the record has the current time.

        Raises:
            MalformedMessageError: key, value, headers or timestamp are invalid; the batch is unchanged.
        """
        try:
            return self._append(key, value, headers, timestamp_ms)
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedMessageError(f"cannot encode the record: {error}") from error

    def encode(self, producer_id: int, producer_epoch: int, sequence: int) -> memoryview:
        """Finish the batch, and return its bytes with the given producer id, epoch and sequence number.

        After the first call, no record can be appended.
        """
        state = (producer_id, producer_epoch, sequence)
        if self._content is None:
            self._content = self._finished(*state)
        elif state != self._producer_state:
            # Change a copy, because the bytes that the previous call returned may still be in a socket's buffer.
            self._content = bytearray(self._content)
            _PRODUCER.pack_into(self._content, _PRODUCER_AT, *state)
            _set_checksum(self._content)
        self._producer_state = state
        return memoryview(self._content)

    def selected(self, indices: Sequence[int]) -> BatchWriter:
        """Finish this batch, and return a new batch with copies of the records at ``indices``."""
        (batch,) = split(self.encode(*self._producer_state))
        records = batch.decode("", 0, 0).take(self.count)
        _, compression, level, is_transactional = self._options
        # Without the first record, the others may become larger, because their timestamps are relative to it.
        chosen = BatchWriter(_NO_LIMIT, compression, level, is_transactional=is_transactional)
        for record in (records[index] for index in indices):
            chosen.append(record.key, record.value, record.headers, record.timestamp)
        return chosen

    def _finished(self, producer_id: int, producer_epoch: int, sequence: int) -> bytearray:
        """Return the batch, compressed if this makes it smaller."""
        _, compression, level, is_transactional = self._options
        records = self._records
        content, attributes = records.finish(), _TRANSACTIONAL if is_transactional else 0
        if compression != "none":
            packed = _COMPRESSORS[compression](memoryview(content)[_RECORDS_AT:], level)
            if len(packed) < len(content) - _RECORDS_AT:
                content[_RECORDS_AT:] = packed
                attributes |= COMPRESSIONS[compression]
        _HEAD.pack_into(
            content,
            0,
            0,
            len(content) - _UNCOUNTED,
            0,
            _FORMAT,
            0,
            attributes,
            records.count - 1,
            records.first_timestamp,
            records.max_timestamp,
            producer_id,
            producer_epoch,
            sequence,
            records.count,
        )
        _set_checksum(content)
        return content


class _PureRecordWriter:
    """``RecordWriter`` of the compiled module for installations without it, with aiokafka's builder."""

    def __init__(self, limit: int) -> None:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder  # noqa: PLC0415 - takes 0.1 s

        self._builder = DefaultRecordBatchBuilder(_FORMAT, 0, 0, -1, -1, -1, limit)
        self.timestamps: list[int] = []
        self.first_timestamp = self.max_timestamp = self.count = 0
        self._is_finished = False

    @property
    def size(self) -> int:
        return self._builder.size()

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int | None,
    ) -> int:
        if self._is_finished:
            return 0
        metadata = self._builder.append(self.count, timestamp_ms, key, value, list(headers))
        if metadata is None:
            return 0
        timestamp: int = metadata.timestamp
        if not self.count:
            self.first_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        self.timestamps.append(timestamp)
        return metadata.size

    def finish(self) -> bytearray:
        self._is_finished = True
        return bytearray(self._builder.build())


def _set_checksum(content: bytearray) -> None:
    with memoryview(content) as view:
        _CHECKSUM.pack_into(content, _CHECKSUM_AT, crc32c(view[_CHECKED_FROM:]))
