"""Limit of the size of fetched batches (``max_batch_bytes``), checked before a batch is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import ConsumerConfig
from tailrace.core.delivery.positions import Position
from tailrace.errors import RecordTooLargeError, TailraceError

if TYPE_CHECKING:
    from tailrace.batches.record_batch import RecordBatch

__all__ = ["size_error"]


def size_error(config: ConsumerConfig, position: Position, batch: RecordBatch) -> TailraceError | None:
    """Return the error to raise in place of ``batch``; None if the batch is within the limit."""
    limit = config.max_batch_bytes
    if limit is None or batch.size <= limit:
        return None
    return RecordTooLargeError(
        f"{position.partition} at offset {batch.base_offset}: a batch of {batch.size} bytes is larger than"
        f" max_batch_bytes={limit} - raise the limit, or seek() to {batch.next_offset} to skip the batch"
    )
