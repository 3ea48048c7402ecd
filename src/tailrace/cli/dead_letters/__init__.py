"""``tailrace dead-letters``: what it says of itself; what it does stands in ``work``."""

from __future__ import annotations

import argparse
import os

from tailrace.app.topics.names import DEAD
from tailrace.cli.dead_letters.selection import parse_place, parse_since
from tailrace.cli.tools.connection import REACHING, add_reaching

__all__ = ["TOPIC_VARIABLE", "arguments", "run"]

TOPIC_VARIABLE = "TAILRACE_DEAD_LETTER_TOPIC"

_DESCRIPTION = """\
Look at the records that handlers failed for good, and have them handled again.

A dead letter is the record as it was, key, value and headers, with what
happened to it in headers of its own: the error, the traceback, the handler and
where the record came from. Each group has its own topic for them, such as
orders.billing.dead for what group billing could not do with topic orders.
"""

_EPILOG = f"""\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError

A replay only lists what it would send; the same with --execute sends it.

{REACHING}The topic comes from its argument or TAILRACE_DEAD_LETTER_TOPIC. Nothing is
committed and no group is joined: to look changes nothing, and letters stay in
their topic until its retention removes them.

`tailrace dead-letters ACTION --help` tells more of each.
"""

_LIST = """\
Count the letters of a topic by handler and error.

Of each kind it shows how many there are, when the first and the last of them
failed (UTC), and where the oldest stands, as PARTITION:OFFSET, which is what
`show --offset` takes.
"""

_LIST_EPILOG = """\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters list orders.billing.dead --json | jq .count
"""

_SHOW = """\
Print letters whole: headers, value (JSON, text or hex) and traceback.

Without a choice it is the one that failed last.
"""

_SHOW_EPILOG = """\
examples:
  tailrace dead-letters show orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17 --offset 2:4
  tailrace dead-letters show orders.billing.dead --error-type KeyError --limit 3
  tailrace dead-letters show orders.billing.dead --all --json | jq .reason
"""

_REPLAY = """\
Send letters to be handled once more, by the group that failed them alone.

Without --execute it only lists what it would send. They go to the group's own
replay topic, such as orders.billing.replay, which the group reads beside
orders; it is made with as many partitions as orders when it is not there. Key,
value and headers are those of the record, its partition too. In place of the
failure a replay carries its origin and how often it was replayed, so a letter
that dies again counts its deaths.

A letter is replayed only if its topic and group are those that the name of the
dead-letter topic is made of, since anyone who may write there may claim others.
For an app with a dead_letter= of its own, give it as --dead-letter.

With --to-origin they go to the topic that they came from, and EVERY group that
reads it handles them again.
"""

_REPLAY_EPILOG = """\
examples:
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError
  tailrace dead-letters replay orders.billing.dead --since 2h --execute
  tailrace dead-letters replay orders.billing.dead --offset 0:17 --execute
  tailrace dead-letters replay orders.billing.dead --all --execute

It says that a letter was sent when all replicas have it, and exits with 0 only
if all were. Letters stay in their topic: to replay one twice handles it twice,
which --since and --offset help to avoid.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        added = actions.add_parser(
            name,
            help=summary,
            usage=f"{parser.prog} {name} [TOPIC] [OPTION ...]",
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        added.add_argument("topic", nargs="?", metavar="TOPIC", help=f"of dead letters; else {TOPIC_VARIABLE}")
        add_reaching(added)
        added.set_defaults(topic=os.environ.get(TOPIC_VARIABLE))
        return added

    action("list", "count letters by handler and error", _LIST, _LIST_EPILOG)
    _choice(action("show", "print letters whole", _SHOW, _SHOW_EPILOG))
    replay = action("replay", "have letters handled once more", _REPLAY, _REPLAY_EPILOG)
    _choice(replay)
    replay.add_argument(
        "--dead-letter",
        default=DEAD,
        metavar="TEMPLATE",
        help=f"the dead_letter= of the app that wrote the letters (default {DEAD})",
    )
    replay.add_argument("--to-origin", action="store_true", help="to the topic they came from: for EVERY group of it")
    replay.add_argument("--execute", action="store_true", help="send them; without it they are only listed")


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    filters = [options.offset, options.error_type, options.since] if options.action != "list" else []
    if options.action == "replay" and not options.all and not any(filters):
        options.refuse("which letters? - choose with --offset, --since, --error-type, or take them --all")
    if options.action != "list" and options.all and any(filters):
        options.refuse("--all means every letter - leave it out to choose with --offset, --since or --error-type")
    if not options.topic:
        options.refuse(f"which topic? - give it, such as orders.billing.dead, or set {TOPIC_VARIABLE}")
    from tailrace.cli.dead_letters.commands import work  # noqa: PLC0415 - all that a --help does without

    return work(options)


def _choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which letters")
    group.add_argument(
        "--offset", type=parse_place, action="append", metavar="P:O", help="the one at offset O of partition P; repeat"
    )
    group.add_argument(
        "--since", type=parse_since, metavar="TIME", help="that failed since then: 2h, 3d, 2026-01-31T09:00 (UTC)"
    )
    group.add_argument(
        "--error-type", action="append", metavar="NAME", help="that failed with it, with or without module; repeat"
    )
    group.add_argument("--all", action="store_true", help="every letter of the topic")
    group.add_argument("--limit", type=_count, metavar="N", help="of these, the N that failed first")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} will not do: give a whole number, 1 or more")
    return int(text)
