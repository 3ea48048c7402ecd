"""Records whose results or dead letters were too large for their topic. Pure: no clock, IO or logging.

A broker refuses a batch without naming the record. Refused transactions are therefore repeated in halves, until a
refused transaction contains a single record. When that record is delivered again, it fails instead of publishing its
result. If its dead letter is refused, too, a shorter form of the dead letter is published. The refusals are forgotten
when the record is committed and when its partition is revoked. They are also forgotten if the record is to be retried
later, because the topic may allow larger records by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.errors import PublishTooLargeError
from tailrace.records import TopicPartition

__all__ = ["RefusedRecords"]


@dataclass(slots=True)
class _RefusedRecord:
    result_error: PublishTooLargeError | None = None
    dead_letter_errors: list[PublishTooLargeError] = field(default_factory=list)


class RefusedRecords:
    """Records whose results or dead letters a broker has refused as too large."""

    def __init__(self) -> None:
        self._records: dict[tuple[TopicPartition, int], _RefusedRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def note_refusal(
        self, partition: TopicPartition, offset: int, error: PublishTooLargeError, *, is_dead_letter: bool
    ) -> None:
        """Note that the result or, if ``is_dead_letter``, the dead letter of a record was refused."""
        found = self._records.setdefault((partition, offset), _RefusedRecord())
        if is_dead_letter:
            found.dead_letter_errors.append(error)
        else:
            found.result_error = error

    def result_error(self, partition: TopicPartition, offset: int) -> PublishTooLargeError | None:
        """Return the error with which a record fails instead of publishing its result; None if there is no error."""
        found = self._records.get((partition, offset))
        return None if found is None else found.result_error

    def dead_letter_errors(self, partition: TopicPartition, offset: int) -> Sequence[PublishTooLargeError]:
        """Return the errors of the refused dead letters of a record, in the order of the refusals."""
        found = self._records.get((partition, offset))
        return () if found is None else found.dead_letter_errors

    def forget_record(self, partition: TopicPartition, offset: int) -> None:
        """Forget the refusals of a record, so that another attempt may publish its result."""
        self._records.pop((partition, offset), None)

    def forget_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the records below the committed ``offsets``."""
        self._records = {key: one for key, one in self._records.items() if key[1] >= offsets.get(key[0], 0)}

    def forget(self, partition: TopicPartition) -> None:
        """Forget the records of a partition that was revoked."""
        self._records = {key: one for key, one in self._records.items() if key[0] != partition}
