"""Arguments and help of ``tailrace dead-letters``; ``commands`` implements it."""

from __future__ import annotations

import argparse
import os

from tailrace.app.topics.names import DEAD
from tailrace.cli.dead_letters.selection import parse_position, parse_since
from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options
from tailrace.cli.tools.numbers import positive_integer

__all__ = ["TOPIC_VARIABLE", "arguments", "run"]

TOPIC_VARIABLE = "TAILRACE_DEAD_LETTER_TOPIC"

_DESCRIPTION = """\
List, show or replay dead letters: records that a handler failed for good.

A dead letter has the key, value and headers of the record, and headers that
describe the failure: error, traceback, handler and origin. Each group has its
own dead-letter topics, such as orders.billing.dead for records of topic orders
that group billing failed to handle.
"""

_EPILOG = f"""\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError \\
    --execute

{CONNECTION_HELP}The topic comes from TOPIC, else from TAILRACE_DEAD_LETTER_TOPIC.

No action joins a group, commits an offset or deletes a dead letter.

Run `tailrace dead-letters ACTION --help` for the options of an action.
"""

_LIST = """\
Count the dead letters of a topic by handler and error.

Each row has the number of dead letters, the times (UTC) of the first and last
failure, and the PARTITION:OFFSET of the oldest one, for `show --offset`.
"""

_LIST_EPILOG = """\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters list orders.billing.dead --json | jq .count
"""

_SHOW = """\
Show dead letters with error, origin, headers, key, value and traceback.

Without a selection, show the one that failed last.
"""

_SHOW_EPILOG = """\
examples:
  tailrace dead-letters show orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17 --offset 2:4
  tailrace dead-letters show orders.billing.dead --error-type KeyError --limit 3
  tailrace dead-letters show orders.billing.dead --all --json | jq .reason
"""

_REPLAY = """\
Send dead letters to the group that failed them, to be handled again. Without
--execute, only list them.

A replay goes to the replay topic of the group, such as orders.billing.replay,
which the group reads in addition to orders. A missing replay topic is created
with as many partitions as orders. A replay has the key, value, headers and
partition of the original record, its origin, and how often it was replayed and
became a dead letter.

Only dead letters whose topic and group match the name of the dead-letter topic
are replayed, because anyone who may write to that topic may claim another
origin. If the app sets dead_letter=, give the same template as --dead-letter.

With --to-origin, dead letters go to their original topic instead, where EVERY
group that reads the topic handles them again.
"""

_REPLAY_EPILOG = """\
examples:
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError
  tailrace dead-letters replay orders.billing.dead --since 2h --execute
  tailrace dead-letters replay orders.billing.dead --offset 0:17 --execute
  tailrace dead-letters replay orders.billing.dead --all --execute

Dead letters stay in their topic, so a second replay handles them again; select
with --since or --offset to avoid that.

exit codes: 0 all were sent and acknowledged by all in-sync replicas, 1 some
were not, 2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
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
        added.add_argument("topic", nargs="?", metavar="TOPIC", help=f"dead-letter topic (default: {TOPIC_VARIABLE})")
        add_connection_options(added)
        added.set_defaults(topic=os.environ.get(TOPIC_VARIABLE))
        return added

    action("list", "count dead letters by handler and error", _LIST, _LIST_EPILOG)
    _add_selection(action("show", "show dead letters in full", _SHOW, _SHOW_EPILOG))
    replay = action("replay", "send dead letters to be handled again", _REPLAY, _REPLAY_EPILOG)
    _add_selection(replay)
    replay.add_argument(
        "--dead-letter",
        default=DEAD,
        metavar="TEMPLATE",
        help=f"the dead_letter= of the app (default: {DEAD})",
    )
    replay.add_argument("--to-origin", action="store_true", help="send to the original topic, for EVERY group")
    replay.add_argument("--execute", action="store_true", help="send the dead letters (default: dry run)")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    filters = [options.offset, options.error_type, options.since] if options.action != "list" else []
    if options.action == "replay" and not options.all and not any(filters):
        options.usage_error("a selection is required: give --offset, --since, --error-type or --all")
    if options.action != "list" and options.all and any(filters):
        options.usage_error("--all excludes --offset, --since and --error-type")
    if not options.topic:
        options.usage_error(f"a topic is required: give TOPIC, such as orders.billing.dead, or set {TOPIC_VARIABLE}")
    from tailrace.cli.dead_letters.commands import work  # noqa: PLC0415 - not needed by --help

    return work(options)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--offset", type=parse_position, action="append", metavar="P:O", help="partition and offset (repeatable)"
    )
    group.add_argument(
        "--since", type=parse_since, metavar="TIME", help="failed since: 2h, 3d, or 2026-01-31T09:00 (UTC)"
    )
    group.add_argument(
        "--error-type",
        action="append",
        metavar="NAME",
        help="class of the error, with or without module (repeatable)",
    )
    group.add_argument("--all", action="store_true", help="all dead letters of the topic")
    group.add_argument(
        "--limit", type=positive_integer, metavar="N", help="of the selected ones, the N that failed first"
    )
