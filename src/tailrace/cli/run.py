"""``tailrace run``: an app until SIGTERM."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tailrace.errors import ConfigurationError
from tailrace.extras import install_hint

if TYPE_CHECKING:
    from tailrace.config import ConsumerOptions

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Run the handlers of an app until SIGTERM or Ctrl-C.

Then nothing more is begun, handlers that run may end, what is done is
committed, and the group is left; a second signal ends it at once. It exits
with 0 then, and with 1 when the app cannot go on.

With --workers it runs in several processes, which share the partitions. One
that dies is started again, and has its partitions back.
"""

_EPILOG = """\
examples:
  tailrace run shop:billing
  tailrace run shop:billing --workers 4
  tailrace run shop:billing --reload
  tailrace run shop.apps:billing --set bootstrap_servers=kafka:9092
  TAILRACE_BOOTSTRAP_SERVERS=kafka:9092 tailrace run shop:billing

The part before the colon is a module, as `import` wants it, looked for in this
folder too; the part behind it is the App in it. Options come from --set, then
from the App itself, then from TAILRACE_... variables.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("app", metavar="MODULE:APP", help="where the App is, such as shop:billing")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="set an option; may be given several times"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="run it in N processes, each a member of the group by its own name"
    )
    parser.add_argument(
        "--reload", action="store_true", help="start it anew whenever a source file in this folder changes"
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

    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if options.workers is not None or options.reload:
        return _run_workers(options)
    from tailrace.app.loading import load_app  # noqa: PLC0415

    app = load_app(options.app)
    app.configure(**_settings(options))
    asyncio.run(app.run())
    return 0


def _settings(options: argparse.Namespace) -> ConsumerOptions:
    from tailrace.config import parsed_option  # noqa: PLC0415

    settings: dict[str, object] = {}
    for setting in options.set:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ConfigurationError(f"--set {setting}: write it as OPTION=VALUE")
        settings[name] = parsed_option(name, text, "--set")
    return cast("ConsumerOptions", settings)


def _run_workers(options: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415

    from tailrace.app.processes.worker_pool import WorkerPool  # noqa: PLC0415

    pool = WorkerPool(
        options.app,
        workers=1 if options.workers is None else options.workers,
        log_level=options.log_level,
        final_is_final=not options.reload,
        **_settings(options),
    )
    if not options.reload:
        asyncio.run(pool.run())
        return 0
    if find_spec("watchfiles") is None:
        raise ConfigurationError(f"--reload needs watchfiles - {install_hint('cli')}")
    from tailrace.app.processes.reload import run_reloading  # noqa: PLC0415

    asyncio.run(run_reloading(pool, Path.cwd()))
    return 0
