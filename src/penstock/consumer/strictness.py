"""What a user may forbid of a log that Kafka itself allows: gaps between offsets, and batches of any size.

Rule of this file: it is asked of each batch, before anything of it is decoded; usually nothing is forbidden.
"""

from __future__ import annotations

from penstock.config import ConsumerConfig
from penstock.core.positions import Position
from penstock.errors import OffsetGapError, PenstockError, RecordTooLargeError
from penstock.wire.batches import Batch

__all__ = ["forbidden"]


def forbidden(config: ConsumerConfig, position: Position, batch: Batch, *, is_visible: bool) -> PenstockError | None:
    """Why ``batch`` may not be handed out at ``position``; None when it may."""
    limit = config.max_batch_bytes
    if limit is not None and batch.size > limit:
        return RecordTooLargeError(
            f"{position.partition} at offset {batch.base_offset}: a batch of {batch.size} bytes is larger than"
            f" max_batch_bytes={limit} - raise it, or seek() to {batch.next_offset} to go on without the batch"
        )
    if config.allow_offset_gaps:
        return None
    begin = position.fetched or 0
    if batch.base_offset > begin:
        what = f"offsets {begin} to {batch.base_offset - 1} are not there"
    elif not is_visible:
        what = f"offsets {begin} to {batch.next_offset - 1} are a transaction's marker, or were taken back"
    elif batch.count is not None and batch.count < batch.next_offset - batch.base_offset:
        what = f"of offsets {batch.base_offset} to {batch.next_offset - 1} only {batch.count} are there"
    else:
        return None
    return OffsetGapError(
        f"{position.partition}: {what} - set allow_offset_gaps=True, or seek() past them to go on without"
    )
