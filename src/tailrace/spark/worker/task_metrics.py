"""Metrics of a task, returned to the driver in the last row of the task.

The row of a task is counted once, even if Spark ran the task several times; an accumulator could count each run.
Permanent errors are returned in a row, too: if they were raised, Spark would run the task and its side effects again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tailrace import errors
from tailrace.errors import DeadLetterError, HandlerFailedError, TailraceError
from tailrace.observe.events import Event, RecordDeadLettered, RecordDelayed, RecordSkipped, RecordUnmatched

__all__ = ["COLUMN", "FailureCounter", "TaskMetrics", "is_permanent"]

COLUMN = "_tailrace"
"""Column of the metrics, null in rows of results."""

_PERMANENT = ("ConfigurationError", "DeadLetterError", "DecodeError", "HandlerFailedError", "PublishTooLargeError")


@dataclass
class TaskMetrics:
    """Numbers of records by outcome."""

    records: int = 0
    """Number of records delivered to handlers."""
    already_finished: int = 0
    """Number of records skipped because the group's offset map lists them as finished."""
    dead_letters: int = 0
    skipped: int = 0
    delayed: int = 0
    """Number of records written to a retry topic."""
    error: str = ""
    """Name of the class of the error that ended the task."""
    reason: str = ""

    @property
    def failures(self) -> int:
        """Number of records that failed, for good or until a retry."""
        return self.dead_letters + self.skipped + self.delayed

    def __add__(self, other: TaskMetrics) -> TaskMetrics:
        return TaskMetrics(
            self.records + other.records,
            self.already_finished + other.already_finished,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
            self.delayed + other.delayed,
        )

    def to_text(self) -> str:
        """Encode the metrics for a row."""
        return json.dumps(asdict(self))

    @classmethod
    def summed(cls, texts: Iterable[str]) -> TaskMetrics:
        """Return the sum of the metrics of all rows.

        Raises:
            TailraceError: a task failed.
        """
        total = cls()
        for text in texts:
            one = cls(**json.loads(text))
            if one.error:
                raise _error_of(one.error, one.reason)
            total += one
        return total


class FailureCounter:
    """Hook that counts failures and keeps the positions of failed records, whose results are dropped."""

    def __init__(self) -> None:
        self.metrics = TaskMetrics()
        self.failed: set[tuple[str, int, int]] = set()

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case RecordDeadLettered():
                self.metrics.dead_letters += 1
            case RecordSkipped():
                self.metrics.skipped += 1
            case RecordDelayed():
                self.metrics.delayed += 1
            case RecordUnmatched():
                self.metrics.skipped += 1
                return
            case _:
                return
        self.failed.add((*event.partition, event.offset))


def is_permanent(error: BaseException) -> bool:
    """Return True if running the task again would not help."""
    return isinstance(error, HandlerFailedError | DeadLetterError) or type(error).__name__ in _PERMANENT


def _error_of(name: str, reason: str) -> TailraceError:
    kind = getattr(errors, name) if name in _PERMANENT else TailraceError
    error: TailraceError = kind(reason)
    return error
