"""Arguments and help of ``tailrace tail``, which ``cli.tools.tail`` implements."""

from __future__ import annotations

import argparse
import re

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options
from tailrace.cli.tools.filters import parse_condition
from tailrace.cli.tools.numbers import positive_integer
from tailrace.cli.tools.times import TailStart, parse_start

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Print the records of a topic until Ctrl-C; by default, only new records.

Each record is one line of JSON with topic, partition, offset, timestamp, key,
value and headers. A value that is a JSON object or array is embedded unchanged.
Any other value is a string: the text itself, or hex if it is not text. The
field value_format is JSON, text, hex or null. Records of a partition are in
order.
"""

_EPILOG = f"""\
examples:
  tailrace tail orders
  tailrace tail orders --from -10 --no-follow
  tailrace tail orders --from 2026-01-31T09:00 --where customer.id=17 --max 5
  tailrace tail orders --from earliest --where key=ann --format table
  tailrace tail orders --from 1h | jq -c .value.total

conditions of --where:
  key=ann             the key is ann
  status=paid         the field "status" of the JSON value is paid
  lines.0.sku=A17     the field "sku" of the first element of "lines" is A17
  header.trace~4bf92  the header "trace" contains 4bf92
  total!=0            the field "total" is not 0, or is missing

{CONNECTION_HELP}
The command joins no group and commits no offset.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "--from",
        dest="start",
        type=parse_start,
        default=TailStart("latest"),
        metavar="START",
        help="earliest, latest, an offset, -N for the last N offsets of each partition, an ISO 8601 time, or an age"
        " such as 1h (default: latest)",
    )
    parser.add_argument("--max", type=positive_integer, metavar="N", help="stop after N records")
    parser.add_argument(
        "--no-follow", action="store_true", help="print only records that exist at the start, then exit"
    )
    parser.add_argument(
        "--where",
        type=parse_condition,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="print only matching records (repeatable; all conditions must match)",
    )
    parser.add_argument(
        "--partition",
        type=_partitions,
        action="append",
        default=[],
        metavar="N[,N]",
        help="read only these partitions (repeatable)",
    )
    parser.add_argument(
        "--format",
        choices=["json", "table", "raw"],
        default="json",
        help="output format; raw prints only the value (default: %(default)s)",
    )
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="same as --format json")
    add_connection_options(parser, json=False)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help
    from tailrace.cli.tools.tail import work  # noqa: PLC0415

    return run_to_exit_code(work(options))


def _partitions(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise argparse.ArgumentTypeError(f"must be partition numbers, such as 0 or 0,3, not {text!r}")
    return tuple(map(int, text.split(",")))
