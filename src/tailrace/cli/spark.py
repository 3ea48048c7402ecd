"""Arguments and help of ``tailrace spark``, which ``cli.tools.spark`` implements."""

from __future__ import annotations

import argparse
from typing import Literal

from tailrace.cli.tools.numbers import positive_integer
from tailrace.cli.tools.times import parse_time

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Run an app's handlers on Apache Spark.

Spark starts at the committed offsets of the app's group and commits to the
same group, so `tailrace run` continues where Spark stopped, and vice versa.
The group must have no live members: stop `tailrace run` first.
"""

_EPILOG = """\
examples:
  tailrace spark backfill shop:billing charge
  tailrace spark run shop:billing charge --checkpoint /var/lib/billing
  tailrace spark handoff shop:billing charge && tailrace run shop:billing

HANDLER is the name of the handler function. Set Spark properties with --conf.
Options of the app that --set gives override those in its code, which override
environment variables such as TAILRACE_BOOTSTRAP_SERVERS.

Run `tailrace spark ACTION --help` for the options of an action.
"""

_RUN = """\
Handle existing and new records in micro-batches until SIGTERM or Ctrl-C, and
commit the offsets of each batch to the group.

On the first signal no further batch starts, and the running batch has 20
seconds to finish. On a second signal the command stops at once. After the next
start, an interrupted batch is handled again.

With --trigger available_now, handle only the records that exist when the
command starts, then exit.
"""

_BACKFILL = """\
Handle the existing records in batches, then exit. Offsets are committed after
each batch, so the next backfill continues where an interrupted one stopped.
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

exit codes: 0 the lag is at most --max-lag, 1 the lag is above --max-lag after
ten backfills, or a backfill failed, 2 usage error
"""

_HANDOFF = """\
Run a backfill, and further ones for the records that arrived meanwhile, until
the lag of the group is at most --max-lag, or ten backfills have run. Then print
the lag. `tailrace run` continues at the committed offsets.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the help texts and actions of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
    run_parser = _add_action(actions, parser, "run", "handle records until SIGTERM", _RUN)
    run_parser.epilog = _RUN_EPILOG
    run_parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FOLDER",
        help="Spark's checkpoint folder; each handler and group needs its own",
    )
    run_parser.add_argument(
        "--trigger",
        metavar="TIME",
        help="interval between the starts of batches, such as '5 seconds', or available_now (default: start each batch"
        " when the previous batch has ended)",
    )
    backfill = _add_action(actions, parser, "backfill", "handle the existing records", _BACKFILL)
    backfill.epilog = _BACKFILL_EPILOG
    _add_since(backfill)
    backfill.add_argument(
        "--until",
        type=_TimeOrWord("now"),
        default="now",
        metavar="TIME",
        help="end before the first record at or after this ISO 8601 time; now: end at the current ends of the"
        " partitions (default: now)",
    )
    handoff = _add_action(actions, parser, "handoff", "backfill until the app can take over", _HANDOFF)
    handoff.epilog = _HANDOFF_EPILOG
    _add_since(handoff)
    handoff.add_argument(
        "--max-lag",
        type=positive_integer,
        default=10_000,
        metavar="N",
        help="stop when the lag is at most N records (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.tools.spark import work  # noqa: PLC0415 - not needed by --help

    return work(options)


def _add_action(
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
    action.add_argument("app", metavar="MODULE:APP", help="module and name of the app, such as shop:billing")
    action.add_argument(
        "handler", nargs="?", metavar="HANDLER", help="name of the handler (default: the app's only handler)"
    )
    action.add_argument(
        "--master", metavar="URL", help="Spark master, such as yarn (default: local[*,4], all cores of this machine)"
    )
    action.add_argument(
        "--conf", action="append", default=[], metavar="spark.NAME=VALUE", help="set a Spark property (repeatable)"
    )
    action.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="set an option of the app (repeatable)"
    )
    action.add_argument(
        "--parallelism", type=positive_integer, metavar="N", help="number of Spark tasks (default: one per partition)"
    )
    action.add_argument(
        "--max-records-per-batch",
        type=positive_integer,
        default=200_000,
        metavar="N",
        help="maximum number of records in a batch; after a crash, at most one batch is handled again (default:"
        " %(default)s)",
    )
    return action


def _add_since(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--since",
        type=_TimeOrWord("earliest"),
        metavar="TIME",
        help="where to start partitions without a committed offset: an ISO 8601 time, or earliest (default: the app's"
        " auto_offset_reset)",
    )


class _TimeOrWord:
    """Parser of an argument: returns ``word`` itself, and an ISO 8601 time as milliseconds since the epoch."""

    def __init__(self, word: Literal["now", "earliest"]) -> None:
        self._word = word

    def __call__(self, text: str) -> int | str:
        return text if text == self._word else parse_time(text)
