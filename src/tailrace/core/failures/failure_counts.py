"""How often records have failed that are not done with.

Rule of this file: pure. A transaction that is taken back gives its records back as if they had never come; what they
cost is remembered here until their offsets are committed, or they are another's. Otherwise a record whose attempts take
longer than a transaction may would be tried for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.records import TopicPartition

__all__ = ["FailureCount", "FailureCounts"]


class FailureCount(NamedTuple):
    """How often one record has failed, and how often something was away that it needs."""

    failures: int = 0
    outages: int = 0

    @property
    def all(self) -> int:
        """Both."""
        return self.failures + self.outages


_NONE = FailureCount()


class FailureCounts:
    """Those of some partitions' records."""

    def __init__(self) -> None:
        self._of: dict[TopicPartition, dict[int, FailureCount]] = {}
        self._last_words: dict[tuple[TopicPartition, int], Exception] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    @property
    def has_last_words(self) -> bool:
        """Whether a record has no attempt left."""
        return bool(self._last_words)

    def failed(self, partition: TopicPartition, offset: int, *, is_outage: bool) -> FailureCount:
        """A record has failed once more; how often that is by now."""
        here = self._of.setdefault(partition, {})
        before = here.get(offset, _NONE)
        found = here[offset] = FailureCount(before.failures + (not is_outage), before.outages + is_outage)
        return found

    def close(self, partition: TopicPartition, offset: int, error: Exception) -> None:
        """A record has no attempt left: what it failed with last is what it fails with when it comes again."""
        self._last_words[partition, offset] = error

    def last_word(self, partition: TopicPartition, offset: int) -> Exception | None:
        """What a record fails with at once; None while it may be tried."""
        return self._last_words.get((partition, offset))

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What comes before these is done with."""
        for partition in self._of.keys() & offsets.keys():
            self._keep(partition, offsets[partition])

    def forget(self, partition: TopicPartition) -> None:
        """Its records are another's."""
        if partition in self._of:
            self._keep(partition, None)

    def _keep(self, partition: TopicPartition, begin: int | None) -> None:
        kept = {at: one for at, one in self._of.pop(partition).items() if begin is not None and at >= begin}
        if kept:
            self._of[partition] = kept
        for of, at in [place for place in self._last_words if place[0] == partition]:
            if at not in kept:
                del self._last_words[of, at]
