"""Output of the results of a benchmark: a JSON file, and tables on the screen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.rounds import machine
from tailrace.cli.screen import Screen


def write(screen: Screen, path: Path, benchmark: str, result: dict) -> None:
    """Write the result and a description of the machine to ``path`` as JSON, and print the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmark": benchmark, **result, "machine": machine()}, indent=1) + "\n")
    screen.console.print()
    screen.line("written", str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def columns(first: str, *others: str) -> Table:
    """Return an empty table, whose columns except the first are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def throughputs(rows: Sequence[dict], compared_with: str) -> Table:
    """Return a table of throughputs, with a line for each client, and the fastest client first.

    Args:
        rows: results by client.
        compared_with: client whose throughput has the ratio 1.
    """
    base = next((row["records_per_s"] for row in rows if row["client"] == compared_with), None)
    table = columns("client", "records/s", "spread", "CPU/record", "memory", "ratio")
    for row in sorted(rows, key=lambda row: -row["records_per_s"]):
        table.add_row(
            row["client"],
            short_rate(row["records_per_s"]),
            f"{(row['highest'] - row['lowest']) / row['records_per_s']:.0%}",
            f"{row['cpu_us_per_record']:.2f} µs",
            f"{row['max_rss_bytes'] / 1e6:.0f} MB",
            f"{row['records_per_s'] / base:.2f}" if base else "-",
            style="bold" if row["client"].startswith("tailrace") else None,
        )
    return table


def short_rate(rate: float) -> str:
    """Format a rate with three significant digits, such as ``1.59 M`` or ``223 k``."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{rate:.0f}"
