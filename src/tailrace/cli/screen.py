"""What commands write, and how: results on stdout, bars on a terminal alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

__all__ = ["Screen", "count", "megabytes", "per_second"]

_LABEL = 9
_DRAW_S = 0.1


class Screen:
    """Lines with a label in front, tables, and progress bars that are gone when they are full."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.is_terminal = self.console.is_terminal

    def say(self, label: str, text: str) -> None:
        """One thing that happened: ``label`` in front, ``text`` beside it, wrapped where the screen ends."""
        line = Table.grid(padding=(0, 1))
        line.add_column(width=_LABEL, style="dim")
        line.add_column(overflow="fold")
        line.add_row(label, text)
        self.console.print(line)

    def show(self, table: RenderableType) -> None:
        """A table, with room around it."""
        self.console.print(Padding(table, (1, 0, 0, 0)))

    async def watch(
        self,
        work: Awaitable[None],
        bars: Mapping[str, Callable[[], int]],
        total: int,
        below: Callable[[], RenderableType] | None = None,
    ) -> None:
        """Draw how far ``work`` is until it is done; where there is no terminal, only wait for it.

        Args:
            work: what to wait for.
            bars: by label, what says how many are done.
            total: how many there are.
            below: gives what to draw below the bars.
        """
        if not self.is_terminal:
            await work
            return
        progress = self.progress()
        counters = {progress.add_task(label, total=total, note=""): done for label, done in bars.items()}

        def picture() -> RenderableType:
            for bar, done in counters.items():
                progress.update(bar, completed=(now := done()), note=f"{count(now)} of {count(total)}")
            return Group(progress, below()) if below is not None else progress

        # Drawn by a task and not by Live's thread, which would look at numbers while they change.
        with Live(get_renderable=picture, console=self.console, transient=True, auto_refresh=False) as live:
            async with asyncio.TaskGroup() as tasks:
                drawing = tasks.create_task(_draw(live))
                await work
                drawing.cancel()

    def progress(self) -> Progress:
        """Bars, each with a ``note`` beside it; where there is no terminal, nothing at all."""
        return Progress(
            TextColumn(f"{{task.description:<{_LABEL}}}", style="dim"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.is_terminal,
        )


async def _draw(live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(_DRAW_S)


def count(number: float) -> str:
    """A whole number as people write it: ``336,776``."""
    return f"{number:,.0f}"


def per_second(number: float, seconds: float) -> str:
    """A rate with three figures that mean something."""
    rate = number / max(seconds, 1e-9)
    digits = max(len(f"{rate:.0f}") - 3, 0)
    return f"{round(rate, -digits):,.0f}"


def megabytes(size: float) -> str:
    """``101 MB``."""
    return f"{size / 1e6:,.0f} MB" if size >= 10e6 else f"{size / 1e6:.1f} MB"
