"""Options of commands that select the brokers and the group.

``--help`` imports this module, so it does not import the modules that only a running command needs.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.context_managers import asynccontextmanager
from tailrace.errors import ConfigurationError, UnknownGroupError

if TYPE_CHECKING:
    from tailrace.config import ConsumerConfig
    from tailrace.net.cluster import Cluster

__all__ = [
    "CONNECTION_HELP",
    "add_connection_options",
    "add_group",
    "connection_settings",
    "explicit_options",
    "group_of",
    "open_cluster",
    "seconds",
    "with_group_suggestion",
]

CONNECTION_HELP = """\
The options --bootstrap-servers and --set override the options of the App, which
override environment variables such as TAILRACE_BOOTSTRAP_SERVERS and
TAILRACE_SECURITY_PROTOCOL.
"""

ResultT = TypeVar("ResultT")


def add_connection_options(
    parser: argparse.ArgumentParser,
    *,
    inner: bool = False,
    json: bool = True,
    timeout_s: float = 30.0,
    timeout_help: str = "time limit of each operation on the cluster",
) -> None:
    """Add the connection options and ``--json``.

    Args:
        parser: parser of a command or an action.
        inner: True for an action, such as ``show``, if its command has the same options. The options of the action then
            have no defaults, because a default would replace a value that was given before the action.
        json: False to leave out ``--json``.
        timeout_s: default of ``--timeout``.
        timeout_help: help of ``--timeout``, without the default.
    """

    def default(value: object) -> Any:  # noqa: ANN401 - argparse takes any default
        return argparse.SUPPRESS if inner else value

    group = parser.add_argument_group("connection")
    group.add_argument(
        "--app", metavar="MODULE:APP", default=default(None), help="use the brokers, group and options of an App"
    )
    group.add_argument(
        "--set",
        action="append",
        metavar="OPTION=VALUE",
        default=default([]),
        help="set an option, such as security_protocol=SSL (repeatable)",
    )
    group.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT",
        default=default(None),
        help="brokers of the cluster, separated by commas",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        default=default(timeout_s),
        help=f"{timeout_help} (default: {timeout_s:.0f})",
    )
    if json:
        parser.add_argument(
            "--json", action="store_true", default=default(False), help="print JSON, one object per line"
        )
    parser.set_defaults(usage_error=parser.error)


def add_group(parser: argparse.ArgumentParser) -> None:
    """Add the optional positional argument ``GROUP``."""
    parser.add_argument(
        "group",
        nargs="?",
        metavar="GROUP",
        help="name of the group (default: the group of --app, else TAILRACE_GROUP_ID)",
    )


def seconds(text: str) -> float:
    """Parse a number of seconds that is greater than 0 and less than a million."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(
            f"must be a number of seconds greater than 0 and less than 1000000, not {text!r}"
        )
    return number


def explicit_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--app``, overridden by ``--set`` and ``--bootstrap-servers``.

    Options that are set only in the environment are not included.

    Raises:
        ConfigurationError: an option does not exist or has an invalid value, or the app cannot be loaded.
    """
    from tailrace.config import parse_option  # noqa: PLC0415

    found: dict[str, Any] = {}
    if options.app:
        from tailrace.app.app import load_app  # noqa: PLC0415 - a third of the import time

        # Hooks are left out, because they expect the events of the app, not of this command.
        found = {name: value for name, value in load_app(options.app).options.items() if name != "hooks"}
    for setting in options.set:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"--set must be OPTION=VALUE, not {setting!r}")
        found[name] = parse_option(name, text, "--set")
    if options.bootstrap_servers:
        found["bootstrap_servers"] = options.bootstrap_servers
    return found


@asynccontextmanager
async def open_cluster(options: argparse.Namespace) -> AsyncIterator[Cluster]:
    """Connect to the cluster for the duration of an ``async with`` block.

    Raises:
        ConfigurationError: an option is missing or wrong.
        BrokerConnectionError: no broker answers.
    """
    from tailrace import admin  # noqa: PLC0415

    async with admin.reached(**connection_settings(options)) as cluster:
        yield cluster


def connection_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return ``explicit_options``, with the commands' defaults of the client id and the connection timeout.

    Raises:
        ConfigurationError: an option does not exist or has an invalid value, or the app cannot be loaded.
    """
    defaults = {"client_id": "tailrace-tools", "socket_connection_setup_timeout_ms": 5_000}
    return {**defaults, **explicit_options(options)}


def group_of(options: argparse.Namespace, config: ConsumerConfig) -> str:
    """Return the name of the group: ``GROUP``, else the group of the app's handlers, else ``config.group_id``.

    Exit with a usage error if there is no group, or if the handlers of the app have several groups.
    """
    if options.group:
        return str(options.group)
    groups = {config.group_id} - {None}
    if options.app:
        from tailrace.app.app import load_app  # noqa: PLC0415

        groups = {one.group_id or config.group_id for one in load_app(options.app).declared} - {None} or groups
    if len(groups) > 1:
        options.usage_error(
            f"{options.app} has several groups: give one of {', '.join(sorted(map(str, groups)))} as GROUP"
        )
    if not groups:
        options.usage_error("a group is required: give GROUP or --app MODULE:APP, or set TAILRACE_GROUP_ID")
    return str(groups.pop())


async def with_group_suggestion(cluster: Cluster, group_id: str, request: Awaitable[ResultT]) -> ResultT:
    """Await ``request`` and return its result; add a similar group name to the message of an UnknownGroupError."""
    from difflib import get_close_matches  # noqa: PLC0415

    from tailrace.admin.groups import list_groups  # noqa: PLC0415

    try:
        return await request
    except UnknownGroupError as error:
        close = get_close_matches(group_id, [one.group_id for one in await list_groups(cluster)], n=1)
        if not close:
            raise
        raise UnknownGroupError(error.code, f"{error.detail}, did you mean {close[0]!r}?") from None
