"""Checks of fetched batches before they are decoded: their size (``max_batch_bytes``), checksum and markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import ConsumerConfig
from tailrace.core.delivery.positions import Position
from tailrace.errors import MalformedMessageError, RecordTooLargeError, TailraceError

if TYPE_CHECKING:
    from tailrace.batches.record_batch import RecordBatch

__all__ = ["fault_of", "size_error"]


def fault_of(config: ConsumerConfig, batch: RecordBatch) -> str | None:
    """Return the reason why ``batch`` cannot be read; None if it can be read.

    The marker of a control batch is decoded, too, so that ``is_abort_marker`` cannot raise an error later.
    """
    # The checksum is verified before any byte that it covers is interpreted.
    if config.check_crcs and not batch.checksum_holds():
        return "the checksum of the batch is wrong"
    if batch.next_offset <= batch.base_offset:
        return f"the last offset of the batch, {batch.next_offset - 1}, is below its first, {batch.base_offset}"
    if batch.is_control:
        try:
            batch.is_abort_marker()
        except MalformedMessageError as error:
            return str(error)
    return None


def size_error(config: ConsumerConfig, position: Position, batch: RecordBatch) -> TailraceError | None:
    """Return the error to raise in place of ``batch``; None if the batch is within the limit."""
    limit = config.max_batch_bytes
    if limit is None or batch.size <= limit:
        return None
    return RecordTooLargeError(
        position.partition,
        batch.base_offset,
        batch.next_offset,
        f"a batch of {batch.size} bytes is larger than max_batch_bytes={limit}",
        "raise the limit",
    )
