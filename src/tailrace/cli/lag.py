"""``tailrace lag``: what it says of itself; what it does stands in ``tools.lag``."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import REACHING, add_group, add_reaching, seconds

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Show how far a group is behind, by partition and in sum.

The lag of a partition is what lies between the committed offset and the end of
its log. Of a partition without a commit none can be told: where its group will
begin is the members' auto_offset_reset. It is shown as - and counted apart, and
so is one without a leader, since nobody knows where that ends.
"""

_EPILOG = f"""\
examples:
  tailrace lag billing
  tailrace lag --app shop:billing --watch
  tailrace lag billing --json | jq -s 'map(.lag // 0) | add'

{REACHING}"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_group(parser)
    parser.add_argument("--watch", action="store_true", help="measure again and again, until Ctrl-C")
    parser.add_argument(
        "--interval", type=seconds, default=2.0, metavar="SECONDS", help="how often that is (default: 2)"
    )
    add_reaching(parser)


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from tailrace.cli.tools.lag import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import finished  # noqa: PLC0415 - all that a --help does without

    return finished(work(options))
