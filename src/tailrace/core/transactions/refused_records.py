"""Records whose results or dead letters were too large for their topic.

A broker refuses a batch without naming the record, so windows are halved until a window has a single record. When that
record is delivered again, it fails instead of publishing its result. If its dead letter was refused, the next shorter
form of the dead letter is sent. A record is remembered until it is committed, its partition is revoked, or the record
is tried alone, because the topic may allow larger records by then.
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
    """Refusals by partition and offset of the record."""

    def __init__(self) -> None:
        self._of: dict[tuple[TopicPartition, int], _RefusedRecord] = {}

    def __len__(self) -> int:
        return len(self._of)

    def blame(self, partition: TopicPartition, offset: int, error: PublishTooLargeError, *, is_letter: bool) -> None:
        """Note that the result of a record, or a dead letter about it, was refused."""
        found = self._of.setdefault((partition, offset), _RefusedRecord())
        if is_letter:
            found.letters.append(error)
        else:
            found.output = error

    def of_output(self, partition: TopicPartition, offset: int) -> PublishTooLargeError | None:
        """Return the error with which the record fails if its handler publishes; None if there is none."""
        found = self._of.get((partition, offset))
        return None if found is None else found.output

    def of_letters(self, partition: TopicPartition, offset: int) -> Sequence[PublishTooLargeError]:
        """Return the errors of a record's refused dead letters, that of the longest first."""
        found = self._of.get((partition, offset))
        return () if found is None else found.letters

    def lift(self, partition: TopicPartition, offset: int) -> None:
        """Forget a record, so that it is tried again."""
        self._of.pop((partition, offset), None)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records before committed offsets."""
        self._of = {at: one for at, one in self._of.items() if at[1] >= offsets.get(at[0], 0)}

    def forget(self, partition: TopicPartition) -> None:
        """Forget the records of a partition that was revoked."""
        self._of = {at: one for at, one in self._of.items() if at[0] != partition}
