"""Implementation of ``tailrace offsets``."""

from __future__ import annotations

import argparse
import sys
import time

from tailrace.admin.groups import describe_group
from tailrace.admin.lag import check_is_consumer_group
from tailrace.admin.offset_resets import ResetPlan, reset_offsets
from tailrace.admin.offsets import GroupOffset, committed_offsets, delete_offsets
from tailrace.admin.reset_plan import OffsetChange, ResetTarget, ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime
from tailrace.cli.tools.connection import group_of, open_cluster, with_group_suggestion
from tailrace.cli.tools.tables import Column, TextOutput, count, counted, write_json
from tailrace.errors import ConfigurationError
from tailrace.net.cluster import Cluster
from tailrace.records import TopicPartition

__all__ = ["work"]


async def work(options: argparse.Namespace) -> int:
    """Run the action that ``options`` names and return the exit code."""
    async with open_cluster(options) as cluster:
        group_id = group_of(options, cluster.config)
        match options.action:
            case "show":
                return await _show(cluster, group_id, options)
            case "reset":
                return await _reset(cluster, group_id, options)
            case _:
                return await _delete(cluster, group_id, options)


# ---- show --------------------------------------------------------------------------------------------------------


async def _show(cluster: Cluster, group_id: str, options: argparse.Namespace) -> int:
    group = await with_group_suggestion(cluster, group_id, describe_group(cluster, group_id, timeout_s=options.timeout))
    check_is_consumer_group(group)
    found = list((await committed_offsets(cluster, group_id, timeout_s=options.timeout)).values())
    if options.json:
        write_json(_offset_as_json(group_id, one) for one in found)
        return 0
    output = TextOutput()
    # Metadata that confluent-kafka commits ends with the zero byte of a C string.
    texts = [one.decoded_metadata.problem or one.decoded_metadata.user_text.rstrip("\0") for one in found]
    is_same_text = len(found) > 1 and len(set(texts)) == 1
    if found:
        output.table(
            [
                Column("topic"),
                Column("partition", is_number=True),
                Column("committed", is_number=True),
                Column("finished after", is_number=True),
                *[Column("metadata")] * (not is_same_text),
            ],
            [
                [
                    one.partition.topic,
                    str(one.partition.partition),
                    count(one.offset),
                    count(one.finished_beyond or None),
                    *[text or "-"] * (not is_same_text),
                ]
                for one, text in zip(found, texts, strict=True)
            ],
        )
    offsets = f"{counted(len(found), 'partition')} of group {group_id}"
    output.line("offsets", offsets if found else f"group {group_id} has no committed offsets")
    if is_same_text and texts[0]:
        output.line("metadata", f"{texts[0]} (the same for all partitions)")
    if finished := sum(one.finished_beyond for one in found):
        output.line(
            "finished", f"{counted(finished, 'record')} after these offsets are finished and will not be handled again"
        )
    return 0


def _offset_as_json(group_id: str, one: GroupOffset) -> dict[str, object]:
    metadata = one.decoded_metadata
    return {
        "group": group_id,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "offset": one.offset,
        "leader_epoch": one.leader_epoch,
        "finished_beyond": one.finished_beyond,
        "text": metadata.user_text,
        "writer": metadata.writer,
        "problem": metadata.problem,
    }


# ---- reset -------------------------------------------------------------------------------------------------------


async def _reset(cluster: Cluster, group_id: str, options: argparse.Namespace) -> int:
    topics, partitions = options.topic
    plan = await reset_offsets(
        cluster,
        group_id,
        _target(options),
        topics=None if options.all_topics else topics,
        partitions=None if options.all_topics else [TopicPartition(*one) for one in partitions],
        execute=options.execute,
        timeout_s=options.timeout,
    )
    if options.json:
        write_json(_change_as_json(plan, one) for one in plan.changes)
    else:
        _print_plan(TextOutput(), plan)
    if not plan.members:
        return 0
    names = ", ".join(map(str, plan.members[:5])) + (", ..." if len(plan.members) > 5 else "")
    sys.stderr.write(
        f"tailrace offsets: group {group_id!r} has {counted(len(plan.members), 'live member')}: {names}"
        " - stop them before you use --execute\n"
    )
    return 1


def _target(options: argparse.Namespace) -> ResetTarget:
    if options.to_earliest:
        return ToEarliest()
    if options.to_latest:
        return ToLatest()
    if options.to_offset is not None:
        return ToOffset(options.to_offset)
    if options.to_datetime is not None:
        return ToTime(options.to_datetime)
    if options.by_duration is not None:
        return ToTime.ago(options.by_duration, now=time.time())
    return ShiftBy(options.shift_by)


def _print_plan(output: TextOutput, plan: ResetPlan) -> None:
    has_notes = any(one.note for one in plan.changes)
    columns = [
        Column("topic"),
        Column("partition", is_number=True),
        Column("old", is_number=True),
        Column("new", is_number=True),
        Column("change", is_number=True),
    ]
    output.table(
        columns + [Column("note", is_folded=True)] * has_notes,
        [_row(one) + [one.note] * has_notes for one in plan.changes],
    )
    partitions = counted(sum(one.new is not None for one in plan.changes), "partition")
    if plan.is_new:
        created = "was created" if plan.is_executed else "does not exist; --execute creates it"
        output.line("group", f"{plan.group_id} {created}")
    if plan.is_executed:
        output.line("reset", f"{partitions} of group {plan.group_id}")
    else:
        output.line("dry run", f"nothing changed - add --execute to reset {partitions} of group {plan.group_id}")


def _row(one: OffsetChange) -> list[str]:
    change = "-" if one.old is None or one.new is None else f"{one.new - one.old:+,}" if one.new != one.old else "0"
    return [one.partition.topic, str(one.partition.partition), count(one.old), count(one.new), change]


def _change_as_json(plan: ResetPlan, one: OffsetChange) -> dict[str, object]:
    return {
        "group": plan.group_id,
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "old": one.old,
        "new": one.new,
        "note": one.note,
        "executed": plan.is_executed and one.new is not None,
    }


# ---- delete ------------------------------------------------------------------------------------------------------


async def _delete(cluster: Cluster, group_id: str, options: argparse.Namespace) -> int:
    topics, partitions = options.topic
    await with_group_suggestion(cluster, group_id, describe_group(cluster, group_id, timeout_s=options.timeout))
    committed = await committed_offsets(cluster, group_id, timeout_s=options.timeout)
    chosen = [one for one in committed if one.topic in topics or one in partitions]
    if not chosen:
        names = ", ".join(sorted({*topics, *(topic for topic, _ in partitions)}))
        raise ConfigurationError(
            f"group {group_id!r} has no committed offsets of {names} - see `tailrace offsets show {group_id}`"
        )
    if options.execute:
        await delete_offsets(cluster, group_id, chosen, timeout_s=options.timeout)
    if options.json:
        write_json(
            {"group": group_id, **one._asdict(), "offset": committed[one].offset, "deleted": bool(options.execute)}
            for one in chosen
        )
        return 0
    output = TextOutput()
    output.table(
        [Column("topic"), Column("partition", is_number=True), Column("committed", is_number=True)],
        [[one.topic, str(one.partition), count(committed[one].offset)] for one in chosen],
    )
    offsets = f"{counted(len(chosen), 'offset')} of group {group_id}"
    if options.execute:
        output.line("deleted", offsets)
    else:
        output.line("dry run", f"nothing changed - add --execute to delete {offsets}")
    return 0
