"""Failure counts of unfinished records.

After an aborted transaction, its records are delivered again as if for the first time. Their failures are counted here
until their offsets are committed or their partitions are revoked. Otherwise a record would be retried forever if its
attempts take longer than a transaction may last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.records import TopicPartition

__all__ = ["FailureCount", "FailureCounts"]


class FailureCount(NamedTuple):
    """Failures and outages of one record."""

    failures: int = 0
    outages: int = 0

    @property
    def all(self) -> int:
        """Sum of failures and outages."""
        return self.failures + self.outages


_NONE = FailureCount()


class FailureCounts:
    """Failure counts by record."""

    def __init__(self) -> None:
        self._of: dict[TopicPartition, dict[int, FailureCount]] = {}
        self._final_errors: dict[tuple[TopicPartition, int], Exception] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    @property
    def has_final_errors(self) -> bool:
        """True if a record has no attempt left."""
        return bool(self._final_errors)

    def failed(self, partition: TopicPartition, offset: int, *, is_outage: bool) -> FailureCount:
        """Count a failure of a record and return its counts."""
        here = self._of.setdefault(partition, {})
        before = here.get(offset, _NONE)
        found = here[offset] = FailureCount(before.failures + (not is_outage), before.outages + is_outage)
        return found

    def close(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """Note that a record has no attempt left; the record fails with ``error`` when it is delivered again."""
        self._final_errors[partition, offset] = error

    def final_error(self, partition: TopicPartition, offset: int) -> Exception | None:
        """Return the error of a record that has no attempt left; None if the record may be tried."""
        return self._final_errors.get((partition, offset))

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records below the committed ``offsets``."""
        for partition in self._of.keys() & offsets.keys():
            self._keep(partition, offsets[partition])

    def forget(self, partition: TopicPartition) -> None:
        """Forget the records of a partition that was revoked."""
        if partition in self._of:
            self._keep(partition, None)

    def _keep(self, partition: TopicPartition, begin: int | None) -> None:
        kept = {at: one for at, one in self._of.pop(partition).items() if begin is not None and at >= begin}
        if kept:
            self._of[partition] = kept
        for of, at in [place for place in self._final_errors if place[0] == partition]:
            if at not in kept:
                del self._final_errors[of, at]
