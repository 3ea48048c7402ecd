"""``tailrace offsets``: show, reset or delete a group's committed offsets."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING

from tailrace import admin
from tailrace.cli.options import (
    CONNECTION_HELP,
    add_actions,
    add_connection_options,
    add_group,
    group_of,
    open_cluster,
    parse_duration,
    parse_time,
    with_group_suggestion,
)
from tailrace.cli.output import Column, TextOutput, count, counted, write_json
from tailrace.errors import ConfigurationError

if TYPE_CHECKING:
    from tailrace.net.cluster import Cluster

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Show, reset or delete a group's committed offsets.
"""

_EPILOG = f"""\
examples:
  tailrace offsets show billing
  tailrace offsets reset billing --topic orders --to-datetime 2026-01-31T09:00
  tailrace offsets delete billing --topic old-orders

{CONNECTION_HELP}
Run `tailrace offsets ACTION --help` for the options of an action.
"""

_SHOW = """\
Show a group's committed offsets and the metadata of the commits.

The column "finished after" (with --json: finished_beyond) counts the records
after the committed offset that are already finished. If the group uses an App with order_by="key" or
order_by="none", or a Consumer with ack="manual", the metadata lists these
records, and the next member that is assigned the partition does not handle them
again.
"""

_SHOW_EPILOG = """\
examples:
  tailrace offsets show billing
  tailrace offsets show billing --json | jq 'select(.finished_beyond > 0)'
"""

_RESET = """\
Reset a group's committed offsets. Without --execute, only show the old and new
offsets.

If the new offset is outside of the log, the first offset or the end of the log
is used, whichever is nearer; the column "note" reports this. A group with live
members is not reset; stop its members first. A group that does not exist is
created.

The reset deletes the metadata of the old commits, including the list of records
that are finished after the committed offset. Listed records at or after the new
offset are handled again; the column "note" counts them.
"""

_RESET_EPILOG = """\
examples:
  tailrace offsets reset billing --topic orders --to-earliest
  tailrace offsets reset billing --topic orders:0,3 --to-offset 1200 --execute
  tailrace offsets reset billing --all-topics --by-duration 1h --execute
  tailrace offsets reset billing --topic orders --shift-by -100 --execute
  tailrace offsets reset --app shop:billing --all-topics --to-latest

exit codes: 0 the offsets were reset (without --execute: can be reset), 1 the
group has live members, or the reset failed, 2 usage error
"""

_DELETE = """\
Delete a group's committed offsets of topics or partitions. Without --execute,
only list the offsets.

The group then starts these partitions at its auto_offset_reset. If a live
member is subscribed to one of the topics, deleting fails: first stop the members
that read the topic.
"""

_DELETE_EPILOG = """\
examples:
  tailrace offsets delete billing --topic old-orders
  tailrace offsets delete billing --topic orders:7 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_action = add_actions(parser, usage="[GROUP] [OPTION ...]")
    show = add_action("show", "show committed offsets", _SHOW, _SHOW_EPILOG)
    reset = add_action("reset", "reset committed offsets", _RESET, _RESET_EPILOG)
    delete = add_action("delete", "delete committed offsets", _DELETE, _DELETE_EPILOG)
    for action in (show, reset, delete):
        add_group(action)
    _add_topics(reset).add_argument(
        "--all-topics", action="store_true", help="all topics that the group has committed offsets of"
    )
    _add_targets(reset)
    _add_topics(delete)
    reset.add_argument("--execute", action="store_true", help="reset the offsets (default: dry run)")
    delete.add_argument("--execute", action="store_true", help="delete the offsets (default: dry run)")
    for action in (show, reset, delete):
        add_connection_options(action)


def _add_topics(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("partitions")
    group.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="TOPIC[:P,P]",
        help="all partitions of a topic, or the listed ones (repeatable)",
    )
    return group


def _add_targets(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("new offset (one is required)")
    target = group.add_mutually_exclusive_group(required=True)
    target.add_argument("--to-earliest", action="store_true", help="first offset of the log")
    target.add_argument("--to-latest", action="store_true", help="end of the log; skips all existing records")
    target.add_argument("--to-offset", type=_offset, metavar="N", help="offset N in each partition")
    target.add_argument(
        "--to-datetime",
        type=parse_time,
        metavar="ISO",
        help="first record at or after a time, such as 2026-01-31T09:00 (UTC)",
    )
    target.add_argument(
        "--by-duration",
        type=parse_duration,
        metavar="TIME",
        help="first record that is not older than TIME, such as 90s, 1h30m, PT1H or P1D",
    )
    target.add_argument(
        "--shift-by", type=_shift, metavar="N", help="committed offset plus N; a negative N moves backward"
    )


def _topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``orders`` or ``orders:0,3`` and return the topic and the partition numbers; empty for all partitions."""
    from tailrace.core.cluster_metadata import topic_name_fault

    found = re.fullmatch(r"([^:]+)(?::([0-9]{1,9}(?:,[0-9]{1,9})*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be TOPIC or TOPIC:PARTITIONS, such as orders:0,3, not {text!r}")
    if fault := topic_name_fault(found[1]):
        raise argparse.ArgumentTypeError(f"{found[1]!r} is not a legal topic name: {fault}")
    return found[1], tuple(map(int, found[2].split(","))) if found[2] else ()


def _offset(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"must be an offset from 0 to {(1 << 63) - 1}, not {text!r}")
    return int(text)


def _shift(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"must be an integer other than 0, such as -100, not {text!r}")
    return int(text)


async def run(options: argparse.Namespace) -> int:
    if options.action != "show":
        _check_topics(options)
    async with open_cluster(options) as cluster:
        group_id = group_of(options, cluster.config)
        match options.action:
            case "show":
                return await _show(cluster, group_id, options)
            case "reset":
                return await _reset(cluster, group_id, options)
            case _:
                return await _delete(cluster, group_id, options)


def _check_topics(options: argparse.Namespace) -> None:
    """Check ``--topic`` and ``--all-topics``, and split ``options.topic`` into whole topics and partitions."""
    is_all_topics = getattr(options, "all_topics", False)
    if is_all_topics and options.topic:
        options.usage_error("--all-topics and --topic exclude each other - give one of them")
    if not is_all_topics and not options.topic:
        options.usage_error(
            "a topic is required: give --topic" + (" or --all-topics" if options.action == "reset" else "")
        )
    whole_topics = [topic for topic, numbers in options.topic if not numbers]
    options.topic = whole_topics, [(topic, number) for topic, numbers in options.topic for number in numbers]


# ---- show --------------------------------------------------------------------------------------------------------


async def _show(cluster: Cluster, group_id: str, options: argparse.Namespace) -> int:
    from tailrace.admin.groups import check_is_consumer_group

    group = await with_group_suggestion(
        cluster, group_id, admin.describe_group(cluster, group_id, timeout_s=options.timeout)
    )
    check_is_consumer_group(group)
    found = list((await admin.committed_offsets(cluster, group_id, timeout_s=options.timeout)).values())
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


def _offset_as_json(group_id: str, one: admin.GroupOffset) -> dict[str, object]:
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
    from tailrace.records import TopicPartition

    topics, partitions = options.topic
    plan = await admin.reset_offsets(
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


def _target(options: argparse.Namespace) -> admin.ResetTarget:
    if options.to_earliest:
        return admin.ToEarliest()
    if options.to_latest:
        return admin.ToLatest()
    if options.to_offset is not None:
        return admin.ToOffset(options.to_offset)
    if options.to_datetime is not None:
        return admin.ToTime(options.to_datetime)
    if options.by_duration is not None:
        return admin.ToTime.ago(options.by_duration, now=time.time())
    return admin.ShiftBy(options.shift_by)


def _print_plan(output: TextOutput, plan: admin.ResetPlan) -> None:
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


def _row(one: admin.OffsetChange) -> list[str]:
    change = "-" if one.old is None or one.new is None else f"{one.new - one.old:+,}" if one.new != one.old else "0"
    return [one.partition.topic, str(one.partition.partition), count(one.old), count(one.new), change]


def _change_as_json(plan: admin.ResetPlan, one: admin.OffsetChange) -> dict[str, object]:
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
    await with_group_suggestion(cluster, group_id, admin.describe_group(cluster, group_id, timeout_s=options.timeout))
    committed = await admin.committed_offsets(cluster, group_id, timeout_s=options.timeout)
    chosen = [one for one in committed if one.topic in topics or one in partitions]
    if not chosen:
        names = ", ".join(sorted({*topics, *(topic for topic, _ in partitions)}))
        raise ConfigurationError(
            f"group {group_id!r} has no committed offsets of {names} - see `tailrace offsets show {group_id}`"
        )
    if options.execute:
        await admin.delete_offsets(cluster, group_id, chosen, timeout_s=options.timeout)
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
