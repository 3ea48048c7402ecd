"""Records that a polling user has in flight: the record or batch of the last poll, which the next poll finishes.

Pure: no clock, IO or logging.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from tailrace.core.progress import Lease, Progress
from tailrace.records import AnyRecord, TopicPartition

__all__ = ["PolledRecords"]

_NONE: Iterator[AnyRecord] = iter(())


class PolledRecords:
    """Leases of one polling user.

    Attributes:
        remaining: iterator from which the user takes records one by one; empty while a batch is in flight, so that the
            next poll calls ``finish`` first.
        current: lease from which records were last taken; None if there is none, or if all its records are finished.
        count_added: number of records in all leases so far, except records that were given back or dropped before the
            user took them.
    """

    __slots__ = ("_used_up", "count_added", "current", "remaining")  # `remaining` is read for each record

    def __init__(self) -> None:
        self.remaining: Iterator[AnyRecord] = _NONE
        self.current: Lease | None = None
        self._used_up: list[Lease] = []
        """Earlier leases that have records in flight as part of a batch."""
        self.count_added = 0

    @property
    def count_left(self) -> int:
        """Number of records of the current lease that were not taken."""
        return 0 if self.current is None else self.current.count

    @property
    def count_taken(self) -> int:
        return self.count_added - self.count_left

    @property
    def count_in_flight(self) -> int:
        return sum(lease.count_in_flight for lease in self._leases())

    @property
    def has_records(self) -> bool:
        """True if a record can be taken, or was taken since the last ``finish``."""
        return self.current is not None or bool(self._used_up)

    def _leases(self) -> list[Lease]:
        return self._used_up if self.current is None else [*self._used_up, self.current]

    # ---- taking ------------------------------------------------------------------------------------------------

    def begin(self, lease: Lease) -> None:
        """Take records from ``lease`` from now on; all records of the previous lease must have been taken."""
        if self.current is not None:
            if self.current.lowest is None:
                # The records are tracked by offset, so no poll finishes this lease.
                self.current.finish()
            else:
                self._used_up.append(self.current)
        self.current, self.remaining = lease, lease.left
        self.count_added += len(lease.records)

    def begin_delivered(self, lease: Lease) -> None:
        """Begin ``lease`` and mark all its records as taken, because the user has them already."""
        self.begin(lease)
        self.remaining = _NONE
        lease.take()

    def take(self, count: int) -> Sequence[AnyRecord]:
        """Take up to ``count`` records of the current lease for a batch."""
        assert self.current is not None
        self.remaining = _NONE
        return self.current.take(count)

    def give_back(self) -> tuple[Lease, list[AnyRecord]] | None:
        """Give back the untaken records, which will be delivered again; return the current lease and these records.

        Return None if all records were taken.
        """
        lease = self.current
        if lease is None or not lease.count:
            return None
        rest = lease.give_back()
        self.count_added -= len(rest)
        self.remaining = _NONE
        return lease, rest

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        self._drop(lambda lease: lease.partition in partitions)

    def drop_epoch(self, progress: Progress) -> None:
        self._drop(lambda lease: lease.progress is progress)

    def _drop(self, is_gone: Callable[[Lease], bool]) -> None:
        self._used_up = [lease for lease in self._used_up if not is_gone(lease)]
        if self.current is not None and is_gone(self.current):
            self.count_added -= self.current.count
            self.current, self.remaining = None, _NONE

    def close(self) -> None:
        """Deliver no more records; records in flight stay unfinished."""
        self.current, self.remaining, self._used_up = None, _NONE, []

    # ---- finishing ---------------------------------------------------------------------------------------------

    def finish(self) -> list[Lease]:
        """Finish all records in flight, because the user polls again; return the leases of these records."""
        leases = self._leases()
        for lease in leases:
            lease.finish()
        self._used_up = []
        if self.current is not None and not self.current.count:
            self.current = None
        self.remaining = _NONE if self.current is None else self.current.left
        return leases

    def finish_of(self, partitions: Collection[TopicPartition]) -> None:
        for lease in self._leases():
            if lease.partition in partitions:
                lease.finish()

    def acknowledge(self, record: AnyRecord) -> bool:
        """Finish ``record`` and all earlier records of its partition; return False if ``record`` is not in flight."""
        leases = self._leases()
        found = next((number for number, lease in enumerate(leases) if lease.finish(record)), None)
        if found is None:
            return False
        for before in leases[:found]:
            if before.progress is leases[found].progress:
                before.finish()
        return True
