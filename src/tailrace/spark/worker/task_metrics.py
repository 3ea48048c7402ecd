"""Metrics of a task, returned to the driver in the last row of the task.

The metrics of a task are counted once, even if Spark runs the task several times; an accumulator could count each run.
Permanent errors are returned in the same row: if they were raised, Spark would run the task again, with its side
effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tailrace import errors
from tailrace.errors import DeadLetterError, HandlerFailedError, TailraceError
from tailrace.observe.events import (
    Event,
    HandlerFailed,
    RecordDeadLettered,
    RecordDelayed,
    RecordSkipped,
    RecordUnmatched,
)

__all__ = ["METRICS_COLUMN", "FailureCounter", "TaskMetrics", "error_of", "is_permanent"]

METRICS_COLUMN = "_tailrace"
"""Name of the column with the metrics as JSON text; it is null in rows of results."""

_PERMANENT_ERRORS = (
    "ConfigurationError",
    "DeadLetterError",
    "DecodeError",
    "HandlerFailedError",
    "PublishTooLargeError",
)


@dataclass
class TaskMetrics:
    """Numbers of records of a task, or of several tasks, by outcome."""

    records: int = 0
    """Number of records delivered to handlers."""
    already_finished: int = 0
    """Number of records skipped because the group's offset map lists them as finished."""
    dead_letters: int = 0
    """Number of records written to the dead-letter topic."""
    skipped: int = 0
    """Number of records skipped by ``on_failure`` or ``unmatched``."""
    delayed: int = 0
    """Number of records written to a retry topic."""
    error: str = ""
    """Name of the class of the error that ended the task; empty if there was none."""
    reason: str = ""
    """Message of that error."""

    @property
    def failures(self) -> int:
        """Number of records that failed for good, were skipped, or were written to a retry topic."""
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
        """Encode the metrics for ``METRICS_COLUMN``."""
        return json.dumps(asdict(self))

    @classmethod
    def sum_of(cls, texts: Iterable[str]) -> TaskMetrics:
        """Return the sum of encoded metrics.

        Raises:
            TailraceError: a task failed; the error has the type and the message of the task's error.
        """
        total = cls()
        for text in texts:
            one = cls(**json.loads(text))
            if one.error:
                raise error_of(one.error, one.reason)
            total += one
        return total


class FailureCounter:
    """Hook that counts failed and skipped records, and stores their positions.

    Attributes:
        metrics: metrics of the current task.
        failed_positions: status by topic, partition and offset of each failed or skipped record, whose results are
            dropped.
        has_failed_attempts: True if an attempt to handle a record has failed.
    """

    def __init__(self) -> None:
        self.metrics = TaskMetrics()
        self.failed_positions: dict[tuple[str, int, int], str] = {}
        self.has_failed_attempts = False

    def on_event(self, event: Event) -> None:
        """Count the record if the event reports that it failed or was skipped."""
        match event:
            case RecordDeadLettered():
                self.metrics.dead_letters += 1
                status = "dead_lettered"
            case RecordSkipped() | RecordUnmatched():
                self.metrics.skipped += 1
                status = "skipped"
            case RecordDelayed():
                self.metrics.delayed += 1
                status = "delayed"
            case HandlerFailed():
                self.has_failed_attempts = True
                return
            case _:
                return
        self.failed_positions[*event.partition, event.offset] = status


def is_permanent(error: BaseException) -> bool:
    """Return True if another run of the task would fail with the same error."""
    return isinstance(error, HandlerFailedError | DeadLetterError) or type(error).__name__ in _PERMANENT_ERRORS


def error_of(name: str, reason: str) -> TailraceError:
    """Return a permanent error of a task, with the type and the message that it had in the worker."""
    kind = getattr(errors, name) if name in _PERMANENT_ERRORS else TailraceError
    error: TailraceError = kind(reason)
    return error
