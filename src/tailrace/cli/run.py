"""``tailrace run``: run an app's handlers until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tailrace.cli.options import add_log_options, app_settings
from tailrace.errors import ConfigurationError
from tailrace.installation import install_hint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tailrace.app.app import App
    from tailrace.app.processes.worker_pool import WorkerPool
    from tailrace.config import ConsumerOptions

__all__ = ["arguments", "run"]

_DESCRIPTION = """\
Run an app's handlers until SIGTERM or Ctrl-C.

On the first signal the app starts no more handlers, waits for the running ones,
commits, and leaves its groups, all within stop_timeout_ms. On a second signal
the app stops at once.

With --workers, the app runs in N worker processes. Each process is a member of
the app's groups; a process that dies is restarted.
"""

_EPILOG = """\
examples:
  tailrace run shop:billing
  tailrace run shop:billing --workers 4 --http-port 8080
  tailrace run shop:billing --reload
  tailrace run shop.apps:billing --set bootstrap_servers=kafka:9092
  TAILRACE_BOOTSTRAP_SERVERS=kafka:9092 tailrace run shop:billing

MODULE is an importable module, for example one in the current directory; APP is
the name of the App object in it. Options of --set override those of the App,
which override environment variables such as TAILRACE_BOOTSTRAP_SERVERS.

exit codes: 0 stopped by a signal, 1 the app failed, 2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("app", metavar="MODULE:APP", help="the app to run, such as shop:billing")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="set an option of the app (repeatable)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="run the app in N worker processes (default: in this process)"
    )
    parser.add_argument(
        "--reload", action="store_true", help="restart when a Python file in the current directory changes"
    )
    parser.add_argument(
        "--http-port",
        type=int,
        metavar="PORT",
        help="serve /metrics, /livez, /readyz and /lag on this port, for all workers together",
    )
    parser.add_argument(
        "--http-host", default="", metavar="HOST", help="address to listen on with --http-port (default: all addresses)"
    )
    add_log_options(parser)


def run(options: argparse.Namespace) -> int:
    import asyncio

    from tailrace.observe.log_format import configure_logging

    configure_logging(options.log_level, options.log_format)
    if options.workers is not None or options.reload:
        return _run_workers(options)
    from tailrace.app.app import load_app

    app = load_app(options.app)
    app.configure(**cast("ConsumerOptions", app_settings(options)))
    asyncio.run(_run_serving(options, app, app.run))
    return 0


async def _run_serving(
    options: argparse.Namespace, source: App | WorkerPool, run: Callable[[], Awaitable[None]]
) -> None:
    """Await ``run()``; with ``--http-port``, serve probes and metrics of ``source`` meanwhile."""
    if options.http_port is None:
        await run()
        return
    from tailrace.integrations.endpoints import serve

    async with serve(source, port=options.http_port, host=options.http_host):
        await run()


def _run_workers(options: argparse.Namespace) -> int:
    import asyncio

    from tailrace.app.processes.worker_pool import WorkerPool

    pool = WorkerPool(
        options.app,
        workers=1 if options.workers is None else options.workers,
        log_level=options.log_level,
        log_format=options.log_format,
        stop_on_fatal_error=not options.reload,
        **cast("ConsumerOptions", app_settings(options)),
    )
    if not options.reload:
        asyncio.run(_run_serving(options, pool, pool.run))
        return 0
    if find_spec("watchfiles") is None:
        raise ConfigurationError(f"--reload needs watchfiles - {install_hint('cli')}")
    from tailrace.app.processes.worker_pool import run_reloading

    asyncio.run(_run_serving(options, pool, lambda: run_reloading(pool, Path.cwd())))
    return 0
