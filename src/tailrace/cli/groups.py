"""Arguments and help of ``tailrace groups``; ``tools.groups`` implements it."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, add_group

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
List, show or delete the groups of a cluster.

The type of a consumer group is its group protocol: classic, or consumer for
KIP-848. The type of any other group is its protocol type, such as connect.
"""

_EPILOG = f"""\
examples:
  tailrace groups
  tailrace groups show billing
  tailrace groups show --app shop:billing --json | jq .members[].host
  tailrace groups delete billing-test --execute

{CONNECTION_HELP}
Run `tailrace groups ACTION --help` for the options of an action.
"""

_LIST = """\
List the groups that you are authorized to describe, each with its state, type
and number of live members.
"""

_LIST_EPILOG = """\
examples:
  tailrace groups list
  tailrace groups list --json | jq -r 'select(.members == 0).group'
"""

_SHOW = """\
Show a group's state, type, assignor and coordinator, and the client, host, id
and assigned partitions of each live member.
"""

_SHOW_EPILOG = """\
examples:
  tailrace groups show billing
  tailrace groups show billing --json | jq '.members | length'
"""

_DELETE = """\
Delete groups and their committed offsets. Without --execute, only list the
groups.

If one of the groups has live members, no group is deleted. Deleting cannot be
undone: a new group of the same name starts at its auto_offset_reset.
"""

_DELETE_EPILOG = """\
examples:
  tailrace groups delete billing-test
  tailrace groups delete load-1 load-2 load-3 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_connection_options(parser)
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
        add_connection_options(added, inner=True)
        return added

    action("list", "list groups (the default)", _LIST, _LIST_EPILOG)
    add_group(action("show", "show a group and its members", _SHOW, _SHOW_EPILOG))
    delete = action("delete", "delete groups and their committed offsets", _DELETE, _DELETE_EPILOG)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="name of a group without live members")
    delete.add_argument("--execute", action="store_true", help="delete the groups (default: dry run)")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.tools.groups import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help

    return run_to_exit_code(work(options))
