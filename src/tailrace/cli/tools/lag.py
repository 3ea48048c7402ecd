"""What ``tailrace lag`` does."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from tailrace.admin.lag import GroupLag, PartitionLag, group_lag
from tailrace.cli.tools.connection import group_of, hinting, reached
from tailrace.cli.tools.groups import member_as_json
from tailrace.cli.tools.tables import Column, Paper, count, counted, drawn, plain, write_json
from tailrace.cli.tools.times import iso
from tailrace.net.cluster import Cluster

__all__ = ["work"]

_LINES_BESIDE = 5
"""Lines of the drawn screen that are not rows: the sum, a note, the table's head, the cursor's."""
_COLUMNS = (
    Column("topic", is_folded=True),
    Column("partition", is_number=True),
    Column("committed", is_number=True),
    Column("end", is_number=True),
    Column("lag", is_number=True),
    Column("member", is_folded=True),
)


async def work(options: argparse.Namespace) -> int:
    """Measure once, or again and again; gives the exit code.

    Raises:
        TailraceError: it could not be done.
    """
    async with reached(options) as cluster:
        group_id = group_of(options, cluster.config)
        found = await hinting(cluster, group_id, group_lag(cluster, group_id, timeout_s=options.timeout))
        if options.watch:
            await _watch(cluster, found, options)
        elif options.json:
            write_json(_as_json(found))
        else:
            _tell(Paper(), found)
    return 0


def _tell(paper: Paper, found: GroupLag, sum_said: str = "") -> None:
    if found.partitions:
        paper.table(_COLUMNS, _rows(found))
    paper.say("lag", sum_said or _sum(found))
    if lost := sum(one.lost for one in found.partitions):
        paper.say("lost", f"{counted(lost, 'record')} of these left the log before the group read them")
    if found.leaderless:
        paper.say("leader", f"{counted(found.leaderless, 'partition')} without one: are all brokers up?")


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


def _sum(found: GroupLag) -> str:
    if not found.partitions:
        return "nothing is committed, and no member reads anything"
    told = f"{count(found.total)} in {counted(len(found.partitions), 'partition')}"
    apart = [(found.uncommitted, "commit"), (found.leaderless, "leader")]
    return ", ".join([told, *(f"{count(number)} of them without a {what}" for number, what in apart if number)])


def _as_json(found: GroupLag, at: str | None = None) -> list[dict[str, object]]:
    moment = {} if at is None else {"at": at}
    return [
        {
            **moment,
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


# ---- again and again ---------------------------------------------------------------------------------------------


async def _watch(cluster: Cluster, found: GroupLag, options: argparse.Namespace) -> None:
    """Until a signal ends it; a terminal is drawn anew, elsewhere each round is written below the last."""
    paper = Paper()
    if not options.json and paper.is_terminal:
        await _draw(cluster, found, options)
        return
    before: tuple[float, int] | None = None
    while True:
        now = time.time()
        if options.json:
            write_json(_as_json(found, iso(int(now * 1000))))
        else:
            _tell(paper, found, _sum(found) + _change(before, (now, found.total)))
        before = now, found.total
        await asyncio.sleep(options.interval)
        found = await group_lag(cluster, found.group.group_id, timeout_s=options.timeout)


async def _draw(cluster: Cluster, found: GroupLag, options: argparse.Namespace) -> None:
    from rich.console import Group  # noqa: PLC0415 - an extra
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    before: tuple[float, int] | None = None
    with Live(auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            now = time.time()
            told = f"lag       {_sum(found)}{_change(before, (now, found.total))}"
            shown, note = _fitting(found.partitions, live.console.height - _LINES_BESIDE)
            rows = [[plain(cell) for cell in _row(one)] for one in shown]
            live.update(Group(Text(told), Text(note), drawn(_COLUMNS, rows)), refresh=True)
            before = now, found.total
            await asyncio.sleep(options.interval)
            found = await group_lag(cluster, found.group.group_id, timeout_s=options.timeout)


def _fitting(partitions: Sequence[PartitionLag], lines: int) -> tuple[Sequence[PartitionLag], str]:
    """Return the partitions to draw on so many lines, those with the greatest lag if not all fit, and a note."""
    if len(partitions) <= max(lines, 1):
        return partitions, ""
    shown = sorted(partitions, key=lambda one: -(one.lag or 0))[: max(lines, 1)]
    return shown, f"          {counted(len(partitions) - len(shown), 'partition')} more, none with a greater lag"


def _change(before: tuple[float, int] | None, now: Sequence[float]) -> str:
    """How fast it grows or shrinks."""
    if before is None or now[0] <= before[0]:
        return ""
    rate = (now[1] - before[1]) / (now[0] - before[0])
    return f", {rate:+,.0f} a second" if abs(rate) >= 0.5 else ", steady"
