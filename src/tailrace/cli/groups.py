"""Arguments and help of ``tailrace groups``, which ``cli.tools.groups`` implements."""

from __future__ import annotations

import argparse

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options, add_group

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
List, show or delete the groups of a cluster.

The column "type" shows which protocol a consumer group uses: classic, or
consumer (KIP-848). For other groups it shows their protocol type, such as
connect.
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
List the groups that you are authorized to describe, with state, type and number
of live members.
"""

_LIST_EPILOG = """\
examples:
  tailrace groups list
  tailrace groups list --json | jq -r 'select(.members == 0).group'
"""

_SHOW = """\
Show a group's state, type, assignor and coordinator. For each live member, show
the client id, host, assigned partitions and member id.
"""

_SHOW_EPILOG = """\
examples:
  tailrace groups show billing
  tailrace groups show billing --json | jq '.members | length'
"""

_DELETE = """\
Delete groups and their committed offsets. Without --execute, only list the
groups.

No group is deleted if one of them does not exist or has live members. Deleting
cannot be undone: a new group of the same name starts at its auto_offset_reset.
"""

_DELETE_EPILOG = """\
examples:
  tailrace groups delete billing-test
  tailrace groups delete load-1 load-2 load-3 --execute
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the help texts, options and actions of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_connection_options(parser)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION")

    def add_action(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        action_parser = actions.add_parser(
            name,
            help=summary,
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )
        add_connection_options(action_parser, inner=True)
        return action_parser

    add_action("list", "list groups (the default)", _LIST, _LIST_EPILOG)
    add_group(add_action("show", "show a group and its members", _SHOW, _SHOW_EPILOG))
    delete = add_action("delete", "delete groups and their committed offsets", _DELETE, _DELETE_EPILOG)
    delete.add_argument("groups", nargs="+", metavar="GROUP", help="name of a group without live members")
    delete.add_argument("--execute", action="store_true", help="delete the groups (default: dry run)")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from tailrace.cli.tools.groups import work  # noqa: PLC0415
    from tailrace.cli.tools.shutdown import run_to_exit_code  # noqa: PLC0415 - not needed by --help

    return run_to_exit_code(work(options))
