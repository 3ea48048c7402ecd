"""Implementation of ``tailrace lag``."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from tailrace.admin.lag import GroupLag, PartitionLag, group_lag
from tailrace.cli.tools.connection import group_of, open_cluster, with_group_suggestion
from tailrace.cli.tools.groups import member_as_json
from tailrace.cli.tools.tables import Column, TextOutput, count, counted, rich_table, write_json
from tailrace.cli.tools.times import iso_text
from tailrace.net.cluster import Cluster
from tailrace.observe.log_format import escaped

__all__ = ["work"]

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


async def work(options: argparse.Namespace) -> int:
    """Print the lag of a group, once or repeatedly, and return the exit code."""
    async with open_cluster(options) as cluster:
        group_id = group_of(options, cluster.config)
        found = await with_group_suggestion(cluster, group_id, group_lag(cluster, group_id, timeout_s=options.timeout))
        if options.watch:
            await _watch(cluster, found, options)
        elif options.json:
            write_json(_as_json(found))
        else:
            _print_lag(TextOutput(), found, _total(found))
    return 0


def _print_lag(output: TextOutput, found: GroupLag, total: str) -> None:
    if found.partitions:
        output.table(_COLUMNS, _rows(found))
    output.line("lag", total)
    if lost_count := sum(one.lost for one in found.partitions):
        output.line(
            "lost", f"{counted(lost_count, 'record')} of the lag were deleted from the log before the group read them"
        )
    if found.leaderless:
        output.line("leader", f"{counted(found.leaderless, 'partition')} without a leader - check that all brokers run")


def _rows(found: GroupLag) -> list[list[str]]:
    return [_row(one) for one in found.partitions]


def _row(one: PartitionLag) -> list[str]:
    return [
        one.partition.topic,
        str(one.partition.partition),
        count(None if one.committed is None else one.committed.offset),
        count(one.end),
        count(one.lag),
        "-" if one.member is None else str(one.member),
    ]


def _total(found: GroupLag) -> str:
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


def _as_json(found: GroupLag, measured_at: str | None = None) -> list[dict[str, object]]:
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


async def _watch(cluster: Cluster, found: GroupLag, options: argparse.Namespace) -> None:
    """Print ``found``, then measure and print the lag every ``--interval`` until a signal.

    On a terminal, if rich is installed and ``--json`` is not given, each measurement replaces the previous one.
    """
    output = TextOutput()
    if not options.json and output.is_terminal:
        await _draw(cluster, found, options)
        return
    previous: tuple[float, int] | None = None
    while True:
        now = time.time()
        if options.json:
            write_json(_as_json(found, iso_text(int(now * 1000))))
        else:
            _print_lag(output, found, _total(found) + _rate(previous, (now, found.total)))
        previous = now, found.total
        await asyncio.sleep(options.interval)
        found = await group_lag(cluster, found.group.group_id, timeout_s=options.timeout)


async def _draw(cluster: Cluster, found: GroupLag, options: argparse.Namespace) -> None:
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    previous: tuple[float, int] | None = None
    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            now = time.time()
            total = f"lag       {_total(found)}{_rate(previous, (now, found.total))}"
            shown, note = _select_for_height(found.partitions, live.console.height - _OTHER_LINES)
            rows = [[escaped(cell) for cell in _row(one)] for one in shown]
            live.update(Group(Text(total), Text(note), rich_table(_COLUMNS, rows)), refresh=True)
            previous = now, found.total
            await asyncio.sleep(options.interval)
            found = await group_lag(cluster, found.group.group_id, timeout_s=options.timeout)


def _select_for_height(partitions: Sequence[PartitionLag], lines: int) -> tuple[Sequence[PartitionLag], str]:
    """Return the partitions to show on ``lines`` lines, and a note that counts the other partitions.

    If not all partitions fit, the partitions with the greatest lag are returned, sorted by descending lag. If all fit,
    their order is unchanged, and the note is empty.
    """
    if len(partitions) <= max(lines, 1):
        return partitions, ""
    shown = sorted(partitions, key=lambda one: -(one.lag or 0))[: max(lines, 1)]
    return shown, f"          {counted(len(partitions) - len(shown), 'more partition')}, none with a greater lag"


def _rate(previous: tuple[float, int] | None, current: Sequence[float]) -> str:
    """Return the change of the total lag in records per second, as text; empty for the first measurement.

    Args:
        previous: time in seconds and total lag of the previous measurement; None for the first measurement.
        current: time in seconds and total lag of this measurement.
    """
    if previous is None or current[0] <= previous[0]:
        return ""
    rate = (current[1] - previous[1]) / (current[0] - previous[0])
    return f", {rate:+,.0f} records/s" if abs(rate) >= 0.5 else ", steady"
