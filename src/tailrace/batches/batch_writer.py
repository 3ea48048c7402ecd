"""Writer of record batches (format 2).

A batch is written record by record into one buffer, in C. The producer's id, epoch and sequence are set when it is
closed, since they are known only then.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tailrace.errors import MalformedMessageError

__all__ = ["COMPRESSIONS", "BatchWriter"]

COMPRESSIONS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""By Kafka's names."""

_FORMAT = 2


class BatchWriter:
    """One batch of a transaction, being filled.

    Attributes:
        count: records in it.
    """

    __slots__ = ("_builder", "count")

    def __init__(self, limit: int, compression: str = "none") -> None:
        self._builder = DefaultRecordBatchBuilder(_FORMAT, COMPRESSIONS[compression], 1, -1, -1, -1, limit)
        self.count = 0

    def __repr__(self) -> str:
        return f"<BatchWriter {self.count} records {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes in it, before compression."""
        return self._builder.size()

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> bool:
        """Take one more record, written now if nothing else is said; False when it is full, but the first always fits.

        Raises:
            MalformedMessageError: key, value or headers are not what a record has; the batch is as it was.
        """
        try:
            taken = self._builder.append(self.count, timestamp_ms, key, value, list(headers))
        except (TypeError, ValueError, OverflowError) as error:
            raise MalformedMessageError(f"a record that cannot be written: {error}") from error
        if taken is None:
            return False
        self.count += 1
        return True

    def written(self, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
        """The whole batch, closed, as that producer's and from that place in its sequence on; asked for once."""
        self._builder.set_producer_state(producer_id, producer_epoch, sequence)
        return bytes(self._builder.build())
