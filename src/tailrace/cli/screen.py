"""Output of commands with rich: labeled lines, tables, and progress bars on a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "megabytes", "per_second", "titled_table"]

_LABEL_WIDTH = 9
_DRAW_INTERVAL_S = 0.1


class Screen:
    """Writer of labeled lines, tables and transient progress bars to stdout."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.is_terminal = self.console.is_terminal

    def line(self, label: str, text: str) -> None:
        """Print ``text`` after ``label``, wrapped at the width of the terminal."""
        line = Table.grid(padding=(0, 1))
        line.add_column(width=_LABEL_WIDTH, style="dim")
        line.add_column(overflow="fold")
        line.add_row(label, text)
        self.console.print(line)

    def show(self, table: RenderableType) -> None:
        """Print an empty line and a table."""
        self.console.print(Padding(table, (1, 0, 0, 0)))

    async def watch(
        self,
        work: Awaitable[None],
        bars: Mapping[str, Callable[[], int]],
        total: int,
        below: Callable[[], RenderableType] | None = None,
    ) -> None:
        """Await ``work``; if stdout is a terminal, draw progress bars meanwhile.

        Args:
            work: awaitable to wait for.
            bars: one function for each bar, by the label of the bar; it returns the number of finished items.
            total: number of items at which a bar is full.
            below: function that returns what to draw below the bars, such as a table.
        """
        if not self.is_terminal:
            await work
            return
        progress = self.progress()
        counters = {progress.add_task(label, total=total, note=""): done for label, done in bars.items()}

        def render() -> RenderableType:
            for bar, done in counters.items():
                progress.update(bar, completed=(now := done()), note=f"{now:,} of {total:,}")
            return Group(progress, below()) if below is not None else progress

        # A task refreshes the bars: Live's own thread would read the counts while the event loop changes them.
        with Live(get_renderable=render, console=self.console, transient=True, auto_refresh=False) as live:
            async with asyncio.TaskGroup() as tasks:
                drawing = tasks.create_task(_draw(live))
                await work
                drawing.cancel()

    def progress(self) -> Progress:
        """Return progress bars, each with a field ``note``; they are not drawn if stdout is not a terminal."""
        return Progress(
            TextColumn(f"{{task.description:<{_LABEL_WIDTH}}}", style="dim"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            disable=not self.is_terminal,
        )


def titled_table(title: str, *, expand: bool = False) -> Table:
    """Return a table without rows; with ``expand``, it is as wide as the terminal."""
    return Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        expand=expand,
    )


async def _draw(live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(_DRAW_INTERVAL_S)


def per_second(number: float, seconds: float) -> str:
    """Format ``number / seconds`` with three significant digits."""
    rate = number / max(seconds, 1e-9)
    digits = max(len(f"{rate:.0f}") - 3, 0)
    return f"{round(rate, -digits):,.0f}"


def megabytes(size: float) -> str:
    """Format a number of bytes in MB: ``101 MB``, or with one decimal below 10 MB: ``1.2 MB``."""
    return f"{size / 1e6:,.0f} MB" if size >= 10e6 else f"{size / 1e6:.1f} MB"
