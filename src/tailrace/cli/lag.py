"""``tailrace lag``: show the lag of a group, once or repeatedly."""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from tailrace import admin
from tailrace.cli.groups import member_as_json
from tailrace.cli.options import (
    CONNECTION_HELP,
    add_connection_options,
    add_group,
    group_of,
    open_cluster,
    seconds,
    with_group_suggestion,
)
from tailrace.cli.output import Column, TextOutput, count, counted, iso_text, rich_table, write_json
from tailrace.observe.log_format import escaped

if TYPE_CHECKING:
    from tailrace.net.cluster import Cluster

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Show the lag of a group by partition and in total.

Lag is the end offset of the log minus the committed offset. Partitions without
a committed offset or without a leader have no lag; they are shown as "-" and
left out of the total.
"""

_EPILOG = f"""\
examples:
  tailrace lag billing
  tailrace lag --app shop:billing --watch
  tailrace lag billing --json | jq -s 'map(.lag // 0) | add'

{CONNECTION_HELP}"""

_OTHER_LINES = 5
"""Number of lines of the terminal that are not rows of the table: total, note, table head and cursor."""
_COLUMNS = (
    Column("topic", is_folded=True),
    Column("partition", is_number=True),
    Column("committed", is_number=True),
    Column("end", is_number=True),
    Column("lag", is_number=True),
    Column("member", is_folded=True),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_group(parser)
    parser.add_argument("--watch", action="store_true", help="measure and print again every --interval, until Ctrl-C")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between measurements of --watch (default: 2)",
    )
    add_connection_options(parser)


async def run(options: argparse.Namespace) -> int:
    async with open_cluster(options) as cluster:
        group_id = group_of(options, cluster.config)
        found = await with_group_suggestion(
            cluster, group_id, admin.group_lag(cluster, group_id, timeout_s=options.timeout)
        )
        if options.watch:
            await _watch(cluster, found, options)
        elif options.json:
            write_json(_as_json(found))
        else:
            _print_lag(TextOutput(), found, _total(found))
    return 0


def _print_lag(output: TextOutput, found: admin.GroupLag, total: str) -> None:
    if found.partitions:
        output.table(_COLUMNS, map(_row, found.partitions))
    output.line("lag", total)
    if lost_count := sum(one.lost for one in found.partitions):
        output.line(
            "lost", f"{counted(lost_count, 'record')} of the lag were deleted from the log before the group read them"
        )
    if found.leaderless:
        output.line("leader", f"{counted(found.leaderless, 'partition')} without a leader - check that all brokers run")


def _row(one: admin.PartitionLag) -> list[str]:
    return [
        one.partition.topic,
        str(one.partition.partition),
        count(None if one.committed is None else one.committed.offset),
        count(one.end),
        count(one.lag),
        "-" if one.member is None else str(one.member),
    ]


def _total(found: admin.GroupLag) -> str:
    if not found.partitions:
        return "none: the group has no committed offsets and no assigned partitions"
    size = counted(len(found.partitions), "partition")
    # A group without commits is not up to date: its members commit for the first time some seconds after the start.
    total = "unknown" if found.uncommitted == len(found.partitions) else count(found.total)
    uncommitted = f"{count(found.uncommitted)} of them without a committed offset"
    if records := sum((one.end or 0) - (one.begin or 0) for one in found.partitions if one.committed is None):
        uncommitted += f" (up to {counted(records, 'record')} to read)"
    parts = [f"{total} in {size}"]
    parts += [uncommitted] if found.uncommitted else []
    parts += [f"{count(found.leaderless)} of them without a leader"] if found.leaderless else []
    return ", ".join(parts)


def _as_json(found: admin.GroupLag, measured_at: str | None = None) -> list[dict[str, object]]:
    time_field = {} if measured_at is None else {"at": measured_at}
    return [
        {
            **time_field,
            "group": found.group.group_id,
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "committed": None if one.committed is None else one.committed.offset,
            "begin": one.begin,
            "end": one.end,
            "lag": one.lag,
            "lost": one.lost,
            "leaderless": one.is_leaderless,
            **member_as_json(one.member),
        }
        for one in found.partitions
    ]


# ---- watch -------------------------------------------------------------------------------------------------------


async def _watch(cluster: Cluster, found: admin.GroupLag, options: argparse.Namespace) -> None:
    """Print ``found``, then measure and print the lag every ``--interval`` until a signal.

    On a terminal, if rich is installed and ``--json`` is not given, each measurement replaces the previous one.
    """
    output = TextOutput()
    if not options.json and output.is_terminal:
        await _draw(cluster, found, options)
        return
    async for measured, at, total in _measurements(cluster, found, options):
        if options.json:
            write_json(_as_json(measured, iso_text(int(at * 1000))))
        else:
            _print_lag(output, measured, total)


async def _draw(cluster: Cluster, found: admin.GroupLag, options: argparse.Namespace) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        async for measured, _, total in _measurements(cluster, found, options):
            shown, note = _select_for_height(measured.partitions, live.console.height - _OTHER_LINES)
            rows = [[escaped(cell) for cell in _row(one)] for one in shown]
            table = rich_table(_COLUMNS, rows)
            live.update(Group(Text(f"lag       {total}"), Text(note), table), refresh=True)


async def _measurements(
    cluster: Cluster, found: admin.GroupLag, options: argparse.Namespace
) -> AsyncIterator[tuple[admin.GroupLag, float, str]]:
    """Yield ``found``, and a new measurement every ``--interval``, each with its time and its total as text."""
    import asyncio

    at, rate = time.time(), ""
    while True:
        yield found, at, _total(found) + rate
        await asyncio.sleep(options.interval)
        previous, previous_at = found.total, at
        found = await admin.group_lag(cluster, found.group.group_id, timeout_s=options.timeout)
        at = time.time()
        if at > previous_at:
            change = (found.total - previous) / (at - previous_at)
            rate = f", {change:+,.0f} records/s" if abs(change) >= 0.5 else ", steady"
        else:
            rate = ""


def _select_for_height(
    partitions: Sequence[admin.PartitionLag], lines: int
) -> tuple[Sequence[admin.PartitionLag], str]:
    """Return the partitions to show on ``lines`` lines, and a note that counts the other partitions.

    If not all partitions fit, the partitions with the greatest lag are returned, sorted by descending lag. If all fit,
    their order is unchanged, and the note is empty.
    """
    if len(partitions) <= max(lines, 1):
        return partitions, ""
    shown = sorted(partitions, key=lambda one: -(one.lag or 0))[: max(lines, 1)]
    return shown, f"          {counted(len(partitions) - len(shown), 'more partition')}, none with a greater lag"
