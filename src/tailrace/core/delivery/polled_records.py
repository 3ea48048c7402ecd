"""What a user who polls has in hand: the record taken last, or a batch; it is finished when the next is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tailrace.core.delivery.progress import Lease, Progress
from tailrace.records import Record, TopicPartition

__all__ = ["PolledRecords"]

_NONE: Iterator[Record] = iter(())


class PolledRecords:
    """The leases of one polling user.

    Attributes:
        slice: records to take one by one; the user takes them from here and nothing else is noted. Empty while a batch
            is in hand, so that whoever asks for one record more comes by ``finish``.
        current: the lease from which is taken.
        begun: the number of records in all leases so far, but for those that were given back or dropped.
    """

    def __init__(self) -> None:
        self.slice: Iterator[Record] = _NONE
        self.current: Lease | None = None
        self._used_up: list[Lease] = []
        """Leases of which all records were taken, and some are in hand as part of a batch."""
        self.begun = 0

    @property
    def left(self) -> int:
        """The number of records that were decoded and not taken."""
        return 0 if self.current is None else self.current.count

    @property
    def taken(self) -> int:
        """The number of records that were ever taken."""
        return self.begun - self.left

    @property
    def count_in_hand(self) -> int:
        """The number of records in hand."""
        return sum(lease.count_in_hand for lease in self._leases())

    @property
    def is_handed_out(self) -> bool:
        """Whether there is a record to take, or one was taken since the last ``finish``."""
        return self.current is not None or bool(self._used_up)

    def _leases(self) -> list[Lease]:
        return self._used_up if self.current is None else [*self._used_up, self.current]

    # ---- taking ------------------------------------------------------------------------------------------------

    def begin(self, lease: Lease) -> None:
        """Take from ``lease`` from now on; of the one before nothing is left."""
        if self.current is not None and self.current.lowest is not None:
            self._used_up.append(self.current)
        self.current, self.slice = lease, lease.left
        self.begun += lease.count

    def take(self, count: int) -> list[Record]:
        """Take up to ``count`` records of the current lease for a batch."""
        assert self.current is not None
        self.slice = _NONE
        return self.current.take(count)

    def give_back(self) -> tuple[Lease, list[Record]] | None:
        """Have the records that were not taken delivered again: of which lease, and which; None when there are none."""
        lease = self.current
        if lease is None or not lease.count:
            return None
        rest = lease.give_back()
        self.begun -= len(rest)
        self.slice = _NONE
        return lease, rest

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what is in hand of ``partitions``, and what is left of them."""
        self._drop(lambda lease: lease.partition in partitions)

    def drop_epoch(self, progress: Progress) -> None:
        """The same of one epoch of a partition."""
        self._drop(lambda lease: lease.progress is progress)

    def _drop(self, is_gone: Callable[[Lease], bool]) -> None:
        self._used_up = [lease for lease in self._used_up if not is_gone(lease)]
        if self.current is not None and is_gone(self.current):
            self.begun -= self.current.count
            self.current, self.slice = None, _NONE

    def close(self) -> None:
        """Hand out nothing more; what is in hand is never finished."""
        self.current, self.slice, self._used_up = None, _NONE, []

    # ---- finishing ---------------------------------------------------------------------------------------------

    def finish(self) -> list[Lease]:
        """The next record is asked for: all that is in hand is finished; gives the leases that it was of."""
        leases = self._leases()
        for lease in leases:
            lease.finish_taken()
        self._used_up = []
        if self.current is not None and not self.current.count:
            self.current = None
        self.slice = _NONE if self.current is None else self.current.left
        return leases

    def finish_of(self, partitions: Collection[TopicPartition]) -> None:
        """What is in hand of some partitions is finished; of the others it stays in hand."""
        for lease in self._leases():
            if lease.partition in partitions:
                lease.finish_taken()

    def acknowledge(self, record: Record) -> bool:
        """``record``, and what came before it in its partition, is finished; False when it is not in hand."""
        leases = self._leases()
        found = next((number for number, lease in enumerate(leases) if lease.holds(record)), None)
        if found is None:
            return False
        for before in leases[:found]:
            if before.progress is leases[found].progress:
                before.finish_taken()
        leases[found].finish_with(record)
        return True
