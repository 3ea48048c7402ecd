"""``tailrace groups``: what it says of itself; what it does stands in ``tools.groups``."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import REACHING, add_group, add_reaching

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
List the consumer groups of a cluster, look into one, or delete some.

Groups of both protocols are shown alike; of others, such as Kafka Connect's,
the kind says what they are.
"""

_EPILOG = f"""\
examples:
  tailrace groups
  tailrace groups show billing
  tailrace groups show --app shop:billing --json | jq .members[].host
  tailrace groups delete billing-test --execute

{REACHING}
`tailrace groups ACTION --help` tells more of each.
"""

_LIST = """\
List all groups that we may see: state, kind, number of live members.
"""

_LIST_EPILOG = """\
examples:
  tailrace groups list
  tailrace groups list --json | jq -r 'select(.members == 0).group'
"""

_SHOW = """\
Show one group: its state, who deals, which broker coordinates it, and of each
live member its client, its host, its id and the partitions that it has.
"""

_SHOW_EPILOG = """\
examples:
  tailrace groups show billing
  tailrace groups show billing --json | jq '.members | length'
"""

_DELETE = """\
Delete groups, with all that they have committed. Without --execute it only
shows which.

It is refused while one of them has live members, which it names; then none is
deleted. There is no way back: a group of that name begins anew.
"""

_DELETE_EPILOG = """\
examples:
  tailrace groups delete billing-test
  tailrace groups delete load-1 load-2 load-3 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_reaching(parser)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION")

    def action(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        added = actions.add_parser(
            name,
            help=summary,
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        add_reaching(added, inner=True)
        return added

    action("list", "all that we may see (when nothing is said)", _LIST, _LIST_EPILOG)
    add_group(action("show", "one group and its members", _SHOW, _SHOW_EPILOG))
    delete = action("delete", "groups and what they committed", _DELETE, _DELETE_EPILOG)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="without live members")
    delete.add_argument("--execute", action="store_true", help="delete them; without it they are only listed")


def run(options: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from tailrace.cli.tools.groups import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import finished  # noqa: PLC0415 - all that a --help does without

    return finished(work(options))
