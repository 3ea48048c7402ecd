"""Prometheus: topics and groups of a cluster, under the names of kafka_exporter. Needs the extra ``prometheus``.

If the cluster is unreachable, a scrape gets status 503, so that Prometheus sets ``up`` to 0 and keeps no stale values.
kafka_exporter would respond with status 200, cached metadata and no groups, so that an alert on lag would not fire.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator

from tailrace.admin.cluster_samples import CLUSTER_METRICS, ClusterSnapshot, cluster_samples
from tailrace.admin.cluster_snapshot import cluster_snapshot
from tailrace.app.health.checks import Health
from tailrace.app.health.endpoint_server import EndpointServer, Render, Route
from tailrace.app.health.endpoints import HealthEndpoints, HttpAnswer
from tailrace.errors import TailraceError
from tailrace.installation import needs_extra
from tailrace.integrations.prometheus import encoded_registry
from tailrace.net.cluster import Cluster
from tailrace.observe.log_format import escaped

with needs_extra("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

__all__ = ["ClusterExporter", "name_filter", "serve_exporter"]

_OVERHEAD_S = 1.0
"""Seconds that a scrape may take in addition to the collection of the snapshot."""
_COMPLETE = "all brokers answer, and all metrics are served"
_TEXT = "text/plain; charset=utf-8"

_log = logging.getLogger("tailrace")


def name_filter(include: re.Pattern[str], exclude: re.Pattern[str] | None = None) -> Callable[[str], bool]:
    """Return a function that returns True for names in which ``include`` matches and ``exclude`` does not."""

    def accepts(name: str) -> bool:
        return include.search(name) is not None and (exclude is None or exclude.search(name) is None)

    return accepts


class ClusterExporter:
    """Collects snapshots of a cluster, one at a time.

    Args:
        cluster: cluster, which need not be connected.
        topics: returns True for the name of a topic to include.
        groups: returns True for the id of a group to include.
        timeout_s: maximum time of a collection, in seconds.
    """

    def __init__(
        self, cluster: Cluster, *, topics: Callable[[str], bool], groups: Callable[[str], bool], timeout_s: float
    ) -> None:
        self.timeout_s = timeout_s
        self._cluster, self._topics, self._groups = cluster, topics, groups
        self._lock = asyncio.Lock()
        self._collections = 0
        self._latest: ClusterSnapshot | TailraceError | None = None
        self._result = _COMPLETE

    async def collect(self) -> ClusterSnapshot:
        """Collect and return a snapshot; concurrent callers share one collection.

        Raises:
            TailraceError: the cluster cannot be reached.
        """
        collections_before = self._collections
        async with self._lock:
            if self._collections == collections_before or self._latest is None:
                self._latest = await self._collect()
                self._collections += 1
            if isinstance(self._latest, TailraceError):
                raise copy.copy(self._latest)
            return self._latest

    async def _collect(self) -> ClusterSnapshot | TailraceError:
        try:
            found = await cluster_snapshot(
                self._cluster, topics=self._topics, groups=self._groups, timeout_s=self.timeout_s
            )
        except TailraceError as error:
            self._report("no metrics", (str(error),))
            return error
        self._report("some metrics are absent" if found.failures else _COMPLETE, found.failures)
        return found

    def _report(self, result: str, failures: tuple[str, ...]) -> None:
        """Log the result of a collection if it differs from that of the previous collection."""
        if result == self._result:
            return
        self._result = result
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            _log.warning("%s: %s%s", result, failures[0], more)
        else:
            _log.info(result)


def serve_exporter(exporter: ClusterExporter, *, port: int, host: str = "") -> EndpointServer:
    """Return a server for ``/metrics`` and ``/healthz``, to be started in the event loop of the exporter's cluster.

    ``/metrics`` also has the metrics of prometheus-client's default registry.

    Args:
        exporter: source of the metrics.
        port: TCP port; 0 for any free port, which the started server has as its attribute ``port``.
        host: address to listen on; by default all addresses.

    Raises:
        ConfigurationError: the port is in use. Raised when ``async with`` starts the server.
    """

    async def metrics(accept: str) -> Render:
        try:
            found = await exporter.collect()
        except TailraceError as error:
            unreachable = HttpAnswer(503, f"no metrics: {escaped(str(error))}\n".encode(), _TEXT)
            return lambda: unreachable
        return lambda: HttpAnswer(200, *_encoded(found, accept))

    return EndpointServer(
        # The process is healthy even if the cluster is unreachable, because a restart would not help.
        HealthEndpoints(lambda: Health("ok")),
        port=port,
        host=host,
        routes={
            "/metrics": Route(metrics, timeout_s=exporter.timeout_s + _OVERHEAD_S),
            "/healthz": Route(_healthz),
            "/": Route(_index),
        },
    )


async def _healthz(_accept: str) -> Render:
    return lambda: HttpAnswer(200, b"ok\n", _TEXT)


async def _index(_accept: str) -> Render:
    return lambda: HttpAnswer(200, b"tailrace exporter: the metrics are at /metrics\n", _TEXT)


# ---- exposition --------------------------------------------------------------------------------------------------


class _SnapshotCollector(Collector):
    """Collector that returns the metrics of one snapshot."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Family]:
        return _families(self._snapshot)


def _encoded(snapshot: ClusterSnapshot, accept: str) -> tuple[bytes, str]:
    """Return the text of the metrics of a snapshot and of the default registry, and its content type."""
    joined = CollectorRegistry(auto_describe=False)
    joined.register(_SnapshotCollector(snapshot))
    joined.register(REGISTRY)
    return encoded_registry(joined, accept)


def _families(snapshot: ClusterSnapshot) -> Iterator[Family]:
    families = {name: Family(name, meaning, "gauge") for name, meaning in CLUSTER_METRICS.items()}
    for one in cluster_samples(snapshot):
        families[one.metric].add_sample(one.metric, dict(one.labels), one.value)
    yield from families.values()
