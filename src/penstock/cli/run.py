"""``penstock run``: an app until SIGTERM."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.config import ConsumerOptions

__all__ = ["arguments", "load", "run"]

_DESCRIPTION = """\
Run the handlers of an app until SIGTERM or Ctrl-C.

Then nothing more is begun, handlers that run may end, what is done is
committed, and the group is left. It exits with 1 when the app cannot go on.
"""

_EPILOG = """\
examples:
  penstock run shop:billing
  penstock run shop.apps:billing --set bootstrap_servers=kafka:9092
  PENSTOCK_BOOTSTRAP_SERVERS=kafka:9092 penstock run shop:billing

The part before the colon is a module, as `import` wants it, looked for in this
folder too; the part behind it is the App in it. Options come from --set, then
from the App itself, then from PENSTOCK_... variables.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("app", metavar="MODULE:APP", help="where the App is, such as shop:billing")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="set an option; may be given several times"
    )
    parser.add_argument(
        "--log-level",
        choices=["debug", "info", "warning", "error"],
        default="info",
        help="what is told on stderr (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the app; returns when it was asked to end."""
    import asyncio  # noqa: PLC0415 - all that a --help does without
    import logging  # noqa: PLC0415

    from penstock.config import parsed_option  # noqa: PLC0415

    app = load(options.app)
    for setting in options.set:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {setting}: write it as OPTION=VALUE")
        app.configure(**cast("ConsumerOptions", {name: parsed_option(name, text, "--set")}))
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(app.run())
    return 0


def load(where: str) -> App:
    """The App at ``module:name``.

    Raises:
        ConfigurationError: there is none.
    """
    import sys  # noqa: PLC0415
    from importlib import import_module  # noqa: PLC0415

    from penstock.app.app import App  # noqa: PLC0415

    module_name, separator, name = where.partition(":")
    if not separator or not module_name or not name:
        raise ConfigurationError(f"{where!r} says no app - write MODULE:APP, such as shop:billing")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ConfigurationError(
            f"there is no module {module_name!r} - run this where `import {module_name}` works"
        ) from None
    found = getattr(module, name, None)
    if not isinstance(found, App):
        apps = [one for one, value in vars(module).items() if isinstance(value, App)]
        hint = f"it has {', '.join(apps)}" if apps else "it has no App at all"
        raise ConfigurationError(f"{name!r} of {module_name} is no App - {hint}")
    return found
