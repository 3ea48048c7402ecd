"""How a tool reaches brokers and a group: what it is told on the command line, by an app, by the environment.

Rule of this file: a ``--help`` reads it, so whatever is heavy is imported when it is used.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.errors import ConfigurationError, UnknownGroupError

if TYPE_CHECKING:
    from tailrace.config import ConsumerConfig
    from tailrace.net.cluster import Cluster

__all__ = [
    "REACHING",
    "add_group",
    "add_reaching",
    "group_of",
    "hinting",
    "reached",
    "said_options",
    "seconds",
]

REACHING = """\
The brokers come from --bootstrap-servers, from the app, or from
TAILRACE_BOOTSTRAP_SERVERS; every other option from --set, from the app, or
likewise, such as TAILRACE_SECURITY_PROTOCOL.
"""

ResultT = TypeVar("ResultT")


def add_reaching(parser: argparse.ArgumentParser, *, inner: bool = False, json: bool = True) -> None:
    """What every tool takes; ``inner`` for an action of a command that takes the same before it."""

    def default(value: object) -> Any:  # noqa: ANN401 - as argparse has it
        return argparse.SUPPRESS if inner else value

    where = parser.add_argument_group("where")
    where.add_argument("--app", metavar="MODULE:APP", default=default(None), help="reach what this App does")
    where.add_argument(
        "--set",
        action="append",
        metavar="OPTION=VALUE",
        default=default([]),
        help="an option, such as group_id; repeat",
    )
    where.add_argument("--bootstrap-servers", metavar="HOST:PORT", default=default(None), help="any of the brokers")
    where.add_argument(
        "--timeout", type=seconds, metavar="SECONDS", default=default(30.0), help="wait so long for them (default: 30)"
    )
    if json:
        parser.add_argument("--json", action="store_true", default=default(False), help="lines of JSON, nothing else")
    parser.set_defaults(refuse=parser.error)


def add_group(parser: argparse.ArgumentParser) -> None:
    """The group that it is about; an app or the environment may say it, too."""
    parser.add_argument(
        "group", nargs="?", metavar="GROUP", help="its name (default: the group of --app, or TAILRACE_GROUP_ID)"
    )


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text} will not do: give seconds, more than 0")
    return number


def said_options(options: argparse.Namespace) -> dict[str, Any]:
    """The options as they were said: by ``--set``, else by the app.

    Raises:
        ConfigurationError: there is no such option or app.
    """
    from tailrace.config import parsed_option  # noqa: PLC0415

    said: dict[str, Any] = {}
    if options.app:
        from tailrace.app.loading import load_app  # noqa: PLC0415 - a third of what there is to import

        # Its hooks are told of its own life, and not of ours.
        said = {name: value for name, value in load_app(options.app).options.items() if name != "hooks"}
    for setting in options.set:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {setting}: write it as OPTION=VALUE")
        said[name] = parsed_option(name, text, "--set")
    if options.bootstrap_servers:
        said["bootstrap_servers"] = options.bootstrap_servers
    return said


@asynccontextmanager
async def reached(options: argparse.Namespace) -> AsyncIterator[Cluster]:
    """The cluster, for the length of an ``async with``.

    Raises:
        ConfigurationError: an option is missing or wrong.
        BrokerConnectionError: no broker answers.
    """
    from tailrace import admin  # noqa: PLC0415

    early: dict[str, Any] = {"client_id": "tailrace-tools", "socket_connection_setup_timeout_ms": 5_000}
    async with admin.reached(**{**early, **said_options(options)}) as cluster:
        yield cluster


def group_of(options: argparse.Namespace, config: ConsumerConfig) -> str:
    """The group that is meant; ends the command as called wrongly when nobody says."""
    if options.group:
        return str(options.group)
    groups = {config.group_id} - {None}
    if options.app:
        from tailrace.app.loading import load_app  # noqa: PLC0415

        groups = {one.group_id or config.group_id for one in load_app(options.app).declared} - {None} or groups
    if len(groups) > 1:
        options.refuse(f"which group? - {options.app} has {', '.join(sorted(map(str, groups)))}")
    if not groups:
        options.refuse("which group? - give it, or --app MODULE:APP, or set TAILRACE_GROUP_ID")
    return str(groups.pop())


async def hinting(cluster: Cluster, group_id: str, asking: Awaitable[ResultT]) -> ResultT:
    """What ``asking`` gives; when there is no such group, the error names one that may have been meant.

    Raises:
        UnknownGroupError: there is none.
    """
    from difflib import get_close_matches  # noqa: PLC0415

    from tailrace.admin.groups import list_groups  # noqa: PLC0415

    try:
        return await asking
    except UnknownGroupError as error:
        close = get_close_matches(group_id, [one.group_id for one in await list_groups(cluster)], n=1)
        if not close:
            raise
        raise UnknownGroupError(error.code, f"{error.detail}, did you mean {close[0]!r}?") from None
