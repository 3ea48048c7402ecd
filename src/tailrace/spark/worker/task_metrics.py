"""What a worker did, in numbers, on its way back to the driver: one row of text behind those of a task.

Rule of this file: what a task has to say is a row, since a row counts once, however often Spark ran the task. An error
that would come again is a row, too: raised, it would have Spark run the task again, and all that it had done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tailrace import errors
from tailrace.errors import DeadLetterError, HandlerFailedError, TailraceError
from tailrace.observe.events import Event, RecordDeadLettered, RecordDelayed, RecordSkipped, RecordUnmatched

__all__ = ["COLUMN", "FailureCounter", "TaskMetrics", "is_told"]

COLUMN = "_tailrace"
"""Its name; no row of a handler has anything in it."""

_TOLD = ("ConfigurationError", "DeadLetterError", "DecodeError", "HandlerFailedError", "PublishTooLargeError")


@dataclass
class TaskMetrics:
    """What became of records."""

    records: int = 0
    """That handlers were given."""
    passed: int = 0
    """That somebody had finished before: the map beside the group's offset says so."""
    dead_letters: int = 0
    skipped: int = 0
    delayed: int = 0
    """That went to a retry topic."""
    error: str = ""
    """The class of what ended the task."""
    reason: str = ""

    @property
    def failures(self) -> int:
        """Records whose handler failed for good, or for now."""
        return self.dead_letters + self.skipped + self.delayed

    def __add__(self, other: TaskMetrics) -> TaskMetrics:
        return TaskMetrics(
            self.records + other.records,
            self.passed + other.passed,
            self.dead_letters + other.dead_letters,
            self.skipped + other.skipped,
            self.delayed + other.delayed,
        )

    def to_text(self) -> str:
        """As a row has it."""
        return json.dumps(asdict(self))

    @classmethod
    def summed(cls, texts: Iterable[str]) -> TaskMetrics:
        """All rows together.

        Raises:
            TailraceError: what ended a task.
        """
        whole = cls()
        for text in texts:
            one = cls(**json.loads(text))
            if one.error:
                raise _raised(one.error, one.reason)
            whole += one
        return whole


class FailureCounter:
    """A hook: counts what failed, and says where, so that what failed after all gives no rows."""

    def __init__(self) -> None:
        self.tally = TaskMetrics()
        self.failed: set[tuple[str, int, int]] = set()

    def on_event(self, event: Event) -> None:
        """Take note."""
        match event:
            case RecordDeadLettered():
                self.tally.dead_letters += 1
            case RecordSkipped():
                self.tally.skipped += 1
            case RecordDelayed():
                self.tally.delayed += 1
            case RecordUnmatched():
                self.tally.skipped += 1
                return
            case _:
                return
        self.failed.add((*event.partition, event.offset))


def is_told(error: BaseException) -> bool:
    """Whether an error is a row: to run the task again would not help."""
    return isinstance(error, HandlerFailedError | DeadLetterError) or type(error).__name__ in _TOLD


def _raised(name: str, reason: str) -> TailraceError:
    kind = getattr(errors, name) if name in _TOLD else TailraceError
    made: TailraceError = kind(reason)
    return made
