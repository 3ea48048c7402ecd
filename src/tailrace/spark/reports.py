"""Progress and results of backfills and handoffs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.records import TopicPartition

__all__ = ["BackfillProgress", "BackfillReport", "GroupStatus", "OnProgress", "progress_reporter"]


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """Progress of a backfill in offsets, some of which may hold no record."""

    done: int
    total: int
    elapsed_s: float

    @property
    def per_second(self) -> float:
        """Mean number of offsets per second."""
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated remaining time; None before the first offset."""
        return (self.total - self.done) / self.per_second if self.per_second else None


OnProgress: TypeAlias = Callable[[BackfillProgress], object]


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """Result of a backfill."""

    records: int
    """Number of records delivered to handlers."""
    failures: int
    """Number of these that failed for good or were written to a retry topic."""
    dead_letters: int
    """Number of failures written to the dead-letter topic."""
    duration_s: float
    offsets: Mapping[TopicPartition, int] = field(repr=False)
    """Committed offsets after the backfill."""
    already_finished: int = 0
    """Number of records skipped because the group had already finished them."""
    lost: int = 0
    """Number of offsets deleted from the log before they were read."""
    batches: int = 0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """Committed offsets of a group and end offsets of its topics."""

    group_id: str
    committed: Mapping[TopicPartition, int]
    """Committed offsets; partitions without one are missing."""
    ends: Mapping[TopicPartition, int] = field(repr=False)
    members: int
    """Number of live members."""

    @property
    def lag(self) -> int:
        """Sum of end offsets minus committed offsets; partitions without a committed offset have no lag."""
        return sum(max(0, self.ends[one] - offset) for one, offset in self.committed.items() if one in self.ends)


@contextmanager
def progress_reporter(title: str, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """Yield ``on_progress``, or else a progress bar on stderr if that is a terminal and rich is installed."""
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
        yield lambda one: bar.update(task, completed=one.done, total=one.total, rate=one.per_second)
