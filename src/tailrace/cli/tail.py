"""``tailrace tail``: what it says of itself; what it does stands in ``tools.tail``."""

from __future__ import annotations

import argparse
import re

from tailrace.cli.tools.connection import REACHING, add_reaching
from tailrace.cli.tools.filters import parse_condition
from tailrace.cli.tools.times import TailStart, parse_start

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Print the records of a topic as they come, until Ctrl-C.

Without --from it begins at the end: what is written from now on. As JSON each
record is a line: topic, partition, offset, timestamp, key, value, headers; a
value that is a JSON object or array stands in it as it is, any other as text,
or in hex where it is none (value_format says which). Order is kept within a
partition.
"""

_EPILOG = f"""\
examples:
  tailrace tail orders
  tailrace tail orders --from -10 --no-follow
  tailrace tail orders --from 2026-01-31T09:00 --where customer.id=17 --max 5
  tailrace tail orders --from earliest --where key=ann --format table
  tailrace tail orders --from 1h | jq -c .value.total

conditions:
  key=ann             the key, as text
  status=paid         a field of a JSON value; lines.0.sku goes deeper
  header.trace~4bf92  a header; ~ is contains
  total!=0            != takes records without the field, too

{REACHING}No group is joined and nothing is committed: to look changes nothing.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from",
        dest="start",
        type=parse_start,
        default=TailStart("latest"),
        metavar="START",
        help="earliest, latest, an offset, -N for the last N of each partition, a time, or how long ago: 1h",
    )
    parser.add_argument("--max", type=_count, metavar="N", help="stop after N records")
    parser.add_argument("--no-follow", action="store_true", help="stop at what is the end now")
    parser.add_argument(
        "--where",
        type=parse_condition,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="only records of which that is so; repeat for more, all of which have to be",
    )
    parser.add_argument(
        "--partition", type=_partitions, action="append", default=[], metavar="N[,N]", help="only these; repeat"
    )
    parser.add_argument(
        "--format",
        choices=["json", "table", "raw"],
        default="json",
        help="raw is the value alone (default: %(default)s)",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    add_reaching(parser, json=False)


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from tailrace.cli.tools.shutdown import finished  # noqa: PLC0415 - all that a --help does without
    from tailrace.cli.tools.tail import work  # noqa: PLC0415

    return finished(work(options))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} will not do: give a whole number, 1 or more")
    return int(text)


def _partitions(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"{text} will not do: give the numbers of partitions, such as 0 or 0,3")
    return tuple(map(int, text.split(",")))
