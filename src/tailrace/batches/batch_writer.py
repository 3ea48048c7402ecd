"""Writer of record batches (format 2).

Records are appended to one buffer in C. Producer id, producer epoch and sequence number are not known until the batch
is sent, and differ if it is sent again in another producer epoch; so ``encode`` sets them in the finished bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal, TypeAlias

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from tailrace.batches.record_batch import split
from tailrace.errors import MalformedMessageError

__all__ = ["COMPRESSIONS", "BatchWriter", "Compression"]

Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec numbers by Kafka's names for the codecs."""

_FORMAT = 2
_NO_HEADERS: list[tuple[str, bytes | None]] = []
_CHECKSUM_AT, _CHECKED_FROM, _PRODUCER_AT = 17, 21, 43
_CHECKSUM, _PRODUCER = struct.Struct(">I"), struct.Struct(">qhi")


class BatchWriter:
    """Record batch to which records are appended.

    Args:
        limit: maximum size in bytes before compression; the first record may be larger.
        compression: codec, one of ``COMPRESSIONS``.
        is_transactional: True for records of a transaction.

    Attributes:
        count: number of records.
    """

    __slots__ = ("_builder", "_content", "_options", "_producer_state", "count")

    def __init__(self, limit: int, compression: str = "none", *, is_transactional: bool = True) -> None:
        self._options = (limit, compression, is_transactional)
        self._builder = DefaultRecordBatchBuilder(
            _FORMAT, COMPRESSIONS[compression], int(is_transactional), -1, -1, -1, limit
        )
        self._content: bytearray | None = None
        self._producer_state = (-1, -1, -1)
        self.count = 0

    def __repr__(self) -> str:
        return f"<BatchWriter {self.count} records {self.size} bytes>"

    @property
    def size(self) -> int:
        return self._builder.size()

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
            metadata = self._builder.append(
                self.count, timestamp_ms, key, value, list(headers) if headers else _NO_HEADERS
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedMessageError(f"cannot encode the record: {error}") from error
        if metadata is None:
            return 0
        self.count += 1
        return metadata.size

    def encode(self, producer_id: int, producer_epoch: int, sequence: int) -> memoryview:
        """Finish the batch, and return its bytes with the given producer id, epoch and sequence number.

        After the first call, no record can be appended.
        """
        state = (producer_id, producer_epoch, sequence)
        if self._content is None:
            self._builder.set_producer_state(*state)
            self._content = self._builder.build()
        elif state != self._producer_state:
            # Change a copy, because the bytes that the previous call returned may still be in a socket's buffer.
            self._content = bytearray(self._content)
            _PRODUCER.pack_into(self._content, _PRODUCER_AT, *state)
            checksum = calc_crc32c(bytes(memoryview(self._content)[_CHECKED_FROM:]))
            _CHECKSUM.pack_into(self._content, _CHECKSUM_AT, checksum)
        self._producer_state = state
        return memoryview(self._content)

    def selected(self, indices: Sequence[int]) -> BatchWriter:
        """Finish this batch, and return a new batch with copies of the records at ``indices``."""
        (batch,) = split(self.encode(*self._producer_state))
        records = batch.decode("", 0, 0).take(self.count)
        limit, compression, is_transactional = self._options
        chosen = BatchWriter(limit, compression, is_transactional=is_transactional)
        for record in (records[index] for index in indices):
            chosen.append(record.key, record.value, record.headers, record.timestamp)
        return chosen
