"""Arguments and help of ``tailrace exporter``, which ``cli.tools.exporter`` implements."""

from __future__ import annotations

import argparse
import re

from tailrace.cli.tools.connection import CONNECTION_HELP, add_connection_options
from tailrace.cli.tools.log_options import add_log_options

__all__ = ["arguments", "run"]

_PORT = 9308
_TIMEOUT_S = 8.0
"""Default of ``--timeout``: less than Prometheus' default ``scrape_timeout`` of 10 seconds."""

_DESCRIPTION = """\
Serve a cluster's topics, consumer groups and lag to Prometheus until SIGTERM or
Ctrl-C.

The metrics have the names and labels of kafka_exporter, so its Grafana
dashboard (7589) and its alerts work with them. Each scrape requests the data
from the brokers; concurrent scrapes share these requests. If no broker
answers, /metrics answers 503, and Prometheus sets "up" to 0. The exporter joins
no group, commits no offset and creates no topic.
"""

_EPILOG = f"""\
examples:
  tailrace exporter --bootstrap-servers kafka:9092
  tailrace exporter --http-port 8080 --group-filter '^billing'
  tailrace exporter --topic-exclude '^__' --group-exclude '^console-consumer-'

A REGEX is a Python regular expression. It matches a name if it is found
anywhere in the name; use ^ and $ to match the whole name.

{CONNECTION_HELP}
exit codes: 0 stopped by a signal, 1 failure, 2 usage error
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument(
        "--http-port", type=_port, default=_PORT, metavar="PORT", help="port of /metrics (default: %(default)s)"
    )
    parser.add_argument("--http-host", default="", metavar="HOST", help="address to listen on (default: all addresses)")
    for kind in ("topic", "group"):
        parser.add_argument(
            f"--{kind}-filter",
            type=_regex,
            default=re.compile(""),
            metavar="REGEX",
            help=f"include only matching {kind}s (default: all)",
        )
        parser.add_argument(f"--{kind}-exclude", type=_regex, metavar="REGEX", help=f"leave out matching {kind}s")
    add_log_options(parser)
    add_connection_options(
        parser, json=False, timeout_s=_TIMEOUT_S, timeout_help="time limit of the requests of a scrape"
    )


def run(options: argparse.Namespace) -> int:
    """Serve metrics until SIGTERM or SIGINT, and return the exit code."""
    import asyncio  # noqa: PLC0415 - not needed by --help

    from tailrace.cli.tools.exporter import work  # noqa: PLC0415
    from tailrace.observe.log_format import configure_logging  # noqa: PLC0415

    configure_logging(options.log_level, options.log_format)
    return asyncio.run(work(options))


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"must be a port number up to 65535, or 0 for any free port, not {text!r}")
    return int(text)


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, not {text!r}: {error}") from error
