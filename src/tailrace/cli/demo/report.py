"""What the demo shows: the routes, the partitions, the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from tailrace.cli.demo.counts import FEWEST_FLIGHTS, HandledFlights, PartitionProof
from tailrace.cli.screen import count

__all__ = ["partitions_table", "routes_table", "shares", "verdict"]

_SHOWN = 10


def routes_table(tally: HandledFlights, airports: dict[str, str]) -> Table:
    """The routes that arrived latest."""
    table = _table(f"The ten worst mean delays at arrival (of {FEWEST_FLIGHTS} flights or more)")
    table.add_column("from")
    table.add_column("to")
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=30, style="dim")
    table.add_column("flights", justify="right")
    table.add_column("mean delay", justify="right", style="bold")
    for route, delays in tally.worst(_SHOWN):
        origin, _, dest = route.partition("-")
        table.add_row(origin, dest, airports.get(dest, ""), count(delays.flights), f"{delays.mean:.1f} min")
    if not table.row_count:
        table.add_row("-", "-", "no route has so many flights yet")
    return table


def partitions_table(proof: Sequence[PartitionProof]) -> Table:
    """Each partition: which member read it, if there are any, and that nothing is missing and nothing came twice."""
    table = _table("Every record, by partition")
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
            *map(count, (one.produced, one.handled, one.once)),
            "none" if one.committed is None else count(one.committed),
            style=None if one.holds else "bold red",
        )
    table.add_section()
    rows = ((one.produced, one.handled, one.once, one.committed or 0) for one in proof)
    table.add_row("all", *[""] * has_members, *(count(sum(column)) for column in zip(*rows, strict=True)), style="bold")
    return table


def shares(tally: HandledFlights) -> str:
    """Who handled how much."""
    each = [sum(counts) for counts in tally.by_member]
    return ", ".join(
        f"member {number} {count(share)} ({share / max(tally.handled, 1):.0%})" for number, share in enumerate(each, 1)
    )


def verdict(proof: Sequence[PartitionProof]) -> str:
    """One sentence."""
    if all(one.holds for one in proof):
        return f"all {count(sum(one.produced for one in proof))} records were handled, each once, and are committed"
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
