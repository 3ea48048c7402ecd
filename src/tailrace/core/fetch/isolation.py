"""Which batches of a fetch a reader may see: no markers, and with ``read_committed`` nothing that was taken back.

The broker sends all that is there, with a list of aborted transactions: of a producer's records those from the
transaction's first offset up to its abort marker are to be passed over (KIP-98).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from tailrace.protocol.fetch import AbortedTransaction

__all__ = ["BatchHeader", "visible"]


class BatchHeader(Protocol):
    """What has to be known of a batch."""

    @property
    def next_offset(self) -> int: ...

    @property
    def is_control(self) -> bool: ...

    @property
    def producer_id(self) -> int | None: ...

    def is_abort_marker(self) -> bool: ...


BatchT = TypeVar("BatchT", bound=BatchHeader)


def visible(batches: Iterable[BatchT], aborted: Sequence[AbortedTransaction] | None) -> Iterator[tuple[BatchT, bool]]:
    """Each batch, and whether its records are to be handed out.

    ``aborted`` is what the broker lists for ``read_committed``; None for ``read_uncommitted``, which sees all records.
    """
    pending = [(one.first_offset, one.producer_id) for one in aborted or ()]
    heapq.heapify(pending)
    taken_back: set[int] = set()
    for batch in batches:
        while pending and pending[0][0] < batch.next_offset:
            taken_back.add(heapq.heappop(pending)[1])
        if batch.is_control:
            if batch.producer_id is not None and batch.is_abort_marker():
                taken_back.discard(batch.producer_id)
            yield batch, False
        else:
            yield batch, batch.producer_id not in taken_back
