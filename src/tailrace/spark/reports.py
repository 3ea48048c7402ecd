"""What a backfill and a handoff have to say, while they run and at their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tailrace.records import TopicPartition

__all__ = ["BackfillProgress", "BackfillReport", "OnProgress", "Standing", "shown"]


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How far a backfill is, in offsets: some of them may never have had a record."""

    done: int
    total: int
    elapsed_s: float

    @property
    def per_second(self) -> float:
        """How many a second so far."""
        return self.done / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def left_s(self) -> float | None:
        """How long it takes still, at this rate; None while there is none."""
        return (self.total - self.done) / self.per_second if self.per_second else None


OnProgress: TypeAlias = Callable[[BackfillProgress], object]


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What a backfill did."""

    records: int
    """That handlers were given."""
    failures: int
    """Of these, that failed for good, or go on in a retry topic."""
    dead_letters: int
    """Of these, that stand in the dead-letter topic."""
    duration_s: float
    offsets: Mapping[TopicPartition, int] = field(repr=False)
    """Where the group stands now: of each partition the next record."""
    passed: int = 0
    """Records that were not handled, as the group had finished them before."""
    lost: int = 0
    """Offsets that retention had removed before anybody read them."""
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands, against its topics' ends."""

    group_id: str
    committed: Mapping[TopicPartition, int]
    """Of each partition the next record; nothing where nothing is committed."""
    ends: Mapping[TopicPartition, int] = field(repr=False)
    members: int
    """How many are live."""

    @property
    def lag(self) -> int:
        """How many offsets from the one to the other; a partition of which nothing is committed has none."""
        return sum(max(0, self.ends[one] - offset) for one, offset in self.committed.items() if one in self.ends)


@contextmanager
def shown(title: str, on_progress: OnProgress | None) -> Iterator[OnProgress]:
    """Where progress is told: to ``on_progress``, or else on the terminal, if there is one and rich is installed."""
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
