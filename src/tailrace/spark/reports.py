"""Progress and results of backfills and handoffs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.context_managers import contextmanager
from tailrace.records import TopicPartition

__all__ = ["BackfillProgress", "BackfillReport", "GroupStatus", "OnProgress", "progress_reporter"]


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """Progress of a backfill, counted in offsets; not every offset has a record."""

    done: int
    """Number of offsets in finished batches."""
    total: int
    """Number of offsets between the start and the end of the backfill."""
    elapsed_s: float
    """Seconds since the start of the backfill."""

    @property
    def per_second(self) -> float:
        """Mean number of offsets per second since the start."""
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated remaining time in seconds; None until the first batch has ended."""
        return (self.total - self.done) / self.per_second if self.per_second else None


OnProgress: TypeAlias = Callable[[BackfillProgress], object]
"""Function that is called at the start of a backfill and after each batch."""


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """Result of a backfill."""

    records: int
    """Number of records delivered to handlers."""
    failures: int
    """Number of records that failed for good, were skipped, or were written to a retry topic."""
    dead_letters: int
    """Number of records written to the dead-letter topic."""
    duration_s: float
    """Duration of the backfill in seconds."""
    offsets: Mapping[TopicPartition, int] = field(repr=False)
    """Committed offset after the backfill, by partition."""
    already_finished: int = 0
    """Number of records that were skipped because the live app had finished them before."""
    lost: int = 0
    """Number of offsets that were deleted from the log before they were read."""
    batches: int = 0
    """Number of batches."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Committed offsets and members of a group, and end offsets of the topics."""

    group_id: str
    committed: Mapping[TopicPartition, int]
    """Committed offsets by partition; a partition without a committed offset is missing."""
    ends: Mapping[TopicPartition, int] = field(repr=False)
    """End offsets by partition."""
    members: int
    """Number of live members."""

    @property
    def lag(self) -> int:
        """Sum of the lags of all partitions that have a committed offset."""
        return sum(max(0, self.ends[one] - offset) for one, offset in self.committed.items() if one in self.ends)


@contextmanager
def progress_reporter(title: str, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """Yield ``on_progress`` if it is not None.

    Otherwise, yield a function that shows a progress bar on stderr if stderr is a terminal and ``rich`` is installed,
    and that does nothing in other cases.
    """
    if on_progress is not None:
        yield on_progress
        return
    try:
        from rich import progress as rich  # noqa: PLC0415 - an extra
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ImportError:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.TextColumn("{task.completed:,.0f} of {task.total:,.0f}, {task.fields[rate]:,.0f}/s"),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, rate=0.0)
        yield lambda now: bar.update(task, completed=now.done, total=now.total, rate=now.per_second)
