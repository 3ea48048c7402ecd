"""Arguments and help of ``tailrace doctor``; ``command`` implements it."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, seconds

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Find out what is wrong with a cluster, and with an app's use of it.

Brokers, controllers, clocks, topics, settings, groups, permissions and the
software of this process are checked. Each line is OK, skipped (for example for
lack of a permission), a warning or a problem, with the next step. Without
--app, --group and --topic, all topics of the cluster are checked.

Nothing is written: no group is joined, no offset committed, no topic created.
"""

_EPILOG = f"""\
examples:
  tailrace doctor
  tailrace doctor --app shop:billing
  tailrace doctor --group billing --topic orders --strict
  tailrace doctor --app shop:billing --json | jq -r 'select(.level=="problem")'

{CONNECTION_HELP}
exit codes: 0 no problem, 1 warnings with --strict, 2 problems or usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--group", action="append", default=[], metavar="GROUP", help="check this group and its topics (repeatable)"
    )
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC", help="check this topic (repeatable)")
    parser.add_argument(
        "--interval",
        type=seconds,
        metavar="SECONDS",
        help="time between two looks at a group with lag, to find stalled members (default: the app's"
        " auto_commit_interval_ms and 1 second more, else 6)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if there are warnings")
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.doctor.command import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import finished  # noqa: PLC0415 - not needed by --help

    return finished(work(options))
