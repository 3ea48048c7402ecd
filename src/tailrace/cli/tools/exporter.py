"""Implementation of ``tailrace exporter``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

import anyio

from tailrace.cli.tools.connection import connection_settings
from tailrace.cli.tools.tables import counted
from tailrace.config import resolve
from tailrace.errors import AuthenticationError, BrokerConnectionError, ConfigurationError
from tailrace.integrations.cluster_exporter import ClusterExporter, name_filter, serve_exporter
from tailrace.net.cluster import Cluster
from tailrace.signals import handle_signals

__all__ = ["work"]

_log = logging.getLogger("tailrace")


async def work(options: argparse.Namespace) -> int:
    """Serve metrics until SIGTERM or SIGINT, and return the exit code.

    Raises:
        ConfigurationError: an option is missing or wrong, or the port is in use.
        AuthenticationError: TLS or SASL failed at the start.
    """
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
