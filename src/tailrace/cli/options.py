"""Options that commands share: their declaration, the parsing of their values, and the cluster that they name.

``--help`` imports this module, so modules that only a running command needs are imported inside functions.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace import admin
from tailrace.errors import ConfigurationError, UnknownGroupError

if TYPE_CHECKING:
    from tailrace.config import ConsumerConfig
    from tailrace.net.cluster import Cluster

__all__ = [
    "CONNECTION_HELP",
    "WITHOUT_GROUP",
    "add_actions",
    "add_connection_options",
    "add_group",
    "add_log_options",
    "app_settings",
    "connection_settings",
    "explicit_options",
    "group_of",
    "open_cluster",
    "parse_duration",
    "parse_time",
    "positive_integer",
    "seconds",
    "split_settings",
    "with_group_suggestion",
]

CONNECTION_HELP = """\
The options --bootstrap-servers and --set override the options of the App, which
override environment variables such as TAILRACE_BOOTSTRAP_SERVERS and
TAILRACE_SECURITY_PROTOCOL.
"""

ResultT = TypeVar("ResultT")

# ---- declaration ----------------------------------------------------------------------------------------------------


def add_actions(
    parser: argparse.ArgumentParser, *, usage: str | None = None, required: bool = True
) -> Callable[[str, str, str, str], argparse.ArgumentParser]:
    """Return a function that adds an action, such as ``show``, by its name, summary, description and epilog."""
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=required)

    def add(name: str, summary: str, description: str, epilog: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=summary,
            usage=usage and f"{parser.prog} {name} {usage}",
            description=description,
            epilog=epilog,
            formatter_class=parser.formatter_class,
            allow_abbrev=False,
        )

    return add


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
    parser.add_argument(
        "group",
        nargs="?",
        metavar="GROUP",
        help="name of the group (default: the group of --app, else TAILRACE_GROUP_ID)",
    )


def add_log_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="lowest level to log (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=["console", "json"],
        default="console",
        help="format of the log on stderr (default: %(default)s)",
    )


# ---- values ---------------------------------------------------------------------------------------------------------

_UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_PARTS = "".join(rf"(?:{_NUMBER}{unit})?" for unit in _UNIT_SECONDS)
_ISO = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.IGNORECASE
)


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


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


def parse_duration(text: str) -> float:
    """Parse a duration such as ``PT1H``, ``P1DT30M``, ``90s`` or ``1h30m`` and return seconds."""
    found = _ISO.fullmatch(text) or re.fullmatch(_PARTS, text)
    if found is None or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"must be a duration, such as 90s, 1h30m, 2d, PT1H or P1DT12H, not {text!r}")
    return sum(
        float(number) * size for number, size in zip(found.groups(), _UNIT_SECONDS.values(), strict=True) if number
    )


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time and return milliseconds since the epoch."""
    try:
        at = datetime.fromisoformat(text)
        milliseconds = round((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise argparse.ArgumentTypeError(
            f"must be a time since 1970, such as 2026-01-31, 2026-01-31T09:00 (UTC) or 2026-01-31T09:00+02:00,"
            f" not {text!r}"
        )
    return milliseconds


# ---- app and cluster ---------------------------------------------------------------------------------------------

WITHOUT_GROUP: dict[str, Any] = {
    "auto_offset_reset": "earliest",
    "group_id": None,
    "group_protocol": "classic",
    "group_instance_id": None,
    "group_remote_assignor": None,
    "enable_auto_commit": None,
    "post_rebalance_callback": None,
    "rebalance_listener": None,
    "reset_offset_on_start": False,
}
"""Options of a consumer without a group, in place of those that --app or the environment has for the app's group."""


def split_settings(settings: Iterable[str], form: str = "--set must be OPTION=VALUE") -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each setting; ``form`` is the message for a setting without ``=``."""
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"{form}, not {setting!r}")
        yield name, text


def app_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--set``, with values of the options' types.

    Raises:
        ConfigurationError: an option does not exist or has an invalid value.
    """
    from tailrace.config import parse_option

    return {name: parse_option(name, text, "--set") for name, text in split_settings(options.set)}


def explicit_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--app``, overridden by ``--set`` and ``--bootstrap-servers``.

    Options that are set only in the environment are not included.

    Raises:
        ConfigurationError: an option does not exist or has an invalid value, or the app cannot be loaded.
    """
    found: dict[str, Any] = {}
    if options.app:
        from tailrace.app.app import load_app

        # Hooks are left out, because they expect the events of the app, not of this command.
        found = {name: value for name, value in load_app(options.app).options.items() if name != "hooks"}
    found |= app_settings(options)
    if options.bootstrap_servers:
        found["bootstrap_servers"] = options.bootstrap_servers
    return found


def connection_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return ``explicit_options``, with the commands' defaults of the client id and the connection timeout."""
    defaults = {"client_id": "tailrace-tools", "socket_connection_setup_timeout_ms": 5_000}
    return {**defaults, **explicit_options(options)}


def open_cluster(options: argparse.Namespace) -> AbstractAsyncContextManager[Cluster]:
    """Connect to the cluster for the duration of an ``async with`` block.

    Raises:
        ConfigurationError: an option is missing or wrong.
        BrokerConnectionError: no broker answers.
    """
    return admin.reached(**connection_settings(options))


def group_of(options: argparse.Namespace, config: ConsumerConfig) -> str:
    """Return the name of the group: ``GROUP``, else the group of the app's handlers, else ``config.group_id``.

    Exit with a usage error if there is no group, or if the handlers of the app have several groups.
    """
    if options.group:
        return str(options.group)
    groups = {config.group_id} - {None}
    if options.app:
        from tailrace.app.app import load_app

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
    from difflib import get_close_matches

    try:
        return await request
    except UnknownGroupError as error:
        close = get_close_matches(group_id, [one.group_id for one in await admin.list_groups(cluster)], n=1)
        if not close:
            raise
        raise UnknownGroupError(error.code, f"{error.detail}, did you mean {close[0]!r}?") from None
