"""What ``tailrace tail`` does: it reads without a group, and nothing is committed."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tailrace.admin.offsets import EARLIEST, LATEST, list_offsets
from tailrace.admin.topics import partitions_of, watched
from tailrace.cli.tools.connection import reached, said_options
from tailrace.cli.tools.filters import matcher
from tailrace.cli.tools.record_lines import heading, writer_of
from tailrace.cli.tools.shutdown import is_read
from tailrace.cli.tools.times import TailStart
from tailrace.consumer.consumer import Consumer
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConsumerTimeoutError, UnknownTopicError
from tailrace.net.cluster import Cluster
from tailrace.records import Record, TopicPartition

__all__ = ["work"]

_LOOK_MS = 500
_QUIET_S = 60.0
_ALONE: dict[str, Any] = {
    # Whatever the app or the environment say of a group is about the app, and not about who looks on.
    "group_id": None,
    "group_protocol": "classic",
    "group_instance_id": None,
    "group_remote_assignor": None,
    "enable_auto_commit": None,
    "post_rebalance_callback": None,
    "rebalance_listener": None,
    "auto_offset_reset": "earliest",
}


async def work(options: argparse.Namespace) -> int:
    """Print records until there are enough, or a signal comes; gives the exit code.

    Raises:
        UnknownTopicError: there is no such topic or partition.
        TailraceError: whatever ends the reading.
        BrokenPipeError: nobody reads what is written.
    """
    async with reached(options) as cluster:
        partitions = await _chosen(cluster, options)
        starts, ends = await _bounds(cluster, partitions, options.start, options.timeout)
    reading = {"client_id": "tailrace-tail", **said_options(options), **_ALONE}
    async with Consumer(options.topic, **reading) as consumer:
        if others := consumer.assignment() - starts.keys():
            consumer.pause(*others)
        for partition, offset in starts.items():
            await consumer.seek(partition, offset)
        printer = _Printer(options, ends if options.no_follow else None)
        await _read(consumer, printer, ends if options.no_follow else None)
    return 0


class _Printer:
    """Writes the records that are meant, until there are enough.

    Attributes:
        has_enough: whether as many are written as were asked for.
    """

    def __init__(self, options: argparse.Namespace, ends: Mapping[TopicPartition, int] | None) -> None:
        self.has_enough = False
        self._out = sys.stdout.buffer
        self._takes, self._write = matcher(options.where), writer_of(options.format)
        self._partitions = {number for numbers in options.partition for number in numbers}
        self._ends, self._left = ends, options.max
        if options.format == "table":
            self._out.write(heading())
            self._out.flush()

    def print(self, records: Iterable[Record]) -> None:
        """Write and flush.

        Raises:
            BrokenPipeError: nobody reads it.
        """
        for record in records:
            if not self._is_meant(record):
                continue
            self._out.write(self._write(record))
            if self._left is not None:
                self._left -= 1
                self.has_enough = not self._left
                if self.has_enough:
                    break
        self._out.flush()

    def _is_meant(self, record: Record) -> bool:
        if self._partitions and record.partition not in self._partitions:
            return False  # of a partition that was added since
        if self._ends is not None and record.offset >= self._ends.get(record.topic_partition, 0):
            return False
        return self._takes(record)


async def _read(consumer: Consumer, printer: _Printer, unread: Mapping[TopicPartition, int] | None) -> None:
    """Until the printer has enough, its reader has gone, or ``unread`` is read; for ever without it."""
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    while is_read():
        if unread is not None:
            unread = {one: end for one, end in unread.items() if await consumer.position(one) < end}
            if not unread:
                return
        records = await consumer.getmany(timeout_ms=_LOOK_MS)
        if records:
            heard_at = loop.time()
            printer.print(records)
            if printer.has_enough:
                return
        elif unread is not None and loop.time() - heard_at > _QUIET_S:
            raise ConsumerTimeoutError(
                f"nothing came of {', '.join(map(str, sorted(unread)))} for {_QUIET_S:.0f} s, and records are there"
                " - are the leaders of these partitions alive?"
            )


# ---- where to begin ----------------------------------------------------------------------------------------------


async def _chosen(cluster: Cluster, options: argparse.Namespace) -> list[TopicPartition]:
    counts = await partitions_of(cluster, [options.topic], timeout_s=options.timeout)
    if options.topic not in counts:
        raise await _unknown(cluster, options.topic)
    there = range(counts[options.topic])
    wanted = sorted({number for numbers in options.partition for number in numbers}) or there
    for number in wanted:
        if number not in there:
            detail = f"there is no partition {number} of {options.topic!r}, it has {len(there)}, from 0 on"
            raise UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return [TopicPartition(options.topic, number) for number in wanted]


async def _unknown(cluster: Cluster, topic: str) -> UnknownTopicError:
    """With the name of one that may have been meant."""
    with watched(cluster, None):
        await cluster.refresh()
    close = get_close_matches(topic, cluster.topology.topics, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}{hint}")


async def _bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], start: TailStart, timeout_s: float
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Where to begin, within each log, and where each ends now."""
    begins = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s)
    since_ms = start.number if start.kind == "time" else (time.time() - start.number) * 1000
    at_time = {}
    if start.kind in {"time", "ago"}:
        at_time = await list_offsets(cluster, dict.fromkeys(partitions, max(0, int(since_ms))), timeout_s=timeout_s)
    starts = {
        one: _start(start, begins[one].offset, ends[one].offset, at_time[one].offset if at_time else -1)
        for one in partitions
    }
    return starts, {one: listed.offset for one, listed in ends.items()}


def _start(start: TailStart, begin: int, end: int, at_time: int) -> int:
    """The offset within a log from ``begin`` to ``end``; ``at_time`` is -1 where no record is so late."""
    match start.kind:
        case "earliest":
            return begin
        case "latest":
            return end
        case "offset":
            return min(max(int(start.number), begin), end)
        case "last":
            return max(end - int(start.number), begin)
        case _:
            return at_time if at_time >= 0 else end
