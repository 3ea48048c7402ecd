"""Arguments and help of ``tailrace doctor``, which ``command`` implements."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, seconds

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Check a cluster and, with --app, the topics, groups and permissions that the app
needs.

The command checks brokers, controllers, clocks, topics, settings, groups and
permissions, and the versions of the installed software. A finding is OK,
skipped (for example because a permission is missing), a warning, or a problem.
Warnings and problems have a next step. Without --app, --group and --topic, all
topics of the cluster are checked.

The command joins no group, commits no offset and creates no topic.
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
        help="time between two reads of the committed offsets of a group with lag, to find stalled members (default:"
        " with --app, its auto_commit_interval_ms plus 1 second; otherwise 6)",
    )
    parser.add_argument("--strict", action="store_true", help="exit with code 1 if there are warnings")
    add_connection_options(parser, timeout_help="time limit of all checks together, not counting --interval")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.doctor.command import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help

    return run_to_exit_code(work(options))
