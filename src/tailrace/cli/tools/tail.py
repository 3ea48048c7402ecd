"""Implementation of ``tailrace tail``, which joins no group and commits no offset."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from tailrace.admin.offsets import EARLIEST, LATEST, list_offsets
from tailrace.admin.topics import partitions_of, watched_topics
from tailrace.cli.tools.connection import explicit_options, open_cluster
from tailrace.cli.tools.filters import matcher
from tailrace.cli.tools.record_lines import heading, writer_of
from tailrace.cli.tools.shutdown import has_reader
from tailrace.cli.tools.times import TailStart
from tailrace.consumer.consumer import Consumer
from tailrace.error_codes import ErrorCode
from tailrace.errors import ConfigurationError, ConsumerTimeoutError, UnknownTopicError
from tailrace.net.cluster import Cluster
from tailrace.records import Record, TopicPartition

__all__ = ["work"]

_POLL_TIMEOUT_MS = 500
_STALL_S = 60.0
"""Maximum time to wait for a record with ``--no-follow`` while partitions have unread offsets."""
_WITHOUT_GROUP: dict[str, Any] = {
    # Group options that come from --app or the environment are for the app, not for this command.
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
    """Print records until a signal arrives, ``--max`` records are printed, or the end is reached with ``--no-follow``.

    Raises:
        UnknownTopicError: the topic does not exist.
        ConfigurationError: a partition of ``--partition`` does not exist, or an option is wrong.
        ConsumerTimeoutError: with ``--no-follow``, no record arrived for a minute, although the log has unread records.
        BrokenPipeError: the reader of stdout closed the pipe.
    """
    async with open_cluster(options) as cluster:
        partitions = await _selected_partitions(cluster, options)
        starts, ends = await _bounds(cluster, partitions, options.start, options.timeout)
    consumer_options = {"client_id": "tailrace-tail", **explicit_options(options), **_WITHOUT_GROUP}
    async with Consumer(options.topic, **consumer_options) as consumer:
        if others := consumer.assignment() - starts.keys():
            consumer.pause(*others)
        for partition, offset in starts.items():
            await consumer.seek(partition, offset)
        printer = _Printer(options, ends if options.no_follow else None)
        await _read(consumer, printer, ends if options.no_follow else None)
    return 0


class _Printer:
    """Writes matching records to stdout, at most ``--max``.

    Args:
        options: arguments of the command.
        ends: end offsets by partition; records at or after them are not written. None if there is no end.

    Attributes:
        is_full: True once ``--max`` records are written.
    """

    def __init__(self, options: argparse.Namespace, ends: Mapping[TopicPartition, int] | None) -> None:
        self.is_full = False
        self._out = sys.stdout.buffer
        self._matches, self._write = matcher(options.where), writer_of(options.format)
        self._partitions = {number for numbers in options.partition for number in numbers}
        self._ends, self._remaining = ends, options.max
        if options.format == "table":
            self._out.write(heading())
            self._out.flush()

    def print(self, records: Iterable[Record]) -> None:
        """Write matching records and flush."""
        for record in records:
            if not self._is_selected(record):
                continue
            self._out.write(self._write(record))
            if self._remaining is not None:
                self._remaining -= 1
                self.is_full = not self._remaining
                if self.is_full:
                    break
        self._out.flush()

    def _is_selected(self, record: Record) -> bool:
        if self._partitions and record.partition not in self._partitions:
            return False  # The partition was added to the topic after the start.
        if self._ends is not None and record.offset >= self._ends.get(record.topic_partition, 0):
            return False
        return self._matches(record)


async def _read(consumer: Consumer, printer: _Printer, unread: Mapping[TopicPartition, int] | None) -> None:
    """Print records until ``printer`` is full, the reader of stdout closes the pipe, or all of ``unread`` is read.

    Args:
        consumer: consumer of the partitions.
        printer: printer of the records.
        unread: partitions to read, with the end offset of each; None to read without end.

    Raises:
        ConsumerTimeoutError: no record arrived for a minute, although ``unread`` has partitions.
    """
    loop = asyncio.get_running_loop()
    last_record_at = loop.time()
    while has_reader():
        if unread is not None:
            unread = {one: end for one, end in unread.items() if await consumer.position(one) < end}
            if not unread:
                return
        records = await consumer.getmany(timeout_ms=_POLL_TIMEOUT_MS)
        if records:
            last_record_at = loop.time()
            printer.print(records)
            if printer.is_full:
                return
        elif unread is not None and loop.time() - last_record_at > _STALL_S:
            raise ConsumerTimeoutError(
                f"no record of {', '.join(map(str, sorted(unread)))} arrived for {_STALL_S:.0f} s, although the log has"
                " more records - check that the leaders of these partitions run"
            )


# ---- start -------------------------------------------------------------------------------------------------------


async def _selected_partitions(cluster: Cluster, options: argparse.Namespace) -> list[TopicPartition]:
    counts = await partitions_of(cluster, [options.topic], timeout_s=options.timeout)
    if options.topic not in counts:
        raise await _unknown_topic_error(cluster, options.topic)
    existing = range(counts[options.topic])
    selected = sorted({number for numbers in options.partition for number in numbers}) or existing
    for number in selected:
        if number not in existing:
            raise ConfigurationError(
                f"topic {options.topic!r} has no partition {number} - its partitions are 0 to {len(existing) - 1}"
            )
    return [TopicPartition(options.topic, number) for number in selected]


async def _unknown_topic_error(cluster: Cluster, topic: str) -> UnknownTopicError:
    """Return an error that suggests a similar topic name."""
    with watched_topics(cluster, None):
        await cluster.refresh()
    close = get_close_matches(topic, cluster.topology.topics, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    return UnknownTopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}{hint}")


async def _bounds(
    cluster: Cluster, partitions: Collection[TopicPartition], start: TailStart, timeout_s: float
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the start offset and the current end offset of each partition."""
    begins = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_s=timeout_s)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_s=timeout_s)
    since_ms = start.number if start.kind == "time" else (time.time() - start.number) * 1000
    at_time = {}
    if start.kind in {"time", "ago"}:
        at_time = await list_offsets(cluster, dict.fromkeys(partitions, max(0, int(since_ms))), timeout_s=timeout_s)
    starts = {
        one: _start_offset(start, begins[one].offset, ends[one].offset, at_time[one].offset if at_time else -1)
        for one in partitions
    }
    return starts, {one: listed.offset for one, listed in ends.items()}


def _start_offset(start: TailStart, begin: int, end: int, at_time: int) -> int:
    """Return the start offset in a log whose first offset is ``begin`` and whose end offset is ``end``.

    ``at_time`` is the offset of the first record at or after the start time, or -1 if all records are older.
    """
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
