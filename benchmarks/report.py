"""Table of a comparison."""

from __future__ import annotations

from rich import box
from rich.table import Table


def table(rows: list[dict], compared_with: str) -> Table:
    """Return the table of results, one line per client, fastest first."""
    base = next(row["records_per_s"] for row in rows if row["client"] == compared_with)
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")
    shown.add_column("client")
    for name in ("records/s", "spread", "per CPU s", "memory", "ratio"):
        shown.add_column(name, justify="right")
    for row in sorted(rows, key=lambda row: -row["records_per_s"]):
        shown.add_row(
            row["client"],
            short(row["records_per_s"]),
            f"{(row['highest'] - row['lowest']) / row['records_per_s']:.0%}",
            short(row["records_per_cpu_s"]),
            f"{row['max_rss_bytes'] / 1e6:.0f} MB",
            f"{row['records_per_s'] / base:.2f}",
            style="bold" if row["client"].startswith("tailrace") else None,
        )
    return shown


def short(rate: float) -> str:
    """Format a rate with three significant digits, such as ``1.59 M`` or ``223 k``."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{rate:.0f}"
