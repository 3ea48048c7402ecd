"""Counts of one handler's failures, taken from its events."""

from __future__ import annotations

from tailrace.observe.events import BatchFailed, Event, HandlerFailed, RecordDeadLettered, RecordDelayed, RecordSkipped

__all__ = ["HandlerEvents"]


class HandlerEvents:
    """Hook that receives the events of one handler.

    Attributes:
        failures: number of failed attempts; each failed record of a batch counts.
        delayed: number of records published to a retry topic.
        dead_letters: number of records published to the dead-letter topic.
        skipped: number of records skipped after they failed.
    """

    def __init__(self) -> None:
        self.failures = self.delayed = self.dead_letters = self.skipped = 0

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case HandlerFailed():
                self.failures += 1
            case BatchFailed(failed=failed):
                self.failures += failed
            case RecordDelayed():
                self.delayed += 1
            case RecordDeadLettered():
                self.dead_letters += 1
            case RecordSkipped():
                self.skipped += 1
            case _:
                pass
