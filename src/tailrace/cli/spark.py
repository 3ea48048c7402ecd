"""``tailrace spark``: what it says of itself; what it does stands in ``tools.spark``."""

from __future__ import annotations

import argparse
from typing import Literal

from tailrace.cli.tools.times import parse_time

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Run an app's handlers on Spark, for the app's own group: where the group stands
is where Spark begins, and what is done is committed to the group, so that
`tailrace run` goes on exactly there, and the other way round.

No member of the group may be live meanwhile; stop `tailrace run` first.
"""

_EPILOG = """\
examples:
  tailrace spark backfill shop:billing charge
  tailrace spark run shop:billing charge --checkpoint /var/lib/billing
  tailrace spark handoff shop:billing charge && tailrace run shop:billing

HANDLER is the function's name; it may be left out where the app has only one.
Spark runs on this machine, with all cores, unless --master says another place.
Its own settings come by --conf, the app's by --set and TAILRACE_... variables.

`tailrace spark ACTION --help` tells more of each.
"""

_RUN = """\
Handle what is there and what comes, in micro-batches, until SIGTERM or Ctrl-C.
After each, its offsets are committed to the group, as `tailrace lag` shows.

Then no batch is begun, and the one under way has 20 seconds to come to its end;
one that is cut short is handled again. A second signal does not wait.
"""

_BACKFILL = """\
Handle what is there now, in bounded batches, and end. The group is committed
after each, so that a backfill that is cut short goes on where it was.
"""

_RUN_EPILOG = """\
examples:
  tailrace spark run shop:billing charge --checkpoint /var/lib/billing
  tailrace spark run shop:billing charge --checkpoint hdfs:///billing \\
    --master yarn --conf spark.executor.memory=4g --trigger '10 seconds'
"""

_BACKFILL_EPILOG = """\
examples:
  tailrace spark backfill shop:billing charge
  tailrace spark backfill shop:billing --since 2026-01-01 \\
    --conf spark.cores.max=8
"""

_HANDOFF_EPILOG = """\
examples:
  tailrace spark handoff shop:billing charge && tailrace run shop:billing
  tailrace spark handoff shop:billing --max-lag 500 \\
    --max-records-per-batch 50000
"""

_HANDOFF = """\
Backfill, and again what came meanwhile, until so little is left that the live
app may take over; then say where the group stands.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    stream = _action(actions, parser, "run", "until it is told to end", _RUN)
    stream.epilog = _RUN_EPILOG
    stream.add_argument("--checkpoint", required=True, metavar="FOLDER", help="a folder of its own")
    stream.add_argument(
        "--trigger", metavar="TIME", help="begin a batch so often, such as '5 seconds'; or available_now"
    )
    backfill = _action(actions, parser, "backfill", "what is there now", _BACKFILL)
    backfill.epilog = _BACKFILL_EPILOG
    _since(backfill)
    backfill.add_argument(
        "--until", type=_moment("now"), default="now", metavar="TIME", help="end at a time instead of now"
    )
    handoff = _action(actions, parser, "handoff", "until the live app may take over", _HANDOFF)
    handoff.epilog = _HANDOFF_EPILOG
    _since(handoff)
    handoff.add_argument(
        "--max-lag", type=_count, default=10_000, metavar="N", help="leave so many to it (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from tailrace.cli.tools.spark import work  # noqa: PLC0415 - all that a --help does without

    return work(options)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    parser: argparse.ArgumentParser,
    name: str,
    summary: str,
    description: str,
) -> argparse.ArgumentParser:
    action = actions.add_parser(
        name,
        help=summary,
        description=description,
        formatter_class=parser.formatter_class,
        allow_abbrev=False,
    )
    action.add_argument("app", metavar="MODULE:APP", help="where the App is, such as shop:billing")
    action.add_argument("handler", nargs="?", metavar="HANDLER", help="which one, if it has several")
    action.add_argument("--master", metavar="URL", help="where Spark runs (default: local[*,4])")
    action.add_argument(
        "--conf", action="append", default=[], metavar="spark.NAME=VALUE", help="a setting of Spark's own; repeat"
    )
    action.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the app; repeat"
    )
    action.add_argument("--parallelism", type=_count, metavar="N", help="so many tasks, not one a partition")
    action.add_argument(
        "--max-records-per-batch",
        type=_count,
        default=200_000,
        metavar="N",
        help="so many at most are handled again after a crash (default: %(default)s)",
    )
    return action


def _since(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--since",
        type=_moment("earliest"),
        metavar="TIME",
        help="where to begin if the group has committed nothing: a time, or earliest",
    )


class _moment:  # noqa: N801 - it stands where a type stands, and names itself to argparse
    """A time of ISO 8601, or one word."""

    def __init__(self, word: Literal["now", "earliest"]) -> None:
        self._word = word

    def __call__(self, text: str) -> int | str:
        return text if text == self._word else parse_time(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} will not do: give a whole number from 1")
    return int(text)
