"""Whose output was too large, as is known since transactions were taken back for it.

Rule of this file: pure. A broker refuses a transaction, and does not say for which of its records; so transactions
become smaller until one has a single record. When that comes again, it is not published again: what the handler has
published is the record's failure then, and of a letter about it the next one, which is shorter, is sent. It is
remembered until the record is committed, is another's, or is set aside: after a while the topic may allow more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.errors import PublishTooLargeError
from tailrace.records import TopicPartition

__all__ = ["RefusedRecords"]


@dataclass(slots=True)
class _RefusedRecord:
    output: PublishTooLargeError | None = None
    letters: list[PublishTooLargeError] = field(default_factory=list)


class RefusedRecords:
    """What was refused of single records of some partitions."""

    def __init__(self) -> None:
        self._of: dict[tuple[TopicPartition, int], _RefusedRecord] = {}

    def __len__(self) -> int:
        return len(self._of)

    def blame(self, partition: TopicPartition, offset: int, error: PublishTooLargeError, *, is_letter: bool) -> None:
        """It was what the record's handler has published, or a letter about the record."""
        found = self._of.setdefault((partition, offset), _RefusedRecord())
        if is_letter:
            found.letters.append(error)
        else:
            found.output = error

    def of_output(self, partition: TopicPartition, offset: int) -> PublishTooLargeError | None:
        """What the record fails with if its handler publishes something."""
        found = self._of.get((partition, offset))
        return None if found is None else found.output

    def of_letters(self, partition: TopicPartition, offset: int) -> Sequence[PublishTooLargeError]:
        """What became of the letters about it, the longest one first."""
        found = self._of.get((partition, offset))
        return () if found is None else found.letters

    def lift(self, partition: TopicPartition, offset: int) -> None:
        """Let it try again."""
        self._of.pop((partition, offset), None)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """What comes before these is done with."""
        self._of = {at: one for at, one in self._of.items() if at[1] >= offsets.get(at[0], 0)}

    def forget(self, partition: TopicPartition) -> None:
        """Its records are another's."""
        self._of = {at: one for at, one in self._of.items() if at[0] != partition}
