"""What a user may forbid of a log that Kafka itself allows: batches of any size.

Rule of this file: it is asked of each batch, before anything of it is decoded; usually nothing is forbidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import ConsumerConfig
from tailrace.core.delivery.positions import Position
from tailrace.errors import RecordTooLargeError, TailraceError

if TYPE_CHECKING:
    from tailrace.batches.record_batch import RecordBatch

__all__ = ["forbidden"]


def forbidden(config: ConsumerConfig, position: Position, batch: RecordBatch) -> TailraceError | None:
    """Why ``batch`` may not be handed out at ``position``; None when it may."""
    limit = config.max_batch_bytes
    if limit is None or batch.size <= limit:
        return None
    return RecordTooLargeError(
        f"{position.partition} at offset {batch.base_offset}: a batch of {batch.size} bytes is larger than"
        f" max_batch_bytes={limit} - raise it, or seek() to {batch.next_offset} to go on without the batch"
    )
