"""Failure counts of unfinished records, which outlast an aborted transaction.

The records of an aborted transaction are delivered again. Their failures stay counted until their offsets are committed
or their partitions are revoked. Otherwise, a record whose attempts take longer than a transaction may last would be
retried forever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.records import TopicPartition

__all__ = ["FailureCount", "FailureCounts"]


class FailureCount(NamedTuple):
    """Failures of one record."""

    failures: int = 0
    """Number of failures that the record itself may have caused."""
    outages: int = 0
    """Number of failures because something that the handler needs was unavailable."""

    @property
    def total(self) -> int:
        """Sum of failures and outages."""
        return self.failures + self.outages


_NONE = FailureCount()


class FailureCounts:
    """Failure counts by record, and the errors of records without an attempt left."""

    def __init__(self) -> None:
        self._counts: dict[TopicPartition, dict[int, FailureCount]] = {}
        self._final_errors: dict[tuple[TopicPartition, int], Exception] = {}

    def __len__(self) -> int:
        return sum(map(len, self._counts.values()))

    @property
    def has_final_errors(self) -> bool:
        """True if a record has no attempt left."""
        return bool(self._final_errors)

    def count_failure(self, partition: TopicPartition, offset: int, *, is_outage: bool) -> FailureCount:
        """Count a failure of a record, and return the failures of the record so far."""
        counts = self._counts.setdefault(partition, {})
        before = counts.get(offset, _NONE)
        found = counts[offset] = FailureCount(before.failures + (not is_outage), before.outages + is_outage)
        return found

    def set_final_error(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """Note that a record has no attempt left; the record fails with ``error`` when it is delivered again."""
        self._final_errors[partition, offset] = error

    def final_error(self, partition: TopicPartition, offset: int) -> Exception | None:
        """Return the error of a record that has no attempt left; None if the record may be tried."""
        return self._final_errors.get((partition, offset))

    def forget_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records below the committed ``offsets``."""
        for partition in self._counts.keys() & offsets.keys():
            self._keep_from(partition, offsets[partition])

    def forget(self, partition: TopicPartition) -> None:
        """Forget the records of a partition that was revoked."""
        if partition in self._counts:
            self._keep_from(partition, None)

    def _keep_from(self, partition: TopicPartition, begin: int | None) -> None:
        """Forget the records of a partition below the offset ``begin``; all records if it is None."""
        counts = self._counts.pop(partition)
        kept = {offset: count for offset, count in counts.items() if begin is not None and offset >= begin}
        if kept:
            self._counts[partition] = kept
        for record in [one for one in self._final_errors if one[0] == partition]:
            if record[1] not in kept:
                del self._final_errors[record]
