"""``tailrace offsets``: what it says of itself; what it does stands in ``tools.offsets``."""

from __future__ import annotations

import argparse
import re

from tailrace.cli.tools.connection import REACHING, add_group, add_reaching
from tailrace.cli.tools.times import parse_duration, parse_time
from tailrace.core.legal_topic_names import topic_name_fault

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Show what a group has committed, set it anew, or have some of it forgotten.
"""

_EPILOG = f"""\
examples:
  tailrace offsets show billing
  tailrace offsets reset billing --topic orders --to-datetime 2026-01-31T09:00
  tailrace offsets delete billing --topic old-orders

{REACHING}
`tailrace offsets ACTION --help` tells more of each.
"""

_SHOW = """\
Show each committed offset, and the text that was committed beside it.

"beyond" counts the records after the offset that are finished already: an App
with order_by="key" remembers them in that text, and whoever reads the partition
next does not handle them again.
"""

_SHOW_EPILOG = """\
examples:
  tailrace offsets show billing
  tailrace offsets show billing --json | jq 'select(.finished_beyond > 0)'
"""

_RESET = """\
Set what a group has committed. Without --execute it only shows what would
change, from the old offset to the new one.

A target before or behind the log is taken back to its beginning or its end, and
the plan says so. It is refused while the group has live members, which it
names: stop them first. The texts beside the offsets go, and with them what was
finished beyond. A group that does not exist is made, and begins there.
"""

_RESET_EPILOG = """\
examples:
  tailrace offsets reset billing --topic orders --to-earliest
  tailrace offsets reset billing --topic orders:0,3 --to-offset 1200 --execute
  tailrace offsets reset billing --all-topics --by-duration 1h --execute
  tailrace offsets reset billing --topic orders --shift-by -100 --execute
  tailrace offsets reset --app shop:billing --all-topics --to-latest

It exits with 0 when it is done, or could be; with 1 when it is refused, or
would be.
"""

_DELETE = """\
Have a group forget what it has committed of a topic, so that it begins there
as its members' auto_offset_reset says. Without --execute it only shows which.

It is refused while a live member reads the topic.
"""

_DELETE_EPILOG = """\
examples:
  tailrace offsets delete billing --topic old-orders
  tailrace offsets delete billing --topic orders:7 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        added = actions.add_parser(
            name,
            help=summary,
            usage=f"{parser.prog} {name} [GROUP] [OPTION ...]",
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        add_group(added)
        return added

    add_reaching(action("show", "what is committed", _SHOW, _SHOW_EPILOG))
    reset = action("reset", "set it anew", _RESET, _RESET_EPILOG)
    _add_topics(reset).add_argument("--all-topics", action="store_true", help="every topic that it has committed of")
    _add_targets(reset)
    delete = action("delete", "have some of it forgotten", _DELETE, _DELETE_EPILOG)
    _add_topics(delete)
    for changing in (reset, delete):
        changing.add_argument("--execute", action="store_true", help="do it; without, it is only shown")
        add_reaching(changing)


def _add_topics(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    where = parser.add_argument_group("which partitions")
    where.add_argument(
        "--topic",
        type=_topic,
        action="append",
        default=[],
        metavar="TOPIC[:P,P]",
        help="all partitions of it, or these; repeat",
    )
    return where


def _add_targets(parser: argparse.ArgumentParser) -> None:
    to = parser.add_argument_group("where to").add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="the first record of the log")
    to.add_argument("--to-latest", action="store_true", help="its end: what is there is passed over")
    to.add_argument("--to-offset", type=_offset, metavar="N", help="this offset")
    to.add_argument(
        "--to-datetime", type=parse_time, metavar="ISO", help="the first record since then: 2026-01-31T09:00 (UTC)"
    )
    to.add_argument("--by-duration", type=parse_duration, metavar="TIME", help="at most so old: 90s, 1h30m, PT1H, P1D")
    to.add_argument("--shift-by", type=_shift, metavar="N", help="so many on from what is committed; -100 is back")


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    if options.action != "show":
        takes_all = getattr(options, "all_topics", False)
        if takes_all and options.topic:
            options.refuse("--all-topics means every topic - leave it out to choose with --topic")
        if not takes_all and not options.topic:
            other = ", or take --all-topics" if options.action == "reset" else ""
            options.refuse(f"which topic? - choose with --topic{other}")
        whole = [topic for topic, numbers in options.topic if not numbers]
        options.topic = whole, [(topic, number) for topic, numbers in options.topic for number in numbers]
    from tailrace.cli.tools.offsets import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import finished  # noqa: PLC0415 - all that a --help does without

    return finished(work(options))


def _topic(text: str) -> tuple[str, tuple[int, ...]]:
    """``orders`` or ``orders:0,3``; no topic has a colon in its name."""
    found = re.fullmatch(r"([^:]+)(?::([0-9]{1,9}(?:,[0-9]{1,9})*))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} will not do: write orders, or orders:0,3 for some partitions of it")
    if fault := topic_name_fault(found[1]):
        raise argparse.ArgumentTypeError(f"{found[1]!r} is no name of a topic: {fault}")
    return found[1], tuple(map(int, found[2].split(","))) if found[2] else ()


def _offset(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text} is no offset - give a whole number, 0 or more")
    return int(text)


def _shift(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not int(text):
        raise argparse.ArgumentTypeError(f"{text} will not do: say how many offsets, such as -100 or 100")
    return int(text)
