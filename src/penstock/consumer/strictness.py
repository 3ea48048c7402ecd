"""What a user may forbid of a log that Kafka itself allows: batches of any size.

Rule of this file: it is asked of each batch, before anything of it is decoded; usually nothing is forbidden.
"""

from __future__ import annotations

from penstock.config import ConsumerConfig
from penstock.core.positions import Position
from penstock.errors import PenstockError, RecordTooLargeError
from penstock.wire.batches import Batch

__all__ = ["forbidden"]


def forbidden(config: ConsumerConfig, position: Position, batch: Batch) -> PenstockError | None:
    """Why ``batch`` may not be handed out at ``position``; None when it may."""
    limit = config.max_batch_bytes
    if limit is None or batch.size <= limit:
        return None
    return RecordTooLargeError(
        f"{position.partition} at offset {batch.base_offset}: a batch of {batch.size} bytes is larger than"
        f" max_batch_bytes={limit} - raise it, or seek() to {batch.next_offset} to go on without the batch"
    )
