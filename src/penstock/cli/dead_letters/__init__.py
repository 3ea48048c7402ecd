"""``penstock dead-letters``: what it says of itself; what it does stands in ``work``."""

from __future__ import annotations

import argparse
import os

from penstock.cli.dead_letters.choosing import parse_place, parse_since

__all__ = ["TOPIC_VARIABLE", "arguments", "run"]

TOPIC_VARIABLE = "PENSTOCK_DEAD_LETTER_TOPIC"

_DESCRIPTION = """\
Look at the records that handlers failed for good, and have them handled again.

A dead letter is the record as it was, key, value and headers, with what
happened to it in headers of its own: the error, the traceback, the handler and
where the record came from. Each group has its own topic for them, such as
orders.billing.dead for what group billing could not do with topic orders.
"""

_EPILOG = """\
examples:
  penstock dead-letters list orders.billing.dead
  penstock dead-letters show orders.billing.dead --offset 0:17
  penstock dead-letters replay orders.billing.dead --error-type ConnectError

A replay only lists what it would send; the same with --yes sends it.

The brokers come from --bootstrap-servers or PENSTOCK_BOOTSTRAP_SERVERS, TLS and
SASL from variables such as PENSTOCK_SECURITY_PROTOCOL, the topic from its
argument or PENSTOCK_DEAD_LETTER_TOPIC. Nothing is committed and no group is
joined: to look changes nothing, and letters stay in their topic until its
retention removes them.

`penstock dead-letters ACTION --help` tells more of each.
"""

_LIST = """\
Count the letters of a topic by handler and error.

Of each kind it shows how many there are, when the first and the last of them
failed (UTC), and where the oldest stands, as PARTITION:OFFSET, which is what
`show --offset` takes.
"""

_LIST_EPILOG = """\
examples:
  penstock dead-letters list orders.billing.dead
  penstock dead-letters list orders.billing.dead --json | jq .count
"""

_SHOW = """\
Print letters whole: headers, value (JSON, text or hex) and traceback.

Without a choice it is the one that failed last.
"""

_SHOW_EPILOG = """\
examples:
  penstock dead-letters show orders.billing.dead
  penstock dead-letters show orders.billing.dead --offset 0:17 --offset 2:4
  penstock dead-letters show orders.billing.dead --error-type KeyError --limit 3
  penstock dead-letters show orders.billing.dead --all --json | jq .reason
"""

_REPLAY = """\
Send letters to be handled once more, by the group that failed them alone.

Without --yes it only lists what it would send. They go to the group's own
replay topic, such as orders.billing.replay, which the group reads beside
orders; it is made with as many partitions as orders when it is not there. Key,
value and headers are those of the record, its partition too. In place of the
failure a replay carries its origin and how often it was replayed, so a letter
that dies again counts its deaths.

With --to-origin they go to the topic that they came from, and EVERY group that
reads it handles them again.
"""

_REPLAY_EPILOG = """\
examples:
  penstock dead-letters replay orders.billing.dead --error-type ConnectError
  penstock dead-letters replay orders.billing.dead --since 2h --limit 10 --yes
  penstock dead-letters replay orders.billing.dead --offset 0:17 --yes
  penstock dead-letters replay orders.billing.dead --all --yes

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
        added.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="any of the brokers")
        added.add_argument("--json", action="store_true", help="a line of JSON for each, and nothing else")
        added.set_defaults(refuse=added.error, topic=os.environ.get(TOPIC_VARIABLE))
        return added

    action("list", "count letters by handler and error", _LIST, _LIST_EPILOG)
    _choice(action("show", "print letters whole", _SHOW, _SHOW_EPILOG))
    replay = action("replay", "have letters handled once more", _REPLAY, _REPLAY_EPILOG)
    _choice(replay)
    replay.add_argument("--to-origin", action="store_true", help="to the topic they came from: for EVERY group of it")
    replay.add_argument("--yes", action="store_true", help="send them; without it they are only listed")


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    filters = [options.offset, options.error_type, options.since] if options.action != "list" else []
    if options.action == "replay" and not options.all and not any(filters):
        options.refuse("which letters? - choose with --offset, --since, --error-type, or take them --all")
    if options.action != "list" and options.all and any(filters):
        options.refuse("--all means every letter - leave it out to choose with --offset, --since or --error-type")
    if not options.topic:
        options.refuse(f"which topic? - give it, such as orders.billing.dead, or set {TOPIC_VARIABLE}")
    from penstock.cli.dead_letters.work import work  # noqa: PLC0415 - all that a --help does without

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
