"""Report of the demo: routes, partitions and verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from tailrace.cli.demo.counts import FEWEST_FLIGHTS, HandledFlights, PartitionProof
from tailrace.cli.screen import count

__all__ = ["partitions_table", "routes_table", "shares", "verdict"]

_SHOWN_ROUTES = 10


def routes_table(counts: HandledFlights, airports: dict[str, str]) -> Table:
    """Return a table of the routes with the highest mean delay."""
    table = _table(f"Highest mean arrival delays ({FEWEST_FLIGHTS} or more flights)")
    table.add_column("from")
    table.add_column("to")
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=30, style="dim")
    table.add_column("flights", justify="right")
    table.add_column("mean delay", justify="right", style="bold")
    for route, delays in counts.worst_routes(_SHOWN_ROUTES):
        origin, _, dest = route.partition("-")
        table.add_row(origin, dest, airports.get(dest, ""), count(delays.flights), f"{delays.mean:.1f} min")
    if not table.row_count:
        table.add_row("-", "-", f"no route with {FEWEST_FLIGHTS} flights")
    return table


def partitions_table(proof: Sequence[PartitionProof]) -> Table:
    """Return a table of the counts by partition; it has a column of members unless Spark read the records."""
    table = _table("Records by partition")
    table.add_column("partition", justify="right")
    has_members = any(one.members for one in proof)
    if has_members:
        table.add_column("member", justify="right")
    for name in ("produced", "handled", "exactly once", "committed"):
        table.add_column(name, justify="right")
    for partition, one in enumerate(proof):
        table.add_row(
            str(partition),
            *([", ".join(str(member + 1) for member in one.members)] if has_members else []),
            *map(count, (one.produced, one.handled, one.handled_once)),
            "none" if one.committed is None else count(one.committed),
            style=None if one.holds else "bold red",
        )
    table.add_section()
    rows = ((one.produced, one.handled, one.handled_once, one.committed or 0) for one in proof)
    table.add_row("all", *[""] * has_members, *(count(sum(column)) for column in zip(*rows, strict=True)), style="bold")
    return table


def shares(counts: HandledFlights) -> str:
    """Return the number and percentage of records that each member handled."""
    counts_by_member = [sum(by_partition) for by_partition in counts.by_member]
    return ", ".join(
        f"member {number} {count(share)} ({share / max(counts.handled, 1):.0%})"
        for number, share in enumerate(counts_by_member, 1)
    )


def verdict(proof: Sequence[PartitionProof]) -> str:
    """Return the result of the verification as a sentence."""
    if all(one.holds for one in proof):
        return f"all {count(sum(one.produced for one in proof))} records were handled exactly once and committed"
    wrong = [str(partition) for partition, one in enumerate(proof) if not one.holds]
    return f"not every record was handled exactly once and committed: see partition {', '.join(wrong)}"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
