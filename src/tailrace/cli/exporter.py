"""``tailrace exporter``: serve topics, groups and lag of a cluster to Prometheus."""

from __future__ import annotations

import argparse
import logging
import re
from typing import TYPE_CHECKING

from tailrace.cli.options import CONNECTION_HELP, add_connection_options, add_log_options, connection_settings
from tailrace.cli.output import counted
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError

if TYPE_CHECKING:
    from tailrace.integrations.cluster_exporter import ClusterExporter

__all__ = ["arguments", "run"]

_log = logging.getLogger("tailrace")

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
    import asyncio

    from tailrace.observe.log_format import configure_logging

    configure_logging(options.log_level, options.log_format)
    return asyncio.run(_serve(options))


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"must be a port number up to 65535, or 0 for any free port, not {text!r}")
    return int(text)


def _regex(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression, not {text!r}: {error}") from error


async def _serve(options: argparse.Namespace) -> int:
    """Serve metrics until SIGTERM or SIGINT, and return the exit code.

    Raises:
        ConfigurationError: an option is missing or wrong, or the port is in use.
        AuthenticationError: TLS or SASL failed at the start.
    """
    import asyncio
    import signal

    import anyio

    from tailrace.config import resolve
    from tailrace.integrations.cluster_exporter import ClusterExporter, name_filter, serve_exporter
    from tailrace.net.cluster import Cluster
    from tailrace.signals import handle_signals

    config = resolve(connection_settings(options))
    if not config.bootstrap_servers:
        raise ConfigurationError("brokers are missing - give --bootstrap-servers HOST:PORT, or --app MODULE:APP")
    cluster = Cluster(config)
    exporter = ClusterExporter(
        cluster,
        topics=name_filter(options.topic_filter, options.topic_exclude),
        groups=name_filter(options.group_filter, options.group_exclude),
        timeout_s=options.timeout,
    )
    stopped = asyncio.Event()
    try:
        with handle_signals([signal.SIGTERM, signal.SIGINT], stopped.set):
            async with (
                serve_exporter(exporter, port=options.http_port, host=options.http_host) as server,
                anyio.create_task_group() as tasks,
            ):
                _log.info("metrics are served at http://%s:%d/metrics", options.http_host or "*", server.port)
                tasks.start_soon(_collect_once, exporter)
                await stopped.wait()
                tasks.cancel_scope.cancel()
    finally:
        cluster.close()
    return 0


async def _collect_once(exporter: ClusterExporter) -> None:
    """Collect once and log the result, so that wrong credentials end the command before the first scrape.

    Raises:
        AuthenticationError: TLS or SASL failed.
    """
    try:
        found = await exporter.collect()
    except AuthenticationError:
        raise
    except BrokerConnectionError:
        return  # collect() has logged the error, and the brokers may start later.
    topics = {one.topic for one in found.partitions}
    _log.info("found %s and %s", counted(len(topics), "topic"), counted(len(found.groups), "group"))
