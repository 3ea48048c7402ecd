"""Arguments and help of ``tailrace offsets``, which ``cli.tools.offsets`` implements."""

from __future__ import annotations

import argparse
import re

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, add_group
from tailrace.cli.tools.times import parse_duration, parse_time
from tailrace.core.cluster_metadata import topic_name_fault

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
    """Add the help texts and actions of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def add_action(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        action_parser = actions.add_parser(
            name,
            help=summary,
            usage=f"{parser.prog} {name} [GROUP] [OPTION ...]",
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        add_group(action_parser)
        return action_parser

    add_connection_options(add_action("show", "show committed offsets", _SHOW, _SHOW_EPILOG))
    reset = add_action("reset", "reset committed offsets", _RESET, _RESET_EPILOG)
    _add_topics(reset).add_argument(
        "--all-topics", action="store_true", help="all topics that the group has committed offsets of"
    )
    _add_targets(reset)
    delete = add_action("delete", "delete committed offsets", _DELETE, _DELETE_EPILOG)
    _add_topics(delete)
    for action_parser, verb in ((reset, "reset"), (delete, "delete")):
        action_parser.add_argument("--execute", action="store_true", help=f"{verb} the offsets (default: dry run)")
        add_connection_options(action_parser)


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


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if options.action != "show":
        is_all_topics = getattr(options, "all_topics", False)
        if is_all_topics and options.topic:
            options.usage_error("--all-topics and --topic exclude each other - give one of them")
        if not is_all_topics and not options.topic:
            options.usage_error(
                "a topic is required: give --topic" + (" or --all-topics" if options.action == "reset" else "")
            )
        whole_topics = [topic for topic, numbers in options.topic if not numbers]
        options.topic = whole_topics, [(topic, number) for topic, numbers in options.topic for number in numbers]
    from tailrace.cli.tools.offsets import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help

    return run_to_exit_code(work(options))


def _topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse ``orders`` or ``orders:0,3`` and return the topic and the partition numbers; empty for all partitions."""
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
