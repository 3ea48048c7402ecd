"""Visibility of fetched batches: the records of control batches and of aborted transactions are not delivered.

With ``read_committed``, the broker sends all batches and a list of aborted transactions. The records of an aborted
transaction are those of its producer from the transaction's first offset up to its abort marker (KIP-98). With
``read_uncommitted``, records of aborted transactions are delivered.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tailrace.protocol.fetch import AbortedTransaction

__all__ = ["BatchHeader", "visible"]


class BatchHeader(Protocol):
    """Header fields of a batch that decide whether its records are delivered."""

    @property
    def next_offset(self) -> int: ...

    @property
    def is_control(self) -> bool: ...

    @property
    def producer_id(self) -> int | None: ...

    def is_abort_marker(self) -> bool: ...


BatchT = TypeVar("BatchT", bound=BatchHeader)


def visible(batches: Iterable[BatchT], aborted: Sequence[AbortedTransaction] | None) -> Iterator[tuple[BatchT, bool]]:
    """Yield each batch, with True if its records are to be delivered.

    Args:
        batches: fetched batches of one partition, in order.
        aborted: list of aborted transactions from the broker; None with ``read_uncommitted``.
    """
    pending = [(one.first_offset, one.producer_id) for one in aborted or ()]
    heapq.heapify(pending)
    aborting: set[int] = set()
    for batch in batches:
        while pending and pending[0][0] < batch.next_offset:
            aborting.add(heapq.heappop(pending)[1])
        if batch.is_control:
            if batch.producer_id is not None and batch.is_abort_marker():
                aborting.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, batch.producer_id not in aborting
