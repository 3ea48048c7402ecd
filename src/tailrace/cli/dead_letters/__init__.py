"""``tailrace dead-letters``: arguments, help and selection; ``commands`` lists, shows and replays dead letters."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import time
from collections.abc import Collection, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tailrace.cli.options import (
    CONNECTION_HELP,
    add_actions,
    add_connection_options,
    parse_duration,
    parse_time,
    positive_integer,
)

if TYPE_CHECKING:
    from tailrace.app.failures.dead_letters import DeadLetter

__all__ = [
    "DeadLetterFilter",
    "DeadLetterPosition",
    "arguments",
    "parse_position",
    "parse_since",
    "position_of",
    "run",
]

_TOPIC_VARIABLE = "TAILRACE_DEAD_LETTER_TOPIC"

_DESCRIPTION = """\
List, show or replay dead letters: records that a handler could not handle, even
with retries.

A dead letter has the key, value and headers of the record, and headers that
describe the failure: error, traceback, handler and origin. Each group has its
own dead-letter topics: the topic orders.billing.dead has the records of the
topic orders that the group billing could not handle.
"""

_EPILOG = f"""\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError \\
    --execute

{CONNECTION_HELP}
Without TOPIC, the environment variable TAILRACE_DEAD_LETTER_TOPIC names the
dead-letter topic.

No action joins a group, commits an offset or deletes a dead letter. `replay`
writes marks to the dead-letter topic, by which all actions know what was
replayed.

Run `tailrace dead-letters ACTION --help` for the options of an action.
"""

_LIST = """\
Count the dead letters of a topic by handler and error.

Each row has the number of dead letters and how many of them were replayed, the
times (UTC) of the first and last failure, and the position of the dead letter
that failed first. The position has the form PARTITION:OFFSET, which
`show --offset` accepts.
"""

_LIST_EPILOG = """\
examples:
  tailrace dead-letters list orders.billing.dead
  tailrace dead-letters list orders.billing.dead --json | jq .count
"""

_SHOW = """\
Show dead letters with error, origin, headers, key, value and traceback.

Without --offset, --since, --error-type and --all, show the dead letter that
failed last.
"""

_SHOW_EPILOG = """\
examples:
  tailrace dead-letters show orders.billing.dead
  tailrace dead-letters show orders.billing.dead --offset 0:17 --offset 2:4
  tailrace dead-letters show orders.billing.dead --error-type KeyError --limit 3
  tailrace dead-letters show orders.billing.dead --all --json | jq .reason
"""

_REPLAY = """\
Send dead letters back to the group that could not handle them. Without
--execute, only list the dead letters.

The records of orders.billing.dead are sent to orders.billing.replay, the replay
topic of the group billing, which the group reads in addition to orders. If the
replay topic does not exist, it is created with as many partitions as orders. A
sent record has the key, value, headers and partition of the original record.
Additional headers have its origin and count its replays and dead letters.

A dead letter that was replayed is not sent again without --again. If its record
fails again, it has a new dead letter, which is sent. If a record has several
dead letters, only the last one is sent; if their keys, values or headers
differ, none is.

The topic and the group in the headers of a dead letter must match the name of
the dead-letter topic; otherwise the dead letter is not sent, because any client
that may write to this topic can write any headers. If the app sets
dead_letter=, give its value as --dead-letter.

With --to-origin TOPIC, the dead letters of TOPIC are sent to TOPIC instead.
EVERY group that reads TOPIC then handles them again.
"""

_REPLAY_EPILOG = """\
examples:
  tailrace dead-letters replay orders.billing.dead --error-type ConnectError
  tailrace dead-letters replay orders.billing.dead --since 2h --execute
  tailrace dead-letters replay orders.billing.dead --offset 0:17 --execute
  tailrace dead-letters replay orders.billing.dead --all --execute

Sent dead letters stay in their topic. A mark is written to the topic when all
in-sync replicas have acknowledged the record, which requires WRITE on the
dead-letter topic. A replay that is killed in between sends the record again the
next time. While a replay runs, others of the same topic are refused.

exit codes: 0 all records were sent and acknowledged by all in-sync replicas
(without --execute: can be sent), 1 some were not, or all were replayed before,
2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_action = add_actions(parser, usage="[TOPIC] [OPTION ...]")
    listing = add_action("list", "count dead letters by handler and error", _LIST, _LIST_EPILOG)
    show = add_action("show", "show dead letters in full", _SHOW, _SHOW_EPILOG)
    replay = add_action("replay", "send dead letters back to their group", _REPLAY, _REPLAY_EPILOG)
    for action in (listing, show, replay):
        action.add_argument(
            "topic",
            nargs="?",
            default=os.environ.get(_TOPIC_VARIABLE),
            metavar="TOPIC",
            help=f"dead-letter topic (default: {_TOPIC_VARIABLE})",
        )
        add_connection_options(action)
    _add_selection(show)
    _add_selection(replay)
    replay.add_argument(
        "--dead-letter",
        metavar="TEMPLATE",
        help="value of the app's dead_letter= (default: {topic}.{group}.dead)",
    )
    replay.add_argument("--again", action="store_true", help="also send dead letters that were replayed")
    replay.add_argument(
        "--to-origin", metavar="TOPIC", help="send to the original TOPIC, where EVERY group handles them"
    )
    replay.add_argument("--execute", action="store_true", help="send the dead letters (default: dry run)")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--offset",
        type=parse_position,
        action="append",
        metavar="P:O",
        help="the dead letter at partition P and offset O (repeatable)",
    )
    group.add_argument(
        "--since",
        type=parse_since,
        metavar="TIME",
        help="failed at or after TIME: an age such as 2h, or a time such as 2026-01-31T09:00 (UTC)",
    )
    group.add_argument(
        "--error-type",
        action="append",
        metavar="NAME",
        help="failed with an error of class NAME, with or without its module (repeatable)",
    )
    group.add_argument("--all", action="store_true", help="all dead letters of the topic")
    group.add_argument(
        "--limit", type=positive_integer, metavar="N", help="only the N selected dead letters that failed first"
    )


def run(options: argparse.Namespace) -> Coroutine[object, object, int]:
    """Check the arguments and return the run of the command."""
    filters = [options.offset, options.error_type, options.since] if options.action != "list" else []
    if options.action == "replay" and not options.all and not any(filters):
        options.usage_error("a selection is required: give --offset, --since, --error-type or --all")
    if options.action != "list" and options.all and any(filters):
        options.usage_error("--all excludes --offset, --since and --error-type")
    if not options.topic:
        options.usage_error(f"a topic is required: give TOPIC, such as orders.billing.dead, or set {_TOPIC_VARIABLE}")
    from tailrace.cli.dead_letters.commands import Invocation

    return Invocation(options).run()


# ---- selection ------------------------------------------------------------------------------------------------------


class DeadLetterPosition(NamedTuple):
    """Partition and offset of a dead letter, written as ``P:O``."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions of the dead letters to select; a condition that is empty or None matches all dead letters."""

    positions: Collection[DeadLetterPosition] = ()
    since_ms: int | None = None
    """Earliest time of the failure, in milliseconds since the epoch."""
    error_types: Collection[str] = ()
    """Names of error classes, with or without the module."""
    limit: int | None = None
    """Maximum number of dead letters; None for all."""

    def matches(self, letter: DeadLetter) -> bool:
        """Return True if a dead letter matches all conditions, regardless of the limit."""
        if self.positions and position_of(letter) not in self.positions:
            return False
        if self.since_ms is not None and letter.at_ms < self.since_ms:
            return False
        if not self.error_types:
            return True
        return not {letter.error_type, letter.error_type.rpartition(".")[2]}.isdisjoint(self.error_types)

    def sort_and_limit(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        return sorted(letters, key=lambda letter: (letter.at_ms, position_of(letter)))[: self.limit]


def position_of(letter: DeadLetter) -> DeadLetterPosition:
    return DeadLetterPosition(letter.record.partition, letter.record.offset)


def parse_position(text: str) -> DeadLetterPosition:
    """Parse partition and offset, such as ``3:17``."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,18})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be PARTITION:OFFSET, such as 0:17, not {text!r}")
    return DeadLetterPosition(int(found[1]), int(found[2]))


def parse_since(text: str) -> int:
    """Parse a time since 1970, or an age such as ``2h``, and return milliseconds since the epoch."""
    try:
        since_ms = int((time.time() - parse_duration(text)) * 1000)
    except argparse.ArgumentTypeError:
        with contextlib.suppress(argparse.ArgumentTypeError):
            return parse_time(text)
        since_ms = -1
    if since_ms < 0:
        raise argparse.ArgumentTypeError(
            f"must be an age, such as 90s, 30m, 2h or 3d, or a time, such as 2026-01-31T09:00 (UTC), not {text!r}"
        )
    return since_ms
