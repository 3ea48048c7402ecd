"""Arguments and help of ``tailrace lag``, which ``cli.tools.lag`` implements."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, add_group, seconds

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Show the lag of a group by partition and in total.

Lag is the end offset of the log minus the committed offset. Partitions without
a committed offset or without a leader have no lag; they are shown as "-" and
left out of the total.
"""

_EPILOG = f"""\
examples:
  tailrace lag billing
  tailrace lag --app shop:billing --watch
  tailrace lag billing --json | jq -s 'map(.lag // 0) | add'

{CONNECTION_HELP}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_group(parser)
    parser.add_argument("--watch", action="store_true", help="measure and print again every --interval, until Ctrl-C")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="SECONDS",
        help="time between measurements of --watch (default: 2)",
    )
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.tools.lag import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help

    return run_to_exit_code(work(options))
